"""Rejected rows of a block, with reasons.

A row is rejected by the encoder before anything is sent, or by the server together with its block. In the second case the writer sends
halves of the block until the rejected rows are isolated. It does so only for errors about values; an error about the table, the server or
the statement concerns every row and halts the pipe.
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

MAX_REJECTED: Final = 1000
"""Of one block, by the server. More than that is not a problem of single rows."""
_TOO_MANY_PARTITIONS, _OUT_OF_MEMORY = 252, 241
# Errors of parsing and conversion, NULLs, ranges, constraints, and exceptions of views and defaults.
_VALUE_CODES: Final = (6, 26, 27, 32, 38, 41, 53, 69, 70, 72, 117, 128, 131, 153, 190, 321, 349, 395, 407, 469, 500, 636, 691)
HALVED_WHEN_REFUSED: Final = frozenset({*_VALUE_CODES, _TOO_MANY_PARTITIONS})
HALVED_WHEN_BUSY: Final = frozenset({_OUT_OF_MEMORY})
"""ClickHouse error codes that may be about some rows of a block, or about their number."""


class RowRejected(DefiniteError):
    """A value that the table would not store unchanged."""


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Rows of a block, and why each was rejected."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    columns: tuple[str, ...]
    """The column of the rejected value, row by row; empty if unknown."""
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, found: dict[int, tuple[str, str]]) -> RejectedRows:
        rows = sorted(found)
        return cls(np.array(rows, dtype=np.int64), tuple(found[row][0] for row in rows), tuple(found[row][1] for row in rows))

    def only(self, places: Sequence[int]) -> RejectedRows:
        """Return some of the rows, by their index here."""
        return RejectedRows(self.rows[list(places)], tuple(self.columns[at] for at in places), tuple(self.reasons[at] for at in places))


def key_text(block: ChangeBlock, row: int) -> str:
    """Return the row key for messages."""
    return ", ".join(f"{name}={render_value(block.images.column(name)[row])}" for name in block.schema.row_key)


def row_text(block: ChangeBlock, row: int) -> str:
    """Return the row key as part of an error's place; empty for a table without a key."""
    return f", row {key_text(block, row)}" if block.schema.row_key else ""


def position_text(version: int) -> str:
    """Return the log position of an image for messages."""
    _, file, offset = unpack_version(version)
    return f"log file {file}, offset {offset}"


def event_of(block: ChangeBlock, row: int) -> str:
    """Return the row's position as `headrace skip` takes it; empty for snapshot rows, which share one position."""
    return "" if block.op[row].as_py() == Op.SNAPSHOT else row_place(block.version[row].as_py())


def halves(block: ChangeBlock) -> tuple[ChangeBlock, ChangeBlock]:
    places = np.arange(block.rows)
    return block.taken(places[: block.rows // 2]), block.taken(places[block.rows // 2 :])
