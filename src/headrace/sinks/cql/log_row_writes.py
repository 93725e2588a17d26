"""Log rows as writes: which statement, with which raw values.

Whole columns at a time; a write is a tuple of values that the driver sends as they are. Every write is idempotent and they may be done in
any order: each carries its own timestamp, and the server merges. Pre- and postimages write nothing. A row that
cannot be replayed raises before anything of its block is written.

A deleted range of rows has two bounds in the clustering order. CQL compares one column at a time, by value and not by the table's order, so
a range whose bounds differ early becomes several deletions: each names columns that are equal, then one column that is between. All have
one timestamp; together they cover exactly the rows of the range.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt
from cassandra.query import UNSET_VALUE

from headrace.cql.blocks import BatchPosition, LogBlock
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections, split_tuples, to_arrow
from headrace.cql.log import STREAM, TIME, TTL, Operation, deleted, deleted_elements
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType, quoted
from headrace.errors import DefiniteError
from headrace.sinks.cql.statements import Scope


class Bound(NamedTuple):
    prefix: tuple[bytes, ...]
    """The values of the first clustering columns; empty: the partition's end."""
    inclusive: bool


class Deletion(NamedTuple):
    """Relations on the clustering columns, and their values."""

    relations: tuple[str, ...]
    values: tuple[bytes, ...]


def deletions(clustering: Sequence[CqlColumn], start: Bound, end: Bound) -> Iterator[Deletion]:
    """Return the range as deletions; empty if no row can lie in it."""
    common = 0
    while common < min(len(start.prefix), len(end.prefix)) and start.prefix[common] == end.prefix[common]:
        common += 1
    if not (_is_reached(start, common) and _is_reached(end, common)):
        return
    yield from _steps(clustering, start, common, after=True)
    yield from _steps(clustering, end, common, after=False)
    # What lies between the two in the first column in which they differ, or all of it if they do not.
    shared = start.prefix[:common]
    relations, values = _equal(clustering, shared), list(shared)
    for bound, after in ((start, True), (end, False)):
        if len(bound.prefix) > common:
            inclusive = bound.inclusive and len(bound.prefix) == common + 1
            relations.append(_compared(clustering[common], after=after, inclusive=inclusive))
            values.append(bound.prefix[common])
    yield Deletion(tuple(relations), tuple(values))


def _is_reached(bound: Bound, common: int) -> bool:
    """Return whether rows with the common prefix are inside a bound: not if the bound is exactly that prefix, exclusive."""
    return len(bound.prefix) > common or bound.inclusive


def _steps(clustering: Sequence[CqlColumn], bound: Bound, common: int, *, after: bool) -> Iterator[Deletion]:
    """Yield deletions of rows that share more than the common prefix with a bound: per longer prefix, those after it in the next column."""
    for depth in range(common + 1, len(bound.prefix)):
        inclusive = bound.inclusive and depth == len(bound.prefix) - 1
        relations = (*_equal(clustering, bound.prefix[:depth]), _compared(clustering[depth], after=after, inclusive=inclusive))
        yield Deletion(relations, bound.prefix[: depth + 1])


def _equal(clustering: Sequence[CqlColumn], values: Sequence[bytes]) -> list[str]:
    return [f"{quoted(column.name)} = ?" for column, _ in zip(clustering, values, strict=False)]


def _compared(column: CqlColumn, *, after: bool, inclusive: bool) -> str:
    """Return the relation for rows after (before) a value in the table's order; a descending column has its greater values first."""
    sign = ">" if after is not column.descending else "<"
    return f"{quoted(column.name)} {sign}{'=' if inclusive else ''} ?"


log = logging.getLogger("headrace")
T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]
"""Raw values, None for null, `UNSET_VALUE` for values to leave unchanged."""

ALTERED: Final = "if the table or its type was altered just now, restart to read its new definition; else report this"
_UPSERTS: Final = (Operation.UPDATE, Operation.INSERT)
_ROW_DELETES: Final = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_PARTITION_DELETES: Final = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_STARTS: Final = {Operation.RANGE_START_INCLUSIVE: True, Operation.RANGE_START_EXCLUSIVE: False}
_ENDS: Final = {Operation.RANGE_END_INCLUSIVE: True, Operation.RANGE_END_EXCLUSIVE: False}
_KNOWN: Final = np.array([operation.value for operation in Operation], np.int8)


class Write(NamedTuple):
    """A statement and its values; `row` is its row in the block."""

    text: str
    values: tuple[Any, ...]
    row: int


class Planned(NamedTuple):
    writes: list[Write]
    listed: npt.NDArray[np.int64]
    """Rows that change a list."""


class LogRows:
    """The columns of a block as replay needs them; each is computed once, on first use."""

    def __init__(self, block: LogBlock, table: CqlTable, now: int) -> None:
        self.block, self.table = block, table
        self.count = block.rows.num_rows
        self.operations = self._operations()
        times = block.times
        self.stamps, self.ttls = words(times, ">i8"), words(self._remaining(times, now), ">i4")

    def _operations(self) -> npt.NDArray[np.int8]:
        try:
            codes = self.block.operations
        except ValueError:
            codes = np.full(self.count, 127, np.int8)
        strange = np.flatnonzero(~np.isin(codes, _KNOWN))
        if len(strange):
            raise self.error(int(strange[0]), f"operation {codes[strange[0]]} is not known", "update Headrace, or report it")
        return codes

    def _remaining(self, times: npt.NDArray[np.int64], now: int) -> npt.NDArray[np.int64]:
        """The remaining TTL of each row in seconds; 0 for none. Expired cells get one second: they must still shadow older ones, which only
        a cell of the same timestamp does."""
        column = self.raw(TTL)
        ttls = np.array([int.from_bytes(value, "big") if value else 0 for value in column], np.int64)
        if not ttls.any():
            return ttls
        written = self.block.written.fill_null(-1).to_numpy(zero_copy_only=False)
        since = np.where(written >= 0, written, times // 1_000_000)
        # Never more than it was, whatever the clocks say: the greatest TTL that there is would be refused.
        return np.where(ttls > 0, np.minimum(np.maximum(since + ttls - now, 1), ttls), 0)

    def raw(self, name: str) -> Objects:
        return objects(self.block.rows.column(name))

    def key(self, name: str, where: Mask) -> Objects:
        """Return a key column; raise if it is null in one of these rows."""
        missing = np.flatnonzero(where & ~self.present(name))
        if len(missing):
            raise self.error(int(missing[0]), f"column {name} of the key is null", "the log was not written by a server; report this")
        return self.raw(name)

    def flag(self, name: str) -> Mask:
        """Return the rows in which a boolean column is true."""
        flags = to_arrow(CqlType("boolean"), self.block.rows.column(name), name)
        return np.asarray(flags.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def present(self, name: str) -> Mask:
        return valid(self.block.rows.column(name))

    def error(self, row: int, message: str, hint: str) -> DefiniteError:
        event = str(BatchPosition.of_row(str(self.block.table.name), self.block.rows, row))
        return DefiniteError(message, place=self.place(row), hint=hint, event=event)

    def place(self, row: int) -> str:
        """Return a row's table, stream, time and key, for errors."""
        found = self.block.rows.slice(row, 1)
        stream, time = found.column(STREAM)[0].as_py() or b"", found.column(TIME)[0].as_py() or b"\0" * 16
        keys = ", ".join(f"{c.name} = {_shown(c, found)}" for c in (*self.table.partition_key, *self.table.clustering))
        return f"table {self.block.table.name}, cdc$time {UUID(bytes=time)}, stream 0x{stream.hex()}, {keys}"

    def split(self, name: str, split: Callable[[Cells], T]) -> T:
        try:
            return split(Cells.of(self.block.rows.column(name)))
        except MalformedValue as damage:
            raise self.error(damage.row, f"column {name} cannot be read: {damage.reason}", ALTERED) from None


def _shown(column: CqlColumn, row: Any) -> str:
    try:
        return str(to_arrow(column.type, row.column(column.name), column.name)[0].as_py())
    except (DefiniteError, ValueError, OverflowError):
        return f"0x{(row.column(column.name)[0].as_py() or b'').hex()}"


def plan(rows: LogRows, target: CqlTable, *, keyed_lists: bool, markers: bool = True) -> Planned:
    """Return the writes of a block into a table with the block's columns, or some of them.

    `keyed_lists`: the target accepts list elements by their keys (ScyllaDB). Otherwise lists are not written, and `listed` names the rows
    that change one. Without `markers`, inserts are written as updates.
    """
    codes = rows.operations
    upserts = np.isin(codes, _UPSERTS)
    static = upserts & ~rows.present(target.clustering[0].name) if target.clustering else np.zeros(rows.count, np.bool_)
    inserts = (codes == Operation.INSERT) & ~static
    writes: list[Write] = []
    touched, listed = inserts.copy(), np.zeros(rows.count, np.bool_)
    for scope, where in ((Scope.row(target), upserts & ~static), (Scope.partition(target), static)):
        if not where.any():
            continue
        part = _ScopePlan(rows, scope, where, keyed_lists)
        writes += part.writes(inserts if markers else np.zeros(rows.count, np.bool_))
        touched |= part.touched
        listed |= part.listed
    empty = np.flatnonzero(upserts & ~touched)
    if len(empty) and markers:
        # Most of the time they wrote to columns that were dropped since: then nothing is missing.
        log.warning(
            "%d log rows show that a change happened, but not its values; they are skipped. If no column of the table was "
            "dropped just now, its log kept keys alone for a while (delta = 'keys'): then copy the table again. The first is at %s",
            len(empty),
            rows.place(int(empty[0])),
        )
    writes += _deletes(rows, target)
    return Planned(writes, np.flatnonzero(listed))


class _ScopePlan:
    """Yield the upserts of rows, or of partitions' static columns."""

    def __init__(self, rows: LogRows, scope: Scope, where: Mask, keyed_lists: bool) -> None:
        self.rows, self.scope, self.where, self.keyed = rows, scope, where, keyed_lists
        self.touched, self.listed = np.zeros(rows.count, np.bool_), np.zeros(rows.count, np.bool_)
        self._assigned = np.zeros(rows.count, np.bool_)
        self._changed = np.zeros(rows.count, np.bool_)

    def writes(self, inserts: Mask) -> list[Write]:
        columns = [*self.scope.atomic, *self.scope.made, *(self.scope.lists if self.keyed else ())]
        assigned = [self._assign(column) for column in columns]
        changed = [values for column in self.scope.made for values in self._change(column)]
        elements = [write for column in self.scope.lists for write in self._elements(column)]
        keys = [self.rows.key(name, self.where) for name in self.scope.keys]
        head = [self.rows.stamps, self.rows.ttls]
        self.touched |= self._assigned | self._changed
        found = _gather(self.scope.insert(columns), [*keys, *assigned, *head], inserts & self.where)
        if columns:
            found += _gather(self.scope.assign(columns), [*head, *assigned, *keys], self._assigned & self.where & ~inserts)
        if changed:
            found += _gather(self.scope.change(self.scope.made), [*head, *changed, *keys], self._changed & self.where)
        return found + elements

    def _assign(self, column: CqlColumn) -> Objects:
        """Return the values of `c = ?`."""
        gone = self.rows.flag(deleted(column.name))
        values, assigned = self.rows.raw(column.name), gone
        if column.type.is_atomic:
            values[gone] = None
            assigned = gone | self.rows.present(column.name)
        elif column.type.name == "list":
            values[:] = None
        values[~assigned] = UNSET_VALUE
        self._assigned |= assigned
        return values

    def _change(self, column: CqlColumn) -> Iterator[Objects]:
        """Return the values of the parts of a map, set or user type."""
        whole = self.rows.flag(deleted(column.name))
        if column.type.name == "udt":
            yield from self._fields(column, whole)
            return
        added = self.rows.raw(column.name)
        adds = self.rows.present(column.name) & ~whole
        added[~adds] = UNSET_VALUE
        removed, removes = self.rows.raw(deleted_elements(column.name)), self.rows.present(deleted_elements(column.name))
        removed[~removes] = UNSET_VALUE
        self._changed |= adds | removes
        yield added
        yield removed

    def _fields(self, column: CqlColumn, whole: Mask) -> Iterator[Objects]:
        """Null fields of a value are not deleted ones: those are named by their index."""
        count = len(column.type.fields)
        parts = self.rows.split(column.name, lambda cells: split_tuples(cells, count))
        removed = self._removed_fields(column, count)
        for index, part in enumerate(parts):
            values = objects(part.binary())
            sets = (part.sizes >= 0) & ~whole
            values[~sets] = UNSET_VALUE
            values[removed[index]] = None
            self._changed |= sets | removed[index]
            yield values

    def _removed_fields(self, column: CqlColumn, count: int) -> npt.NDArray[np.bool_]:
        name = deleted_elements(column.name)
        offsets, (keys,) = self.rows.split(name, split_collections)
        removed = np.zeros((count, self.rows.count), np.bool_)
        indices = to_arrow(CqlType("smallint"), keys.binary(), name).to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(self.rows.count), np.diff(offsets))
        strange = np.flatnonzero((indices < 0) | (indices >= count))
        if len(strange):
            message = f"field {indices[strange[0]]} of {column.name} was deleted, and its type has {count}"
            raise self.rows.error(int(owners[strange[0]]), message, "the type was altered: restart to read its new definition")
        removed[indices.astype(np.int64), owners] = True
        return removed

    def _elements(self, column: CqlColumn) -> Iterator[Write]:
        """Yield the writes of a list's elements, by their keys."""
        changed = self.rows.present(column.name) | self.rows.present(deleted_elements(column.name))
        touched = (changed | self.rows.flag(deleted(column.name))) & self.where
        self.touched |= touched
        self.listed |= touched
        if not self.keyed:
            return
        text, keys = self.scope.element(column), [self.rows.key(name, self.where) for name in self.scope.keys]
        for name, parts in ((column.name, 2), (deleted_elements(column.name), 1)):
            offsets, cells = self.rows.split(name, partial(split_collections, parts=parts))
            element_keys = cells[0].binary().to_pylist()
            values = cells[1].binary().to_pylist() if parts == 2 else [None] * len(element_keys)
            owners = np.repeat(np.arange(self.rows.count), np.diff(offsets))
            for row, key, value in zip(owners.tolist(), element_keys, values, strict=True):
                if self.where[row]:
                    yield Write(text, (self.rows.stamps[row], self.rows.ttls[row], key, value, *(k[row] for k in keys)), row)


def _gather(text: str, columns: Sequence[Objects], where: Mask) -> list[Write]:
    chosen = np.flatnonzero(where)
    if not len(chosen):
        return []
    values = zip(*(column[chosen].tolist() for column in columns), strict=True)
    return [Write(text, bound, row) for bound, row in zip(values, chosen.tolist(), strict=True)]


def _deletes(rows: LogRows, target: CqlTable) -> list[Write]:
    row, partition = Scope.row(target), Scope.partition(target)
    codes = rows.operations
    found = []
    for scope, where in ((row, np.isin(codes, _ROW_DELETES)), (partition, np.isin(codes, _PARTITION_DELETES))):
        if where.any():
            found += _gather(scope.delete(), [rows.stamps, *(rows.key(name, where) for name in scope.keys)], where)
    return found + list(_ranges(rows, target, partition))


def _ranges(rows: LogRows, target: CqlTable, scope: Scope) -> Iterator[Write]:
    """Yield the deletions of ranges. A range is two adjacent rows: start and end."""
    codes = rows.operations
    starts, ends = np.flatnonzero(np.isin(codes, list(_STARTS))), np.flatnonzero(np.isin(codes, list(_ENDS)))
    if not len(starts) and not len(ends):
        return
    if len(starts) != len(ends) or (starts + 1 != ends).any():
        paired = set((starts + 1).tolist()) & set(ends.tolist())
        alone = next(row for row in (*starts.tolist(), *ends.tolist()) if not {row, row + 1} & paired)
        raise rows.error(alone, "a deleted range has one end only", "its other end is not next to it in the log; report this")
    partition = [rows.key(name, np.isin(np.arange(rows.count), starts)) for name in scope.keys]
    clustering = [rows.raw(column.name) for column in target.clustering]
    times = rows.raw(TIME)
    for start in starts.tolist():
        end = start + 1
        if times[start] != times[end] or any(key[start] != key[end] for key in partition):
            raise rows.error(start, "a deleted range's ends are of two writes", "report this")
        one = Bound(_prefix(clustering, start), _STARTS[Operation(int(codes[start]))])
        other = Bound(_prefix(clustering, end), _ENDS[Operation(int(codes[end]))])
        if not one.prefix and not other.prefix and target.static:
            raise rows.error(start, "a deleted range has no end at either side, which CQL cannot say", "report this")
        keys = tuple(key[start] for key in partition)
        for relations, values in deletions(target.clustering, one, other):
            yield Write(scope.delete_range(relations), (rows.stamps[start], *keys, *values), start)


def _prefix(clustering: Sequence[Objects], row: int) -> tuple[bytes, ...]:
    return tuple(takewhile(lambda value: value is not None, (column[row] for column in clustering)))


def words(numbers: npt.NDArray[np.int64], kind: str) -> Objects:
    """Serialise numbers for the protocol."""
    raw = numbers.astype(kind)
    width, whole = raw.dtype.itemsize, raw.tobytes()
    found = np.empty(len(numbers), np.object_)
    found[:] = [whole[at : at + width] for at in range(0, len(whole), width)]
    return found


def objects(column: Any) -> Objects:
    found = np.empty(len(column), np.object_)
    found[:] = column.to_pylist()
    return found


def valid(column: Any) -> Mask:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def int_bytes(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def long_bytes(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)
