"""What a reader knows of the tables it was asked for, as of its place in the log.

The planner ends a batch right after a statement that is not a change of rows. So `follow` is called with each statement after all changes
before it were read, and before any change after it is: the schemas here are always those of the next change.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
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

    def __init__(self, rules: TableRules, schemas: list[TableSchema]) -> None:
        self._rules = rules
        self.schemas = {schema.name: schema for schema in schemas}
        self.gone: frozenset[TableName] = frozenset()

    def follow(self, work: Work) -> None:
        """Take in a statement of the log (see `sources.base.Work`); raises if the tables cannot be followed over it."""
        query, position = Query(work["database"], work["statement"]), BinlogPosition.from_json(work["offset"])
        found = assess(query, self._rules.selection, folds_case=self._rules.folds_case)
        if found.effect is Effect.NONE:
            log.debug("passing over a statement at %s: %s", position, query.statement)
            return
        for name in found.tables:
            known = [schema for schema in self.schemas.values() if _covers(name, schema.name)]
            if not known and found.effect in (Effect.CREATED, Effect.REPLACED):
                self._add(name)
            elif known:
                self._check_unchanged(found.effect, known[0], query, position)

    def _add(self, name: TableName) -> None:
        schemas = self._rules.capture_now(name)
        self.schemas.update({schema.name: schema for schema in schemas})
        self.gone = self.gone - {name} if schemas else self.gone | {name}

    def _check_unchanged(self, effect: Effect, schema: TableSchema, query: Query, position: BinlogPosition) -> None:
        keeps_rows = effect in (Effect.CREATED, Effect.ALTERED)
        if not (keeps_rows and self._rules.capture_now(schema.name) == [schema]):
            raise DefiniteError(
                f"table {schema.name} was changed by a statement: {query.statement}",
                place=str(position),
                hint=f"start again at {position} to read the table as it is now",
            )


def _covers(named: TableName, name: TableName) -> bool:
    return named == name or (named.table == "*" and named.database == name.database)
