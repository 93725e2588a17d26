"""Which tables a reader reads, and how it reads each of them. Pickled to tasks, never stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.skipped_events import SkippedEvents
from headrace.sources.mysql.server.position import BinlogPosition


@dataclass(frozen=True, slots=True)
class TableReadPlan:
    """How a reader reads one table."""

    schema: TableSchema | None
    """None if the table is dropped or unknown: a row event that is not skipped is then an error."""
    key_columns: tuple[str, ...] = ()
    """The columns that make up the row's key in the sink."""
    skip_before: BinlogPosition | None = None
    """Events before this position are skipped: the snapshot contains them, or the table was dropped at this position."""
    is_skipped: bool = False
    """Whether all events of the table are skipped, for example because it waits for a new snapshot."""
    ordered: bool = False
    """Whether blocks must come in log order, with the same bounds each time they are read."""
    exact: bool = False
    """Whether a snapshot must show the table as of exactly one position."""


@dataclass(frozen=True, slots=True)
class ReadCatalog:
    """The tables that one pass over a segment reads."""

    tables: Mapping[TableName, TableReadPlan]
    wanted: Callable[[TableName], bool]
    """Whether to read a table. A wanted table without a schema is an error."""
    options: ReadOptions = field(default_factory=ReadOptions)
    skipped: SkippedEvents | None = None
    """Events and rows that the user asked to skip."""


def plan_tables(schemas: Mapping[TableName, TableSchema], keys: Mapping[TableName, tuple[str, ...]]) -> dict[TableName, TableReadPlan]:
    """Plan to read every table whole, by its schema and the columns of its key in the sink."""
    return {name: TableReadPlan(schema, keys[name]) for name, schema in schemas.items()}


def skip_tables(plans: Mapping[TableName, TableReadPlan], names: Iterable[TableName]) -> dict[TableName, TableReadPlan]:
    """Return the plans with all events of `names` skipped."""
    return {**plans, **{name: replace(plans.get(name, TableReadPlan(None)), is_skipped=True) for name in names}}
