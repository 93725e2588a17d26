"""The schemas of a feed's tables as of its position in the log.

The planner ends a batch right after a statement that is not a row change. So `follow` is called with each statement after all changes
before it were read, and before any change after it: the schemas are always those of the next change. If a feed starts in the past and the
schema of that time is unknown, the current schema is used. A statement that does not fit it is an error, never a guess.
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
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import CreateTable, SchemaCatalog, tables_of
from headrace.model.setting_values import ZeroDates
from headrace.model.table_selection import Selection
from headrace.retry import retrying
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events.event_types import Query
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.offline_source import OfflineLog, find_schemas
from headrace.sources.mysql.preflight.required import ServerIdentity
from headrace.sources.mysql.rows.table_map_schema import schema_of
from headrace.sources.mysql.schema.ddl_outcome import DdlOutcome
from headrace.sources.mysql.schema.information_schema import capture_schemas, describe_around
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.connection import MySQLAddress, connect, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.splits import StatementSplit

log = logging.getLogger("headrace")

T = TypeVar("T")

_OR_REPLACE: Final = re.compile(r"\bOR\s+REPLACE\b", re.IGNORECASE)


class News(Enum):
    """What a statement did to a table, other than changing single rows."""

    DEFINED = auto()
    """The table is new, or its definition changed. The rows are as the row changes state."""
    EMPTIED = auto()
    """All rows were deleted."""
    LOST = auto()
    """Rows were added, removed or changed, and the log does not tell which: a DROP, a RENAME, an exchanged partition, and so on."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about a selected table. It comes after the changes before it and before the changes after it."""

    table: TableName
    news: News
    text: str
    position: BinlogPosition

    def refused(self) -> DefiniteError:
        return DefiniteError(
            f"rows of {self.table} came or went without changes in the log: {self.text}",
            place=str(self.position),
            hint=f"take such statements with on_statement=, or read the table again and go on at {self.position}",
        )


@dataclass(frozen=True, slots=True)
class TableRules:
    """The server, the table selection, and the column rules of a feed."""

    address: MySQLAddress
    server: ServerIdentity
    selection: Selection
    zero_dates: ZeroDates

    def capture(self, connection: Connection[Any], only: TableName | None = None) -> list[TableSchema]:
        """Return the current schemas of the selected tables."""
        return capture_schemas(connection, self.address, self.selection if only is None else only.__eq__)

    def capture_around(self, connection: Connection[Any], note: Callable[[], T]) -> tuple[list[TableSchema], T]:
        """Return the schemas of the selected tables and the result of `note`, at a moment when the schemas did not change."""
        return describe_around(lambda: self.capture(connection), note, self.address)

    def capture_now(self, name: TableName) -> list[TableSchema]:
        """Return the current schema of one table; nothing if it does not exist."""

        def capture() -> list[TableSchema]:
            with closing(connect(self.address)) as connection:
                return self.capture(connection, name)

        return retrying(capture)

    def charsets(self, connection: Connection[Any]) -> dict[str, str]:
        """Return the default character set of each database."""
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
        """The selected tables as the source defines them."""
        return [schema for name, schema in self._history.catalog.tables.items() if self._rules.selection(name)]

    @property
    def schemas(self) -> dict[TableName, TableSchema]:
        """The selected tables as they are read."""
        return {schema.name: self._rules.shown(schema) for schema in self.defined}

    def follow(self, split: StatementSplit) -> list[Statement]:
        """Apply a statement of the log ; return what it did to the selected tables."""
        statement, position = Query.from_json(split.query), BinlogPosition.from_json(split.offset)
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
    """Return the most severe effect on each selected table."""
    found = {name: News.DEFINED for change in followed.changes for name in tables_of(change)}
    found |= dict.fromkeys(followed.recapture, News.DEFINED)
    # A CREATE TABLE proves that the table did not exist before, whatever a capture of today shows, unless it has IF NOT EXISTS or OR
    # REPLACE.
    made = {change.schema.name for change in followed.changes if isinstance(change, CreateTable)}
    replaced = _OR_REPLACE.search(followed.query.statement) is not None
    found |= dict.fromkeys((name for name in followed.emptied if replaced or name not in made), News.EMPTIED)
    return found | dict.fromkeys((*followed.gone, *followed.arrived, *followed.disturbed, *followed.moved), News.LOST)


def learn_described_tables(
    history: SchemaHistory, files: OfflineLog, wanted: Callable[[TableName], bool]
) -> dict[TableName, tuple[TableSchema, BinlogPosition]]:
    """Begin the history with the tables that binlog files describe, each from its first table map; return them with its position."""
    history.begin(SchemaCatalog(), files.start)
    positions: dict[TableName, BinlogPosition] = {}

    def describe(body: bytes, place: str) -> TableSchema | None:
        table_map = parse_table_map(body, place)
        file, _, offset = place.rpartition(":")
        positions[table_map.name] = BinlogPosition(file, int(offset), epoch=files.start.epoch)
        return schema_of(table_map)

    found = {name: schema for name, schema in find_schemas(files, wanted, describe).items() if schema is not None}
    for name, schema in found.items():
        history.learn([schema], positions[name])
    return {name: (schema, positions[name]) for name, schema in found.items()}
