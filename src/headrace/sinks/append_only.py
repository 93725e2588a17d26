"""Defaults for append-only sinks: rows are never updated, deleted or altered.

Invariant: a block that is written again appears again, with the same versions, by which readers discard the repetition. Such a sink
therefore requires a snapshot of one position, which comes before every later change, and every update with its before image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import Sink, TableRequirements
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, SchemaApplier


@dataclass(frozen=True, slots=True)
class AppendOnlySchemaApplier(SchemaApplier):
    """Prepares a table again after its definition changed, and passes ledger entries on."""

    on_record: Callable[[Iterable[LedgerEntry]], None]

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del alteration, version
        return DdlPlan(prepared=True)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        self.on_record(entries)


class AppendOnlySink(Sink):
    """A sink without a table store."""

    __slots__ = ()

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        return {schema.name: TableRequirements((), exact=True, keeps=True, transactions=True) for schema in schemas}

    def schema_applier(self) -> SchemaApplier:
        return AppendOnlySchemaApplier(self.record)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Handle applied schema changes. A crash may repeat the call."""
        del entries
