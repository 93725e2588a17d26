"""The facts about a server that the preflight checks evaluate, and the queries for them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pymysql.connections import Connection

from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import ForeignKey, TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.sources.mysql.binlog.replication_client import ReplicationStream
from headrace.sources.mysql.schema.information_schema import capture_schemas, read_foreign_keys
from headrace.sources.mysql.server.collations import read_collation
from headrace.sources.mysql.server.connection import (
    MySQLAddress,
    is_mariadb,
    log_status_statement,
    parse_version,
    query,
    quote_name,
    replica_status_statement,
)
from headrace.sources.mysql.server.position import BinlogPosition, file_number
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.sources.preflight import Finding

_SYSTEM: Final = ("mysql", "information_schema", "performance_schema", "sys")


@dataclass(frozen=True, slots=True)
class TableFacts:
    name: TableName
    engine: str
    keyed: bool
    cascades: tuple[ForeignKey, ...]
    """The foreign keys that change the table when the parent changes."""

    @property
    def quoted(self) -> str:
        return f"{quote_name(self.name.database)}.{quote_name(self.name.table)}"


class ServerFacts:
    """A server's answers. Each query runs when a check first needs it."""

    def __init__(self, connection: Connection[Any], address: MySQLAddress) -> None:
        self.connection, self.address = connection, address
        self.mariadb = is_mariadb(connection)
        self.variables: Mapping[str, str] = {str(name).lower(): str(value) for name, value in self.fetch("SHOW GLOBAL VARIABLES")}

    def fetch(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return query(self.connection, self.address, sql, arguments)

    def fetch_if_allowed(self, sql: str) -> list[tuple[Any, ...]] | None:
        """Return None if the account lacks the privilege, or the server does not know the query."""
        try:
            return self.fetch(sql)
        except DefiniteError:
            return None

    def variable(self, name: str, default: str = "") -> str:
        return self.variables.get(name, default)

    def is_on(self, name: str, default: str = "OFF") -> bool:
        return self.variable(name, default).upper() in ("ON", "1", "YES", "TRUE")

    @property
    def version(self) -> str:
        return self.variable("version")

    @property
    def product(self) -> str:
        return "MariaDB" if self.mariadb else "MySQL"

    @property
    def account(self) -> str:
        """Return the account, as GRANT writes it."""
        user, _, host = str(self.fetch("SELECT CURRENT_USER()")[0][0]).rpartition("@")
        return f"'{user}'@'{host}'"

    @property
    def logs_cascades(self) -> bool:
        """Whether the server logs the rows that a foreign key changes. MySQL does from 9.6 on, unless the setting restores the old way."""
        return not self.mariadb and self.variable("innodb_native_foreign_keys").upper() in ("OFF", "0", "FALSE")

    def log_filters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the databases that are logged exclusively, and those that are excluded."""
        status = self.fetch(log_status_statement(mariadb=self.mariadb, version=parse_version(self.version)))
        only, without = (str(status[0][2] or ""), str(status[0][3] or "")) if status else ("", "")
        return tuple(filter(None, only.split(","))), tuple(filter(None, without.split(",")))

    def is_replica(self) -> bool | None:
        """Whether the server is a replica; None if the account may not see it."""
        found = self.fetch_if_allowed(replica_status_statement(mariadb=self.mariadb, version=parse_version(self.version)))
        return None if found is None else bool(found)

    def has_privilege(self, privilege: str) -> bool:
        """Whether a global privilege was granted to the account or to one of its roles."""
        grants = self.fetch("SHOW GRANTS")
        if not self.mariadb:
            role = self.fetch_if_allowed("SELECT CURRENT_ROLE()")
            if role and str(role[0][0]) != "NONE":
                grants += self.fetch_if_allowed(f"SHOW GRANTS FOR CURRENT_USER() USING {role[0][0]}") or []
        wanted = re.compile(rf"GRANT (.*\b{privilege}\b.*|ALL PRIVILEGES) ON \*\.\* TO")
        return any(wanted.match(str(grant[0])) for grant in grants)

    def oldest_log(self) -> tuple[str, float] | None:
        """Return the oldest log file, and its age in seconds, by the first event in it."""
        files = [str(row[0]) for row in self.fetch("SHOW BINARY LOGS")]
        if not files:
            return None
        oldest = min(files, key=file_number)
        with closing(ReplicationStream(self.address, BinlogPosition(oldest, 4), blocking=False)) as stream:
            first = next((piece for piece in stream.pieces() if isinstance(piece, np.ndarray)), None)
            begun = int.from_bytes(first[:4].tobytes(), "little") if first is not None else time.time()
        return oldest, max(time.time() - begun, 0.0)

    def lacks_database(self, selection: Selection) -> bool:
        """Whether the selection names tables of the address's database, and the account sees no such database."""
        database = self.address.database
        is_meant = database and any(chosen.startswith(f"{database}.") for chosen in selection.include)
        return bool(is_meant) and not self.fetch("SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (database,))

    def tables(self, wanted: Callable[[TableName], bool]) -> list[TableFacts]:
        """Return the selected tables that the account can see."""
        keyed = {TableName(database, table) for database, table in self.fetch(_KEYED)}
        found = [(TableName(database, table), str(engine)) for database, table, engine in self.fetch(_TABLES)]
        chosen = [(name, engine) for name, engine in sorted(found) if name.database.lower() not in _SYSTEM and wanted(name)]
        keys = read_foreign_keys(self.connection, self.address, [name for name, _ in chosen])
        cascades = {name: tuple(key for key in of_table if key.cascades) for name, of_table in keys.items()}
        return [TableFacts(name, engine, name in keyed, cascades.get(name, ())) for name, engine in chosen]

    def ignores_trailing_spaces(self, table: TableName, column: str) -> bool:
        return read_collation(self.connection, self.address, table, column)[2]

    def describe(self, names: Collection[TableName]) -> Mapping[TableName, TableSchema | DefiniteError]:
        """Return the definition of each of these tables that the account can see, or why it is not replicated."""
        if not names:
            return {}
        try:
            return {schema.name: schema for schema in capture_schemas(self.connection, self.address, set(names).__contains__)}
        except DefiniteError as error:
            if len(names) == 1:
                return dict.fromkeys(names, error)
            return {name: found for one in names for name, found in self.describe([one]).items()}


_TABLES = "SELECT table_schema, table_name, engine FROM information_schema.tables WHERE table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"
# Unique, over whole columns, none of which is nullable.
_KEYED = """
SELECT table_schema, table_name FROM information_schema.statistics
GROUP BY table_schema, table_name, index_name
HAVING MAX(non_unique) = 0 AND SUM(nullable = 'YES') = 0 AND COUNT(column_name) = COUNT(*)
    AND SUM(sub_part IS NOT NULL AND index_name <> 'PRIMARY') = 0"""

Check = Callable[[ServerFacts], Iterator[Finding]]


def try_replication(connection: Connection[Any], address: MySQLAddress) -> None:
    """Request the end of the log as a replica would: only the server's own answer is a reliable test."""
    with closing(ReplicationStream(address, log_end(connection, address, 0), blocking=False)) as stream:
        stream.drain()


def refusal(call: Callable[[], object]) -> HeadraceError | None:
    try:
        call()
    except HeadraceError as error:
        return error
    return None
