"""Distinguishes rows that differ from rows that are only behind.

Rows that differed are read again: (1) read them from the source, (2) get the end of its log, (3) wait until the pipe has reached it, (4)
read them from the sink, (5) read them from the source again. A row that is equal in (1) and (5) did not change in between (or changed
back), and the sink had everything that (1) showed: if (4) shows another row, it differs. If the row changed, it is read again; rows that
keep changing are reported as such, never as different. If the pipe did not get that far, rows are behind.

A server writes a transaction to its log before its readers see it, so the sink may show a change that (5) does not. Before a row counts as
different, all that the log held after (4) must have become visible, and the row must still be the same. A row that was absent, was inserted
and deleted again would look constant, so a row differs only if two consecutive rounds found the same two rows.

Without a pipe to watch, (3) is a fixed wait: only what stays different for some seconds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from headrace.model.digest import Digest
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.verify.key_values import Key, chosen, key_list
from headrace.verify.region_reader import RegionReader
from headrace.verify.regions import Region
from headrace.verify.row_compare import Comparison, compare, different_keys
from headrace.verify.table_spec import TableComparison
from headrace.verify.watermark import P, Watermark, has_reached

_ROUNDS: Final = 8
_LONGEST_S: Final = 60.0
_PAUSES_S: Final = (0.5, 1.5, 3.0)


@dataclass(frozen=True, slots=True)
class RecheckResult:
    comparison: Comparison
    """The rows that differ."""
    keys: pa.Table
    """Their keys."""
    changing: int = 0
    """Rows that changed in every round."""
    behind: int = 0
    """Rows that differ while the sink has not reached the source's position."""
    missing: int = 0
    """How many of those the sink does not have."""
    extra: int = 0
    """How many of those only the sink has."""


class RowReader(Protocol):
    """Reads rows of both sides by key."""

    def source_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table: ...

    def sink_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table: ...


R = TypeVar("R", bound=RowReader)


class KeyRechecker(Generic[R, P]):
    """Rechecks rows by key until their result is certain."""

    def __init__(
        self,
        rows_reader: R,
        watermark: Watermark[P] | None,
        log_end: Callable[[], P],
        await_visible: Callable[[], None],
        *,
        patient: bool = True,
    ) -> None:
        """`await_visible` returns when the source shows everything that its log held at the call."""
        self._reader, self._watermark, self._log_end, self._await_visible = rows_reader, watermark, log_end, await_visible
        self._pauses_s = _PAUSES_S if patient else ()

    def recheck(self, table: TableComparison, keys: pa.Table) -> RecheckResult:
        """Recheck the rows with these keys until each is equal, different, behind, or known to keep changing."""
        schema, extra = table.shown, not table.keeps_deleted
        sure: list[pa.Table] = []
        total = Comparison()
        pauses_s = iter(self._pauses_s)
        deadline = self._deadline()
        suspects = _Candidates(table)
        for number in range(_ROUNDS):
            if not keys.num_rows or (number > 1 and time.monotonic() > deadline):
                break
            wanted = set(key_list(keys))
            first = chosen(self._reader.source_by_key(table, keys), wanted, schema.row_key)
            reached = self._await()
            target = chosen(self._reader.sink_by_key(table, keys), wanted, schema.row_key)
            last = chosen(self._reader.source_by_key(table, keys), wanted, schema.row_key)
            most = 2 * keys.num_rows
            unlike = set(key_list(different_keys(schema, last, target, most=most, extra=extra)))
            moved = set(key_list(different_keys(schema, first, last, most=most)))
            if reached is None and _pause(pauses_s):
                # The sink's position is unknown: only what stays different counts, and the last read decides.
                keys = chosen(keys, unlike)
                continue
            if reached is False:
                pending = _pending(unlike, key_list(last, schema.row_key), key_list(target, schema.row_key))
                return replace(pending, comparison=total, keys=pa.concat_tables([keys.slice(0, 0), *sure]))
            found = unlike - moved
            if reached and found:
                found -= self._moved_late(table, chosen(last, found, schema.row_key), chosen(keys, found))
                found = suspects.confirmed(found, last, target)
            if found:
                sure.append(chosen(keys, found))
                total = total + _counted(table, chosen(last, found, schema.row_key), chosen(target, found, schema.row_key), extra)
            keys = chosen(keys, unlike - found)
        return RecheckResult(total, pa.concat_tables([keys.slice(0, 0), *sure]), changing=keys.num_rows)

    def _deadline(self) -> float:
        """The deadline: a pipe with a long lag makes every round as long."""
        return time.monotonic() + 5.0 + (self._watermark.wait_s if self._watermark is not None else _LONGEST_S)

    def _moved_late(self, table: TableComparison, seen: pa.Table, keys: pa.Table) -> set[Key]:
        """Return the rows that changed once all of the log is visible."""
        self._await_visible()
        wanted = set(key_list(keys))
        now = chosen(self._reader.source_by_key(table, keys), wanted, table.schema.row_key)
        return set(key_list(different_keys(table.shown, seen, now, most=2 * keys.num_rows)))

    def _await(self) -> bool | None:
        """Whether the sink has everything that the source showed; None if unknown."""
        if self._watermark is None:
            return None
        wanted = self._log_end()
        return has_reached(self._watermark.await_position(wanted), wanted)


class Rechecker(KeyRechecker[RegionReader, BinlogPosition]):
    """Rechecks rows of tables that may have no key."""

    def recheck_region(self, table: TableComparison, region: Region, rows: int) -> RecheckResult:
        """Recheck a region of a table without a key as a whole."""
        pauses_s = iter(self._pauses_s)
        nothing = table.shown.arrow_schema.empty_table()
        deadline = self._deadline()
        before: tuple[Digest, Comparison] | None = None
        for number in range(_ROUNDS):
            if number > 1 and time.monotonic() > deadline:
                break
            first = self._reader.source_digest(table, region.wheres)
            reached = self._await()
            found = self._reader.narrow(table, region, rows) if table.by_digest else self._reader.read(table, region)
            total = replace(found.comparison, rows=0)
            if not total.total or reached is False:
                kinds = [one.kind for one in total.differences]
                return RecheckResult(Comparison(), nothing, 0, total.total, kinds.count("missing"), kinds.count("extra"))
            if reached is None and _pause(pauses_s):
                continue
            if reached:
                self._await_visible()
            if self._reader.source_digest(table, region.wheres) == first and (not reached or before == (first, total)):
                return RecheckResult(total, found.keys)
            before = (first, total)
        return RecheckResult(Comparison(), nothing, changing=max(before[1].total if before is not None else 0, 1))


class _Candidates:
    """Rows that differed in the last round, with both sides' values."""

    def __init__(self, table: TableComparison) -> None:
        self._schema = table.shown
        self._keys: set[Key] = set()
        self._sides: tuple[pa.Table, pa.Table] | None = None

    def confirmed(self, found: set[Key], source: pa.Table, target: pa.Table) -> set[Key]:
        """Return the rows that differed in the last round in the same way; all found rows become candidates."""
        now = tuple(chosen(side, found, self._schema.row_key) for side in (source, target))
        sure = found & self._keys
        for before, after in zip(self._sides or (), now, strict=False):
            ours = (chosen(side, sure, self._schema.row_key) for side in (before, after))
            sure = sure - set(key_list(different_keys(self._schema, *ours, most=2 * len(found))))
        self._keys, self._sides = found, (now[0], now[1])
        return sure


def _pending(unlike: set[Key], source: list[Key], target: list[Key]) -> RecheckResult:
    """Return the result for rows that may only be behind, by the keys of each side."""
    return RecheckResult(Comparison(), pa.table({}), 0, len(unlike), len(unlike.difference(target)), len(unlike.difference(source)))


def _pause(pauses_s: Iterator[float]) -> bool:
    pause_s = next(pauses_s, None)
    if pause_s is None:
        return False
    time.sleep(pause_s)
    return True


def _counted(table: TableComparison, source: pa.Table, target: pa.Table, extra: bool) -> Comparison:
    return replace(compare(table.shown, source, target, count_extra=extra), rows=0)
