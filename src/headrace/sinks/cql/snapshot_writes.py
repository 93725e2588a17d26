"""Rows of the base table as writes: a snapshot's, or some that were read again.

Each cell keeps its write time and expiry, so a cell that the log also contains is the same cell. A row does not show two things:

- a list's keys: its elements are written as of the snapshot (overwriting), under keys of our own that lie between those of elements that
  the log puts in front and those that it appends;
- a row's marker: a row without any other live cell has one, which is written as of the snapshot. Of other rows nothing is known, nothing
  is written; if it comes to matter, the row is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from cassandra.query import UNSET_VALUE

from headrace.cql import timeuuid
from headrace.cql.blocks import RowBlock
from headrace.cql.decode.arrow_arrays import Cells, MalformedValue, split_collections, split_tuples
from headrace.cql.language.value_encoder import sized
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.errors import DefiniteError
from headrace.sinks.cql.log_row_writes import ALTERED, Mask, Objects, Write, int_bytes, long_bytes, objects, valid, words
from headrace.sinks.cql.statements import Scope

Numbers = npt.NDArray[np.int64]
_BEFORE_US: Final = 1_000_000
"""Age of the keys of list elements at the snapshot: keys of later elements may be slightly older than the snapshot."""
_REST: Final = 0x8000_0000_0000_0000
_MOST_TTL: Final = 20 * 365 * 86400


class _Piece(NamedTuple):
    """The values of one parameter marker, by row."""

    values: Objects
    there: Mask
    times: Numbers
    ttls: Numbers


class BaseRows:
    """The writes of a block's rows to a table."""

    def __init__(self, block: RowBlock, target: CqlTable, now: int) -> None:
        self.block, self.target, self._now = block, target, now
        self.count = block.rows.num_rows

    def place(self, row: int) -> str:
        """Return the location of a row, for errors; missing rows are numbered after the others."""
        found, at = (self.block.rows, row) if row < self.count else (self.block.gone, row - self.count)
        assert found is not None
        keys = (*self.target.partition_key, *self.target.clustering)
        shown = ", ".join(f"{key.name} = 0x{(found.column(key.name)[at].as_py() or b'').hex()}" for key in keys)
        return f"table {self.block.table.name}, {shown}"

    def writes(self, *, keyed_lists: bool) -> Iterator[Write]:
        """Yield all writes to the table; without lists if the server does not accept elements by key."""
        for scope, where in self._scopes():
            yield from self._cells(scope, where)
            for column in scope.lists if keyed_lists else ():
                yield from self._list(scope, where, column, scope.element(column))
        yield from self._gone()

    def map_writes(self) -> Iterator[Write]:
        """Yield all writes to the auxiliary table, in which lists are maps."""
        for scope, where in self._scopes():
            for column in scope.made:
                yield from self._list(scope, where, column, scope.put(column))
        yield from self._gone()

    def listed(self) -> Iterator[tuple[Scope, dict[tuple[bytes, ...], int]]]:
        """Yield the keys of rows whose lists are written."""
        for scope, where in self._scopes():
            keys = [objects(self.block.rows.column(name)) for name in scope.keys]
            wanted = np.zeros(self.count, np.bool_)
            for column in scope.lists:
                wanted |= valid(self.block.rows.column(column.name)) | self.block.again
            chosen = np.flatnonzero(wanted & where).tolist()
            if chosen:
                yield scope, {tuple(key[row] for key in keys): row for row in chosen}

    def _scopes(self) -> list[tuple[Scope, Mask]]:
        """Yield rows, and partitions with their static columns."""
        found = [(Scope.row(self.target), valid(self.block.rows.column((self.target.clustering or self.target.partition_key)[0].name)))]
        if self.target.static:
            found.append((Scope.partition(self.target), ~found[0][1]))
        return [(scope, where) for scope, where in found if where.any()]

    def _list(self, scope: Scope, where: Mask, column: CqlColumn, text: str) -> Iterator[Write]:
        """Yield the writes of a list as of the snapshot: it is cleared, then each element is written with a generated key."""
        keys = [objects(self.block.rows.column(name)) for name in scope.keys]
        stamp, empty = long_bytes(self.block.as_of), scope.assign([column])
        raw = self.block.rows.column(column.name)
        offsets, (elements,) = self._split(column, split_collections)
        values = elements.binary().to_pylist()
        times, ttls = self._marks(column, offsets)
        tells = valid(self.block.times.column(column.name))
        for row in np.flatnonzero(where & (valid(raw) | self.block.again)).tolist():
            key = tuple(part[row] for part in keys)
            yield Write(empty, (stamp, int_bytes(0), None, *key), row)
            for number, at in enumerate(range(int(offsets[row]), int(offsets[row + 1]))):
                # What was written in that very microsecond the log brings, under its own key.
                if tells[row] and times[at] == self.block.as_of:
                    continue
                of = timeuuid.make(self.block.as_of - _BEFORE_US + number // 10, _REST, number % 10).bytes
                yield Write(text, (stamp, int_bytes(int(ttls[at])), of, values[at], *key), row)

    def _cells(self, scope: Scope, where: Mask) -> Iterator[Write]:
        """Yield the writes of all cells except lists, grouped by equal time and expiry per row."""
        keys = [objects(self.block.rows.column(name)) for name in scope.keys]
        pieces = [self._atomic(column) for column in scope.atomic]
        for column in scope.made:
            if column.type.name == "udt":
                pieces += self._fields(column)
                continue
            piece, rest = self._collection(column)
            pieces.append(piece)
            for row, time, ttl, value in rest:
                if where[row]:
                    yield Write(scope.append(column), (long_bytes(time), int_bytes(ttl), value, *(key[row] for key in keys)), row)
        if pieces:
            yield from _rounds(scope.restore(), pieces, keys, where)
        if scope.columns == self.target.regular:
            yield from self._markers(scope, keys, where)

    def _markers(self, scope: Scope, keys: list[Objects], where: Mask) -> Iterator[Write]:
        alone = where.copy()
        for column in scope.columns:
            alone &= ~valid(self.block.rows.column(column.name))
        for row in np.flatnonzero(alone).tolist():
            yield Write(scope.insert([]), (*(key[row] for key in keys), long_bytes(self.block.as_of), int_bytes(0)), row)

    def _gone(self) -> Iterator[Write]:
        if self.block.gone is None:
            return
        scope = Scope.row(self.target)
        keys = [objects(self.block.gone.column(name)) for name in scope.keys]
        for row in range(self.block.gone.num_rows):
            yield Write(scope.delete(), (long_bytes(self.block.as_of), *(key[row] for key in keys)), self.count + row)

    def _atomic(self, column: CqlColumn) -> _Piece:
        raw = self.block.rows.column(column.name)
        there = valid(raw)
        times, ttls = self._marks(column, np.concatenate([[0], np.cumsum(there)]))
        return _Piece(objects(raw), there, _spread(times, there), _spread(ttls, there))

    def _fields(self, column: CqlColumn) -> Iterator[_Piece]:
        there, count = valid(self.block.rows.column(column.name)), len(column.type.fields)
        parts = self._split(column, lambda cells: split_tuples(cells, count))
        times, ttls = self._marks(column, np.concatenate([[0], np.cumsum(there * count)]))
        for index, part in enumerate(parts):
            yield _Piece(objects(part.binary()), part.sizes >= 0, _spread(times[index::count], there), _spread(ttls[index::count], there))

    def _collection(self, column: CqlColumn) -> tuple[_Piece, list[tuple[int, int, int, bytes]]]:
        """Group the elements of maps and sets by equal time and expiry."""
        width = 2 if column.type.name == "map" else 1
        offsets, parts = self._split(column, lambda cells: split_collections(cells, width))
        times, ttls = self._marks(column, offsets)
        first, some = np.minimum(offsets[:-1], max(len(times) - 1, 0)), np.diff(offsets) > 0
        owners = np.repeat(np.arange(self.count), np.diff(offsets))
        differs = (times != times[offsets[owners]]) | (ttls != ttls[offsets[owners]]) if len(times) else np.zeros(0, np.bool_)
        mixed = np.zeros(self.count, np.bool_)
        mixed[owners[differs]] = True
        row_times = times[first] if len(times) else np.zeros(self.count, np.int64)
        row_ttls = ttls[first] if len(times) else np.zeros(self.count, np.int64)
        piece = _Piece(objects(self.block.rows.column(column.name)), some & ~mixed, row_times, row_ttls)
        values = [part.binary().to_pylist() for part in parts] if mixed.any() else []
        rest = []
        for row in np.flatnonzero(mixed).tolist():
            groups: dict[tuple[int, int], list[bytes]] = {}
            for at in range(int(offsets[row]), int(offsets[row + 1])):
                entry = b"".join(sized(part[at]) for part in values)
                groups.setdefault((int(times[at]), int(ttls[at])), []).append(entry)
            rest += [(row, time, ttl, int_bytes(len(entries)) + b"".join(entries)) for (time, ttl), entries in groups.items()]
        return piece, rest

    def _split(self, column: CqlColumn, split: Callable[[Cells], Any]) -> Any:
        try:
            return split(Cells.of(self.block.rows.column(column.name)))
        except MalformedValue as damage:
            message = f"column {column.name} cannot be read: {damage.reason}"
            raise DefiniteError(message, place=self.place(damage.row), hint=ALTERED) from None

    def _marks(self, column: CqlColumn, offsets: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Return the write time and the TTL of each cell; `offsets` are the bounds of each row's cells."""
        counts = np.diff(offsets)
        times = _flat(self.block.times.column(column.name), counts, self.block.as_of)
        expiries = _flat(self.block.expiries.column(column.name), counts, -1)
        return times, np.where(expiries >= 0, np.clip(expiries - self._now, 1, _MOST_TTL), 0)


def _flat(lists: Any, counts: npt.NDArray[Any], missing: int) -> Numbers:
    """Flatten lists of numbers to `counts` per row; `missing` where a list is absent or too short, or has a null."""
    total = int(counts.sum())
    found = np.full(total, missing, np.int64)
    owners = np.repeat(np.arange(len(counts)), counts)
    ordinal = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.asarray(lists.offsets.to_numpy())[:-1]
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False))
    numbers = lists.values.fill_null(missing).to_numpy(zero_copy_only=False)
    inside = ordinal < sizes[owners]
    found[inside] = numbers[starts[owners[inside]] + ordinal[inside]]
    return found


def _spread(numbers: Numbers, there: Mask) -> Numbers:
    """Scatter numbers to the rows that have a value."""
    found = np.zeros(len(there), np.int64)
    found[there] = numbers
    return found


def _rounds(text: str, pieces: list[_Piece], keys: list[Objects], where: Mask) -> Iterator[Write]:
    """Yield one statement per row for all cells with equal time and expiry, in as many rounds as any row has distinct pairs."""
    pending = [piece.there & where for piece in pieces]
    while any(left.any() for left in pending):
        times, ttls, chosen = np.zeros(len(where), np.int64), np.zeros(len(where), np.int64), np.zeros(len(where), np.bool_)
        for piece, left in zip(pieces, pending, strict=True):
            new = left & ~chosen
            times[new], ttls[new] = piece.times[new], piece.ttls[new]
            chosen |= new
        columns: list[Objects] = []
        for number, piece in enumerate(pieces):
            taken = pending[number] & (piece.times == times) & (piece.ttls == ttls)
            values = piece.values.copy()
            values[~taken] = UNSET_VALUE
            columns.append(values)
            pending[number] &= ~taken
        rows = np.flatnonzero(chosen)
        bound = [words(times, ">i8"), words(ttls, ">i4"), *columns, *keys]
        for row, given in zip(rows.tolist(), zip(*(column[rows].tolist() for column in bound), strict=True), strict=True):
            yield Write(text, given, row)
