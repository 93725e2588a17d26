"""Requirements for exact replication: the errors among the preflight checks, raised one at a time, or a report of all findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.setting_values import CascadeMode
from headrace.model.table_selection import Selection
from headrace.sources.mysql.preflight.checks import (
    SERVER_CHECKS,
    check_cascades_of,
    check_hidden_databases,
    check_log_rights,
    check_retention,
    check_selection,
)
from headrace.sources.mysql.preflight.server_facts import ServerFacts, try_replication
from headrace.sources.mysql.server.connection import MySQLAddress, query, server_errors
from headrace.sources.mysql.server.position import BinlogPosition, file_number
from headrace.sources.preflight import Finding, Level

_MAY_NOT_RECOVER = (1142, 1227, 1401)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Identifies a server: a position is valid only on the server it came from."""

    flavour: str
    version: str
    identity: str
    """MySQL's server uuid; for MariaDB, which has none, its server id."""
    folds_case: bool = False
    """Whether the server stores table names in lower case, whatever a statement writes."""
    in_utc: bool = False
    """Whether the system time zone of the server is UTC."""
    logs_cascades: bool = False
    """Whether the server logs the rows that a foreign key changes."""

    @property
    def mariadb(self) -> bool:
        return self.flavour == "mariadb"


def check_server(connection: Connection[Any], address: MySQLAddress) -> ServerIdentity:
    """Raise `DefiniteError` for the first problem that would make replication wrong or impossible."""
    facts = ServerFacts(connection, address)
    for check in SERVER_CHECKS:
        for finding in check(facts):
            finding.raise_for(address)
    try_replication(connection, address)
    identity = facts.variable("server_id" if facts.mariadb else "server_uuid")
    folds_case = facts.variable("lower_case_table_names") == "1"
    in_utc = facts.variable("system_time_zone") == "UTC"
    flavour = "mariadb" if facts.mariadb else "mysql"
    return ServerIdentity(flavour, facts.version, identity, folds_case, in_utc, facts.logs_cascades)


def check_tables(connection: Connection[Any], address: MySQLAddress, tables: Iterable[TableName]) -> None:
    """Raise if a filter keeps changes of a table out of the log."""
    facts = ServerFacts(connection, address)
    for finding in check_hidden_databases(facts, {name.database for name in tables}):
        finding.raise_for(address)


def check_logged(connection: Connection[Any], address: MySQLAddress, tables: Iterable[TableName]) -> None:
    """Raise if changes of a table would be missing in the log: excluded by a filter, or made by a foreign key without logging."""
    chosen = set(tables)
    check_tables(connection, address, chosen)
    facts = ServerFacts(connection, address)
    for table in facts.tables(chosen.__contains__):
        for finding in check_cascades_of(facts, table):
            finding.raise_for(address)


def check_database(connection: Connection[Any], address: MySQLAddress, selection: Selection) -> None:
    """Raise if the selection names tables of the address's database, and that database does not exist."""
    if ServerFacts(connection, address).lacks_database(selection):
        raise DefiniteError(
            f"the source has no database {address.database}, or the user may not see it",
            place=str(address),
            hint="check the database in the source's address and the user's rights (GRANT SELECT), or create the database",
        )


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
            f"the source's binary log {position.file} ends at {files[position.file]}, before the pipe's position {position.offset}",
            place=str(address),
            hint="the server lost or reset its log; to start over, remove the state directory and the target tables",
        )


def examine(connection: Connection[Any], address: MySQLAddress, wanted: Selection, cascades: CascadeMode) -> list[Finding]:
    """Return all findings about a server for the wanted tables, in the order in which problems should be repaired."""
    facts = ServerFacts(connection, address)
    findings = [finding for check in SERVER_CHECKS for finding in check(facts)]
    findings += check_log_rights(facts)
    if any(finding.name == "REPLICATION SLAVE" and finding.level is Level.OK for finding in findings):
        findings += check_retention(facts)
    findings += check_selection(facts, facts.tables(wanted), wanted, cascades)
    return findings


def check_no_prepared(connection: Connection[Any], address: MySQLAddress) -> None:
    """Raise if transactions are prepared: a start here would see their commits without their rows.

    A user without the privilege passes: the commit itself, when it comes, stops the stream with the same remedy.
    """
    with server_errors(address), connection.cursor() as cursor:
        try:
            cursor.execute("XA RECOVER")
        except pymysql.err.MySQLError as error:
            if error.args[0] in _MAY_NOT_RECOVER:
                return
            raise
        found = cursor.fetchall()
    if found:
        names = ", ".join(str(row[3]) for row in found[:5])
        raise DefiniteError(
            f"{len(found)} XA transactions are prepared on the source ({names}), whose rows would be missed when they are committed",
            place=str(address),
            hint="commit or roll back what XA RECOVER shows, then start again",
        )
