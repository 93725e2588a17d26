"""Reads the tables' current rows back, in the Arrow types in which they were written.

Invariant: a table read here has exactly the types of `schema.arrow_schema`, so it can be compared with source rows value by value. All
reads see merged rows: one row per key, none where the last image is a deletion.

Ranges follow ClickHouse's key order: numbers and times by value, strings, enums and sets by bytes. A source that sorts keys by a collation
(or an enum by its members' index) has other ranges. Both sides agree on ranges of the leading key columns before the first such column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.server.bounded_client import arrow_table, json_rows
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import MetadataRole, StoredColumn, TargetTable
from headrace.sinks.clickhouse.tables.views import current_rows_from, live_condition
from headrace.sinks.clickhouse.types.codec import ColumnCodec
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.types.scalar_values import constant_sql, literal, scalar_value

_NOT_UTF8 = re.compile(r"[\udc80-\udcff]")  # a byte NN that is no UTF-8 becomes U+DCNN
_OWN_FORMAT = re.compile(r"\bFORMAT\s+\w+(\s+SETTINGS\s.*)?\s*;?\s*$", re.IGNORECASE | re.DOTALL)
_ARROW_SETTINGS = {
    # Strings come as bytes and are checked for UTF-8 here; the server would label any bytes as text.
    "output_format_arrow_string_as_string": "0",
    "output_format_arrow_low_cardinality_as_dictionary": "0",
    "output_format_arrow_fixed_string_as_fixed_byte_array": "0",
}
_JSON_SETTINGS = {
    "output_format_json_quote_64bit_integers": "0",
    "output_format_json_quote_denormals": "1",
    "output_format_json_quote_decimals": "1",
}


def names_format(sql: str) -> bool:
    return _OWN_FORMAT.search(sql) is not None


Bound = tuple[Any, ...] | None
"""Values of the leading key columns."""


class ClickHouseReader:
    def __init__(self, scope: TargetScope) -> None:
        self._scope, self._target = scope, scope.target

    def read_range(self, schema: TableSchema, lower: Bound = None, upper: Bound = None) -> pa.Table:
        """Return the rows with lower < primary key <= upper, unordered. None: no bound; a shorter bound applies to the leading columns."""
        return self._read(self._target_table(schema), self.range_condition(schema, lower, upper))

    def read_where(self, schema: TableSchema, condition: str, columns: Sequence[str] = ()) -> pa.Table:
        """Return the rows that satisfy a SQL condition, unordered; all columns unless some are named."""
        return self._read(self._target_table(schema), condition, columns)

    def range_condition(self, schema: TableSchema, lower: Bound, upper: Bound) -> str:
        """Return the condition of `read_range`."""
        target_table = self._target_table(schema)
        bounded = max(len(lower or ()), len(upper or ()))
        keys = [(schema.column(name), self._comparable(target_table, name)) for name in schema.row_key[:bounded]]
        bounds = [_beyond(schema, keys, lower, ">", ">"), _beyond(schema, keys, upper, "<", "<=")]
        return " AND ".join(bound for bound in bounds if bound) or "1"

    def key_condition(self, schema: TableSchema, keys: pa.Table) -> str:
        """Return the condition of having one of these keys, given as a table of the key columns."""
        target_table = self._target_table(schema)
        stored = [target_table.stored_column(name) for name in schema.row_key]
        names = [quote_name(column.name) for column in stored]
        spelled = [self._constants(column, keys.column(column.source.name)) for column in stored]
        if len(names) == 1:
            return f"{names[0]} IN ({', '.join(spelled[0])})"
        rows = ", ".join(f"({', '.join(row)})" for row in zip(*spelled, strict=True))
        return f"({', '.join(names)}) IN ({rows})"

    def count(self, schema: TableSchema) -> int:
        _, rows = self.query(f"SELECT count() FROM {current_rows_from(self._target_table(schema))}")
        return int(rows[0][0])

    def query(self, sql: str, extra_settings: Mapping[str, str] | None = None) -> tuple[list[str], list[list[Any]]]:
        """Return column names and rows of a query as JSON values (decimals, dates and times as text); empty for other statements."""
        connection = connect(self._target)
        settings = connection.supported({**_JSON_SETTINGS, **(extra_settings or {})})
        headers = {"X-ClickHouse-Format": "JSONCompactEachRowWithNames"}
        with translate_errors(self._target, "running a query"):
            raw = connection.client.raw_query(sql, settings=settings, transport_settings=headers)
            rows = json_rows(raw, _readable(raw))
        return (rows[0], rows[1:]) if rows else ([], [])

    def text(self, sql: str, extra_settings: Mapping[str, str] | None = None) -> str:
        """Return the result of a query in the format that it names itself."""
        connection = connect(self._target)
        with translate_errors(self._target, "running a query"):
            return _readable(connection.client.raw_query(sql, settings=connection.supported(dict(extra_settings or {}))))

    def kept(self, schema: TableSchema, source: pa.Table) -> pa.Table:
        """Return source rows without what the table's types do not store (`ColumnCodec.loses`), to be compared with rows read here. They
        may have a subset of the table's columns."""
        target_table = self._target_table(schema)
        for place, name in enumerate(source.column_names):
            kept = self._codec(target_table.stored_column(name)).kept
            if kept is not None:
                chunks = [kept(chunk) for chunk in source.column(place).chunks]
                field = source.schema.field(place)
                source = source.set_column(place, field, pa.chunked_array(chunks, schema.column(name).arrow_type))
        return source

    def _target_table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self._scope, [schema])[schema.name]

    def _codec(self, column: StoredColumn) -> ColumnCodec:
        return codec_for(column.source, column.type, connect(self._target).limits)

    def _constants(self, column: StoredColumn, values: Any) -> list[str]:
        """Return values of a column as SQL constants that equal what is stored."""
        if self._codec(column).comparable:
            return [literal(column.source, value) for value in values]
        # A value that the type cannot store equals no stored value.
        return [constant_sql(column.source, column.type, scalar_value(value)) or "NULL" for value in values]

    def _comparable(self, target_table: TargetTable, name: str) -> str:
        """Return the SQL expression of a key column that can be compared with constants of its kind."""
        column = target_table.stored_column(name)
        codec, quoted = self._codec(column), quote_name(column.name)
        expression = quoted if codec.comparable else codec.canonical_expression(quoted)
        if expression is None:
            raise DefiniteError(
                f"ranges of {name} cannot be read: the table keeps it as {column.type}",
                place=f"table {target_table.source}, column {name}",
                hint="read the whole table",
            )
        return expression

    def read_images(self, schema: TableSchema, condition: str, columns: Sequence[str]) -> tuple[pa.Table, pa.UInt64Array, pa.BooleanArray]:
        """Return the stored images that satisfy a condition, merged or not: some columns, their versions, and which are not deletions."""
        target_table = self._target_table(schema)
        version = target_table.metadata_column(MetadataRole.VERSION)
        if version is None:
            raise DefiniteError(
                f"rows of {target_table.full_name} have no version",
                place=f"table {target_table.source}",
                hint="add a column _version UInt64 to it, or name one by version_column",
            )
        metadata_columns = (quote_name(version.name), f"toUInt8({live_condition(target_table) or '1'})")
        names = [column.name for column in schema.columns if column.name in columns]
        found = self._read(target_table, condition, names, target_table.qualified, metadata_columns)
        versions, live = found.column(len(names)).combine_chunks(), found.column(len(names) + 1).combine_chunks()
        return found.select(range(len(names))), versions.cast(pa.uint64()), live.cast(pa.bool_())

    def _read(
        self, target_table: TargetTable, condition: str, names: Sequence[str] = (), source: str = "", metadata_columns: Sequence[str] = ()
    ) -> pa.Table:
        """Return columns from the current rows, or from `source`, followed by the SQL expressions in `metadata_columns`."""
        connection, schema = connect(self._target), target_table.schema
        chosen = [column for column in schema.columns if not names or column.name in names]
        stored = [target_table.stored_column(column.name) for column in chosen]
        codecs = [self._codec(column) for column in stored]
        expressions = (codec.expression(quote_name(column.name)) for column, codec in zip(stored, codecs, strict=True))
        columns = ", ".join([*expressions, *metadata_columns])
        sql = f"SELECT {columns} FROM {source or current_rows_from(target_table)} WHERE {condition}"
        settings = connection.supported(_ARROW_SETTINGS)
        if self._target.is_loopback:
            settings["output_format_arrow_compression_method"] = "none"
        with translate_errors(self._target, f"reading table {schema.name}"):
            table = arrow_table(connection.client.raw_query(sql, settings=settings, fmt="ArrowStream"), len(chosen) + len(metadata_columns))
        # By index, not by name: an expression's name is its text.
        places = enumerate(zip(chosen, codecs, strict=True))
        arrays = [_restore(schema, column, codec, table.column(index)) for index, (column, codec) in places]
        read = pa.table(arrays, schema=pa.schema([schema.arrow_schema.field(column.name) for column in chosen]))
        for place in range(len(metadata_columns)):
            read = read.append_column(f"mark {place}", table.column(len(chosen) + place))
        return read


def _readable(raw: bytes) -> str:
    """Decode JSON for display: bytes that are not UTF-8 become \\xNN."""
    return _NOT_UTF8.sub(lambda found: f"\\\\x{ord(found.group()) - 0xDC00:02x}", raw.decode("utf-8", errors="surrogateescape"))


def _restore(schema: TableSchema, column: Column, codec: ColumnCodec, values: Any) -> Any:
    try:
        return codec.restored(values, column.arrow_type)
    except pa.ArrowInvalid as error:
        raise DefiniteError(
            f"column {column.name} holds values that its type in the source does not have: {error}",
            place=f"table {schema.name}, column {column.name}",
            hint="something else than Headrace has written to the target table",
        ) from error


def _beyond(schema: TableSchema, keys: list[tuple[Column, str]], bound: Bound, strict: str, last: str) -> str:
    """Compare the key with the bound column by column, with a plain condition on the first column for the primary index."""
    if bound is None:
        return ""
    if not 1 <= len(bound) <= len(schema.row_key):
        raise DefiniteError(f"a bound of {len(bound)} values for a key of {len(schema.row_key)}", place=f"table {schema.name}")
    pairs = [(expression, literal(column, value)) for (column, expression), value in zip(keys, bound, strict=False)]
    condition = f"{pairs[-1][0]} {last} {pairs[-1][1]}"
    for name, value in reversed(pairs[:-1]):
        condition = f"{name} {strict} {value} OR {name} = {value} AND ({condition})"
    return f"({condition})" if len(pairs) == 1 else f"{pairs[0][0]} {strict}= {pairs[0][1]} AND ({condition})"


Indices = npt.NDArray[np.int64]


def encode_keys(sides: Iterable[list[Any]]) -> list[Indices]:
    """Return numbers that are equal where keys are equal, comparable across all sides. A key is a list of columns."""
    parts = [[_plain(column) for column in side] for side in sides]
    lengths = [len(side[0]) for side in parts]
    codes = np.zeros(sum(lengths), dtype=np.int64)
    for columns in zip(*parts, strict=True):
        whole = pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
        encoded = whole.combine_chunks().dictionary_encode()
        _, codes = np.unique(codes * max(len(encoded.dictionary), 1) + np.asarray(encoded.indices), return_inverse=True)
    return np.split(codes.astype(np.int64), np.cumsum(lengths)[:-1])


def _plain(column: Any) -> Any:
    """Return the column in chunks, without dictionary encoding."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    return chunked.cast(chunked.type.value_type) if pa.types.is_dictionary(chunked.type) else chunked
