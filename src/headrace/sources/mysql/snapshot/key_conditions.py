"""Conditions in the server's SQL for rows with given keys.

Invariant: every row with one of the keys satisfies the condition. A collation may let others in (`'a'` where `'A'` was asked for): whoever
asks looks at the keys of what comes back.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from headrace.model.schema import Column, Kind, TableSchema
from headrace.sources.mysql.server.connection import quote_name

_TEXT: Final = frozenset({Kind.STRING, Kind.ENUM, Kind.SET, Kind.JSON})


def key_condition(schema: TableSchema, keys: pa.Table) -> str:
    """The condition of having one of these keys, given as a table of the key's columns."""
    names = [quote_name(name) for name in schema.row_key]
    spelled = [_literals(schema.column(name), keys.column(name)) for name in schema.row_key]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(spelled[0])})"
    # Spelled out, because not every server's optimiser sees a range in a list of rows.
    rows = (" AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in zip(*spelled, strict=True))
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def _literals(column: Column, values: Any) -> list[str]:
    match column.kind:
        case Kind.DATE:
            return [f"'{text}'" for text in values.cast(pa.string()).to_pylist()]
        case Kind.DATETIME | Kind.TIMESTAMP:
            # The session's zone is UTC: both kinds are their ticks' clock.
            return [f"'{text}'" for text in values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()).to_pylist()]
        case Kind.TIME:
            return [f"'{_time(micros)}'" for micros in values.cast(pa.int64()).to_pylist()]
    return [_literal(column, value) for value in values.to_pylist()]


def _literal(column: Column, value: Any) -> str:
    if column.kind in _TEXT:
        return f"_utf8mb4 X'{value.encode().hex()}'"
    match column.kind:
        case Kind.BYTES | Kind.GEOMETRY:
            return f"_binary X'{value.hex()}'"
        case Kind.FLOAT32 | Kind.FLOAT64:
            return f"{value!r}e0" if "e" not in repr(value) else repr(value)
        case Kind.DECIMAL:
            return format(value, "f")
        case Kind.UUID:
            return f"'{UUID(bytes=value)}'"
        case Kind.INET4:
            return f"'{'.'.join(map(str, value))}'"
        case Kind.INET6:
            return f"'{':'.join(value[i : i + 2].hex() for i in range(0, 16, 2))}'"
    return str(value)


def _time(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
