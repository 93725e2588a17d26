"""What a writer needs to know about its sink."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model.cascades import CascadePlan
from headrace.model.packed_mapping import PackedMapping
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.clickhouse.tables.target_cache import TargetScope


@dataclass(frozen=True, slots=True)
class WriteContext:
    scope: TargetScope
    pipe: str = ""
    """Part of the deduplication tokens."""
    label: str = ""
    """The display name of the pipe."""
    expected: PackedMapping[TableName, TableSchema] = field(default_factory=lambda: PackedMapping({}))
    """Tables to resolve in one query."""
    repeats: bool = False
    """An earlier run may have stored blocks of this batch."""
    by_images: bool = False
    """Blocks without a name have no stable bounds, so the stored images of a history decide what is missing."""
    writers: int = 1
    """How many tasks may write a table at the same time."""
    cascades: CascadePlan | None = None
    """The cascades whose parents' changes go to key logs, too."""
