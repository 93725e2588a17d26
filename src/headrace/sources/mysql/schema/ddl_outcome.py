"""The outcome of a DDL statement for the selected tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.schema_change import CreateTable, DropTable, RenameTable, SchemaCatalog, SchemaChange, TruncateTable, tables_of
from headrace.sources.mysql.ddl.statement_effects import StatementEffects
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.server.position import BinlogPosition

TablePredicate = Callable[[TableName], bool]

_SHOWN: Final = 5


class OutcomeKind(Enum):
    """What a statement means for the selected tables; the most severe kind if there are several."""

    NOTHING = auto()
    """It touches no selected table."""
    CHANGED = auto()
    """Definitions changed (`changes`). Every row is unchanged, or its table is in `emptied` or `gone`."""
    RESYNC = auto()
    """Rows of the tables in `arrived` or `disturbed` changed without row events: resync them."""
    RECAPTURE = auto()
    """The definitions of the tables in `recapture` cannot be derived from the text: capture them, and pass them to `SchemaHistory.learn`.
    """
    DML = auto()
    """A row change logged as a statement: the log does not contain the changed rows."""
    UNKNOWN = auto()
    """Not understood, and it may have touched a selected table."""


@dataclass(frozen=True, slots=True)
class DdlOutcome:
    query: Query
    position: BinlogPosition
    outcome: OutcomeKind = OutcomeKind.NOTHING
    changes: tuple[SchemaChange, ...] = ()
    """The changes that name a selected table, for the sink, in order. They include renames out of the selection and into it."""
    emptied: frozenset[TableName] = frozenset()
    """Selected tables without rows now: truncated, or replaced by a new table."""
    gone: frozenset[TableName] = frozenset()
    """Selected names without a table now: dropped or renamed."""
    moved: Mapping[TableName, TableName] = field(default_factory=dict)
    """Selected tables that were renamed, with their rows, from another selected name: new name to old."""
    arrived: frozenset[TableName] = frozenset()
    """Selected names that now belong to a table that was not replicated (a ghost table's swap, a RENAME). Its rows are not in the sink."""
    disturbed: frozenset[TableName] = frozenset()
    """Selected tables whose rows changed without row events (partitions dropped or exchanged, tablespaces discarded or imported)."""
    recapture: frozenset[TableName] = frozenset()
    """Selected tables whose definition cannot be known from the text alone."""
    mentioned: frozenset[TableName] = frozenset()
    """Selected tables that DML, or a statement that is not understood, may have touched. DML that names none may have changed those of its
    databases through a view, a function or a trigger.
    """
    why: str = ""
    """For the user: why the kind is DML, UNKNOWN or RECAPTURE."""

    @property
    def _named(self) -> str:
        names = [str(name) for name in sorted(self.mentioned)]
        return ", ".join(names[:_SHOWN]) + (f" or {len(names) - _SHOWN} others" if len(names) > _SHOWN else "")

    def check(self) -> None:
        if self.outcome is OutcomeKind.DML:
            raise DefiniteError(
                f"a change of rows of {self._named} was logged as a statement: {self.query.statement}{self.why and f' ({self.why})'}",
                place=str(self.position),
                hint="SET GLOBAL binlog_format = ROW on the source, for its sessions too; then headrace resync the tables it changed,"
                " also through views, functions and triggers",
            )
        if self.outcome is OutcomeKind.UNKNOWN:
            raise DefiniteError(
                f"a statement that may have changed {self._named} was not understood ({self.why}): {self.query.statement}",
                place=str(self.position),
                hint="please report it with the server's version; to go on, headrace resync the tables it names",
            )


def assess(
    query: Query,
    position: BinlogPosition,
    meaning: StatementEffects,
    known: SchemaCatalog,
    wanted: TablePredicate,
    *,
    folds_case: bool = False,
) -> DdlOutcome:
    """Return a statement's outcome for the wanted tables; `known` is the catalog before it."""
    if meaning.rows or meaning.unknown:
        # If the statement creates an unknown table, its first row event will be an error.
        names = set(_mentioned(query, folds_case=folds_case))
        mentioned = frozenset(name for name in names if wanted(name) and name in known.tables)
        why = meaning.why
        if meaning.rows and not mentioned and not _is_of_restart(query, known):
            databases = {query.database.lower() if folds_case else query.database, *(name.database for name in names)}
            mentioned = frozenset(name for name in known.tables if name.database in databases and wanted(name))
            why = "it names none of them, but a view, a function or a trigger may change them"
        if not mentioned:
            return DdlOutcome(query, position)
        outcome = OutcomeKind.DML if meaning.rows else OutcomeKind.UNKNOWN
        return DdlOutcome(query, position, outcome, mentioned=mentioned, why=why)
    outcomes = _TableOutcomes(known, wanted)
    for change in meaning.changes:
        outcomes.take(change)
    arrived = {name for name in (*outcomes.arrived, *meaning.filled) if wanted(name)}
    disturbed = frozenset(name for name in meaning.disturbed if wanted(name))
    recapture = frozenset(name for name in meaning.opaque if wanted(name))
    changes = tuple(change for change in meaning.changes if any(map(wanted, tables_of(change))) or not tables_of(change))
    outcome = OutcomeKind.CHANGED if any(tables_of(change) for change in changes) else OutcomeKind.NOTHING
    if arrived or disturbed:
        outcome = OutcomeKind.RESYNC
    if recapture:
        outcome = OutcomeKind.RECAPTURE
    return DdlOutcome(
        query,
        position,
        outcome,
        changes,
        frozenset(outcomes.emptied) - arrived,
        frozenset(outcomes.gone) - arrived - recapture,
        {new: old for new, old in outcomes.moved.items() if new not in arrived},
        frozenset(arrived),
        disturbed,
        recapture,
        why=meaning.why if recapture else "",
    )


class _TableOutcomes:
    """Tracks what happens to the rows under each selected name, change by change."""

    def __init__(self, known: SchemaCatalog, wanted: TablePredicate) -> None:
        self._known, self._wanted = known, wanted
        self._source: dict[TableName, TableName | None] = {}
        """For touched names, the former name of the rows; None: created by this statement, or no table."""
        self.emptied: set[TableName] = set()
        self.gone: set[TableName] = set()

    def take(self, change: SchemaChange) -> None:
        match change:
            case TruncateTable(name):
                self.emptied |= {name} if self._wanted(name) else set()
            case CreateTable(schema):
                replaced = schema.name in self._known.tables or schema.name in self.gone
                self._source[schema.name] = None
                self.gone.discard(schema.name)
                self.emptied |= {schema.name} if replaced and self._wanted(schema.name) else set()
            case DropTable(name):
                self._leave(name)
            case RenameTable(old, new):
                source = self._source.get(old, old)
                self._leave(old)
                self._source[new] = source
                self.gone.discard(new)
                self.emptied.discard(new)
            case _:
                return

    def _leave(self, name: TableName) -> None:
        self._source[name] = None
        self.emptied.discard(name)
        if self._wanted(name):
            self.gone.add(name)

    @property
    def moved(self) -> dict[TableName, TableName]:
        return {
            new: old
            for new, old in self._source.items()
            if old is not None and new != old and self._wanted(new) and self._wanted(old) and new not in self.gone
        }

    @property
    def arrived(self) -> set[TableName]:
        return {
            new
            for new, old in self._source.items()
            if old is not None and new != old and self._wanted(new) and not self._wanted(old) and new not in self.gone
        }


_RESTART: Final = re.compile(r"DELETE FROM `((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")


def _is_of_restart(query: Query, known: SchemaCatalog) -> bool:
    """Whether old servers write the statement for a MEMORY table, which is empty after a restart, for any binlog_format."""
    found = _RESTART.fullmatch(query.statement)
    return found is not None and TableName(*(part.replace("``", "`") for part in found.groups())) in known.tables


_WORD: Final = re.compile(r"`((?:[^`]|``)*)`|\"((?:[^\"]|\"\")*)\"|([\w$\u0080-\U0010ffff]+)|(\.)|([^\s])")


def _mentioned(query: Query, *, folds_case: bool) -> Iterator[TableName]:
    """Return every table that a word or pair of words of a statement could name."""
    return (TableName(*(part.lower() if folds_case else part for part in name)) for name in _names(query))


def _names(query: Query) -> Iterator[tuple[str, str]]:
    words = [(match[1] or match[2] or match[3] or "", match[4] is not None, bool(match[5])) for match in _WORD.finditer(query.statement)]
    yield from ((query.database, text) for text, dot, sign in words if text and not dot and not sign)
    for (first, *_), ((_, dot, _), (second, *_)) in zip(words, pairwise(words[1:]), strict=False):
        if first and dot and second:
            yield first, second
