"""SQL conditions for rows with given keys.

Invariant: every row with one of the keys satisfies the condition. A collation may match others too (`'a'` for `'A'`), so the caller
compares the keys of the result.
"""

from __future__ import annotations

from typing import Any, assert_never

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sources.mysql.server.connection import quote_name


def key_condition(schema: TableSchema, keys: pa.Table) -> str:
    """Return the condition for one of these keys, given as a table of the key's columns."""
    names = [quote_name(name) for name in schema.row_key]
    spelled = [_literals(schema.column(name), keys.column(name)) for name in schema.row_key]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(spelled[0])})"
    # Written out, because not every server's optimiser sees a range in a list of rows.
    rows = (" AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)) for row in zip(*spelled, strict=True))
    return "(" + " OR ".join(f"({row})" for row in rows) + ")"


def _literals(column: Column, values: Any) -> list[str]:
    match column.form:
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS:
            return [str(value) for value in values.to_pylist()]
        case ValueForm.FLOAT:
            return [text if "e" in text else f"{text}e0" for text in map(repr, values.to_pylist())]
        case ValueForm.DECIMAL:
            return [format(value, "f") for value in values.to_pylist()]
        case ValueForm.TEXT | ValueForm.MEMBERS | ValueForm.JSON:
            return [f"_utf8mb4 X'{value.encode().hex()}'" for value in values.to_pylist()]
        case ValueForm.BYTES | ValueForm.GEOMETRY:
            return [f"_binary X'{value.hex()}'" for value in values.to_pylist()]
        case ValueForm.DATE:
            return [f"'{text}'" for text in values.cast(pa.string()).to_pylist()]
        case ValueForm.TIMESTAMP:
            # The session's time zone is UTC, so a tick prints the same for both kinds.
            return [f"'{text}'" for text in values.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()).to_pylist()]
        case ValueForm.TIME:
            return [f"'{_time(micros)}'" for micros in values.cast(pa.int64()).to_pylist()]
        case ValueForm.FIXED_BYTES:
            return [f"'{column.type.print_value(value)}'" for value in values.to_pylist()]
        case ValueForm.VECTOR:
            raise DefiniteError(f"column {column.name} is a VECTOR, which cannot be part of a key")
        case unknown:
            assert_never(unknown)


def _time(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
