"""Gives a task the bytes of a log segment, also on another machine than the relay's.

The planner adds the CRC-32 of the segment's bytes and the identity of the server. A task uses the relay's file if it exists (its path is
unique) and the checksum matches. Otherwise it fetches exactly these bytes from the server. Invariant: the decoded bytes are the planned
ones, or the task fails with a transient error. So versions and blocks are the same wherever and however often a segment is read. A
failover, a log reset or a stale shared directory cannot change them.

Fetched bytes go to an unnamed file, at their offsets in the log, so nothing remains however the task ends.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from headrace.errors import TransientError
from headrace.retry import retrying
from headrace.sources.mysql.binlog.relay import copy_range
from headrace.sources.mysql.binlog.replication_client import ReplicationStream
from headrace.sources.mysql.kernels.crc32 import crc32
from headrace.sources.mysql.segments.event_expander import map_plain
from headrace.sources.mysql.segments.segment_reader import Segment
from headrace.sources.mysql.server.connection import MySQLAddress, WrongServer
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace.mysql")

_RETRY_TIMEOUT_S: Final = 300.0
_SCRATCH: Final = ("SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS")
"""Environment variables with Spark's scratch directories."""


def with_checksum(segment: Segment, server: str, *, hide_path: bool) -> Segment:
    """Return the segment with the CRC-32 of its bytes, for tasks on other machines; `hide_path`: without the path of the relay's file."""
    inserts = tuple(
        replace(one, path=Path(one.path).name if hide_path else one.path, crc=_crc(one.path, one.start, one.end)) for one in segment.inserts
    )
    crc = _crc(segment.path, segment.start, segment.end)
    return replace(segment, path="" if hide_path else segment.path, inserts=inserts, crc=crc, server=server)


@contextmanager
def open_segment(segment: Segment, address: MySQLAddress | None) -> Iterator[Segment]:
    """Provide the segment with its bytes on this machine, inside the block."""
    if not segment.crc:
        # Planned for tasks on the relay's machine.
        yield segment
        return
    with ExitStack() as files:

        def place(path: str, file: str, start: int, end: int, crc: str) -> str:
            if "/" in path and _has_planned_bytes(path, start, end, crc):
                return path
            assert address is not None, "log files are not proven"
            return files.enter_context(_fetched(address, segment.server, file, start, end, crc))

        path = place(segment.path, segment.file, segment.start, segment.end, segment.crc)
        inserts = tuple(replace(one, path=place(one.path, Path(one.path).name, one.start, one.end, one.crc)) for one in segment.inserts)
        yield replace(segment, path=path, inserts=inserts)


def _crc(path: str, start: int, end: int) -> str:
    if start == end:
        return f"{0:08x}"
    piece = map_plain(path, path, start, end, False, 0)
    return f"{crc32(piece.buf, piece.start, piece.end):08x}"


def _has_planned_bytes(path: str, start: int, end: int, crc: str) -> bool:
    try:
        size = Path(path).stat().st_size
    except OSError:
        return False
    if size >= end and _crc(path, start, end) == crc:
        return True
    log.warning("the relay's copy of the log at %s is behind: the segment is fetched from the source", path)
    return False


@contextmanager
def _fetched(address: MySQLAddress, server: str, file: str, start: int, end: int, crc: str) -> Iterator[str]:
    """Provide the path of a file that holds [start, end) of a server's log file, inside the block."""
    place = f"{file}:{start}"
    with tempfile.TemporaryFile(dir=_scratch(), prefix="headrace-") as copy:
        try:
            retrying(functools.partial(_fetch, address, server, file, start, end, copy), deadline_s=_RETRY_TIMEOUT_S)
        except WrongServer as error:
            raise TransientError(error.message, place=place, hint="start again with the same state: it resumes there by GTID") from error
        path = f"/proc/self/fd/{copy.fileno()}"
        if _crc(path, start, end) != crc:
            raise TransientError(
                f"the source's log is not what it was when the batch was planned: {file} from {start} to {end} differs",
                place=place,
                hint="its log was reset, or another server has taken its name: start again with the same state",
            )
        yield path


def _fetch(address: MySQLAddress, server: str, file: str, start: int, end: int, copy: IO[bytes]) -> None:
    """Fetch bytes of the log to their offsets in `copy`. Repeatable."""
    with closing(ReplicationStream(address, BinlogPosition(file, start), blocking=False, identity=server)) as stream:
        copy_range(stream, file, start, end, copy.fileno())


def _scratch() -> str | None:
    """Return a directory for temporary files; None for the system's default."""
    folders = (folder for name in _SCRATCH for folder in os.environ.get(name, "").replace(",", os.pathsep).split(os.pathsep))
    return next((folder for folder in folders if folder and os.access(folder, os.W_OK)), None)
