"""Rows that a target table does not take: which of a block they are, and why.

A row is refused by our own checks before anything is sent, or by the server for its whole block; then halves of the block are sent until
what is refused stands alone. That is only done for errors that are about values. An error about the table, the server or the statement
would be every row's, and halts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.version import row_place, unpack_version
from headrace.sinks.clickhouse.server.scalar_values import render_value

MOST_REFUSED: Final = 1000
"""Of one block, by the server: more than that is not a matter of some rows."""
_TOO_MANY_PARTITIONS, _OUT_OF_MEMORY = 252, 241
# Parsing and converting of values; NULLs; ranges; constraints; what a view or a default throws at a value.
_VALUE_CODES: Final = (6, 26, 27, 32, 38, 41, 53, 69, 70, 72, 117, 128, 131, 153, 190, 321, 349, 395, 407, 469, 500, 636, 691)
HALVED_WHEN_REFUSED: Final = frozenset({*_VALUE_CODES, _TOO_MANY_PARTITIONS})
HALVED_WHEN_BUSY: Final = frozenset({_OUT_OF_MEMORY})
"""ClickHouse's errors that may be about some rows of a block, or their number."""


class RowRejected(DefiniteError):
    """A value that is not stored as it is."""


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Rows of a block, and why each was refused."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    columns: tuple[str, ...]
    """Whose value it was, row by row; empty where nobody says."""
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, found: dict[int, tuple[str, str]]) -> RejectedRows:
        rows = sorted(found)
        return cls(np.array(rows, dtype=np.int64), tuple(found[row][0] for row in rows), tuple(found[row][1] for row in rows))

    def only(self, places: Sequence[int]) -> RejectedRows:
        """Some of them, by their places here."""
        return RejectedRows(self.rows[list(places)], tuple(self.columns[at] for at in places), tuple(self.reasons[at] for at in places))


def key_text(block: ChangeBlock, row: int) -> str:
    """What tells the row from others, for a person."""
    return ", ".join(f"{name}={render_value(block.images.column(name)[row])}" for name in block.schema.row_key)


def row_text(block: ChangeBlock, row: int) -> str:
    """The same within a place, if the table has a key."""
    return f", row {key_text(block, row)}" if block.schema.row_key else ""


def place_text(version: int) -> str:
    """Where in the source's log an image is, for a person."""
    _, file, offset = unpack_version(version)
    return f"log file {file}, offset {offset}"


def event_of(block: ChangeBlock, row: int) -> str:
    """The row's place in the words that `headrace skip` takes; none for rows of a snapshot, which share one."""
    return "" if block.op[row].as_py() == Op.SNAPSHOT else row_place(block.version[row].as_py())


def halves(block: ChangeBlock) -> tuple[ChangeBlock, ChangeBlock]:
    places = np.arange(block.rows)
    return block.taken(places[: block.rows // 2]), block.taken(places[block.rows // 2 :])
