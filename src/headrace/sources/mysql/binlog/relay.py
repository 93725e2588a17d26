"""The relay: a byte-for-byte copy of the server's log from the checkpoint on, and an index of its transaction bounds.

One thread reads the replication stream and appends events unchanged to local files with the server's own names and offsets (the part before
the start is a hole). A group (a transaction, or a statement outside one) is published only when it is complete on disk and every checksum
was right, so a reader never sees half of one. After a broken connection the thread resumes at the last whole group and drops the unfinished
one. Nothing here is needed after a crash: the checkpoint names a position and the server has the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import GOING_ON, WAITING
from headrace.sources.mysql.binlog.commit_times import BacklogWriter
from headrace.sources.mysql.binlog.log_comparison import LogPurged, LogWatch, identify
from headrace.sources.mysql.binlog.replication_client import HEARTBEAT, NewFile, NewFormat, ReplicationStream
from headrace.sources.mysql.events import event_types
from headrace.sources.mysql.events.event_types import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    MAGIC,
    check_format_description,
    created_at,
    parse_format_description,
    truncated,
    unsupported_event,
)
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.segments.group_addresses import AppliedGroups, IndexedLogFile, complete
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.gtid import read_gtid_set
from headrace.sources.mysql.server.position import BinlogPosition, Prepared, file_number

SPLIT_BYTES: Final = 4 << 20
_GROUPS_PER_SCAN: Final = 8_192
_GIVE_UP_S: Final = 600.0
_LONGEST_PAUSE_S: Final = 10.0
_PUNCH_HOLE_KEEP_SIZE: Final = 3


class IndexedLog:
    """Log files and the index of their groups, for the planner. Read `files` and `failure` while holding `changed`.

    The thread that fills it waits while more than `limit_bytes` are published and not committed.
    """

    def __init__(self, limit_bytes: int, backlog: BacklogWriter | None = None) -> None:
        self.changed = threading.Condition()
        self.backlog = backlog
        self.files: list[IndexedLogFile] = []
        self.failure: HeadraceError | None = None
        self.epoch = 0
        self._limit = limit_bytes
        self._applied: AppliedGroups | None = None
        self._retained: list[IndexedLogFile] = []
        """Files before the committed position that hold bytes of prepared XA transactions."""
        self._committed = 0
        self._received = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._identified: BinlogPosition | None = None
        """The last committed position. Its log can be identified."""

    @property
    def started(self) -> bool:
        return self._thread is not None

    def start(self, position: BinlogPosition) -> None:
        self.epoch, self._identified = position.epoch, position
        self._applied = AppliedGroups(read_gtid_set(position.gtid)) if position.ahead else None
        self._begin(position)
        self._thread = threading.Thread(target=self._run, name="headrace-relay", daemon=True)
        self._thread.start()

    def commit(self, position: BinlogPosition) -> None:
        """Free everything before `position`, except the bytes of XA transactions that are prepared there."""
        if position.epoch != self.epoch:
            return
        if self.backlog is not None:
            self.backlog.applied(position.file, position.offset)
        with self.changed:
            self._identified = position
            number = file_number(position.file)
            for log_file in [log_file for log_file in self.files if file_number(log_file.name) < number]:
                self._clear(log_file, int(log_file.safe_end), position.prepared)
                self._free(log_file, int(log_file.safe_end))
                self.files.remove(log_file)
                self._retained.append(log_file)
            needed = {one.file for one in position.prepared}
            for log_file in [log_file for log_file in self._retained if log_file.name not in needed]:
                self._retained.remove(log_file)
                self._drop(log_file)
            if self.files and self.files[0].name == position.file:
                log_file = self.files[0]
                log_file.groups = log_file.groups[np.searchsorted(log_file.groups[:, scan.END], position.offset, side="right") :]
                log_file.splits = log_file.splits[np.searchsorted(log_file.splits[:, scan.SPLIT_AT], position.offset, side="right") :]
                self._clear(log_file, position.offset, position.prepared)
                self._free(log_file, position.offset)
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        self._wake()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _newest_identity(self) -> BinlogPosition | None:
        """Return the newest position whose log can be identified."""
        with self.changed:
            for log_file in reversed(self.files):
                end = log_file.reached
                identity = identify(log_file, log_file.groups, end, None, None)
                if identity is not None and identity.start < identity.end:
                    return BinlogPosition(log_file.name, end, epoch=self.epoch, identity=identity)
            return self._identified

    def _begin(self, position: BinlogPosition) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        """The body of the thread, until it is asked to stop."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Interrupt a blocking call of the thread."""

    def _drop(self, log_file: IndexedLogFile) -> None:
        """Remove a file that is no longer needed."""

    def _clear(self, log_file: IndexedLogFile, offset: int, prepared: tuple[Prepared, ...]) -> None:
        """Free the disk space before an offset, except prepared transactions."""

    def _free(self, log_file: IndexedLogFile, offset: int) -> None:
        if offset > log_file.start:
            self._committed += offset - log_file.start
            log_file.start = offset

    def _fail(self, error: HeadraceError) -> None:
        with self.changed:
            self.failure = error
            self.changed.notify_all()

    def _open(self, name: str, path: Path, offset: int) -> IndexedLogFile:
        log_file = IndexedLogFile(name, path, offset)
        with self.changed:
            self.files.append(log_file)
            self.changed.notify_all()
        return log_file

    def _append(self, appender: Appender, piece: npt.NDArray[np.uint8]) -> None:
        """Publish the whole groups that these bytes complete."""
        found = appender.append(piece)
        for i, (groups, splits) in enumerate(found):
            if self._applied is not None and len(groups):
                self._applied.mark(groups, f"{appender.log_file.name}:{int(groups[0, scan.END])}")
            with self.changed:
                log_file = appender.log_file
                before = log_file.reached
                if len(groups):
                    log_file.groups = np.concatenate((log_file.groups, groups))
                if len(splits):
                    log_file.splits = np.concatenate((log_file.splits, splits))
                # Events after the last group count too: an idle server may send only such events for a long time.
                reached = appender.safe_end if i == len(found) - 1 else int(groups[-1, scan.END]) if len(groups) else 0
                log_file.safe_end = max(log_file.safe_end, reached)
                if self.backlog is not None:
                    self.backlog.received(log_file.name, groups, is_open=appender.is_open)
                self._received += log_file.safe_end - before
                self.changed.notify_all()
                # One group may exceed the limit: it must be published whole before it can be read and freed.
                while self._received - self._committed > self._limit and not self._stopping:
                    self.changed.wait(1.0)
        if appender.fault is not None:
            raise appender.fault


class Relay(IndexedLog):
    def __init__(
        self,
        address: MySQLAddress,
        directory: Path,
        limit_bytes: int,
        warn: Callable[[str], None],
        give_up_s: float = _GIVE_UP_S,
        identity: str = "",
        backlog: BacklogWriter | None = None,
    ) -> None:
        super().__init__(limit_bytes, backlog)
        self.address, self.identity, self._directory = address, identity, directory
        self._warn, self._give_up_s = warn, give_up_s
        self._connected = self._failing = False
        self._stream: ReplicationStream | None = None
        self._watch = LogWatch(address, identity)
        self._missing: list[Prepared] = []
        """XA transactions that were prepared before the start, whose bytes are not fetched yet."""

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _begin(self, position: BinlogPosition) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, mode=0o700)
        self._missing = list(position.prepared)
        self._open_file(position.file, position.offset)

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _drop(self, log_file: IndexedLogFile) -> None:
        log_file.path.unlink(missing_ok=True)

    def _clear(self, log_file: IndexedLogFile, offset: int, prepared: tuple[Prepared, ...]) -> None:
        at = log_file.start
        for one in sorted((one for one in prepared if one.file == log_file.name), key=lambda one: one.start):
            punch_hole(log_file.path, at, min(one.start, offset))
            at = max(at, one.end)
        punch_hole(log_file.path, at, offset)

    def _run(self) -> None:
        pause_s, failing_since = 0.1, 0.0
        while not self._stopping:
            self._connected = False
            try:
                self._follow()
            except DefiniteError as error:
                self._fail(self._watch.explain(error, self._newest_identity()))
                return
            except TransientError as error:
                if self._stopping:
                    return
                if self._connected or not failing_since:
                    pause_s, failing_since = 0.1, time.monotonic()
                elif time.monotonic() - failing_since > self._give_up_s:
                    self._fail(error)
                    return
                self._failing = True
                self._warn(f"{WAITING}{error.message}; trying again in {pause_s:.1f} s")
                with self.changed:
                    self.changed.wait_for(lambda: self._stopping, pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            # The thread must hand every error to the reader before it ends.
            except Exception as error:
                self._fail(DefiniteError(f"the relay failed: {type(error).__name__}: {error}", place=str(self.address)))
                raise

    def _follow(self) -> None:
        """Read one connection until it breaks or the relay stops."""
        while self._missing and not self._stopping:
            self._fetch(self._missing[-1])
            self._missing.pop()
        log_file = self.files[-1]
        resume = BinlogPosition(log_file.name, log_file.reached, epoch=self.epoch)
        stream = self._stream = ReplicationStream(self.address, resume, identity=self.identity)
        appender: Appender | None = None
        checksum = log_file.checksum
        if self.backlog is not None:
            self.backlog.set_server_clock(stream.clock_skew_us)
        try:
            # The server has opened its file for the stream. A log that is replaced after this check cannot enter the stream unnoticed.
            self._watch.check(self._newest_identity())
            for piece in stream.pieces():
                # Even an idle server sends heartbeats, so the connection works again.
                self._connected = True
                if piece is HEARTBEAT and self.backlog is not None:
                    self.backlog.heard(idle=True)
                if self._stopping:
                    return
                if self._failing:
                    self._failing = False
                    self._warn(f"{GOING_ON}the source answers again")
                if isinstance(piece, NewFormat):
                    checksum = piece.checksum
                    if appender is not None:
                        appender.log_file.checksum, appender.log_file.created = checksum, piece.created
                elif isinstance(piece, NewFile):
                    if appender is not None:
                        appender.close()
                    appender = Appender(self._file(piece, resume), checksum)
                elif piece is HEARTBEAT:
                    self._watch.check_while_idle(self._newest_identity, self.files[-1].reached)
                elif isinstance(piece, np.ndarray) and appender is not None:
                    self._append(appender, piece)
        finally:
            stream.close()
            if appender is not None:
                appender.close()

    def _fetch(self, one: Prepared) -> None:
        """Fetch the bytes of a prepared XA transaction into the relay's file."""
        stream = self._stream = ReplicationStream(self.address, BinlogPosition(one.file, one.start), blocking=False, identity=self.identity)
        path = self._directory / Path(one.file).name
        path.touch(mode=0o600)
        with contextlib.closing(stream), path.open("r+b", buffering=0) as file:
            copy_range(stream, one.file, one.start, one.end, file.fileno(), lambda: self._stopping)
        if all(log_file.name != one.file for log_file in (*self.files, *self._retained)):
            self._retained.append(IndexedLogFile(one.file, path, one.end))

    def _file(self, news: NewFile, resume: BinlogPosition) -> IndexedLogFile:
        current = self.files[-1]
        if news.name == current.name:
            return current
        if news.name != resume.file and file_number(news.name) <= file_number(current.name):
            raise DefiniteError(f"the source went from log file {current.name} back to {news.name}", place=str(self.address))
        with contextlib.suppress(LogPurged):
            # A server whose log is reset may still send the end of the old file, and then the next file of the new log.
            self._watch.check(self._newest_identity())
        return self._open_file(news.name, news.offset)

    def _open_file(self, name: str, offset: int) -> IndexedLogFile:
        path = self._directory / Path(name).name
        path.touch(mode=0o600)
        return self._open(name, path, offset)


class Appender:
    """Appends a connection's bytes to one log file and scans them. `in_place`: only scans an existing file."""

    def __init__(self, log_file: IndexedLogFile, checksum: bool, *, in_place: bool = False) -> None:
        self.log_file = log_file
        log_file.checksum = checksum
        self._file = None if in_place else log_file.path.open("r+b", buffering=0)
        self._offset = log_file.reached
        """The log offset of the first byte of `_rest`."""
        self.safe_end = self._offset
        self.fault: DefiniteError | None = None
        self._rest: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._state = np.zeros(scan.STATE_CELLS, dtype=np.int64)
        if self._offset == len(MAGIC) and self._file is not None:
            os.pwrite(self._file.fileno(), MAGIC, 0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def is_open(self) -> bool:
        """Whether only a part of a transaction has arrived."""
        return self._offset + len(self._rest) > self.safe_end

    def append(self, piece: npt.NDArray[np.uint8]) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Write whole events to the file; return the groups and splits found, in order. `fault` holds the error that stopped it, if any."""
        data = np.concatenate((self._rest, piece)) if len(self._rest) else piece
        if self._offset == len(MAGIC) and len(data) > HEADER_SIZE:
            self._read_format(data)
        found = []
        state = self._state
        state[scan.POS] = 0
        while True:
            state[scan.GROUPS] = state[scan.SPLITS] = 0
            groups = np.empty((_GROUPS_PER_SCAN, scan.GROUP_COLUMNS), dtype=np.int64)
            splits = np.empty((_GROUPS_PER_SCAN, scan.SPLIT_COLUMNS), dtype=np.int64)
            status = scan.scan_groups(data, len(data), self._offset, self.log_file.checksum, SPLIT_BYTES, groups, splits, state)
            whole, self.fault = complete(groups[: state[scan.GROUPS]], partial(self._event_at, data), self.log_file.name)
            found.append((whole, splits[: state[scan.SPLITS]]))
            if self.fault is not None or status != scan.NO_ROOM:
                break
        incomplete = self.fault is not None
        if not incomplete and status != scan.OK:
            self.fault = self._error(status, data)
        done = int(state[scan.POS])
        if self._file is not None:
            write_all(self._file.fileno(), data[:done], self._offset)
        self._offset += done
        self._rest = data[done:].copy()
        # The scan may accept a group that `complete` rejects: then nothing after the last good group counts.
        if not state[scan.IN_GROUP] and not incomplete:
            self.safe_end = self._offset
        elif any(len(groups) for groups, _ in found):
            self.safe_end = max(int(groups[-1, scan.END]) for groups, _ in found if len(groups))
        return found

    def _event_at(self, data: npt.NDArray[np.uint8], offset: int) -> memoryview:
        """Return the event at an offset of the file, without checksum, from the new bytes or from the bytes written before."""
        if offset >= self._offset:
            view = data.data[offset - self._offset :]
        else:
            with self.log_file.path.open("rb") as file:
                header = os.pread(file.fileno(), HEADER_SIZE, offset)
                view = memoryview(os.pread(file.fileno(), int.from_bytes(header[9:13], "little"), offset))
        return view[: int.from_bytes(view[9:13], "little") - (CHECKSUM_SIZE if self.log_file.checksum else 0)]

    def _read_format(self, data: npt.NDArray[np.uint8]) -> None:
        size = int.from_bytes(data[9:13].tobytes(), "little")
        place = f"{self.log_file.name}:{self._offset}"
        if data[4] != event_types.FORMAT_DESCRIPTION_EVENT:
            raise truncated("FORMAT_DESCRIPTION", place)
        if HEADER_SIZE + CHECKSUM_SIZE <= size <= len(data):
            check_format_description(data[:size].tobytes(), place)
            self.log_file.created = created_at(data[:size].tobytes())
            self.log_file.checksum = parse_format_description(data[HEADER_SIZE:size].tobytes(), place).checksum

    def _error(self, status: int, data: npt.NDArray[np.uint8]) -> DefiniteError:
        offset = int(self._state[scan.ERROR_AT])
        place = f"{self.log_file.name}:{offset}"
        if status == scan.BAD_CHECKSUM:
            return DefiniteError(
                "a binary log event is damaged: its checksum is wrong",
                place=place,
                hint="check the source's disk; if the log is lost, take a new snapshot: remove the state directory and the target tables",
            )
        if status == scan.UNKNOWN_EVENT:
            return unsupported_event(int(data[offset - self._offset + 4]), place)
        if status == scan.BAD_POSITION:
            return DefiniteError(
                "a binary log event is not at the position in its header", place=place, hint="please report it with the server's version"
            )
        return truncated("binary log", place)


def copy_range(
    stream: ReplicationStream, file: str, start: int, end: int, descriptor: int, stops: Callable[[], bool] = lambda: False
) -> None:
    """Write bytes [start, end) of the server's log file at their offsets; raise `TransientError` if they do not come before it `stops`."""
    at, current = start, file
    for piece in stream.pieces():
        if isinstance(piece, NewFile):
            current = piece.name
        elif isinstance(piece, np.ndarray) and current == file:
            write_all(descriptor, piece[: end - at], at)
            at = min(at + len(piece), end)
        if at == end or current != file or stops():
            break
    if at != end and not stops():
        raise TransientError(f"the source did not send its log up to {file}:{end}", place=str(stream.address))


def write_all(descriptor: int, data: npt.NDArray[np.uint8], offset: int) -> None:
    view = data.data
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def punch_hole(path: Path, start: int, end: int) -> None:
    """Free the disk space of a committed range. On a file system without holes, it is freed when the file is removed."""
    if start >= end:
        return
    with contextlib.suppress(OSError), path.open("r+b") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate(file.fileno(), _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(end - start))
