"""Reads back what the tables show, in the types in which it was written.

Invariant: a table read here has exactly `schema.arrow_schema`'s types, so that it can be compared with rows of the source value by value.
All reads are `FINAL`: one row per key, none where the last image is a deletion.

Ranges are by ClickHouse's order of the key: numbers and times by value, strings, enums and sets by bytes. A source that orders its keys by
a collation (or an enum by its members' places) cuts other ranges there; `orders_by_bytes` says for which columns that matters. What is cut
alike on both sides: ranges of the key's first columns up to the first such column, and CRC32 buckets of that column (MySQL's is the same).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.clickhouse.carriers import from_wire
from headrace.sinks.clickhouse.client import connect
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.layouts import LayoutScope, resolve
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.tables import shown_from
from headrace.sinks.clickhouse.values import literal

_NOT_UTF8 = re.compile(r"[\udc80-\udcff]")  # a byte NN that is no UTF-8 becomes U+DCNN
_TEXT = (Kind.STRING, Kind.JSON, Kind.ENUM, Kind.SET)
_ARROW_SETTINGS = {
    # Strings come as bytes and are checked to be UTF-8 here; the server would label any bytes as text.
    "output_format_arrow_string_as_string": "0",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "output_format_arrow_fixed_string_as_fixed_byte_array": "0",
}
_JSON_SETTINGS = {
    "output_format_json_quote_64bit_integers": "0",
    "output_format_json_quote_denormals": "1",
    "output_format_json_quote_decimals": "1",
}


class ClickHouseReader:
    """Reads one server."""

    def __init__(self, scope: LayoutScope) -> None:
        self._scope, self._target = scope, scope.target

    def read_range(self, schema: TableSchema, lower: tuple[Any, ...] | None = None, upper: tuple[Any, ...] | None = None) -> pa.Table:
        """The rows with lower < primary key <= upper (None: no bound; a shorter bound: on the key's first columns), in no order."""
        return self._read(schema, _range_condition(schema, lower, upper))

    def read_bucket(self, schema: TableSchema, column: str, bucket: int, buckets: int) -> pa.Table:
        """The rows with CRC32 of the column % buckets = bucket: a cut of text and binary keys on which every collation agrees."""
        return self._read(schema, f"CRC32({quote_name(column)}) % {buckets} = {bucket}")

    def count(self, schema: TableSchema) -> int:
        """How many rows the table shows."""
        _, rows = self.query(f"SELECT count() FROM {self._shown(schema)}")
        return int(rows[0][0])

    def query(self, sql: str) -> tuple[list[str], list[list[Any]]]:
        """Names and rows of a query's result, in JSON's types (decimals, dates and times as text); nothing for other statements."""
        connection = connect(self._target)
        with translated(self._target, "running a query"):
            settings = connection.known(_JSON_SETTINGS)
            headers = {"X-ClickHouse-Format": "JSONCompactEachRowWithNames"}
            raw = connection.client.raw_query(sql, settings=settings, transport_settings=headers)
        rows = [json.loads(line) for line in _readable(raw).split("\n") if line]
        return (rows[0], rows[1:]) if rows else ([], [])

    def _shown(self, schema: TableSchema) -> str:
        return shown_from(resolve(self._scope, [schema])[schema.name])

    def _read(self, schema: TableSchema, condition: str) -> pa.Table:
        connection = connect(self._target)
        columns = ", ".join(_selected(column) for column in schema.columns)
        sql = f"SELECT {columns} FROM {self._shown(schema)} WHERE {condition}"
        settings = connection.known(_ARROW_SETTINGS)
        if self._target.is_loopback:
            settings["output_format_arrow_compression_method"] = "none"
        with translated(self._target, f"reading table {schema.name}"):
            raw = connection.client.raw_query(sql, settings=settings, fmt="ArrowStream")
        table = pa.ipc.open_stream(raw).read_all()
        # By place, not by name: an expression's name is its text.
        arrays = [_restore(schema, column, table.column(index)) for index, column in enumerate(schema.columns)]
        return pa.table(arrays, schema=schema.arrow_schema)


def orders_by_bytes(column: Column) -> bool:
    """Whether ClickHouse orders the column by its bytes while a source may order it otherwise."""
    return column.kind in _TEXT


def _readable(raw: bytes) -> str:
    """JSON as text; bytes that are not UTF-8 are shown as \\xNN rather than refused, for this is for people."""
    return _NOT_UTF8.sub(lambda found: f"\\\\x{ord(found.group()) - 0xDC00:02x}", raw.decode("utf-8", errors="surrogateescape"))


def _selected(column: Column) -> str:
    name = quote_name(column.name)
    # Arrow's time of day cannot carry MySQL's times out of the server; microseconds can.
    return f"toInt64(toDecimal64({name}, 6) * 1000000)" if column.kind is Kind.TIME else name


def _restore(schema: TableSchema, column: Column, values: Any) -> Any:
    try:
        return _cast(column, values)
    except pa.ArrowInvalid as error:
        raise DefiniteError(
            f"column {column.name} holds values that its type in the source does not have: {error}",
            place=f"table {schema.name}, column {column.name}",
            hint="something else than Headrace has written to the target table",
        ) from error


def _cast(column: Column, values: Any) -> Any:
    match column.kind:
        case Kind.ENUM | Kind.SET:
            return values.cast(pa.string()).combine_chunks().dictionary_encode()
        case Kind.DATETIME:
            # Both are ticks in UTC; the zone is only a label.
            return values.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
        case Kind.TIME:
            return pa.chunked_array([chunk.view(pa.time64("us")) for chunk in values.chunks], pa.time64("us"))
    return from_wire(column, values)


def _range_condition(schema: TableSchema, lower: tuple[Any, ...] | None, upper: tuple[Any, ...] | None) -> str:
    bounds = [_beyond(schema, lower, ">", ">"), _beyond(schema, upper, "<", "<=")]
    return " AND ".join(bound for bound in bounds if bound) or "1"


def _beyond(schema: TableSchema, bound: tuple[Any, ...] | None, strict: str, last: str) -> str:
    """The key compared with the bound column by column, with a plain condition on the first that the sort index can use."""
    if bound is None:
        return ""
    if not 1 <= len(bound) <= len(schema.row_key):
        raise DefiniteError(f"a bound of {len(bound)} values for a key of {len(schema.row_key)}", place=f"table {schema.name}")
    pairs = [(quote_name(name), literal(schema.column(name), value)) for name, value in zip(schema.row_key, bound, strict=False)]
    condition = f"{pairs[-1][0]} {last} {pairs[-1][1]}"
    for name, value in reversed(pairs[:-1]):
        condition = f"{name} {strict} {value} OR {name} = {value} AND ({condition})"
    return f"({condition})" if len(pairs) == 1 else f"{pairs[0][0]} {strict}= {pairs[0][1]} AND ({condition})"
