"""The schema history: every table's definition as of every position of the log, followed from the statements in it.

It begins with what was captured from the server at a position (all tables of the databases that hold replicated ones, because a RENAME or
a LIKE may bring any of them in) and then follows each statement of the log, in order. `as_of` answers for any position since, so a reader
that lags behind an ALTER reads old rows by the old definition. Following a statement again, or one that a table's capture has seen
already, changes nothing: replays are harmless. What cannot be known from a statement's text is said, never guessed.

The file is append-only JSON lines, each synced before `follow` returns; a line that a crash cut short is cut off at the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from headrace.model.evolution import Catalogue, SchemaChange
from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.position import BinlogPosition


class Outcome(Enum):
    """What a statement means for the selected tables, the gravest thing of all if it means several."""

    NOTHING = auto()
    """It touches no selected table."""
    CHANGED = auto()
    """Definitions changed (`changes`); every row is as it was, or in `emptied` or `gone`."""
    RESYNC = auto()
    """Rows of the tables in `arrived` or `disturbed` changed without changes in the log: read them again."""
    RECAPTURE = auto()
    """The definitions of the tables in `recapture` cannot be known from the text: capture them, and tell the history (`learn`)."""
    DML = auto()
    """A change of rows logged as a statement: the rows it changed are nowhere in the log."""
    UNKNOWN = auto()
    """Not understood, and it may have touched a selected table."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What one statement did."""

    query: Query
    position: BinlogPosition
    outcome: Outcome = Outcome.NOTHING
    changes: tuple[SchemaChange, ...] = ()
    """What the sink has to do, in order: the changes that name a selected table. Renames out of the selection and into it are here too."""
    emptied: frozenset[TableName] = frozenset()
    """Selected tables without rows now: truncated, or made anew in the place of an old one."""
    gone: frozenset[TableName] = frozenset()
    """Selected names that no table has now: dropped, or renamed to another name."""
    moved: Mapping[TableName, TableName] | None = None
    """Selected tables that came, rows and all, from another selected name: new name to old."""
    arrived: frozenset[TableName] = frozenset()
    """Selected names to which a table came that was not replicated (the swap of a ghost table, a RENAME): its rows are not in the sink."""
    disturbed: frozenset[TableName] = frozenset()
    """Selected tables whose rows changed without row events (partitions dropped or exchanged, tablespaces discarded or imported)."""
    recapture: frozenset[TableName] = frozenset()
    """Selected tables whose definition cannot be known from the text alone."""
    why: str = ""
    """For people: why the outcome is DML, UNKNOWN or RECAPTURE."""

    def check(self) -> None:
        """Raise the error that DML and UNKNOWN are."""


class SchemaHistory:
    """Definitions by position. In memory, or kept in a file."""

    def __init__(self, wanted: Callable[[TableName], bool], dialect: Dialect, path: Path | None = None) -> None: ...

    @property
    def is_empty(self) -> bool:
        """Whether nothing was captured yet: a new file."""
        raise NotImplementedError

    def begin(self, captured: Catalogue, position: BinlogPosition) -> None:
        """Start over from what the server said at `position`."""
        raise NotImplementedError

    def learn(self, schemas: Iterable[TableSchema], position: BinlogPosition) -> None:
        """Take tables as captured at `position`: statements up to there count as seen for them."""
        raise NotImplementedError

    def follow(self, query: Query, position: BinlogPosition) -> Followed:
        """Take in a statement that ends at `position`; durable when it returns."""
        raise NotImplementedError

    def as_of(self, position: BinlogPosition) -> Catalogue:
        """What was defined for events that end after `position`: statements that end at or before it have taken effect."""
        raise NotImplementedError

    def compact(self, before: BinlogPosition) -> None:
        """Forget what only readers of events before `before` could need."""
        raise NotImplementedError
