"""Skips single events of the log at the user's request, and reports their content.

Invariant: only named events are skipped. An event is named by its file, its offset and the log's epoch; a row by its version, together with
the before image of the same update. The skipped content is reported, up to a limit.
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
"""The most content that is reported for one event."""


def event_place(file: str, offset: int, epoch: int) -> str:
    """Return the name of an event, by its start."""
    return f"{file}:{offset}" + (f"~{epoch}" if epoch else "")


def statement_place(position: BinlogPosition) -> str:
    """Return the name of a statement, by its end."""
    return f"{_STATEMENT}{event_place(position.file, position.offset, position.epoch)}"


def is_place(place: str) -> bool:
    return bool(_PLACE.fullmatch(place) or _ROW.fullmatch(place))


def is_passed(place: str, reached: BinlogPosition) -> bool:
    """Whether a log that was read up to a position has passed this place."""
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
    """The events that one task must skip, and those that it has skipped."""

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
        return self._offsets.get(file, [])

    def record(self, place: str, table: TableName, content: bytes) -> None:
        """Record a skipped event. A compressed one holds rows of several tables, which are reported together."""
        there = self.found.setdefault(place, {"table": str(table), "content": "", "bytes": "0"})
        if str(table) not in there["table"].split(", "):
            there["table"] += f", {table}"
        there["bytes"] = str(int(there["bytes"]) + len(content))
        there["content"] = there["content"] or base64.b64encode(content[:MOST_BYTES]).decode()

    def without_rows(self, block: ChangeBlock) -> ChangeBlock:
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
            place, row_json = row_place(int(versions[row])), json.dumps(block.images.slice(row, 1).to_pylist()[0], default=str)
            if int(versions[row]) in self._rows:
                self.found[place] = {"table": str(block.schema.name), "content": row_json[:MOST_BYTES], "bytes": str(len(row_json))}
        return block.taken(~gone)

    def to_report(self) -> list[dict[str, str]]:
        return [{"place": place, **what} for place, what in self.found.items()]
