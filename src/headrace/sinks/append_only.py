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
from headrace.sinks.base import Needs, Written
from headrace.sinks.schema_changes import Altering, LedgerEntry, Step, Translation
from headrace.sinks.target_claims import ClaimStore


@dataclass(frozen=True, slots=True)
class AppendingAltering:
    """There is nothing to alter: a table that is made or altered is prepared anew, and whoever keeps a record is told."""

    tell: Callable[[Iterable[LedgerEntry]], None]

    def plan_alteration(self, alteration: Alteration, version: int) -> Translation:
        del alteration, version
        return Translation(prepared=True)

    def plan_removal(self, schema: TableSchema) -> Translation:
        del schema
        return Translation()

    def plan_emptying(self, schema: TableSchema, version: int) -> Translation:
        del schema, version
        return Translation()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> Translation:
        del schema, suffix, again
        return Translation()

    def plan_creation(self, schema: TableSchema) -> Translation:
        del schema
        return Translation()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> Translation:
        del moves
        return Translation()

    def run_step(self, step: Step) -> None:
        raise DefiniteError("this sink has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        self.tell(entries)


class Appending:
    """The parts of the port (`sinks.base.Sink`) that mean nothing to such a sink."""

    __slots__ = ()

    @property
    def appends(self) -> bool:
        return True

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        del schemas

    def replace(self, schema: TableSchema) -> None:
        """What is there stays: the table's rows come again, as rows of a snapshot."""
        self.prepare([schema])

    def needs(self, schemas: Iterable[TableSchema]) -> Mapping[TableName, Needs]:
        return {schema.name: Needs((), exact=True, keeps=True, transactions=True) for schema in schemas}

    def sweep(self, schema: TableSchema, before: int) -> None:
        del schema, before

    def holds_rows(self, schema: TableSchema) -> bool:
        del schema
        return False

    def newest_version(self, schema: TableSchema) -> int | None:
        del schema
        return None

    def clear(self, schema: TableSchema, since: int) -> None:
        """An attempt at a snapshot stays, and the next one follows with newer positions."""
        del schema, since

    def check_apart(self, schemas: Iterable[TableSchema]) -> None:
        """Changes name their tables."""
        del schemas

    def altering(self) -> Altering:
        return AppendingAltering(self.record)

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Schema changes that were followed; may come again after a crash."""
        del entries

    def settle(self, written: Written) -> None:
        del written

    def books(self) -> None:
        """No place for what is told of pipes: the state directory keeps it."""

    def claims(self) -> ClaimStore | None:
        return None

    def target_of(self, name: TableName) -> str:
        return str(name)

    def written_by(self, pipe: str, label: str = "") -> Self:
        del pipe, label
        return self

    def reading(self, connector: str, log: str) -> Self:
        del connector, log
        return self

    def expecting(self, schemas: Iterable[TableSchema]) -> Self:
        del schemas
        return self

    def again(self) -> Self:
        return self

    def renewed(self) -> Self:
        return self
