"""Keys of differing rows as Python values; there are few of them."""

from __future__ import annotations

from collections.abc import Sequence, Set

import pyarrow as pa

from headrace.sinks.clickhouse.types.scalar_values import plain_value

Key = tuple[object, ...]


def key_list(rows: pa.Table, names: Sequence[str] = ()) -> list[Key]:
    """Return the keys of rows; without names, all columns are the key."""
    columns = [[plain_value(value) for value in rows.column(name)] for name in names or rows.column_names]
    return list(zip(*columns, strict=True))


def chosen(rows: pa.Table, wanted: Set[Key], names: Sequence[str] = ()) -> pa.Table:
    return rows.filter(pa.array([key in wanted for key in key_list(rows, names)], pa.bool_()))
