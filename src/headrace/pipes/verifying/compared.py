"""A table that is compared: which of its columns, and how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from headrace.model.schema import DATES, TableSchema, ZeroDates
from headrace.sinks.clickhouse.sink import ClickHouseSink


@dataclass(frozen=True)
class ComparedTable:
    """One table of the source, as the sink gets to see it. Picklable."""

    schema: TableSchema
    lossy: tuple[tuple[str, str], ...] = ()
    """Columns whose type in the sink keeps less than the source has, and what it loses: what it keeps is compared."""
    read: tuple[str, ...] = ()
    """Columns that no digest can be made of: rows are then read and compared instead."""
    keeps_deleted: bool = False
    """Whether rows that are gone at the source stay in the sink by choice."""

    @cached_property
    def shown(self) -> TableSchema:
        """The table with the columns that are compared."""
        return self.schema

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.shown.columns)

    @property
    def by_digest(self) -> bool:
        return not self.read and not self.keeps_deleted

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know."""
        found = [f"column {name} is compared without what its type in the sink does not keep: {loses}" for name, loses in self.lossy]
        if self.read:
            found.append(f"read in full on both sides: no digest can be made of {', '.join(self.read)} as the sink stores it")
        if self.keeps_deleted:
            found.append("deletions are ignored by choice: rows that only the sink has are not counted")
        return tuple(found)


def describe(schema: TableSchema, sink: ClickHouseSink, zero_dates: ZeroDates = ZeroDates.HALT) -> ComparedTable:
    """How a table can be compared, by the table that is in the sink."""
    layout, digests = sink.layout(schema), sink.digests()
    lossy = digests.lossy(schema)
    # The source's own functions do not know of a date that became another one.
    dates = [column.name for column in schema.columns if column.kind in DATES] if zero_dates is ZeroDates.EPOCH else []
    read = tuple(dict.fromkeys((*digests.undigested(schema), *lossy, *dates)))
    return ComparedTable(schema, tuple(lossy.items()), read, layout.ignores_deletes)
