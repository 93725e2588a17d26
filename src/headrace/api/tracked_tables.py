"""What a reader knows of the tables it was asked for, as of its place in the log.

The planner ends a batch right after a statement that is not a change of rows. So `follow` is called with each statement after all changes
before it were read, and before any change after it is: the schemas here are always those of the next change. Where a reader starts in the
past and nobody knows what a table was then, it counts as it is now; a statement that does not fit that is an error, never a guess.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeVar

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema, ZeroDates
from headrace.model.schema_change import CreateTable, SchemaCatalog, tables_of
from headrace.model.table_selection import Selection
from headrace.retry import retrying
from headrace.sources.base import Split
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.preflight.required import ServerIdentity
from headrace.sources.mysql.schema.catalog_capture import describe_around
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.schema.schema_history import DdlOutcome, SchemaHistory
from headrace.sources.mysql.server.connection import MySQLAddress, connect, query
from headrace.sources.mysql.server.position import BinlogPosition

log = logging.getLogger("headrace")

T = TypeVar("T")

_MOST_LOOKS: Final = 10
_OR_REPLACE: Final = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)


class News(Enum):
    """What a statement did to a table, other than changing rows one by one."""

    DEFINED = auto()
    """It is new, or its definition changed; the rows are as the changes say."""
    EMPTIED = auto()
    """All its rows are gone."""
    LOST = auto()
    """Rows came, went or changed, and the log does not say which: the table was dropped, renamed, had a partition exchanged, and so on."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that concerned a wanted table, after the changes before it and before those after it."""

    table: TableName
    news: News
    text: str
    position: BinlogPosition

    def refused(self) -> DefiniteError:
        return DefiniteError(
            f"rows of {self.table} came or went without changes in the log: {self.text}",
            place=str(self.position),
            hint=f"take such statements with on_statement=, or read the table anew and go on at {self.position}",
        )


@dataclass(frozen=True, slots=True)
class TableRules:
    """Where tables are found, which are wanted, and how their columns are shown."""

    address: MySQLAddress
    server: ServerIdentity
    selection: Selection
    zero_dates: ZeroDates

    def capture(self, connection: Connection[Any], only: TableName | None = None) -> list[TableSchema]:
        """The wanted tables as they are now."""
        return capture_schemas(connection, self.address, self.selection if only is None else only.__eq__)

    def capture_around(self, connection: Connection[Any], note: Callable[[], T]) -> tuple[list[TableSchema], T]:
        """The wanted tables, and what `note` found at a moment when they were so: they were the same before and after it."""
        return describe_around(lambda: self.capture(connection), note, self.address)

    def capture_now(self, name: TableName) -> list[TableSchema]:
        """One table as it is now; nothing if it is gone."""

        def capture() -> list[TableSchema]:
            with closing(connect(self.address)) as connection:
                return self.capture(connection, name)

        return retrying(capture)

    def charsets(self, connection: Connection[Any]) -> dict[str, str]:
        """The character set of each database's new tables."""
        found = query(connection, self.address, "SELECT schema_name, default_character_set_name FROM information_schema.schemata")
        return {str(name): str(charset) for name, charset in found}

    def shown(self, schema: TableSchema) -> TableSchema:
        return schema.with_zero_dates(self.zero_dates)


class KnownTables:
    """The schemas by which the next changes are read."""

    def __init__(self, rules: TableRules, schemas: Iterable[TableSchema], charsets: dict[str, str], position: BinlogPosition) -> None:
        self._rules = rules
        server = rules.server
        self._history = SchemaHistory(rules.selection, Dialect.of(server.version, folds_case=server.folds_case, in_utc=server.in_utc))
        self._history.begin(SchemaCatalog({schema.name: schema for schema in schemas}, charsets), position)
        self.gone: frozenset[TableName] = frozenset()

    @property
    def defined(self) -> list[TableSchema]:
        """The wanted tables as the source has them."""
        return [schema for name, schema in self._history.catalogue.tables.items() if self._rules.selection(name)]

    @property
    def schemas(self) -> dict[TableName, TableSchema]:
        """The wanted tables as they are read."""
        return {schema.name: self._rules.shown(schema) for schema in self.defined}

    def follow(self, split: Split) -> list[Statement]:
        """Take in a statement of the log (see `sources.base.Split`); what it did to the wanted tables."""
        statement, position = Query.from_json(split["query"]), BinlogPosition.from_json(split["offset"])
        followed = self._history.follow(statement, position)
        followed.check()
        for name in sorted(followed.recapture):
            self._recapture(name, position)
        return [Statement(name, news, statement.statement, position) for name, news in sorted(news_of(followed).items())]

    def _recapture(self, name: TableName, position: BinlogPosition) -> None:
        found = self._rules.capture_now(name)
        self._history.learn(found, position)
        self.gone = self.gone - {name} if found else self.gone | {name}
        if not found:
            log.warning("table %s, which came at %s, is gone already; its changes are left out", name, position)


def news_of(followed: DdlOutcome) -> dict[TableName, News]:
    """Each wanted table's gravest news."""
    found = {name: News.DEFINED for change in followed.changes for name in tables_of(change)}
    found |= dict.fromkeys(followed.recapture, News.DEFINED)
    # A table that is made was not there before, whatever a capture of today says, unless the statement says that it may have been.
    made = {change.schema.name for change in followed.changes if isinstance(change, CreateTable)}
    replaced = _OR_REPLACE.search(followed.query.statement) is not None
    found |= dict.fromkeys((name for name in followed.emptied if replaced or name not in made), News.EMPTIED)
    return found | dict.fromkeys((*followed.gone, *followed.arrived, *followed.disturbed, *followed.moved), News.LOST)
