"""The sink's port.

A sink is a small picklable description; the driver calls `prepare`, every task opens its own `Writer`. A sink must be *idempotent*:
writing a block again, in any order among others, leaves the same data, because a crash replays the last batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.model.change import ChangeBlock
from headrace.model.schema import TableSchema


class Writer(Protocol):
    """Writes blocks; belongs to one task."""

    def write(self, block: ChangeBlock) -> None:
        """Write the block durably; when it returns, the block is visible to readers of the sink."""

    def close(self) -> None: ...


class Sink(Protocol):
    """Where changes go. Picklable, cheap to copy into tasks."""

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        """Create what is missing, check what exists; raise `DefiniteError` before anything is written if a table cannot be held."""

    def replace(self, schema: TableSchema) -> None:
        """Make the target anew, empty, unless what is there is fit for the schema: its rows are about to come again."""

    def key_columns(self, schema: TableSchema) -> tuple[str, ...]:
        """The columns whose change moves a row: for those updates the sink wants the before image too."""

    def sweep(self, schema: TableSchema, before: int) -> None:
        """Take away the rows whose last image has a version below `before`: a new snapshot of the whole table did not see them."""

    def writer(self) -> Writer: ...
