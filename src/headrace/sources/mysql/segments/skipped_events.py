"""Single events of the log that are left out because somebody asked for it: their places, and what was in them.

Invariant: just what is named is left out. An event is named by its file, its offset and the log's epoch; a single row by its version, with
which the image before an update goes, too. What was left out is told whole, or as much of it as is small.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import TableName
from headrace.model.version import row_place
from headrace.sources.mysql.server.position import BinlogPosition

_STATEMENT: Final = "statement "
_PLACE: Final = re.compile(r"(?P<statement>statement )?(?P<file>.+\.\d+):(?P<offset>\d+)(~(?P<epoch>\d+))?")
_ROW: Final = re.compile(r"row (\d+)")
MOST_BYTES: Final = 16 << 10
"""Of what was left out, told of one event."""


def event_place(file: str, offset: int, epoch: int) -> str:
    """An event by where it begins."""
    return f"{file}:{offset}" + (f"~{epoch}" if epoch else "")


def statement_place(position: BinlogPosition) -> str:
    """A statement by where it ends."""
    return f"{_STATEMENT}{event_place(position.file, position.offset, position.epoch)}"


def is_place(place: str) -> bool:
    """Whether it is one of an event, a row or a statement of a server's log."""
    return bool(_PLACE.fullmatch(place) or _ROW.fullmatch(place))


def is_passed(place: str, reached: BinlogPosition) -> bool:
    """Whether a log that was read up to a position has been read past a place."""
    row = _ROW.fullmatch(place)
    if row:
        return int(row[1]) < reached.version
    found = _PLACE.fullmatch(place)
    if found is None:
        return False
    at = BinlogPosition(found["file"], int(found["offset"]), epoch=int(found["epoch"] or 0))
    return at <= reached if found["statement"] else at < reached


@dataclass(slots=True)
class SkippedEvents:
    """What one task leaves out, and what it left out."""

    places: Iterable[str]
    epoch: int
    found: dict[str, dict[str, str]] = field(default_factory=dict)
    _offsets: dict[str, list[int]] = field(default_factory=dict)
    _rows: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for place in self.places:
            row, event = _ROW.fullmatch(place), _PLACE.fullmatch(place)
            if row:
                self._rows.add(int(row[1]))
            elif event and not event["statement"] and int(event["epoch"] or 0) == self.epoch:
                self._offsets.setdefault(event["file"], []).append(int(event["offset"]))

    def offsets(self, file: str) -> list[int]:
        """Of the events in a file."""
        return self._offsets.get(file, [])

    def left_out(self, place: str, table: TableName, content: bytes) -> None:
        """Note an event. (A packed one has several rows of several tables; they are told together.)"""
        there = self.found.setdefault(place, {"table": str(table), "content": "", "bytes": "0"})
        if str(table) not in there["table"].split(", "):
            there["table"] += f", {table}"
        there["bytes"] = str(int(there["bytes"]) + len(content))
        there["content"] = there["content"] or base64.b64encode(content[:MOST_BYTES]).decode()

    def without_rows(self, block: ChangeBlock) -> ChangeBlock:
        """A block without the rows that are left out."""
        if not self._rows:
            return block
        versions, ops = block.version.to_numpy(), block.op.to_numpy()
        gone = np.isin(versions, np.fromiter(self._rows, dtype=np.uint64))
        if not gone.any():
            return block
        # The two images of an update are one change.
        gone[:-1] |= gone[1:] & (ops[:-1] == Op.BEFORE)
        gone[1:] |= gone[:-1] & (ops[:-1] == Op.BEFORE)
        for row in np.flatnonzero(gone).tolist():
            place, said = row_place(int(versions[row])), json.dumps(block.images.slice(row, 1).to_pylist()[0], default=str)
            if int(versions[row]) in self._rows:
                self.found[place] = {"table": str(block.schema.name), "content": said[:MOST_BYTES], "bytes": str(len(said))}
        return block.taken(~gone)

    def told(self) -> list[dict[str, str]]:
        """For the driver."""
        return [{"place": place, **what} for place, what in self.found.items()]
