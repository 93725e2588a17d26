"""What must be true of a server before its log can be replicated exactly; each failure names its remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.sources.mysql.connection import MySQLAddress, is_mariadb, query
from headrace.sources.mysql.position import BinlogPosition, file_number
from headrace.sources.mysql.stream import ReplicationStream
from headrace.sources.mysql.watermark import log_end


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Who a server is: positions mean something only on the server they came from."""

    flavour: str
    version: str
    identity: str
    """MySQL's server uuid; for MariaDB, which has none, its server id."""
    folds_case: bool = False
    """Whether the server keeps table names in lower case, however a statement spells them."""

    @property
    def mariadb(self) -> bool:
        return self.flavour == "mariadb"


def check_server(connection: Connection[Any], address: MySQLAddress) -> ServerIdentity:
    """Raise `DefiniteError` for the first thing that would make replication wrong or impossible."""
    variables = {str(name).lower(): str(value) for name, value in query(connection, address, "SHOW GLOBAL VARIABLES")}
    place = str(address)
    if variables.get("log_bin", "OFF") != "ON":
        raise DefiniteError("the source writes no binary log", place=place, hint="set log_bin in the server's configuration and restart it")
    for name, wanted, hint in _REQUIRED:
        value = variables.get(name, wanted)
        if value.upper() != wanted:
            raise DefiniteError(f"the source has {name} = {value or repr('')}", place=place, hint=hint)
    _check_replication_rights(connection, address)
    mariadb = is_mariadb(connection)
    identity = variables["server_id"] if mariadb else variables["server_uuid"]
    folds_case = variables.get("lower_case_table_names") == "1"
    return ServerIdentity("mariadb" if mariadb else "mysql", variables["version"], identity, folds_case)


_REQUIRED = (
    ("binlog_format", "ROW", "SET GLOBAL binlog_format = ROW (sessions already open keep their own format until they reconnect)"),
    ("binlog_row_image", "FULL", "SET GLOBAL binlog_row_image = FULL (sessions already open keep theirs until they reconnect)"),
)


def check_cascades(connection: Connection[Any], address: MySQLAddress, tables: Iterable[TableName]) -> None:
    """MariaDB does not log what a foreign key's cascade does to the child table; such a table would drift away silently."""
    if not is_mariadb(connection):
        return
    chosen = set(tables)
    for database, table, constraint in query(connection, address, _CASCADES):
        if TableName(database, table) in chosen:
            raise DefiniteError(
                f"table {database}.{table} is changed by the foreign key {constraint}, and MariaDB does not log such changes",
                place=str(address),
                hint="make the key RESTRICT, or leave the table out with --tables",
            )


_CASCADES = """
SELECT constraint_schema, table_name, constraint_name FROM information_schema.referential_constraints
WHERE delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')"""


def check_position(connection: Connection[Any], address: MySQLAddress, position: BinlogPosition) -> None:
    """Raise if the server no longer (or not yet) has the log at `position`."""
    files = {str(row[0]): int(row[1]) for row in query(connection, address, "SHOW BINARY LOGS")}
    if position.file not in files:
        oldest = min(files, key=file_number) if files else "none"
        raise DefiniteError(
            f"the source no longer has binary log {position.file}, where replication must go on; its oldest is {oldest}",
            place=str(address),
            hint="keep binary logs longer (binlog_expire_logs_seconds); to start over, remove the state directory and the target tables",
        )
    if position.offset > files[position.file]:
        raise DefiniteError(
            f"the source's binary log {position.file} ends at {files[position.file]}, before our position {position.offset}",
            place=str(address),
            hint="the server lost or reset its log; to start over, remove the state directory and the target tables",
        )


def _check_replication_rights(connection: Connection[Any], address: MySQLAddress) -> None:
    """Ask for the end of the log as a replica would: the server's own answer is the only sure test."""
    stream = ReplicationStream(address, log_end(connection, address, 0), blocking=False)
    try:
        for _ in stream.pieces():
            pass
    finally:
        stream.close()
