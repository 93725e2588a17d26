"""Plans and reads a server's log files as a pipe does, but without Spark and without a copy of the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from headrace.model.change_block import ChangeBlock, Op
from headrace.sources.mysql.binlog.batch_planner import BatchPlanner, LoggedStatement
from headrace.sources.mysql.binlog.relay import Appender, IndexedLog
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.group_addresses import IndexedLogFile
from headrace.sources.mysql.segments.segment_reader import Segment, read_segment
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.oracles.binlogs import Image, Logbook, Place, Row, images_of


class PlannedLog:
    """The log of a server from a place to now."""

    def __init__(self, book: Logbook, start: Place, limits: BatchLimits | None = None, gtid: str = "") -> None:
        self._book = book
        self.start = BinlogPosition(start.file, start.offset, gtid)
        self.mirror = IndexedLog(1 << 62)
        for path in sorted(book.server.binlog_dir.glob("binlog.[0-9]*")):
            if start.file <= path.name <= book.place().file:
                self._index(path, start.offset if path.name == start.file else 4)
        self.planner = BatchPlanner(self.mirror, limits or BatchLimits(), mariadb=book.server.flavour == "mariadb")

    def _index(self, path: Path, offset: int) -> None:
        file = IndexedLogFile(path.name, path, offset)
        self.mirror.files.append(file)
        checksum = self._book.fetch("SELECT @@GLOBAL.binlog_checksum")[0][0] != "NONE"
        appender = Appender(file, checksum, in_place=True)
        self.mirror._append(appender, np.frombuffer(bytearray(path.read_bytes()[offset:]), dtype=np.uint8))

    def positions(self) -> list[BinlogPosition]:
        """Return the bounds of batches, each encoded and decoded as in a checkpoint."""
        found = [self.start]
        while True:
            end = BinlogPosition.from_json(self.planner._cut(found[-1]).to_json())
            if end == found[-1]:
                return found
            found.append(end)

    def segments(self) -> list[Segment]:
        """Return the segments of all batches, each encoded and decoded."""
        pairs = pairwise(self.positions())
        return [Segment.from_json(one.to_json()) for pair in pairs for one in self.planner.segments(*pair) if self.planner.holds_rows(one)]

    def statements(self) -> list[LoggedStatement]:
        return [found for pair in pairwise(self.positions()) for found in self.planner.statements(*pair)]

    def blocks(self, *tables: str, options: ReadOptions | None = None) -> list[ChangeBlock]:
        catalog = self._book.catalog(*tables, options=options)
        return [block for segment in self.segments() for block in read_segment(segment, catalog)]

    def images(self, *tables: str, options: ReadOptions | None = None) -> list[Image]:
        """All images; their versions are unique."""
        found = images_of(self.blocks(*tables, options=options))
        assert len({image.version for image in found}) == len(found)
        return found


def replayed(images: Sequence[Image]) -> list[Row]:
    """Apply images by key (the first column) in the order of their versions; return the resulting rows."""
    rows: dict[object, Row] = {}
    for image in images:
        if image.op in (Op.DELETE, Op.BEFORE):
            assert rows.pop(image.row[0], None) is not None, f"{image} removes a missing row"
        else:
            assert image.op is not Op.INSERT or image.row[0] not in rows, f"{image} adds an existing row"
            rows[image.row[0]] = image.row
    return sorted(rows.values(), key=lambda row: int(str(row[0])))
