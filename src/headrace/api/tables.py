"""What a reader knows of the tables it was asked for, as of its place in the log.

The planner ends a batch right after a statement that is not a change of rows. So `follow` is called with each statement after all changes
before it were read, and before any change after it is: the schemas here are always those of the next change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema
from headrace.retry import retrying
from headrace.sources.base import Work
from headrace.sources.mysql.capture import capture_schemas
from headrace.sources.mysql.connection import MySQLAddress, connect
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.position import BinlogPosition
from headrace.sources.mysql.source import Selection
from headrace.sources.mysql.statements import Effect, assess

log = logging.getLogger("headrace")


class News(Enum):
    """What a statement did to a table, other than changing rows one by one."""

    DEFINED = auto()
    """It is new, or its definition may have changed; the rows are as the changes say."""
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
    selection: Selection
    folds_case: bool
    zero_dates_as_null: bool

    def capture(self, connection: Connection[Any], only: TableName | None = None) -> list[TableSchema]:
        """The wanted tables as they are now."""
        schemas = capture_schemas(connection, self.address, self.selection if only is None else only.__eq__)
        return [schema.with_nullable_dates for schema in schemas] if self.zero_dates_as_null else schemas

    def capture_now(self, name: TableName) -> list[TableSchema]:
        """One table as it is now; nothing if it is gone."""

        def capture() -> list[TableSchema]:
            with closing(connect(self.address)) as connection:
                return self.capture(connection, name)

        return retrying(capture)


class KnownTables:
    """The schemas by which the next changes are read."""

    def __init__(self, rules: TableRules, schemas: Iterable[TableSchema]) -> None:
        self._rules = rules
        self.schemas = {schema.name: schema for schema in schemas}
        self.gone: frozenset[TableName] = frozenset()

    def follow(self, work: Work) -> list[Statement]:
        """Take in a statement of the log (see `sources.base.Work`); what it did to the wanted tables."""
        query, position = Query(work["database"], work["statement"]), BinlogPosition.from_json(work["offset"])
        found = assess(query, self._rules.selection, folds_case=self._rules.folds_case)
        if found.effect is Effect.NONE:
            log.debug("passing over a statement at %s: %s", position, query.statement)
            return []
        statements = []
        for named in found.tables:
            known = [name for name in self.schemas if _covers(named, name)] or ([named] if found.effect is Effect.CREATED else [])
            statements += [Statement(name, self._news(found.effect, name, query), query.statement, position) for name in known]
        return statements

    def _news(self, effect: Effect, name: TableName, query: Query) -> News:
        if effect is Effect.DESTRUCTIVE and query.statement.lstrip().upper().startswith("TRUNCATE"):
            return News.EMPTIED
        schemas = self._rules.capture_now(name)
        self.schemas.update({schema.name: schema for schema in schemas})
        self.gone = self.gone - {name} if schemas else self.gone | {name}
        return News.DEFINED if effect in (Effect.CREATED, Effect.ALTERED) else News.LOST


def _covers(named: TableName, name: TableName) -> bool:
    return named == name or (named.table == "*" and named.database == name.database)
