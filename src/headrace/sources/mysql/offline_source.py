"""The offline source: `binlog:DIRECTORY`, a server's log files without the server.

Schemas come from the log itself: from the table maps, which are complete if the server wrote them with `binlog_row_metadata = FULL`, or
from the statements in the log. Versions are the same as for the live server's log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.binlog.binlog_directory import DirectoryLog, find_files, last_position, read_head, whole_until
from headrace.sources.mysql.binlog.commit_times import BacklogWriter
from headrace.sources.mysql.events.event_types import HEADER_SIZE, MAGIC, truncated
from headrace.sources.mysql.events.table_map import parse_table_name
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.event_expander import EventBuffer
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.server.position import UNKNOWN_GTID, BinlogPosition
from headrace.sources.mysql.split_reader import BinlogPlanner
from headrace.sources.mysql.splits import SegmentSplit

SCHEME: Final = "binlog:"
_AHEAD_BYTES: Final = 256 << 20
"""How far ahead of the committed position the files are indexed. It bounds the index, not the data, which stays in the files."""
_FILE_OFFSET: Final = re.compile(r"(?P<file>.+\.[0-9]+):(?P<offset>[0-9]+)")
_WINDOW_EVENTS: Final = 65_536
_MAX_MAPS: Final = 16_384
_ID_SLOTS: Final = 65_536


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
    """Return the directory of `binlog:DIRECTORY`."""
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
    """Return a planner over the log files in a directory."""
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
    """Yield all segments from the start to the current end of the files."""
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
