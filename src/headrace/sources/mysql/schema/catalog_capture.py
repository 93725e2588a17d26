"""Captures a server's catalog at a position, as the start of the schema history.

The tables are described before and after the position is noted, until both descriptions are equal: then no statement lies between them, and
they hold at the position itself. So every statement after the position must be applied, and none before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from pymysql.connections import Connection

from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import MySQLAddress, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import note_position

log = logging.getLogger("headrace")

D = TypeVar("D")
N = TypeVar("N")

_ATTEMPTS: Final = 20
_NAMES: Final = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
_CHARSETS: Final = "SELECT schema_name, default_character_set_name FROM information_schema.schemata"


def read_dialect(connection: Connection[Any], address: MySQLAddress) -> Dialect:
    """Return the server's dialect, for the grammar of its statements."""
    [(version, folds)] = query(connection, address, "SELECT VERSION(), @@lower_case_table_names")
    return Dialect.of(str(version), folds_case=int(folds) > 0)


def capture_catalog(
    connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool], epoch: int
) -> tuple[SchemaCatalog, BinlogPosition]:
    """Return the tables of all databases with wanted tables, and a position at which they are valid.

    A wanted table that cannot be replicated is an error. Other such tables are omitted, as if unknown.
    """
    return describe_around(lambda: _describe(connection, address, wanted), lambda: visible_position(connection, address, epoch), address)


def describe_around(describe: Callable[[], D], note: Callable[[], N], address: MySQLAddress) -> tuple[D, N]:
    """Return the result of `describe`, and of `note` at a moment when it was valid: it was the same before and after."""
    before = describe()
    for _ in range(_ATTEMPTS):
        noted = note()
        after = describe()
        if after == before:
            return after, noted
        before = after
    raise TransientError(
        "the source's tables change faster than they can be described", place=str(address), hint="wait until its migrations are done"
    )


def visible_position(connection: Connection[Any], address: MySQLAddress, epoch: int) -> BinlogPosition:
    """Return a position, and end the transaction in which it was noted."""
    position = note_position(connection, address, epoch)
    connection.commit()
    return position


def _describe(connection: Connection[Any], address: MySQLAddress, wanted: Callable[[TableName], bool]) -> SchemaCatalog:
    names = [TableName(*row) for row in query(connection, address, _NAMES)]
    databases = {name.database for name in names if wanted(name)}
    schemas = capture_schemas(connection, address, wanted)
    schemas += _describe_others(connection, address, {name for name in names if name.database in databases and not wanted(name)})
    return SchemaCatalog({schema.name: schema for schema in schemas}, dict(query(connection, address, _CHARSETS)))


def _describe_others(connection: Connection[Any], address: MySQLAddress, names: set[TableName]) -> list[TableSchema]:
    try:
        return capture_schemas(connection, address, names.__contains__)
    except DefiniteError:
        found = []
        for name in sorted(names):
            try:
                found += capture_schemas(connection, address, {name}.__contains__)
            except DefiniteError as error:
                log.debug("leaving a table that is not replicated out of the schema history: %s", error)
        return found
