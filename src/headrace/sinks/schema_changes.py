"""How a sink follows what statements do to the source's tables: what it is asked before, what it is told to do, what is written down after.

Invariant: planning does nothing; a step may be done again after a crash, to the same effect. So whoever notes how many steps are done can
go on at any point, from what was written down alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Alteration
from headrace.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class Step:
    """Statements that are done together, again after a crash, until they are known to be done."""

    statements: tuple[str, ...]
    replaces: tuple[str, str, str] | None = None
    """Database, table and identity (uuid): the step is done when the table of that name is another one."""

    def to_json(self) -> dict[str, Any]:
        return {"statements": list(self.statements), "replaces": None if self.replaces is None else list(self.replaces)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Step:
        replaced = raw["replaces"]
        return cls(tuple(raw["statements"]), None if replaced is None else (replaced[0], replaced[1], replaced[2]))


@dataclass(frozen=True, slots=True)
class DdlPlan:
    """What is to be done to the target."""

    steps: tuple[Step, ...] = ()
    reread: str = ""
    """Why the table must be read again from the source after the steps; empty if it need not."""
    vacates: bool = False
    """Whether no target of the table's name is there afterwards."""
    prepared: bool = False
    """Whether the target is prepared anew after the steps, by the definition that the table has then."""

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(statement for step in self.steps for statement in step.statements)

    def __add__(self, other: DdlPlan) -> DdlPlan:
        vacates, prepared = self.vacates or other.vacates, self.prepared or other.prepared
        return DdlPlan(self.steps + other.steps, self.reread or other.reread, vacates, prepared)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
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
    """What was done to the target, one statement a line."""
    outcome: str
    """applied, ignored, kept, or read again."""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LedgerEntry:
        return cls(**raw)


def renamed_from(table: str) -> str:
    """The detail of an entry about a table that had another name before."""
    return f"from {table}"


class TargetNameTaken(DefiniteError):
    """Another table stands where one is to go."""


class SchemaApplier(Protocol):
    """Makes a sink follow. Schemas are as the sink sees them; a plan raises `DefiniteError` where the sink cannot follow."""

    def plan_alteration(self, alteration: Alteration, version: int) -> DdlPlan:
        """What makes the target of a table follow its alteration. `version`: of the statement's position."""

    def plan_removal(self, schema: TableSchema) -> DdlPlan:
        """The source's table is no more."""

    def plan_emptying(self, schema: TableSchema, version: int) -> DdlPlan:
        """The source's table has no rows any more. No steps: the rows from before the statement are swept instead. `version`: of its
        position."""

    def plan_keeping(self, schema: TableSchema, suffix: str, *, again: bool) -> DdlPlan:
        """The target gets another name with all its rows; `again`: an empty one takes its place."""

    def plan_creation(self, schema: TableSchema) -> DdlPlan:
        """What makes the target of a table, before it is prepared."""

    def plan_moves(self, moves: Iterable[tuple[TableSchema, TableSchema]]) -> DdlPlan:
        """What makes tables go to the places of their new names."""

    def run_step(self, step: Step) -> None:
        """Do a step, unless it was done."""

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        """Write schema changes to the ledger, if the sink has one."""
