"""What sinks have in common that only ever get longer: nothing in them is replaced, swept, cleared or altered.

Invariant: a block that is written again appears again, under the same versions, by which readers know it. So such a sink asks for a
snapshot of one position, which comes before every change after it, and for every update with the row before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import BatchCommit, TableRequirements
from headrace.sinks.schema_changes import DdlPlan, LedgerEntry, SchemaApplier, Step
from headrace.sinks.target_claims import ClaimStore


@dataclass(frozen=True, slots=True)
class AppendOnlySchemaApplier:
    """There is nothing to alter: a table that is made or altered is prepared anew, and whoever keeps a record is told."""

    tell: Callable[[Iterable[LedgerEntry]], None]

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        del alteration, version
        return DdlPlan(prepared=True)

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        del schema
        return DdlPlan()

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        del schema, version
        return DdlPlan()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        del schema, suffix, again
        return DdlPlan()

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        del schema
        return DdlPlan()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        del moves
        return DdlPlan()

    def run_step(self, step: Step) -> None:
        raise DefiniteError("this sink has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        self.tell(entries)


class AppendOnlySink:
    """The parts of the port (`sinks.base.Sink`) that mean nothing to such a sink."""

    __slots__ = ()

    @property
    def append_only(self) -> bool:
        return True

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        del schemas

    def replace(self, schema: TableSchema) -> None:
        """What is there stays: the table's rows come again, as rows of a snapshot."""
        self.prepare([schema])

    def requirements(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, TableRequirements]:
        return {schema.name: TableRequirements((), exact=True, keeps=True, transactions=True) for schema in schemas}

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        del schema, before

    def holds_rows(self, schema: TableSchema) -> bool:
        del schema
        return False

    def newest_version(self, schema: TableSchema) -> int | None:
        del schema
        return None

    def discard_partial_snapshot(self, schema: TableSchema, since: int) -> None:
        """An attempt at a snapshot stays, and the next one follows with newer positions."""
        del schema, since

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        """Changes name their tables."""
        del schemas

    def schema_applier(self) -> SchemaApplier:
        return AppendOnlySchemaApplier(self.record)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Schema changes that were followed; may come again after a crash."""
        del entries

    def commit_batch(self, batch: BatchCommit) -> None:
        del batch

    def progress_store(self) -> None:
        """No place for what is told of pipes: the state directory keeps it."""

    def claims(self) -> ClaimStore | None:
        return None

    def target_of(self, name: TableName) -> str:
        return str(name)

    def for_pipe(self, pipe: str, label: str = "") -> Self:
        del pipe, label
        return self

    def with_source(self, connector: str, log: str) -> Self:
        del connector, log
        return self

    def with_tables(self, schemas: Iterable[TableSchema]) -> Self:
        del schemas
        return self

    def for_replay(self) -> Self:
        return self

    def without_cache(self) -> Self:
        return self
