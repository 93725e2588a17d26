"""Schema changes at the sink: plan the steps for a statement, run them, and record the outcome.

Invariant: planning changes nothing, and a step may be run again after a crash, to the same effect. A pipe that stores how many steps are
done can therefore continue at any point, from the stored plan alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Step(JsonRecord):
    """Statements that run together, and again after a crash until the step is known to be done."""

    statements: tuple[str, ...]
    replaces: tuple[str, str, str] | None = None
    """Database, table and identity (uuid): the step is done when the table of that name is another one."""


@dataclass(frozen=True, slots=True)
class DdlPlan:
    """What a schema change does to the target."""

    steps: tuple[Step, ...] = ()
    reread: str = ""
    """Why the table must be read again from the source after the steps; empty if it need not."""
    vacates: bool = False
    """Whether no target of the table's name exists afterwards."""
    prepared: bool = False
    """Whether the pipe calls `Sink.prepare` with the new definition after the steps."""

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(statement for step in self.steps for statement in step.statements)

    def __add__(self, other: DdlPlan) -> DdlPlan:
        vacates, prepared = self.vacates or other.vacates, self.prepared or other.prepared
        return DdlPlan(self.steps + other.steps, self.reread or other.reread, vacates, prepared)


@dataclass(frozen=True, slots=True)
class LedgerEntry(JsonRecord):
    """One statement and one of the tables it changed."""

    pipe: str
    version: int
    """Of the statement's position: every image before it in the log has a lower one."""
    position: str
    source_table: str
    kind: str
    """The kinds of changes, such as `add_column, drop_column`."""
    statement: str
    translation: str
    """The statements that were run on the target, one per line."""
    outcome: str
    """applied, ignored, kept, or read again."""
    detail: str = ""


def renamed_from(table: str) -> str:
    """Return the detail of an entry about a renamed table."""
    return f"from {table}"


class TargetNameTaken(DefiniteError):
    """Another table has the name of the new target."""


class SchemaApplier(Protocol):
    """Applies schema changes to a sink. Schemas are those of the sink's tables, after transforms.

    A plan raises `DefiniteError` if the sink cannot follow. By default a target needs no change, so a plan is empty.
    """

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """Plan an ALTER TABLE. `version`: of the statement's position."""

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        """Plan a DROP TABLE."""
        del schema
        return DdlPlan()

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        """Plan a TRUNCATE. An empty plan: the pipe deletes the rows from before the statement instead. `version`: of its position."""
        del schema, version
        return DdlPlan()

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        """Plan to rename the target with all its rows. `again`: an empty target takes its place."""
        del schema, suffix, again
        return DdlPlan()

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """Plan a CREATE TABLE; the pipe prepares the target afterwards."""
        del schema
        return DdlPlan()

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """Plan a RENAME TABLE of one or more tables."""
        del moves
        return DdlPlan()

    def run_step(self, step: Step) -> None:
        """Run a step, unless it has been run."""
        raise DefiniteError("this sink has no tables to alter", place=str(step.statements), hint="use the state directory of this sink")

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Record applied schema changes, if the sink keeps a ledger. A crash may repeat it."""
        del entries
