"""Digests of rows, computed in ClickHouse SQL (see `headrace.model.digest` for the definition).

Invariant: a column has a canonical text only if SQL renders the source's value exactly, whatever type stores it (see
`ColumnCodec.canonical`). Digits beyond the source column's precision stay in the text, so a value that only another writer can have stored
is found. Columns without a canonical text are compared by reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, assert_never

from headrace.model.column_types import ValueForm
from headrace.model.digest import Digest, is_hashed
from headrace.model.schema import Column, TableSchema
from headrace.sinks.clickhouse.reader import ClickHouseReader
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope, resolve_tables
from headrace.sinks.clickhouse.tables.target_table import StoredColumn, TargetTable
from headrace.sinks.clickhouse.tables.views import current_rows_from
from headrace.sinks.clickhouse.types.codec import ColumnCodec
from headrace.sinks.clickhouse.types.codec_registry import codec_for
from headrace.sinks.clickhouse.types.numeric import decimal_arrow
from headrace.sinks.clickhouse.types.type_names import ClickHouseType, parse_stored_type

_TEXT: Final = (ValueForm.TEXT, ValueForm.BYTES, ValueForm.MEMBERS)
_SPELLED: Final = (
    *(ValueForm.INTEGER, ValueForm.YEAR, ValueForm.DECIMAL, ValueForm.FIXED_BYTES),
    *(ValueForm.DATE, ValueForm.TIMESTAMP, ValueForm.TIME),
)
"""Forms whose text in a String column is the canonical one."""


class ClickHouseDigests:
    """Digests of one server's rows, over all columns of a table unless fewer are named."""

    def __init__(self, scope: TargetScope) -> None:
        self._scope, self._reader = scope, ClickHouseReader(scope)

    def losses(self, schema: TableSchema) -> Mapping[str, str]:
        """Return the columns whose type stores less than the source has, and what is lost."""
        return {name: codec.loses for name, codec in self._codecs(schema) if codec.loses}

    def incomparable(self, schema: TableSchema) -> tuple[str, ...]:
        """Return those of `losses` that cannot be compared at all."""
        return tuple(name for name, codec in self._codecs(schema) if codec.loses and codec.kept is None)

    def undigested(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the columns without a canonical text: they are compared by reading them."""
        return tuple(column.source.name for column in self._target_table(schema).columns if self._canonical(column) is None)

    def is_there(self, schema: TableSchema) -> bool:
        target_table = self._target_table(schema)
        where = f"database = {quote_text(target_table.database)} AND name = {quote_text(target_table.table)}"
        return bool(self._reader.query(f"SELECT 1 FROM system.tables WHERE {where}")[1])

    def is_sorted_by(self, schema: TableSchema) -> bool:
        """Whether the sort key starts with the first column of the row key, so that key ranges use the index."""
        if not schema.row_key:
            return False
        target_table = self._target_table(schema)
        key = [target_table.stored_column(name) for name in schema.row_key]
        if not all(self._codec(column).comparable for column in key):
            return False
        first = key[0].name
        return target_table.storage.sort_key[:1] in ((first,), (quote_name(first),))

    def digest(self, schema: TableSchema, condition: str = "1", columns: Sequence[str] = ()) -> Digest:
        [row] = self._query(schema, condition, "", "", columns)
        return Digest(int(row[0]), int(row[1]))

    def buckets(self, schema: TableSchema, condition: str, buckets: int, columns: Sequence[str] = ()) -> Mapping[int, Digest]:
        """Return the digests of the same rows by bucket; empty buckets are missing."""
        rows = self._query(schema, condition, f"{self.bucket_of(schema, buckets, columns)} AS bucket, ", " GROUP BY bucket", columns)
        return {int(bucket): Digest(int(count), int(total)) for bucket, count, total in rows}

    def bucket_of(self, schema: TableSchema, buckets: int, columns: Sequence[str] = ()) -> str:
        """Return the SQL of a row's bucket: a hash of its key, or of all columns if it has none."""
        return f"CRC32({self._joined(schema, schema.row_key or columns)}) % {buckets}"

    def in_buckets(self, schema: TableSchema, buckets: int, chosen: Sequence[int], columns: Sequence[str] = ()) -> str:
        return f"{self.bucket_of(schema, buckets, columns)} IN ({', '.join(map(str, chosen))})"

    def sampled(self, schema: TableSchema, seed: int, share: float, columns: Sequence[str] = ()) -> str:
        return f"CRC32(concat('{seed},', {self._joined(schema, schema.row_key or columns)})) % 1000000 < {round(share * 1_000_000)}"

    def _query(self, schema: TableSchema, condition: str, first: str, last: str, columns: Sequence[str]) -> list[list[Any]]:
        number = f"reinterpretAsUInt64(reverse(substring(SHA256({self._joined(schema, columns)}), 1, 8)))"
        sql = f"SELECT {first}count(), sum({number}) FROM {current_rows_from(self._target_table(schema))} WHERE {condition}{last}"
        return self._reader.query(sql)[1]

    def _joined(self, schema: TableSchema, columns: Sequence[str]) -> str:
        target_table = self._target_table(schema)
        names = columns or [column.name for column in schema.columns]
        texts = [self._canonical(target_table.stored_column(name)) or "''" for name in names]
        joined = ", ',', ".join(texts)
        # concat needs two arguments.
        return joined if len(texts) == 1 else f"concat({joined})"

    def _codecs(self, schema: TableSchema) -> Iterator[tuple[str, ColumnCodec]]:
        return ((column.source.name, self._codec(column)) for column in self._target_table(schema).columns)

    def _canonical(self, column: StoredColumn) -> str | None:
        return canonical(column, self._codec(column))

    def _codec(self, column: StoredColumn) -> ColumnCodec:
        return codec_for(column.source, column.type, connect(self._scope.target).limits)

    def _target_table(self, schema: TableSchema) -> TargetTable:
        return resolve_tables(self._scope, [schema])[schema.name]


def canonical(stored: StoredColumn, codec: ColumnCodec) -> str | None:
    """Return SQL of a column's canonical text, never NULL; None if SQL cannot render it."""
    kept, name = parse_stored_type(stored.type), quote_name(stored.name)
    value = codec.canonical_expression(name)
    if codec.loses:
        return None
    if value is not None:
        text = _text(stored.source, kept.plain, value, name)
    elif kept.plain.name == "String" and stored.source.form in _SPELLED:
        # The stored text is the canonical one; any other text was written by someone else.
        text = f"if(match({name}, '^[0-9a-f.: -]+$'), {name}, concat('?', hex({name})))"
    else:
        return None
    if not kept.nullable:
        return text
    length_first = stored.source.form in _TEXT and not is_hashed(stored.source)
    return f"ifNull({text}, '{'N,' if length_first else 'N'}')"


def _text(column: Column, plain: ClickHouseType, value: str, name: str) -> str:
    if is_hashed(column):
        return f"lower(hex(SHA256({value})))"
    match column.form:
        case ValueForm.TEXT | ValueForm.BYTES | ValueForm.MEMBERS:
            return f"concat(toString(length({value})), ',', {value})"
        case ValueForm.TIMESTAMP:
            return _instant(column, plain, value)
        case ValueForm.FLOAT:
            return f"hex(toFloat64({value}))"
        case ValueForm.DECIMAL:
            return _decimal(column, plain, value)
        case ValueForm.TIME:
            return f"toString({name})" if plain.name == "Time64" and plain.number(0, 3) == column.precision else _time(column, value)
        case ValueForm.VECTOR:
            # An Array cannot be NULL: the empty array, which no vector is, represents NULL.
            text = f"arrayStringConcat(arrayMap(x -> hex(x), {value}))"
            return f"if(empty({value}), 'N', {text})" if column.nullable else text
        case ValueForm.FIXED_BYTES if not column.type.printed_alike:
            return f"hex({value})"
        case (
            ValueForm.INTEGER
            | ValueForm.YEAR
            | ValueForm.BITS
            | ValueForm.DATE
            | ValueForm.FIXED_BYTES
            | ValueForm.JSON
            | ValueForm.GEOMETRY
        ):
            return f"toString({value})"
        case unknown:
            assert_never(unknown)


def _decimal(column: Column, plain: ClickHouseType, value: str) -> str:
    decimal = decimal_arrow(plain)
    scale = column.scale if decimal is None else int(decimal.scale)
    if scale <= column.scale:
        return f"toDecimalString({value}, {column.scale})"
    return _without_zeros(f"toDecimalString({value}, {scale})", scale, column.scale)


def _instant(column: Column, plain: ClickHouseType, value: str) -> str:
    scale = plain.number(0, 3) if plain.name == "DateTime64" else column.precision
    if scale < column.precision:
        return f"toString(toDateTime64({value}, {column.precision}, 'UTC'))"
    return _without_zeros(f"toString({value})", scale, column.precision)


def _without_zeros(text: str, digits: int, wanted: int) -> str:
    """Return the text with fewer fractional digits, where the dropped ones are zeros."""
    if digits == wanted:
        return text
    tail = "0" * (digits - wanted) if wanted else "." + "0" * digits
    return f"if(endsWith({text}, '{tail}'), substring({text}, 1, length({text}) - {len(tail)}), {text})"


def _time(column: Column, value: str) -> str:
    """Render a time given in microseconds."""
    size = f"abs({value})"
    hours, rest = f"toString(intDiv({size}, 3600000000))", f"intDiv({size}, 1000000)"
    parts = [f"if({value} < 0, '-', '')", f"leftPad({hours}, greatest(length({hours}), 2), '0')"]
    parts += [f"':', leftPad(toString(intDiv({rest}, 60) % 60), 2, '0')", f"':', leftPad(toString({rest} % 60), 2, '0')"]
    whole = f"concat({', '.join(parts)}, '.', leftPad(toString({size} % 1000000), 6, '0'))"
    return _without_zeros(whole, 6, column.precision)
