"""Connections to a MySQL or MariaDB server, and the server's errors in our words.

An address never shows its password: not in `repr`, not in a log, not in an error. Loopback connections are not encrypted; others use TLS
when the server offers it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from headrace.errors import DefiniteError, HeadraceError, TransientError

PASSWORD_VARIABLE = "HEADRACE_SOURCE_PASSWORD"

ACCESS_DENIED = {1044, 1045, 1698, 3118, 1820}
_MISSING_PRIVILEGE = {1227, 1142, 1143, 1370}
_BINLOG_READ_FAILED = 1236
_GONE = {1040, 1042, 1043, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213, 1226, 1317, 1927}


@dataclass(frozen=True, slots=True)
class MySQLAddress:
    """Where a server is and who we are there."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str = ""

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.database}"


def parse_mysql_url(url: str) -> MySQLAddress:
    """`mysql://user:password@host:port/db`; the password may come from the environment instead."""
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError as error:
        raise DefiniteError("the source's address cannot be read", hint="write mysql://user:password@host:port/db") from error
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname:
        raise DefiniteError("the source's address cannot be read", hint="write mysql://user:password@host:port/db")
    password = unquote(parts.password) if parts.password is not None else os.environ.get(PASSWORD_VARIABLE, "")
    return MySQLAddress(parts.hostname, port, unquote(parts.username or "root"), password, unquote(parts.path.strip("/")))


def connect(address: MySQLAddress, *, read_timeout_s: float | None = 600) -> Connection[Any]:
    """A connection in UTC, in strict autocommit; raises our errors only."""
    with server_errors(address):
        return pymysql.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            read_timeout=read_timeout_s,
            ssl_disabled=_is_loopback(address.host),
            init_command="SET SESSION time_zone = '+00:00', sql_mode = ''",
        )


@contextmanager
def server_errors(address: MySQLAddress) -> Iterator[None]:
    """Turn the driver's errors into definite and transient ones."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translate_error(error, address) from error
    except (OSError, EOFError, ssl.SSLError) as error:
        raise TransientError(f"the connection to {address} broke: {error}") from error


def translate_error(error: pymysql.err.MySQLError, address: MySQLAddress) -> HeadraceError:
    """What a driver or server error means to us."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    place = str(address)
    if code in ACCESS_DENIED:
        return DefiniteError(
            f"the source refused user {address.user!r}: {text}",
            place=place,
            hint="check user and password (also in " + PASSWORD_VARIABLE + ")",
        )
    if code in _MISSING_PRIVILEGE:
        return missing_privilege(text, address)
    if code == _BINLOG_READ_FAILED:
        return read_failed(text, place)
    if code == 1049:
        return DefiniteError(f"the source has no such database: {text}", place=place, hint="check the database in the source's address")
    if code in (1146, 1051):
        return DefiniteError(f"the source has no such table: {text}", place=place, hint="it was dropped; start again to go on without it")
    if isinstance(error.__cause__, socket.gaierror) or "Name or service not known" in text or "getaddrinfo" in text:
        return DefiniteError(f"unknown host {address.host!r}", place=place, hint="check the host name in the source's address")
    if code >= 2000 or code in _GONE or code == 0:
        return TransientError(f"the source does not answer: {text}", place=place, hint="check that the server runs and can be reached")
    return DefiniteError(f"the source answered with error {code}: {text}", place=place)


def missing_privilege(text: str, address: MySQLAddress) -> DefiniteError:
    grant = f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {address.user!r}@'%'"
    return DefiniteError(f"user {address.user!r} lacks a privilege on the source: {text}", place=str(address), hint=grant)


def read_failed(text: str, place: str) -> HeadraceError:
    """Error 1236: the server cannot send the log from where we asked."""
    if "purged" in text or "Could not find first log file" in text or "could not find next log" in text:
        return DefiniteError(
            f"the source no longer has the binary log at our position: {text}",
            place=place,
            hint="keep binary logs longer (binlog_expire_logs_seconds); to start over, remove the state directory and the target tables",
        )
    if "server_id" in text or "server_uuid" in text:
        return TransientError(f"another replica uses our server id: {text}", place=place)
    return DefiniteError(
        f"the source cannot send its binary log: {text}",
        place=place,
        hint="check the log with mysqlbinlog --verify-binlog-checksum on the source; if it is damaged, take a new snapshot",
    )


def query(connection: Connection[Any], address: MySQLAddress, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query, with our errors."""
    with server_errors(address), connection.cursor() as cursor:
        cursor.execute(sql, arguments)
        return list(cursor.fetchall())


def is_mariadb(connection: Connection[Any]) -> bool:
    return "MariaDB" in str(connection.get_server_info())  # type: ignore[no-untyped-call]


def quote_name(name: str) -> str:
    """An identifier, quoted for MySQL."""
    return "`" + name.replace("`", "``") + "`"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
