"""Digests of rows, computed by ClickHouse's own functions (see `headrace.model.digest` for what they are of).

Invariant: a column has a canonical text here only if its stored type keeps the source's values as they are; a table with another column
has no digests, and is compared by reading it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.model.digest import Digest, is_hashed
from headrace.model.schema import Kind, TableSchema
from headrace.sinks.clickhouse.layout import Layout, StoredColumn
from headrace.sinks.clickhouse.layouts import LayoutScope, resolve
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.views import shown_from

_INTEGERS: Final = frozenset(kind for kind in Kind if kind.value.startswith(("int", "uint"))) | {Kind.BIT, Kind.YEAR}
_TEXT: Final = frozenset({Kind.STRING, Kind.BYTES, Kind.ENUM, Kind.SET})
_WRAPPED = re.compile(r"(?:Nullable|LowCardinality)\((.*)\)")
_INTEGER_TYPE = re.compile(r"U?Int(?:8|16|32|64|128|256)")
_ENUM_TYPE = re.compile(r"Enum(?:8|16)\(.*\)", re.DOTALL)
_FIXED: Final = {Kind.DATE: "Date32", Kind.UUID: "UUID", Kind.INET4: "IPv4", Kind.INET6: "IPv6", Kind.VECTOR: "Array(Float32)"}


class ClickHouseDigests:
    """Sums up rows of one server."""

    def __init__(self, scope: LayoutScope) -> None:
        self._scope, self._reader = scope, ClickHouseReader(scope)

    def undigested(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns that are stored in a way that cannot be summed up; with one of these, the table has no digests."""
        return tuple(column.source.name for column in self._layout(schema).columns if canonical(column) is None)

    def digest(self, schema: TableSchema, condition: str = "1") -> Digest:
        """The digest of the rows that satisfy a condition."""
        [row] = self._query(schema, condition, "", "")
        return Digest(int(row[0]), int(row[1]))

    def buckets(self, schema: TableSchema, condition: str, buckets: int) -> Mapping[int, Digest]:
        """The digests of the same rows in parts; parts without rows are not there."""
        rows = self._query(schema, condition, f"{self.bucket_of(schema, buckets)} AS bucket, ", " GROUP BY bucket")
        return {int(bucket): Digest(int(count), int(total)) for bucket, count, total in rows}

    def bucket_of(self, schema: TableSchema, buckets: int) -> str:
        """The number of the part that a row belongs to, by its key; without a key by all of it."""
        return f"CRC32({self._key_text(schema)}) % {buckets}"

    def in_buckets(self, schema: TableSchema, buckets: int, chosen: Sequence[int]) -> str:
        """The condition of belonging to one of the chosen parts."""
        return f"{self.bucket_of(schema, buckets)} IN ({', '.join(map(str, chosen))})"

    def sampled(self, schema: TableSchema, seed: int, share: float) -> str:
        """The condition of belonging to a sample of the rows."""
        return f"CRC32(concat('{seed},', {self._key_text(schema)})) % 1000000 < {round(share * 1_000_000)}"

    def _key_text(self, schema: TableSchema) -> str:
        layout = self._layout(schema)
        return _joined([layout.stored(name) for name in schema.row_key] or layout.columns)

    def _query(self, schema: TableSchema, condition: str, first: str, last: str) -> list[list[Any]]:
        layout = self._layout(schema)
        number = f"reinterpretAsUInt64(reverse(substring(SHA256({_joined(layout.columns)}), 1, 8)))"
        sql = f"SELECT {first}count(), sum({number}) FROM {shown_from(layout)} WHERE {condition}{last}"
        return self._reader.query(sql)[1]

    def _layout(self, schema: TableSchema) -> Layout:
        return resolve(self._scope, [schema])[schema.name]


def _joined(columns: Iterable[StoredColumn]) -> str:
    texts = [canonical(column) or "''" for column in columns]
    # A function of one argument, concat is none.
    return texts[0] if len(texts) == 1 else f"concat({', '.join(_separated(texts))})"


def _separated(texts: Sequence[str]) -> Iterable[str]:
    yield texts[0]
    for text in texts[1:]:
        yield "','"
        yield text


def canonical(stored: StoredColumn) -> str | None:
    """The canonical text of a column, never NULL; None where its stored type is another than the source's values have by themselves."""
    bare = _bare(stored.type)
    text = _text(stored, bare, quote_name(stored.name))
    if text is None or "Nullable(" not in stored.type:
        return text
    length_first = stored.source.kind in _TEXT and not is_hashed(stored.source)
    return f"ifNull({text}, '{'N,' if length_first else 'N'}')"


def _bare(kind: str) -> str:
    found = _WRAPPED.fullmatch(kind)
    return _bare(found.group(1)) if found else kind


def _text(stored: StoredColumn, bare: str, name: str) -> str | None:
    column = stored.source
    if column.kind in _INTEGERS:
        return f"toString({name})" if _INTEGER_TYPE.fullmatch(bare) else None
    if column.kind in _TEXT or is_hashed(column):
        value = f"CAST({name} AS String)" if column.kind is Kind.ENUM and _ENUM_TYPE.fullmatch(bare) else name
        if bare != "String" and value == name:
            return None
        return f"lower(hex(SHA256({name})))" if is_hashed(column) else f"concat(toString(length({value})), ',', {value})"
    match column.kind:
        case Kind.FLOAT32 | Kind.FLOAT64:
            return f"hex(toFloat64({name}))" if bare in ("Float32", "Float64") else None
        case Kind.DECIMAL:
            return f"toDecimalString({name}, {column.scale})" if bare == f"Decimal({column.precision}, {column.scale})" else None
        case Kind.DATETIME | Kind.TIMESTAMP:
            return f"toString({name})" if bare == f"DateTime64({column.precision}, 'UTC')" else None
        case Kind.TIME:
            return f"toString({name})" if bare == f"Time64({column.precision})" else None
    if bare != _FIXED[column.kind]:
        return None
    match column.kind:
        case Kind.VECTOR:
            text = f"arrayStringConcat(arrayMap(x -> hex(x), {name}))"
            # An Array cannot be NULL: the empty one, which no vector is, stands for it.
            return f"if(empty({name}), 'N', {text})" if column.nullable else text
        case Kind.INET6:
            return f"hex({name})"
    return f"toString({name})"
