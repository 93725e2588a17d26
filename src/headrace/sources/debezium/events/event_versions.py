"""Versions of changes: which change of a row is newer. Never decided by a clock.

A table's rule (`TableVersioning`) is fixed by its first record and stored by the driver, so changes of one table are never compared by
different rules. A record has the same version in every partition and batch.
- **MySQL, MariaDB** (`binlog`): epoch, log file number, event position + ordinal of the image (decision 1). An inserted or deleted row has
  one ordinal, an update two. The log is in commit order, and a row occurs once per event. The two events of a key change, marked by
  headers, count as the two images of an update. A snapshot's rows have the snapshot's position: all later changes are above it.
- **PostgreSQL** (`lsn`): the change's LSN. A transaction that changes a row waits for the commit of the one that wrote it, so a row's LSNs
  ascend even if transactions overlap. Snapshot rows are below all changes: a transaction that was open during the snapshot wrote changes
  below the snapshot's LSN and is not in it.
- **others** (`offset`): the record's offset. A row's records stay in one partition as long as the number of partitions does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord
from headrace.model.version import FILE_BITS, OFFSET_BITS, pack_version

Versions = npt.NDArray[np.uint64]
Epochs = npt.NDArray[np.uint64]

_EPOCH_SHIFT: Final = FILE_BITS + OFFSET_BITS
_STREAM_BIT: Final = 1 << (_EPOCH_SHIFT - 1)
_LSN_BITS: Final = _EPOCH_SHIFT - 2
_PARTITION_SHIFT: Final = 44
_FAR_BACK: Final = 16
"""The maximum number of log files by which a restarted connector goes back."""
ADD_POSITION: Final = "add the log position to events (flat rows: add.fields=source.file,source.pos,source.row or op,source.lsn)"
_NEW_SNAPSHOT: Final = "raise the setting epoch by one: then the new snapshot and everything after it are newer"
_NEW_LOG: Final = "if the source server was replaced or its log reset, raise the setting epoch by one"


class VersionRule(StrEnum):
    BINLOG = "binlog"
    LSN = "lsn"
    OFFSET = "offset"


ASKED_OF_LOGS: Final = frozenset({"file", "pos", "row", "server_id", "ts_us"})
"""The source columns read for a known table with a key whose rule is the binlog position."""


@dataclass(frozen=True, slots=True)
class TableVersioning(JsonRecord):
    """How a table's changes are ordered; never changes."""

    rule: VersionRule
    topic: str = ""
    """With `offset`: the only topic of the table, because offsets of two topics cannot be compared."""
    tombstones: bool = False
    """Whether a tombstone is a delete of its own (flat rows without `__deleted`), not a repeated one."""


@dataclass(frozen=True, slots=True)
class LogTail(JsonRecord):
    """The state of the source's log at the last event of a partition; shows the next batch that the log was reset."""

    base: str = ""
    """MySQL, MariaDB: the log files' base name."""
    number: int = 0
    """The file number of the last event."""
    server_id: int = 0
    """The server that wrote the last event."""
    snapshot: int = 0
    """PostgreSQL: the LSN of the snapshot whose rows the sink holds; 0 if none."""
    epoch: int = 0
    """The epoch in which it was read."""
    position: int = 0
    """MySQL, MariaDB: the position of the last event in its file."""
    row: int = 0
    """MySQL, MariaDB: the row of the last event."""
    lsn: int = 0
    """PostgreSQL: the highest LSN of a change so far, without rows of snapshots."""


@dataclass(frozen=True, slots=True)
class EventPositions:
    """The parts of events that determine versions: columns of equal length."""

    source: pa.RecordBatch
    offset: npt.NDArray[np.int64]
    snapshot: npt.NDArray[np.bool_]
    """Whether each event is a row of a snapshot."""
    place: str
    """Topic and partition, for messages."""
    partition: int = 0
    keyless: bool = False
    """Whether the table has no key: it is a multiset, and only versions distinguish equal rows."""
    paired: npt.NDArray[np.bool_] | None = None
    """Whether each event is of an update, including the two events of a changed key. None: all."""


def rule_of(source: pa.RecordBatch) -> VersionRule:
    """Return the rule that all events' source fields support."""
    if source.num_rows and not any(source[name].null_count for name in ("file", "pos")):
        return VersionRule.BINLOG
    connectors = set(pc.unique(source["connector"]).to_pylist())
    streamed = source["lsn"].filter(pc.invert(pc.fill_null(pc.match_substring_regex(source["snapshot"], "^(true|first|last)"), False)))
    if source.num_rows and connectors <= {"postgresql", None} and source["lsn"].null_count < source.num_rows and not streamed.null_count:
        return VersionRule.LSN
    return VersionRule.OFFSET


def versions_of(order: TableVersioning, epochs: Epochs, events: EventPositions) -> tuple[Versions, Versions]:
    """Return the versions of the image that each event removes and of the one that it writes. A delete removes."""
    if len(epochs):
        pack_version(int(epochs.max()), 0, 0)
    base = epochs << np.uint64(_EPOCH_SHIFT)
    match order.rule:
        case VersionRule.BINLOG:
            return _binlog(base, events)
        case VersionRule.LSN:
            return _lsn(base, events)
        case VersionRule.OFFSET:
            if len(events.offset) and int(events.offset.max()) >= 1 << ((_PARTITION_SHIFT if events.keyless else _EPOCH_SHIFT) - 1):
                raise DefiniteError("an offset does not fit a version", place=events.place)
            if events.keyless:
                # Records without a key may be in any partition.
                base = base + (np.uint64(events.partition) << np.uint64(_PARTITION_SHIFT))
            base = base + (events.offset.astype(np.uint64) << np.uint64(1))
            return base, base + np.uint64(1)


def _binlog(base: Versions, events: EventPositions) -> tuple[Versions, Versions]:
    if events.source["pos"].null_count:
        raise _lacking(events, "pos")
    pos, row = _filled(events.source["pos"]), _filled(events.source["row"])
    names = events.source["file"].dictionary_encode()
    if names.null_count:
        raise _lacking(events, "file")
    numbers = np.array([file_number(name, events.place)[1] for name in names.dictionary.to_pylist()], dtype=np.int64)
    files = numbers[names.indices.to_numpy()] if len(numbers) else np.zeros(0, np.int64)
    single = np.zeros(len(pos), np.bool_) if events.paired is None else ~events.paired
    offset = pos + np.where(events.snapshot, 0, np.where(single, row + 1, 2 * row + 1))
    if len(pos):
        if min(int(pos.min()), int(row.min())) < 0:
            raise DefiniteError("an event's position in the log is below zero", place=events.place)
        pack_version(0, int(files.max()), int(offset.max()) + 1)
    base = base + (files.astype(np.uint64) << np.uint64(OFFSET_BITS)) + offset.astype(np.uint64)
    return base, np.where(events.snapshot | single, base, base + np.uint64(1))


def _lsn(base: Versions, events: EventPositions) -> tuple[Versions, Versions]:
    lsn = _filled(events.source["lsn"])
    unknown = np.asarray(events.source["lsn"].is_null().to_numpy(zero_copy_only=False)) & ~events.snapshot
    if unknown.any():
        raise _lacking(events, "lsn")
    if len(lsn) and not 0 <= int(lsn.min()) <= int(lsn.max()) < 1 << _LSN_BITS:
        raise DefiniteError("an LSN does not fit a version", place=events.place)
    stream = np.where(events.snapshot, np.uint64(0), np.uint64(_STREAM_BIT))
    base = base + stream + (lsn.astype(np.uint64) << np.uint64(1))
    return base, base + np.uint64(1)


def check_ascending(
    order: TableVersioning, version: Versions, events: EventPositions, changes: npt.NDArray[np.int64], same: Callable[[int, int], bool]
) -> None:
    """Halt where log positions do not order events: a compressed transaction has one position for all its events.

    `changes`: the events that are row changes; `same`: whether two of them are the same event, sent twice.
    """
    if order.rule is not VersionRule.BINLOG or len(changes) < 2:
        return
    rising = version[changes]
    falls = np.flatnonzero(rising[1:] <= rising[:-1]) + 1
    if not len(falls):
        return
    padded = pc.utf8_lpad(pc.cast(events.source["pos"], pa.string()), 20, "0")
    places = pc.binary_join_element_wise(events.source["file"], padded, ":").take(pa.array(changes)).to_pylist()
    lines = _filled(events.source["row"])[changes]
    for fall in falls.tolist():
        # A restarted connector goes back in the log, or in the event at which it stopped.
        if places[fall] < places[fall - 1] or (places[fall] == places[fall - 1] and lines[fall] > lines[fall - 1]):
            continue
        if not _is_sent_again(places, lines, fall, lambda one, other: same(int(changes[one]), int(changes[other]))):
            file, _, pos = places[fall].rpartition(":")
            raise DefiniteError(
                f"several events of one table are at {file}:{int(pos)}: the source compresses its log, so positions do not order them",
                place=f"{events.place}@{int(events.offset[changes[fall]])}",
                hint="switch binlog_transaction_compression (MariaDB: log_bin_compress) off in the source, or start over with "
                "versions = offset",
            )


def _is_sent_again(places: Sequence[str], lines: npt.NDArray[np.int64], fall: int, same: Callable[[int, int], bool]) -> bool:
    """Return whether the changes from `fall` on are changes of one event that a restarted connector sent before."""
    place = places[fall]
    before = [earlier for earlier in range(fall) if places[earlier] == place]
    at = fall
    # The first ones may have come in an earlier batch. Then a later one was sent before in this batch.
    while at < len(places) and places[at] == place and (at == fall or lines[at] > lines[at - 1]):
        twins = [earlier for earlier in before if lines[earlier] == lines[at]]
        if twins:
            return any(same(twin, at) for twin in twins)
        at += 1
    # No change of this batch proves a repetition.
    return False


def file_number(name: str, place: str) -> tuple[str, int]:
    base, dot, digits = name.rpartition(".")
    if not dot or not digits.isdecimal():
        raise DefiniteError(
            f"the log file's name {name!r} has no number, so positions cannot be ordered", place=place, hint="set versions to offset"
        )
    return base, int(digits)


def assign_epochs(
    tail: LogTail | None, rule: VersionRule, epoch: int, events: EventPositions, begun: int | None = None
) -> tuple[Epochs, LogTail | None]:
    """Return the epoch of each event and the log's state after them. Events are all of one partition, in offset order.

    Where a log starts again, versions would decrease. From there on the next epoch is used if the user has raised it; otherwise halt.
    After the epoch was raised, every step back counts as a reset: only the user can distinguish a small one from a restarted connector.
    `begun`: the epoch of first records without a stored tail; None: the current option.
    """
    rows = len(events.offset)
    if rule is VersionRule.OFFSET or not rows:
        return np.full(rows, epoch, dtype=np.uint64), tail
    tail = tail or LogTail(epoch=epoch if begun is None else begun)
    if epoch < tail.epoch:
        raise DefiniteError(f"the epoch is {epoch}, and was {tail.epoch} before", place=events.place, hint="an epoch can only be raised")
    turns, marks = _binlog_resets(events) if rule is VersionRule.BINLOG else _lsn_resets(events)
    epochs = np.empty(rows, dtype=np.uint64)
    positions, lines = _filled(events.source["pos"]), _filled(events.source["row"])
    for turn, end, mark in zip(turns, [*turns[1:], rows], marks, strict=True):
        problem = _problem(tail, mark)
        if problem is not None and tail.epoch == epoch:
            raise DefiniteError(problem.message, place=f"{events.place}@{int(events.offset[turn])}", hint=problem.hint)
        goes_back = bool(tail.base and mark.base) and (mark.number, mark.position) < (tail.number, tail.position)
        is_new_log = problem is not None or (tail.epoch < epoch and goes_back)
        # Snapshot rows contain no server id, and changes contain no snapshot position.
        tail = LogTail(
            mark.base or tail.base,
            mark.number or tail.number,
            mark.server_id or tail.server_id,
            mark.snapshot or tail.snapshot,
            # One epoch per log, so that events have the same epoch whenever they are read.
            tail.epoch + 1 if is_new_log else tail.epoch,
            int(positions[end - 1]),
            int(lines[end - 1]),
            0 if is_new_log else tail.lsn,
        )
        epochs[turn:end] = tail.epoch
    if rule is VersionRule.LSN:
        changes = _filled(events.source["lsn"])[~events.snapshot & (epochs == np.uint64(tail.epoch))]
        tail = replace(tail, lsn=int(changes.max(initial=tail.lsn)))
    return epochs, tail


def _binlog_resets(events: EventPositions) -> tuple[list[int], list[LogTail]]:
    """Return the events at which the log file or the server changes, or the log goes back, and their new values."""
    names = events.source["file"].dictionary_encode()
    if names.null_count:
        raise _lacking(events, "file")
    parts = [file_number(name, events.place) for name in names.dictionary.to_pylist()]
    servers, codes, pos = _filled(events.source["server_id"]), names.indices.to_numpy(), _filled(events.source["pos"])
    changed = (codes[1:] != codes[:-1]) | (servers[1:] != servers[:-1]) | (pos[1:] < pos[:-1])
    turns = np.flatnonzero(np.concatenate([[True], changed])).tolist()
    return turns, [LogTail(*parts[int(codes[turn])], int(servers[turn]), position=int(pos[turn])) for turn in turns]


def _lsn_resets(events: EventPositions) -> tuple[list[int], list[LogTail]]:
    """Return the bounds of snapshot rows; rows of incremental snapshots, which come between changes, count as changes."""
    gradual = pc.fill_null(pc.equal(events.source["snapshot"], "incremental"), False).to_numpy(zero_copy_only=False)
    marks = np.where(events.snapshot & ~np.asarray(gradual), np.maximum(_filled(events.source["lsn"]), 1), 0)
    turns = np.flatnonzero(np.concatenate([[True], marks[1:] != marks[:-1]])).tolist()
    return turns, [LogTail(snapshot=int(marks[turn])) for turn in turns]


def _problem(tail: LogTail, mark: LogTail) -> DefiniteError | None:
    if mark.snapshot and tail.snapshot and mark.snapshot != tail.snapshot:
        return DefiniteError(
            "the connector has taken a second snapshot: its rows would count as older than all changes before it", hint=_NEW_SNAPSHOT
        )
    if not tail.base or not mark.base:
        return None
    if mark.base != tail.base:
        return DefiniteError(
            f"the source's log files were called {tail.base!r} and are now called {mark.base!r}: their positions cannot be compared",
            hint=_NEW_LOG,
        )
    another = bool(mark.server_id and tail.server_id and mark.server_id != tail.server_id)
    if mark.number < tail.number - _FAR_BACK or (mark.number < tail.number and another):
        return DefiniteError(
            f"the source's log went back from file {tail.number} to file {mark.number}"
            + (f" with another server (id {mark.server_id}, before {tail.server_id})" if another else ""),
            hint=f"{_NEW_LOG}; if the connector was set back on purpose, start over with another --state",
        )
    return None


def _filled(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(array, 0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _lacking(events: EventPositions, name: str) -> DefiniteError:
    row = int(np.argmax(events.source[name].is_null().to_numpy(zero_copy_only=False)))
    return DefiniteError(
        f"an event has no {name!r}, by which the table's changes are ordered",
        place=f"{events.place}@{int(events.offset[row])}",
        hint="add it to events (flat rows: add.fields=source.file,source.pos,source.row), or start over with versions = offset",
    )
