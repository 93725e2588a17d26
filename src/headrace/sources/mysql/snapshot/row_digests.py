"""Digests of rows, computed by the server's own functions (defined in `headrace.model.digest`).

Exact for every kind. No function returns the bits of a double, but `POINT(x, 0)` is stored as 4 bytes of spatial reference, 5 bytes of
header and the eight bytes of x. A FLOAT is widened to a double, which keeps its value. SHA2 is the only non-linear hash that all servers
have (MySQL 9.6 moved MD5 and SHA1 to a component).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from pymysql.connections import Connection

from headrace.model.column_types import ValueForm
from headrace.model.digest import Digest, is_hashed
from headrace.model.schema import Column, TableSchema
from headrace.sources.mysql.server.connection import MySQLAddress, query, quote_name

_UTF8: Final = frozenset({"", "utf8mb4", "utf8mb3", "utf8", "ascii"})
_TEXT: Final = (ValueForm.TEXT, ValueForm.MEMBERS)
_MODULUS: Final = 1 << 64


def read_digest(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, where: str = "") -> Digest:
    [found] = query(connection, address, _select(schema, where, "", ""))
    return _digest(found)


def read_buckets(connection: Connection[Any], address: MySQLAddress, schema: TableSchema, where: str, buckets: int) -> Mapping[int, Digest]:
    """Return the digests of the same rows per bucket (see `bucket_of`). Empty buckets are absent."""
    rows = query(connection, address, _select(schema, where, f"{bucket_of(schema, buckets)}, ", " GROUP BY 1"))
    return {int(bucket): _digest(found) for bucket, *found in rows}


def bucket_of(schema: TableSchema, buckets: int) -> str:
    """Return SQL for the bucket of a row, by its key; without a key by all columns."""
    columns = [schema.column(name) for name in schema.row_key] or schema.columns
    return f"CRC32({_joined(columns)}) % {buckets}"


def in_buckets(schema: TableSchema, buckets: int, chosen: Sequence[int]) -> str:
    return f"{bucket_of(schema, buckets)} IN ({', '.join(map(str, chosen))})"


def sampled(schema: TableSchema, seed: int, share: float) -> str:
    columns = [schema.column(name) for name in schema.row_key] or schema.columns
    return f"CRC32(CONCAT('{seed},', {_joined(columns)})) % 1000000 < {round(share * 1_000_000)}"


def _select(schema: TableSchema, where: str, first: str, last: str) -> str:
    # A row too long for the server's max_allowed_packet has no hash and is missing in the sum. Then the digests differ, and the rows are
    # compared.
    number = f"CAST(CONV(LEFT(SHA2({_joined(schema.columns)}, 256), 16), 16, 10) AS UNSIGNED)"
    table = f"{quote_name(schema.name.database)}.{quote_name(schema.name.table)}"
    condition = f" WHERE {where}" if where else ""
    return f"SELECT {first}COUNT(*), SUM({number}) FROM {table}{condition}{last}"


def _digest(found: Sequence[Any]) -> Digest:
    rows, total = found
    return Digest(int(rows), int(total or 0) % _MODULUS)


def _joined(columns: Sequence[Column]) -> str:
    return f"CONCAT_WS(',', {', '.join(canonical(column) for column in columns)})"


def canonical(column: Column) -> str:
    """Return SQL for the canonical text of a column, never NULL; for strings and bytes two texts, the length and the value."""
    if is_hashed(column):
        return _hashed(column)
    name = quote_name(column.name)
    match column.form:
        case ValueForm.TEXT | ValueForm.MEMBERS | ValueForm.BYTES:
            text = _utf8(column)
            return f"IFNULL(LENGTH({text}), 'N'), IFNULL({text}, '')" if column.nullable else f"LENGTH({text}), {text}"
        case ValueForm.JSON | ValueForm.GEOMETRY:
            return _hashed(column)
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            return _real_date(name)
        case ValueForm.FLOAT:
            return _or_null(column, f"HEX(SUBSTRING(POINT({name}, 0), 10, 8))")
        case ValueForm.BITS | ValueForm.YEAR:
            return _or_null(column, f"{name} + 0")
        case ValueForm.VECTOR:
            return _or_null(column, f"HEX({name})")
        case ValueForm.FIXED_BYTES if column.type.printed_alike:
            # Without the cast, the server would parse the text that stands for NULL as a value of these types.
            return _or_null(column, f"CAST({name} AS CHAR)")
        case ValueForm.FIXED_BYTES:
            return _or_null(column, f"HEX(CAST({name} AS BINARY({column.arrow_type.byte_width})))")
        case ValueForm.INTEGER | ValueForm.DECIMAL | ValueForm.TIME:
            return _or_null(column, _without_zerofill(column))
        case unknown:
            assert_never(unknown)


def _hashed(column: Column) -> str:
    text = _utf8(column) if column.form in _TEXT else quote_name(column.name)
    return _or_null(column, f"SHA2({text}, 256)")


def _without_zerofill(column: Column) -> str:
    """ZEROFILL pads only the printed number."""
    name = quote_name(column.name)
    return f"{name} + 0" if "zerofill" in column.source_type.lower() else name


def _or_null(column: Column, text: str) -> str:
    return f"IFNULL({text}, 'N')" if column.nullable else text


def _real_date(name: str) -> str:
    """Return an invalid date (a zero date, the 31st of February) as NULL: no sink stores it otherwise."""
    return f"IF(DAYOFMONTH({name}) BETWEEN 1 AND DAYOFMONTH(LAST_DAY({name})), {name}, 'N')"


def _utf8(column: Column) -> str:
    name = quote_name(column.name)
    return name if column.form is ValueForm.BYTES or column.charset in _UTF8 else f"CONVERT({name} USING utf8mb4)"
