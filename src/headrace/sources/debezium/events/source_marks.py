"""Marks of tables whose target counts rows: how far each partition was read, as a position in the source's log.

Kafka Connect delivers at least once: a connector that restarts, or a producer that repeats a request, sends events again at new offsets. A
target that counts rows would count them twice. Within a partition the events of a connector are in the order of its log, so an event that
is not after the mark is a repetition, and is dropped. Rows of a snapshot share one position: a row that comes again before any change of
its partition passes, and the sink drops it by its key; later ones are dropped here.

Invariant: which events pass depends only on the mark before the batch and on the records, so a replay passes the same ones. Whatever a
position cannot tell apart is an error: another snapshot, connector, epoch or log, the log of another server (by its GTIDs), several events
at one position, and a partition that is not in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName
from headrace.model.version import FILE_BITS, OFFSET_BITS

_EPOCH_SHIFT: Final = FILE_BITS + OFFSET_BITS
_NONE: Final = -1
_RECENT: Final = 100
START_OVER: Final = "drop the target table, and start over with another --state"
FROM_SNAPSHOT: Final = f"{START_OVER}, from the first record of a new snapshot on (--start)"
KEEP_NEWEST: Final = f"{START_OVER} and --engine replacing"

Mask = npt.NDArray[np.bool_]
MarkKey = tuple[TableName, str, int]
"""Table, topic and partition."""


@dataclass(frozen=True, slots=True)
class SourceMark(JsonRecord):
    """The last change of a table that a partition brought."""

    connector: str
    """The connector's logical name (`source.name`)."""
    epoch: int
    snapshot: int = _NONE
    """The version of the snapshot's rows; -1: the topic brought none so far."""
    change: int = _NONE
    """The position of the last change; -1: none so far. It rises with the version; a deletion is before an insertion of equal version."""
    time_us: int = 0
    """The highest commit time so far."""
    digest: str = ""
    """Of the last change, to recognise it."""
    gtid: str = ""
    """Of the last change; empty if the source has none."""
    end: int = 0
    """The offset up to which the partition was read."""
    recent: tuple[int, ...] = ()
    """The positions of the last changes, in ascending order: a repeated event between them must be one of them."""

    @property
    def has_changes(self) -> bool:
        return self.change != _NONE


Marks = Mapping[MarkKey, SourceMark]


@dataclass(frozen=True, slots=True)
class MarkedEvents:
    """The events of one table in a piece of a partition, in the order of their offsets: columns of equal length."""

    read: Mask
    """Rows of a snapshot."""
    deleted: Mask
    version: npt.NDArray[np.uint64]
    time_us: npt.NDArray[np.int64]
    source: pa.RecordBatch
    offset: npt.NDArray[np.int64]
    digest: Callable[[int], str]
    """Returns the digest of an event's content."""


def find_repeated(key: MarkKey, marks: Marks, events: MarkedEvents) -> tuple[Mask, SourceMark]:
    """Return which events are repetitions, and the mark after them.

    `marks`: of the same table and topic, before these events. Raise `DefiniteError` where a position does not identify an event.
    """
    table, topic, partition = key
    place = _Places(table, f"{topic}[{partition}]", events.offset)
    known = [mark for (name, of, _), mark in marks.items() if (name, of) == (table, topic)]
    own = marks.get(key) or SourceMark(*_identity(events, place))
    _check_identity(events, [own, *known], place)
    _check_snapshots(events, place)
    read, snapshot = events.read, _snapshot_of(events, known, place)
    repeated = _repeated_changes(events, replace(own, snapshot=snapshot), place)
    changed = np.flatnonzero(~read)
    first = 0 if own.has_changes else int(changed[0]) if len(changed) else len(read)
    # All rows of a snapshot precede the changes of their partition.
    repeated[first:] |= read[first:]
    times = int(events.time_us.max()) if len(events.time_us) else 0
    mark = replace(own, snapshot=snapshot, time_us=max(own.time_us, times))
    fresh = np.flatnonzero(~read & ~repeated)
    if len(fresh):
        last, positions = int(fresh[-1]), _positions(events)[fresh]
        recent = (*own.recent, *positions[-_RECENT:].tolist())[-_RECENT:]
        _check_transactions(events, fresh, own, place)
        gtid = events.source["gtid"][last].as_py() or ""
        mark = replace(mark, change=int(positions[-1]), digest=events.digest(last), gtid=gtid, recent=recent)
    return repeated, mark


def merge_marks(before: Marks, found: Iterable[Marks]) -> dict[MarkKey, SourceMark]:
    """Return the marks after a batch. Raise `DefiniteError` if partitions of a topic brought different snapshots of a table."""
    after = dict(before)
    for marks in found:
        after.update(marks)
    first: dict[tuple[TableName, str], SourceMark] = {}
    for (table, topic, partition), mark in sorted(after.items()):
        place = _Places(table, f"{topic}[{partition}]", np.zeros(0, np.int64))
        former = first.setdefault((table, topic), mark)
        if former.connector != mark.connector:
            raise place.two_connectors(former.connector, mark.connector)
        if former.epoch != mark.epoch:
            raise place.other_epoch()
        if mark.snapshot != _NONE and former.snapshot not in (_NONE, mark.snapshot):
            raise place.second_snapshot()
        if former.snapshot == _NONE:
            first[table, topic] = mark
    return after


@dataclass(frozen=True, slots=True)
class _Places:
    table: TableName
    partition: str
    offset: npt.NDArray[np.int64]

    def of(self, row: int | None = None) -> str:
        return self.partition if row is None else f"{self.partition}@{int(self.offset[row])}"

    def two_connectors(self, one: str, other: str, row: int | None = None) -> DefiniteError:
        return DefiniteError(
            f"events of {self.table} come from two connectors in one topic ({one}, {other or 'without a name'}), and the target counts "
            "rows: positions of two logs do not tell whether an event was counted already",
            place=self.of(row),
            hint=f"let each connector have its own topic; or {KEEP_NEWEST}",
        )

    def other_epoch(self, row: int | None = None) -> DefiniteError:
        return DefiniteError(
            f"the source of {self.table} has a new log (the epoch was raised), and the target counts rows: events that the connector sends "
            "again have other positions in the new log",
            place=self.of(row),
            hint=FROM_SNAPSHOT,
        )

    def second_snapshot(self, row: int | None = None) -> DefiniteError:
        return DefiniteError(
            f"the connector has taken another snapshot of {self.table}, and the target counts rows: its rows would count again",
            place=self.of(row),
            hint=FROM_SNAPSHOT,
        )


def _identity(events: MarkedEvents, place: _Places) -> tuple[str, int]:
    name = events.source["name"][0].as_py()
    if not name:
        raise DefiniteError(
            f"an event of {place.table} does not name its connector (source.name), and the target counts rows",
            place=place.of(0),
            hint=f"send whole envelopes of Debezium; or {KEEP_NEWEST}",
        )
    return name, int(events.version[0] >> np.uint64(_EPOCH_SHIFT))


def _check_identity(events: MarkedEvents, known: Iterable[SourceMark], place: _Places) -> None:
    epochs = events.version >> np.uint64(_EPOCH_SHIFT)
    for mark in known:
        others = pc.fill_null(pc.not_equal(events.source["name"], mark.connector), True).to_numpy(zero_copy_only=False)
        if others.any():
            row = int(np.argmax(others))
            raise place.two_connectors(mark.connector, events.source["name"][row].as_py() or "", row)
        moved = epochs != np.uint64(mark.epoch)
        if moved.any():
            raise place.other_epoch(int(np.argmax(moved)))


def _check_snapshots(events: MarkedEvents, place: _Places) -> None:
    """Refuse snapshots that read rows a second time."""
    initial = pc.fill_null(pc.match_substring_regex(events.source["snapshot"], "^(true|first|last)"), False).to_numpy(zero_copy_only=False)
    odd = events.read != initial
    if odd.any():
        row = int(np.argmax(odd))
        kind = events.source["snapshot"][row].as_py()
        raise DefiniteError(
            f"an event of {place.table} is no change and not of an initial snapshot (source.snapshot: {kind}), and the target counts rows: "
            "it may hold the row already",
            place=place.of(row),
            hint=f"let the connector take initial snapshots only; or {KEEP_NEWEST}",
        )


def _snapshot_of(events: MarkedEvents, known: list[SourceMark], place: _Places) -> int:
    """Return the version of the snapshot whose rows the target holds."""
    snapshot = max((mark.snapshot for mark in known), default=_NONE)
    rows = np.flatnonzero(events.read)
    if not len(rows):
        return snapshot
    first = int(rows[0])
    if snapshot == _NONE:
        if first or any(mark.has_changes for mark in known):
            raise place.second_snapshot(first)
        snapshot = int(events.version[first])
    others = rows[events.version[rows] != np.uint64(snapshot)]
    if len(others):
        raise place.second_snapshot(int(others[0]))
    return snapshot


def _positions(events: MarkedEvents) -> npt.NDArray[np.int64]:
    """Return what orders changes within an epoch: the version, and a deletion before the insertion of the same position."""
    low = (events.version & np.uint64((1 << _EPOCH_SHIFT) - 1)).astype(np.int64)
    return low * 2 + ~events.deleted


def _repeated_changes(events: MarkedEvents, mark: SourceMark, place: _Places) -> Mask:
    """Return which changes are not after the mark, or not after an earlier change of the piece."""
    repeated = np.zeros(len(events.read), np.bool_)
    rows = np.flatnonzero(~events.read)
    if not len(rows):
        return repeated
    positions = _positions(events)[rows]
    # Changes from before the snapshot are in its rows.
    least = mark.change if mark.snapshot == _NONE else max(mark.change, (mark.snapshot & ((1 << _EPOCH_SHIFT) - 1)) * 2 + 1)
    before = np.maximum.accumulate(np.concatenate([[least], positions]))[:-1]
    again = positions <= before
    _check_order(positions, again, mark, rows, place)
    times = np.maximum.accumulate(np.concatenate([[mark.time_us], events.time_us]))[:-1][rows]
    late = again & (events.time_us[rows] > times)
    if late.any():
        row = int(rows[int(np.argmax(late))])
        raise DefiniteError(
            f"an event of {place.table} is at an earlier position of the log than those before it, and is newer: the source's log was "
            "reset, and the target counts rows",
            place=place.of(row),
            hint=FROM_SNAPSHOT,
        )
    for row in rows[positions == mark.change].tolist():
        if events.digest(row) != mark.digest:
            raise DefiniteError(
                f"several events of {place.table} are at one position: the source compresses its log, so positions do not tell them apart",
                place=place.of(row),
                hint="switch binlog_transaction_compression (MariaDB: log_bin_compress) off in the source; then "
                f"{FROM_SNAPSHOT}; or {KEEP_NEWEST} --set debezium.versions=offset",
            )
    repeated[rows[again]] = True
    return repeated


def _check_order(positions: npt.NDArray[np.int64], again: Mask, mark: SourceMark, rows: npt.NDArray[np.int64], place: _Places) -> None:
    """Refuse events that look repeated and were not read before. Those before all known positions cannot be checked."""
    known = np.concatenate([np.array(mark.recent, dtype=np.int64), positions[~again]])
    if not len(known):
        return
    unknown = again & (positions >= known.min()) & ~np.isin(positions, known)
    if unknown.any():
        raise DefiniteError(
            f"events of {place.table} are not in the order of the source's log, and the target counts rows: only the order shows which "
            "events the connector sends twice",
            place=place.of(int(rows[int(np.argmax(unknown))])),
            hint=f"read the topic that the connector itself writes; or {KEEP_NEWEST}",
        )


def _check_transactions(events: MarkedEvents, fresh: npt.NDArray[np.int64], mark: SourceMark, place: _Places) -> None:
    """Refuse a transaction that follows a later one of its server, or that is in two files: it comes from the log of another server."""
    gtids = pa.concat_arrays([pa.array([mark.gtid or None], pa.string()), events.source["gtid"].take(pa.array(fresh)).cast(pa.string())])
    # MySQL: server:number or server:tag:number; MariaDB: domain-server-number.
    parts = pc.extract_regex(gtids, r"^(?P<server>.*)[:-](?P<number>[0-9]{1,18})$")
    rows = np.flatnonzero(parts.is_valid().to_numpy(zero_copy_only=False))
    servers = pc.struct_field(parts, "server").take(pa.array(rows)).dictionary_encode().indices.to_numpy()
    numbers = pc.struct_field(parts, "number").take(pa.array(rows)).cast(pa.int64()).to_numpy()
    files = (np.concatenate([[max(mark.change, 0)], _positions(events)[fresh]]) >> (OFFSET_BITS + 1))[rows]
    order = np.argsort(servers, kind="stable")
    servers, numbers, files = servers[order], numbers[order], files[order]
    same = servers[1:] == servers[:-1]
    wrong = same & ((numbers[1:] < numbers[:-1]) | ((numbers[1:] == numbers[:-1]) & (files[1:] != files[:-1])))
    if wrong.any():
        row = int(rows[order[int(np.argmax(wrong)) + 1]])
        raise DefiniteError(
            f"the transaction {gtids[row].as_py()} of {place.table} was read before, at another position: the connector reads the log of "
            "another server, and the target counts rows",
            place=place.of(int(fresh[row - 1])),
            hint=f"{FROM_SNAPSHOT}; a source that is a replica needs replica_preserve_commit_order",
        )
