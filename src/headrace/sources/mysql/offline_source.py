"""The offline source: `binlog:DIRECTORY`, a server's log files without the server.

Schemas come from the log itself: from the table maps, which are complete if the server wrote them with `binlog_row_metadata = FULL`, or
from the statements in the log. Versions are the same as for the live server's log.

The files are read in place and never changed; tasks map them into memory. They are indexed in the order of their numbers, with the same
checks as a server's stream (sizes, positions, checksums). Nothing is skipped: a missing number, a file that ends inside a transaction
although another follows, or an unreadable file is an error. An unfinished transaction at the end of the last file waits for the rest.
Indexing again gives the same groups, so a run can start at any position.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.binlog.commit_times import BacklogWriter
from headrace.sources.mysql.binlog.log_comparison import LogReplaced, digest_of
from headrace.sources.mysql.binlog.relay import Appender, IndexedLog
from headrace.sources.mysql.events.event_types import (
    FORMAT_DESCRIPTION_EVENT,
    HEADER_SIZE,
    MAGIC,
    created_at,
    parse_format_description,
    truncated,
)
from headrace.sources.mysql.events.table_map import parse_table_name
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.event_expander import EventBuffer
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition, file_number
from headrace.sources.mysql.split_reader import BinlogPlanner, SegmentSplit

SCHEME: Final = "binlog:"
_AHEAD_BYTES: Final = 256 << 20
"""How far ahead of the committed position the files are indexed. It bounds the index, not the data, which stays in the files."""
_FILE_OFFSET: Final = re.compile(r"(?P<file>.+\.[0-9]+):(?P<offset>[0-9]+)")
_WINDOW_EVENTS: Final = 65_536
_MAX_MAPS: Final = 16_384
_ID_SLOTS: Final = 65_536
_NAME: Final = re.compile(r"(?P<base>.+)\.[0-9]{6,}")
_ENCRYPTED: Final = b"\xfdbin"
_PIECE_BYTES: Final = 16 << 20
_POLL_S: Final = 0.5
_COPY_AGAIN: Final = "copy the files again, while the server does not write to them (FLUSH BINARY LOGS first)"


@dataclass(frozen=True, slots=True)
class OfflineLog:
    """A directory of log files: the server that wrote them, the start of reading, and the current end of the files."""

    path: Path
    server_version: str
    mariadb: bool
    identity: str
    start: BinlogPosition
    end: BinlogPosition


def parse_directory(address: str) -> Path:
    path = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or not path:
        raise DefiniteError(f"{address!r} is not a directory of log files", hint="write binlog:DIRECTORY")
    return Path(path)


def open_directory(path: Path, start_at: str = "oldest", epoch: int = 0) -> OfflineLog:
    """Inspect the files of a directory, which may still grow. `start_at` is `oldest`, `now` or `FILE:OFFSET`."""
    directory = path.resolve()
    files = find_files(directory)
    heads = [read_head(file) for file in files]
    end = last_position(directory, epoch)
    base = files[0].name.rpartition(".")[0]
    identity = f"{SCHEME}{base}:{heads[0].server_id}"
    return OfflineLog(directory, heads[0].server_version, heads[0].mariadb, identity, _resolve(start_at.strip(), files, end), end)


def directory_planner(
    path: Path, start: BinlogPosition, limits: BatchLimits, *, mariadb: bool, backlog: Path | None = None
) -> BinlogPlanner:
    files = DirectoryLog(path, _AHEAD_BYTES, None if backlog is None else BacklogWriter(backlog))
    return BinlogPlanner(files, start, limits, partial(last_position, path), mariadb=mariadb)


def find_schemas(
    log: OfflineLog, wanted: Callable[[TableName], bool], describe: Callable[[bytes, str], TableSchema | None]
) -> dict[TableName, TableSchema | None]:
    """Return the wanted tables with rows in the files after the start, each with the schema of its first table map.

    `describe` returns the schema for a table map's body and place, or None if the map is incomplete.
    """
    found: dict[TableName, TableSchema | None] = {}
    for segment in _segments(log):
        for piece in segment.pieces():
            for offset, body in _table_maps(piece, segment.file):
                place = f"{segment.file}:{offset}"
                name = parse_table_name(body, place)
                if name not in found and wanted(name):
                    found[name] = describe(body, place)
    return found


def _segments(log: OfflineLog) -> Iterator[Segment]:
    planner = directory_planner(log.path, log.start, BatchLimits(parallelism=1), mariadb=log.mariadb)
    try:
        at = log.start
        while at < log.end:
            end = BinlogPosition.from_json(planner.plan(at.to_json()))
            for split in planner.splits(at.to_json(), end.to_json()):
                if isinstance(split, SegmentSplit):
                    yield split.segment
            planner.commit(end.to_json())
            at = end
    finally:
        planner.stop()


def _table_maps(piece: EventBuffer, file: str) -> list[tuple[int, bytes]]:
    """Return the distinct table maps of a buffer, in order, with their offsets in the file."""
    events = np.empty((_WINDOW_EVENTS, scan.INDEX_COLUMNS), dtype=np.int64)
    maps, ids = np.zeros((_MAX_MAPS, 2), dtype=np.int64), np.zeros((_ID_SLOTS, 2), dtype=np.int64)
    state = np.zeros(scan.INDEX_CELLS, dtype=np.int64)
    state[scan.I_POS] = piece.start
    while state[scan.I_POS] < piece.end:
        state[scan.I_EVENTS] = 0
        status = scan.index_rows(piece.buf, piece.end, 0, piece.checksum, events, maps, ids, state)
        if status not in (scan.OK, scan.NO_ROOM):
            raise truncated("binary log", f"{file}:{int(piece.locate(state[[scan.I_ERROR_AT]])[1][0])}")
    distinct = maps[: state[scan.I_MAPS]]
    # The body of a table map begins after the event header, the table id and the flags.
    _, offsets = piece.locate(distinct[:, 0] - HEADER_SIZE - 8)
    return [
        (offset, piece.buf[start : start + size].tobytes())
        for offset, (start, size) in zip(offsets.tolist(), distinct.tolist(), strict=True)
    ]


def _resolve(text: str, files: list[Path], end: BinlogPosition) -> BinlogPosition:
    if text == "oldest":
        return BinlogPosition(files[0].name, len(MAGIC), UNKNOWN_GTID, end.epoch)
    if text == "now":
        return BinlogPosition(end.file, end.offset, UNKNOWN_GTID, end.epoch)
    place = _FILE_OFFSET.fullmatch(text)
    if place is None:
        raise DefiniteError(f"{text!r} is not a place in log files", hint="write oldest, now, or FILE:OFFSET such as binlog.000042:157")
    position = BinlogPosition(place["file"], int(place["offset"]), UNKNOWN_GTID, end.epoch)
    path = next((file for file in files if file.name == position.file), None)
    if path is None or position > end:
        raise DefiniteError(
            f"the log files have no position {text}: they go from {files[0].name}:{len(MAGIC)} to {end}",
            place=str(files[0].parent),
            hint="write oldest, now, or a FILE:OFFSET that they have",
        )
    last = whole_until(path, position.offset)
    if last != position.offset:
        raise DefiniteError(
            f"{text} is not the end of a transaction", place=str(path), hint=f"the last one before it ends at {path.name}:{last}"
        )
    return position


@dataclass(frozen=True, slots=True)
class FileHead:
    server_version: str
    server_id: int
    checksum: bool
    created: int
    """When the file was created, in seconds since 1970."""

    @property
    def mariadb(self) -> bool:
        return "MariaDB" in self.server_version


def find_files(directory: Path) -> list[Path]:
    """Return a server's log files in a directory, in the order in which they were written."""
    try:
        found = [entry for entry in directory.iterdir() if _NAME.fullmatch(entry.name) and entry.is_file()]
    except OSError as error:
        raise DefiniteError(f"the directory of log files cannot be read: {error}", place=str(directory), hint="check the path") from error
    if not found:
        raise DefiniteError(
            "the directory holds no binary log files", place=str(directory), hint="name a directory with files such as binlog.000001"
        )
    bases = sorted({entry.name.rpartition(".")[0] for entry in found})
    if len(bases) > 1:
        raise DefiniteError(
            f"the directory holds log files of several names: {', '.join(bases)}", place=str(directory), hint="keep the files of one in it"
        )
    found.sort(key=lambda entry: file_number(entry.name))
    for one, other in pairwise(found):
        if file_number(other.name) != file_number(one.name) + 1:
            raise DefiniteError(
                f"log files are missing between {one.name} and {other.name}", place=str(directory), hint="copy the missing files too"
            )
    return found


def read_head(path: Path) -> FileHead:
    """Parse the first event of a file; raise if it is no readable log file."""
    place = f"{path}:{len(MAGIC)}"
    with path.open("rb") as file:
        magic, header = file.read(len(MAGIC)), file.read(HEADER_SIZE)
        if magic == _ENCRYPTED:
            raise DefiniteError("the log file is encrypted", place=str(path), hint="read the log through its server, which decrypts it")
        size = int.from_bytes(header[9:13], "little")
        if magic != MAGIC or len(header) < HEADER_SIZE or header[4] != FORMAT_DESCRIPTION_EVENT or size <= HEADER_SIZE:
            raise DefiniteError("this is not a binary log file, or its beginning is damaged", place=str(path), hint=_COPY_AGAIN)
        body = file.read(size - HEADER_SIZE)
    if len(body) < size - HEADER_SIZE:
        raise DefiniteError("the log file breaks off in its first event", place=str(path), hint=_COPY_AGAIN)
    described = parse_format_description(body, place)
    return FileHead(described.server_version, int.from_bytes(header[5:9], "little"), described.checksum, created_at(header))


def last_position(directory: Path, epoch: int = 0) -> BinlogPosition:
    newest = find_files(directory)[-1]
    return BinlogPosition(newest.name, whole_until(newest), epoch=epoch)


def whole_until(path: Path, end: int | None = None) -> int:
    """Return the end of the last whole group of a file, or of its bytes up to `end`."""
    appender = Appender(IndexedLogFile(path.name, path, len(MAGIC)), read_head(path).checksum, in_place=True)
    for piece in _pieces(path, len(MAGIC), end):
        appender.append(piece)
        if appender.fault is not None:
            raise appender.fault
    return appender.safe_end


def check_file(directory: Path, position: BinlogPosition) -> None:
    """Raise if the directory does not hold the log of the position."""
    identity, path = position.identity, directory / position.file
    if identity is None or not path.exists():
        return
    created = read_head(path).created
    with path.open("rb") as file:
        file.seek(identity.start)
        found = file.read(identity.end - identity.start)
    if created != identity.created or digest_of(found, identity.start) != identity.digest:
        raise LogReplaced(
            f"the log file {position.file} is not the one that was read up to {position}",
            place=str(path),
            hint="restore the former files, or read the new ones with a new state directory and new target tables",
        )


class DirectoryLog(IndexedLog):
    def __init__(self, directory: Path, limit_bytes: int, backlog: BacklogWriter | None = None) -> None:
        super().__init__(limit_bytes, backlog)
        self._directory = directory

    def _begin(self, position: BinlogPosition) -> None:
        names = [path.name for path in find_files(self._directory)]
        if position.file not in names:
            raise DefiniteError(
                f"the directory has no log file {position.file}, where reading must go on; it has {names[0]} to {names[-1]}",
                place=str(self._directory),
                hint="copy the missing files too; to start over, remove the state directory and the target tables",
            )
        self._enter(self._directory / position.file, position.offset)
        check_file(self._directory, position)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._index(self.files[-1])
        except HeadraceError as error:
            self._fail(error)
        # The thread must hand every error to the reader before it ends.
        except Exception as error:
            self._fail(DefiniteError(f"the log files cannot be followed: {type(error).__name__}: {error}", place=str(self._directory)))
            raise

    def _enter(self, path: Path, offset: int) -> None:
        size = path.stat().st_size
        if offset > size:
            raise DefiniteError(
                f"log file {path.name} ends at {size}, before the position {offset} where reading must go on",
                place=str(self._directory),
                hint=_COPY_AGAIN,
            )
        head, log_file = read_head(path), self._open(path.name, path, offset)
        log_file.checksum, log_file.created = head.checksum, head.created

    def _index(self, log_file: IndexedLogFile) -> None:
        appender = Appender(log_file, log_file.checksum, in_place=True)
        at = max(log_file.safe_end, log_file.start)
        while not self._stopping:
            # Check for the next file before the size: once it exists, this file is complete.
            follows = self._follower(log_file)
            size = log_file.path.stat().st_size
            if size < at:
                raise DefiniteError(
                    f"log file {log_file.name} became shorter while it was read", place=str(log_file.path), hint=_COPY_AGAIN
                )
            known = self._newest_identity() if size > at else None
            if known is not None:
                check_file(self._directory, known)
            for piece in _pieces(log_file.path, at, size):
                at += len(piece)
                self._append(appender, piece)
                if self._stopping:
                    return
            if follows is not None:
                if appender.safe_end != size:
                    raise DefiniteError(
                        f"log file {log_file.name} breaks off inside a transaction, but {follows.name} follows it",
                        place=f"{log_file.path}:{appender.safe_end}",
                        hint=f"{_COPY_AGAIN}; if the server crashed there, cut the file off at that place",
                    )
                self._enter(follows, len(MAGIC))
                return
            if self.backlog is not None:
                self.backlog.heard(idle=False)
            with self.changed:
                self.changed.wait_for(lambda: self._stopping, _POLL_S)

    def _follower(self, log_file: IndexedLogFile) -> Path | None:
        number = file_number(log_file.name)
        return next((path for path in find_files(self._directory) if file_number(path.name) == number + 1), None)


def _pieces(path: Path, start: int, end: int | None = None) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes [start, end) of a file in parts."""
    with path.open("rb", buffering=0) as file:
        stop = os.fstat(file.fileno()).st_size if end is None else end
        file.seek(start)
        while start < stop:
            piece = np.empty(min(_PIECE_BYTES, stop - start), dtype=np.uint8)
            got = file.readinto(piece.data) or 0
            if not got:
                raise DefiniteError(f"log file {path.name} became shorter while it was read", place=str(path), hint=_COPY_AGAIN)
            yield piece[:got]
            start += got
