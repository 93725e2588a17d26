"""Sinks of one's own: the small port that authors write to.

A producer gets blocks of changes and does with them what it likes. Its safe defaults make it a sink that only ever gets longer: rows of a
snapshot come first, then every change after it, table by table in the order of the log. After a crash the last batch comes again, cut into
the same blocks with the same versions (`block_name`), so that a producer that names what it writes by them writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.base import BatchCommit
from headrace.sinks.schema_changes import LedgerEntry


class Producer:
    """Subclass it, and write `write`. What it is made with are its settings, by name: `def __init__(self, folder: str, by: str = "day")`.

    One is made in the driver (`prepare`, `schema_changed`, `committed`), and one for each task (`open`, `write`, `close`): they share
    nothing but their settings. `TransientError` says that trying again may help, and it is tried; any other exception halts the pipe.
    """

    ordered: ClassVar[bool] = True
    """A table's blocks come in the order of the log, from one task at a time, and a replay is cut into the same blocks. If not, tasks
    share a table's changes between them, which is faster."""
    before_images: ClassVar[bool] = True
    """Every update comes with the row before it. If not, only updates that change the row's key do."""

    # -- in the driver

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Tables whose changes are about to come: at every start, and again for one that was altered or is new. Repeatable."""
        del schemas

    def schema_changed(self, change: LedgerEntry) -> None:
        """A statement changed or emptied a table: all changes before it were written, none after it. May be told again after a crash."""
        del change

    def restarted(self, schema: TableSchema, since: int) -> None:
        """A table's snapshot begins anew: rows of it with versions from `since` on, from an attempt that failed, may be taken away."""
        del schema, since

    def committed(self, written: BatchCommit) -> None:
        """Everything of a batch (or of a part of a snapshot) was written; it counts when this returns, else it comes again."""
        del written

    # -- in a task

    def open(self) -> None:
        """Before the first block."""

    def write(self, block: ChangeBlock) -> None:
        """Write a block so that it lasts: once this returns and the batch counts, it never comes again."""
        raise NotImplementedError

    def close(self) -> None:
        """After the last block, also when something went wrong."""


def block_name(block: ChangeBlock) -> str:
    """A name for a block of one table: the same when the block comes again, different from any other's, and in the order of the log."""
    first = block.order[0].as_py() if block.order is not None and block.rows else 0
    return f"{block.version[0].as_py():020d}-{first:012d}"
