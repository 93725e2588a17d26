"""Passes log bytes through Headrace without server, thread or Spark: appender, groups, planner, segments, reader.

Everything except the input is production code. A `Chain` reads a whole log file as a source and its tasks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner, LoggedStatement
from headrace.sources.mysql.binlog.relay import Appender, IndexedLog
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, Segment, read_segment
from headrace.sources.mysql.server.position import BinlogPosition

FIRST = 4
"""Where the first event of a log file lies."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a source publishes of a log file."""

    end: int
    """Where the last whole group ends."""
    fault: DefiniteError | None
    planner: BatchPlanner
    segments: tuple[Segment, ...]
    statements: tuple[LoggedStatement, ...]


class Chain:
    """Reads log files of one name in its own directory."""

    def __init__(self, directory: Path, file: str, *, mariadb: bool) -> None:
        self._path, self._file, self._mariadb = directory / file, file, mariadb

    def scan(self, log: bytes | npt.NDArray[np.uint8], *, checksum: bool) -> tuple[int, DefiniteError | None]:
        """Return the end of the last scanned group, and the error that stopped the scan."""
        mirror = _Mirror()
        appender = Appender(mirror.open(self._file, self._path), checksum, in_place=True)
        return mirror.take(appender, log)

    def publish(self, log: bytes, *, checksum: bool) -> Published:
        """Scan a whole file and plan its groups as one batch."""
        self._path.write_bytes(log)
        mirror = _Mirror()
        appender = Appender(mirror.open(self._file, self._path), checksum, in_place=True)
        end, fault = mirror.take(appender, log)
        planner = BatchPlanner(mirror, BatchLimits(), mariadb=self._mariadb)
        start, stop = BinlogPosition(self._file, FIRST), BinlogPosition(self._file, end)
        return Published(end, fault, planner, tuple(planner.segments(start, stop)), tuple(planner.statements(start, stop)))

    def read(self, log: bytes, catalog: ReadCatalog, *, checksum: bool) -> list[ChangeBlock]:
        """Return every block of a whole file, or the error of reading it."""
        published = self.publish(log, checksum=checksum)
        blocks = [block for segment in published.segments for block in read_segment(segment, catalog)]
        if published.fault is not None:
            raise published.fault
        return blocks


class _Mirror(IndexedLog):
    """An indexed log that its caller fills."""

    def __init__(self) -> None:
        super().__init__(limit_bytes=1 << 40)

    def open(self, file: str, path: Path) -> IndexedLogFile:
        return self._open(file, path, FIRST)

    def take(self, appender: Appender, log: bytes | npt.NDArray[np.uint8]) -> tuple[int, DefiniteError | None]:
        piece = log[FIRST:] if isinstance(log, np.ndarray) else np.frombuffer(bytearray(log[FIRST:]), dtype=np.uint8)
        fault = None
        try:
            self._append(appender, piece)
        except DefiniteError as error:
            fault = error
        finally:
            appender.close()
        return max(appender.log_file.safe_end, FIRST), fault
