"""Log rows as writes: which statement, with which raw values.

Whole columns at a time; a write is a tuple of values that the driver sends as they are. Every write is idempotent and they may be done in
any order: each carries its own timestamp, and the server merges. Pre- and postimages write nothing. A row that
cannot be replayed raises before anything of its block is written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
from cassandra.query import UNSET_VALUE

from headrace.cql.blocks import LogBlock
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections, split_tuples, to_arrow
from headrace.cql.log import STREAM, TIME, TTL, Operation, deleted, deleted_elements
from headrace.cql.log_positions import BatchPosition
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.sinks.cql.range_deletes import Bound, deletions
from headrace.sinks.cql.statements import Scope

log = logging.getLogger("headrace")
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]
"""Raw values, None for null, `UNSET_VALUE` for values to leave unchanged."""

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
    """The writes of a block."""

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
        self.stamps = words(times, ">i8")
        self.ttls = words(self._remaining(times, now), ">i4")

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
        found = np.empty(self.count, np.object_)
        found[:] = self.block.rows.column(name).to_pylist()
        return found

    def flag(self, name: str) -> Mask:
        """Return the rows in which a boolean column is true."""
        flags = to_arrow(CqlType("boolean"), self.block.rows.column(name), name)
        return np.asarray(flags.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)

    def present(self, name: str) -> Mask:
        return np.asarray(self.block.rows.column(name).is_valid().to_numpy(zero_copy_only=False), np.bool_)

    def cells(self, name: str) -> Cells:
        return Cells.of(self.block.rows.column(name))

    def error(self, row: int, message: str, hint: str) -> DefiniteError:
        event = str(BatchPosition.of_row(str(self.block.table.name), self.block.rows, row))
        return DefiniteError(message, place=self.place(row), hint=hint, event=event)

    def place(self, row: int) -> str:
        """Return a row's table, stream, time and key, for errors."""
        found = self.block.rows.slice(row, 1)
        stream, time = found.column(STREAM)[0].as_py() or b"", found.column(TIME)[0].as_py() or b"\0" * 16
        keys = ", ".join(f"{c.name} = {_shown(c, found)}" for c in (*self.table.partition_key, *self.table.clustering))
        return f"table {self.block.table.name}, cdc$time {UUID(bytes=time)}, stream 0x{stream.hex()}, {keys}"

    def damaged(self, column: str, damage: MalformedValue) -> DefiniteError:
        hint = "if the table or its type was altered just now, restart to read its new definition; else report this"
        return self.error(damage.row, f"column {column} cannot be read: {damage.reason}", hint)


def _shown(column: CqlColumn, row: Any) -> str:
    try:
        return str(to_arrow(column.type, row.column(column.name), column.name)[0].as_py())
    except (DefiniteError, ValueError, OverflowError):
        return f"0x{(row.column(column.name)[0].as_py() or b'').hex()}"


def plan(rows: LogRows, target: CqlTable, *, keyed_lists: bool, markers: bool = True) -> Planned:
    """The writes of a block into a table with the block's columns, or some of them.

    `keyed_lists`: the target takes list elements by their keys (ScyllaDB). If not, lists are left out, and the rows that change one are
    told. Without `markers`, inserts are written as updates.
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
            "%d log rows say that something changed, and not what; they are passed over. If no column of the table was dropped just now, "
            "its log kept keys alone for a while (delta = 'keys'): then copy the table again. The first is at %s",
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
        keys = [self._key(name) for name in self.scope.keys]
        head = [self.rows.stamps, self.rows.ttls]
        self.touched |= self._assigned | self._changed
        found = _gather(self.scope.insert(columns), [*keys, *assigned, *head], inserts & self.where)
        if columns:
            found += _gather(self.scope.assign(columns), [*head, *assigned, *keys], self._assigned & self.where & ~inserts)
        if changed:
            found += _gather(self.scope.change(self.scope.made), [*head, *changed, *keys], self._changed & self.where)
        return found + elements

    def _key(self, name: str) -> Objects:
        missing = np.flatnonzero(self.where & ~self.rows.present(name))
        if len(missing):
            raise self.rows.error(int(missing[0]), f"column {name} of the key is null", "the log was not written by a server; report this")
        return self.rows.raw(name)

    def _assign(self, column: CqlColumn) -> Objects:
        """Return the values of `c = ?`."""
        gone = self.rows.flag(deleted(column.name))
        values = self.rows.raw(column.name)
        if column.type.name == "list" and not column.type.is_atomic:
            values[:] = None
        if column.type.is_atomic:
            values[gone] = None
            set_ = gone | self.rows.present(column.name)
        else:
            set_ = gone
        values[~set_] = UNSET_VALUE
        self._assigned |= set_
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
        try:
            parts = split_tuples(self.rows.cells(column.name), count)
        except MalformedValue as damage:
            raise self.rows.damaged(column.name, damage) from None
        removed = self._removed_fields(column, count)
        for index, part in enumerate(parts):
            values = np.empty(self.rows.count, np.object_)
            values[:] = part.binary().to_pylist()
            sets = (part.sizes >= 0) & ~whole
            values[~sets] = UNSET_VALUE
            values[removed[index]] = None
            self._changed |= sets | removed[index]
            yield values

    def _removed_fields(self, column: CqlColumn, count: int) -> npt.NDArray[np.bool_]:
        name = deleted_elements(column.name)
        offsets, (keys,) = self._split(name, 1)
        removed = np.zeros((count, self.rows.count), np.bool_)
        indices = to_arrow(CqlType("smallint"), keys.binary(), name).to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(self.rows.count), np.diff(offsets))
        strange = np.flatnonzero((indices < 0) | (indices >= count))
        if len(strange):
            raise self.rows.error(
                int(owners[strange[0]]),
                f"field {indices[strange[0]]} of {column.name} was deleted, and its type has {count}",
                "the type was altered: restart to read its new definition",
            )
        removed[indices.astype(np.int64), owners] = True
        return removed

    def _split(self, name: str, parts: int) -> tuple[npt.NDArray[np.int64], tuple[Cells, ...]]:
        try:
            return split_collections(self.rows.cells(name), parts)
        except MalformedValue as damage:
            raise self.rows.damaged(name, damage) from None

    def _elements(self, column: CqlColumn) -> Iterator[Write]:
        """Yield the writes of a list's elements, by their keys."""
        added, removed = self.rows.present(column.name), self.rows.present(deleted_elements(column.name))
        touched = (added | removed | self.rows.flag(deleted(column.name))) & self.where
        self.touched |= touched
        self.listed |= touched
        if not self.keyed:
            return
        text, keys = self.scope.element(column), [self._key(name) for name in self.scope.keys]
        for name, parts in ((column.name, 2), (deleted_elements(column.name), 1)):
            offsets, cells = self._split(name, parts)
            element_keys = cells[0].binary().to_pylist()
            values = cells[1].binary().to_pylist() if parts == 2 else [None] * len(element_keys)
            owners = np.repeat(np.arange(self.rows.count), np.diff(offsets))
            for row, key, value in zip(owners.tolist(), element_keys, values, strict=True):
                if self.where[row]:
                    yield Write(text, (self.rows.stamps[row], self.rows.ttls[row], key, value, *(k[row] for k in keys)), row)


def _gather(text: str, columns: Sequence[Objects], where: Mask) -> list[Write]:
    """Yield a write for each row of a mask."""
    chosen = np.flatnonzero(where)
    if not len(chosen):
        return []
    values = zip(*(column[chosen].tolist() for column in columns), strict=True)
    return [Write(text, bound, row) for bound, row in zip(values, chosen.tolist(), strict=True)]


def _deletes(rows: LogRows, target: CqlTable) -> list[Write]:
    row, partition = Scope.row(target), Scope.partition(target)
    codes = rows.operations
    of_rows, of_partitions = np.isin(codes, _ROW_DELETES), np.isin(codes, _PARTITION_DELETES)
    found = []
    for scope, where in ((row, of_rows), (partition, of_partitions)):
        if where.any():
            found += _gather(scope.delete(), [rows.stamps, *(_present_key(rows, name, where) for name in scope.keys)], where)
    return found + list(_ranges(rows, target, partition))


def _present_key(rows: LogRows, name: str, where: Mask) -> Objects:
    missing = np.flatnonzero(where & ~rows.present(name))
    if len(missing):
        raise rows.error(int(missing[0]), f"column {name} of the key is null", "the log was not written by a server; report this")
    return rows.raw(name)


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
    partition = [_present_key(rows, name, np.isin(np.arange(rows.count), starts)) for name in scope.keys]
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
    values: list[bytes] = []
    for column in clustering:
        if column[row] is None:
            break
        values.append(column[row])
    return tuple(values)


def words(numbers: npt.NDArray[np.int64], kind: str) -> Objects:
    """Serialise numbers for the protocol."""
    raw = numbers.astype(kind)
    width = raw.dtype.itemsize
    whole = raw.tobytes()
    found = np.empty(len(numbers), np.object_)
    found[:] = [whole[at : at + width] for at in range(0, len(whole), width)]
    return found
