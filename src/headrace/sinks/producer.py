"""The port of producers: sinks that users write.

A producer is an append-only sink. By default it receives the rows of a snapshot first, then every later change, table by table in the order
of the log. After a crash it receives the last batch again, cut into the same blocks with the same versions. A producer that names its
output by `block_name` therefore writes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.base import BatchCommit
from headrace.sinks.schema_changes import LedgerEntry


class Producer:
    """Subclass it and define `write`. Its settings are the constructor's arguments: `def __init__(self, folder: str, by: str = "day")`.

    The driver has one instance (`prepare`, `schema_changed`, `committed`), and each task has its own (`open`, `write`, `close`). Instances
    share only their settings. After a `TransientError` the pipe retries; any other exception halts it.
    """

    ordered: ClassVar[bool] = True
    """The blocks of a table come in the order of the log, from one task at a time, and a replay is cut into the same blocks. If false,
    several tasks write the changes of a table, which is faster."""
    before_images: ClassVar[bool] = True
    """Every update comes with its before image. If false, only updates that change the row's key do."""

    # -- in the driver

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Prepare for the changes of tables: at every start, and for a table that is new or was altered. Repeatable."""
        del schemas

    def schema_changed(self, change: LedgerEntry) -> None:
        """A statement changed or emptied a table. All changes before it were written, none after it. A crash may repeat the call."""
        del change

    def restarted(self, schema: TableSchema, since: int) -> None:
        """The snapshot of a table starts over. Rows of the failed attempt, which have versions from `since` on, may be deleted."""
        del schema, since

    def committed(self, written: BatchCommit) -> None:
        """All blocks of a batch, or of a part of a snapshot, were written. Until this returns, the batch may be replayed."""
        del written

    # -- in a task

    def open(self) -> None:
        """Before the first block."""

    def write(self, block: ChangeBlock) -> None:
        """Write a block durably. Once this returns and the batch is committed, the block is not sent again."""
        raise NotImplementedError

    def close(self) -> None:
        """After the last block, also when something went wrong."""


def block_name(block: ChangeBlock) -> str:
    """Return a name for a block: the same at each replay, unique within the table, and sorted in the order of the log."""
    first = block.order[0].as_py() if block.order is not None and block.rows else 0
    return f"{block.version[0].as_py():020d}-{first:012d}"
