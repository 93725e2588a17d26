"""Compares rows of the source and the target by key and by value.

Invariant: no difference is found exactly if both sides have the same number of rows with each key and, for each key, the same values. A
table without a key is compared as a multiset of whole rows. Floats are compared by their bits, NULL equals only NULL, enums and sets are
compared as strings. No conversion can make two values equal. The comparison is pure: it knows Arrow tables only. Single rows are examined
only where they differ, and only as many as are reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.types.scalar_values import plain_value

DifferenceKind = Literal["missing", "extra", "different"]
Rows = npt.NDArray[np.int64]
MOST_REPORTED = 100
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


@dataclass(frozen=True, slots=True)
class Difference:
    """A missing or extra row of the target, or one differing value."""

    key: tuple[object, ...]
    kind: DifferenceKind
    column: str = ""
    source: object = None
    target: object = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many rows were compared, how many differences there are, and the first of them."""

    rows: int = 0
    total: int = 0
    """Missing rows, extra rows and differing values."""
    differences: tuple[Difference, ...] = ()
    different: int = 0
    """Rows that are on both sides with at least one differing value."""
    missing: int = 0
    """Rows that the target does not have."""
    extra: int = 0
    """Rows that only the target has."""

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.rows + other.rows,
            self.total + other.total,
            (self.differences + other.differences)[:MOST_REPORTED],
            self.different + other.different,
            self.missing + other.missing,
            self.extra + other.extra,
        )


def compare(schema: TableSchema, source: pa.Table, target: pa.Table, *, most: int = MOST_REPORTED, count_extra: bool = True) -> Comparison:
    """Compare two tables of `schema` with rows in any order; without `count_extra`, extra rows of the target are no difference."""
    _check_shape(schema, source, "source")
    _check_shape(schema, target, "target")
    left = {c.name: _comparable(source.column(c.name)) for c in schema.columns}
    right = {c.name: _comparable(target.column(c.name)) for c in schema.columns}
    missing, extra, in_source, in_target = _match(schema, left, right)
    extra = extra if count_extra else extra[:0]
    found = _Found(schema, source, target, most)
    for row in found.take(missing):
        found.add(Difference(found.key(source, row), "missing"))
    for row in found.take(extra):
        found.add(Difference(found.key(target, row), "extra"))
    different = np.zeros(len(in_source), dtype=bool)
    for column in schema.columns:
        unequal = _unequal(left[column.name].take(in_source), right[column.name].take(in_target))
        different |= unequal
        for pair in found.take(np.flatnonzero(unequal)):
            found.add_value(column.name, in_source[pair], in_target[pair])
    return Comparison(source.num_rows, found.total, tuple(found.differences), int(np.count_nonzero(different)), len(missing), len(extra))


def different_keys(schema: TableSchema, source: pa.Table, target: pa.Table, *, most: int, extra: bool = True) -> pa.Table:
    """Return the distinct keys of at most `most` differing rows; without `extra`, not of those that only the target has."""
    left = {c.name: _comparable(source.column(c.name)) for c in schema.columns}
    right = {c.name: _comparable(target.column(c.name)) for c in schema.columns}
    missing, only_target, in_source, in_target = _match(schema, left, right)
    unequal = np.zeros(len(in_source), dtype=bool)
    for column in schema.columns:
        unequal |= _unequal(left[column.name].take(in_source), right[column.name].take(in_target))
    names = list(_key(schema))
    lost = source.select(names).take(np.concatenate((missing, in_source[unequal]))[:most])
    found = pa.concat_tables([lost, target.select(names).take(only_target[:most])]) if extra else lost
    return distinct(found).slice(0, most)


def distinct(keys: pa.Table) -> pa.Table:
    """Return the table without repeated rows."""
    if keys.num_rows < 2:
        return keys
    plain = {name: _comparable(keys.column(name)) for name in keys.column_names}
    order = pc.sort_indices(pa.table(plain), [(name, "ascending") for name in plain])
    first = np.concatenate(([True], ~_equal_to_next(plain, order)))
    return keys.take(np.sort(order.to_numpy()[first]))


class _Found:
    """Counts all differences and stores the first few."""

    def __init__(self, schema: TableSchema, source: pa.Table, target: pa.Table, most: int) -> None:
        self._schema, self._source, self._target, self._most = schema, source, target, most
        self.differences: list[Difference] = []
        self.total = 0

    def take(self, rows: Rows) -> Rows:
        self.total += len(rows)
        return rows[: self._most - len(self.differences)]

    def add(self, difference: Difference) -> None:
        self.differences.append(difference)

    def add_value(self, column: str, source_row: int, target_row: int) -> None:
        values = (plain_value(self._source.column(column)[int(source_row)]), plain_value(self._target.column(column)[int(target_row)]))
        self.add(Difference(self.key(self._source, source_row), "different", column, *values))

    def key(self, table: pa.Table, row: int) -> tuple[object, ...]:
        return tuple(plain_value(table.column(name)[int(row)]) for name in _key(self._schema))


def _check_shape(schema: TableSchema, table: pa.Table, side: str) -> None:
    wanted = [(c.name, c.arrow_type) for c in schema.columns]
    if list(zip(table.schema.names, table.schema.types, strict=True)) != wanted:
        raise DefiniteError(f"the {side}'s rows do not have the columns of the schema: {table.schema}", place=f"table {schema.name}")


def _comparable(column: Any) -> Any:
    """Return the column as one chunk, in a type whose equality is identity of values."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks()
    if pa.types.is_list(array.type):
        return _list_bytes(array)
    bits = _BITS.get(array.type)
    if bits is not None:
        return array.view(bits)
    return array.view(pa.int64()) if pa.types.is_time64(array.type) or pa.types.is_timestamp(array.type) else array


def _list_bytes(lists: Any) -> Any:
    """Return lists of floats as the bytes of their values, NULL as NULL."""
    validity, offsets = lists.buffers()[:2]
    floats = lists.values.buffers()[-1]
    places = np.frombuffer(offsets, dtype=np.int32, count=lists.offset + len(lists) + 1) if len(lists) else np.zeros(1, dtype=np.int32)
    ends = (places + lists.values.offset) * 4
    return pa.Array.from_buffers(pa.binary(), len(lists), [validity, pa.py_buffer(ends), floats], offset=lists.offset)


def _match(schema: TableSchema, left: dict[str, Any], right: dict[str, Any]) -> tuple[Rows, Rows, Rows, Rows]:
    """Return the rows only in the source, those only in the target, and the pairs with equal keys."""
    keys = {f"k{i}": pa.concat_arrays([left[name], right[name]]) for i, name in enumerate(_key(schema))}
    if not schema.row_key:
        keys["times"] = pa.array(np.concatenate((_occurrence(left), _occurrence(right))))
    rows_left = len(next(iter(left.values())))
    rows_both = len(next(iter(keys.values())))
    side = pa.array(np.arange(rows_both) >= rows_left)
    by_key = pc.sort_indices(pa.table({**keys, "side": side}), [(name, "ascending") for name in (*keys, "side")])
    order: Rows = by_key.to_numpy().astype(np.int64)
    if rows_both < 2:
        paired = np.zeros(0, dtype=bool)
    else:
        equal = _equal_to_next(keys, by_key)
        # Within one key the source's rows come first: a pair is the last of them and the first of the target's.
        paired = equal & (order[:-1] < rows_left) & (order[1:] >= rows_left)
    first = np.flatnonzero(paired)
    single = np.ones(rows_both, dtype=bool)
    single[first] = False
    single[first + 1] = False
    alone = order[single]
    return alone[alone < rows_left], alone[alone >= rows_left] - rows_left, order[first], order[first + 1] - rows_left


def _key(schema: TableSchema) -> tuple[str, ...]:
    return schema.row_key or tuple(column.name for column in schema.columns)


def _occurrence(rows: dict[str, Any]) -> Rows:
    """For each row, the number of equal rows before it."""
    order = pc.sort_indices(pa.table(rows), [(name, "ascending") for name in rows])
    starts = np.concatenate(([True], ~_equal_to_next(rows, order)))[: len(order)]
    places = np.arange(len(order))
    found = np.empty(len(order), dtype=np.int64)
    found[order.to_numpy()] = places - np.maximum.accumulate(np.where(starts, places, 0))
    return found


def _equal_to_next(columns: dict[str, Any], order: Any) -> npt.NDArray[np.bool_]:
    """For each row but the last, in the given order, whether the next one is equal."""
    equal = np.ones(max(len(order) - 1, 0), dtype=bool)
    for column in columns.values():
        in_order = column.take(order)
        equal &= ~_unequal(in_order[:-1], in_order[1:])
    return equal


def _unequal(left: Any, right: Any) -> npt.NDArray[np.bool_]:
    differ = pc.fill_null(pc.not_equal(left, right), True)
    if left.null_count and right.null_count:
        differ = pc.and_not(differ, pc.and_(pc.is_null(left), pc.is_null(right)))
    return np.asarray(differ.to_numpy(zero_copy_only=False), dtype=bool)
