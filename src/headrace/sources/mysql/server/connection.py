"""Connections to a MySQL or MariaDB server, and translation of its errors.

An address never shows its password: not in `repr`, not in a log, not in an error. Loopback connections and Unix sockets are not encrypted.
Other connections use TLS if the server offers it. The address's settings change that. Every wait is limited: a server that
accepts the connection and stays silent is a transient error after `connect-timeout` or `read-timeout`.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.connections import Connection

from headrace import urls as encryption
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.sources.debezium_route import check_is_read
from headrace.sources.mysql.server.bounded_connection import BoundedConnection, ProtocolError
from headrace.urls import Tls, TlsMode, certificate_remedy, is_loopback, parse_seconds, parse_settings, tls_settings

PASSWORD_VARIABLE = "HEADRACE_SOURCE_PASSWORD"

READ_AGAIN: Final = "to read every table again, run `headrace resync --new-log --state DIR`, then start the pipe again"
ACCESS_DENIED = {1044, 1045, 1698, 3118, 1820}
_WRONG_PASSWORD = {1045, 1698}
MISSING_PRIVILEGE = {1227, 1142, 1143, 1370}
_BINLOG_READ_FAILED = 1236
_INSECURE = 3159
_LOST = {1040, 1042, 1043, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1927, 3168, 3169, 4031}
"""The server has no room for the connection, shuts down, or has ended it."""
_INTERRUPTED = {1205, 1213, 1226, 1317, 1969, 3024}
"""The server has ended the statement: a limit, a deadlock, or an administrator."""
_SAME_ID = 4052
_UNKNOWN_PLUGIN = 2059
_TABLE_CHANGED = 1412

TRANSACTIONAL_ENGINES: Final = frozenset({"innodb", "rocksdb", "tokudb", "ndbcluster", "myrocks"})

CONNECT_TIMEOUT_S: Final = 10.0
_LONGEST_TEXT: Final = 2000
"""The longest server error text that is reported."""
READ_TIMEOUT_S: Final = 600.0
_FORM: Final = "write mysql://user:password@host:port/db"
_SETTINGS: Final = (*encryption.SETTINGS, "socket", "connect-timeout", "read-timeout")
_WHOSE: Final = "the source"
_NO_TLS: Final = 2026
_AWAY_HINT: Final = "check that the server runs and can be reached"
_CERT_HINT: Final = "check cert= and key=, that the server trusts their issuer (ssl_ca), and its TLS versions (tls_version)"

Version = tuple[int, int, int]
UNKNOWN: Final = (10_000, 0, 0)
"""The version of a server whose text is none. It counts as the newest."""
_FIRST_BINARY_LOG_STATUS: Final = (8, 2, 0)
_FIRST_REPLICA_STATUS: Final = (8, 0, 22)
_FIRST_CACHED_STATISTICS: Final = (8, 0, 0)
_SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_mode = '', sql_select_limit = 18446744073709551615, sql_big_selects = 1, "
    "sql_quote_show_create = 1, completion_type = 0"
)
"""A session inherits the server's global variables. These would change or shorten results without an error."""
_ISOLATION: Final = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"


@dataclass(frozen=True, slots=True)
class MySQLAddress:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str = ""
    tls: Tls | None = None
    """None: as the host suggests, see `default_tls`."""
    socket: str = ""
    """The path of a Unix socket, used instead of host and port."""
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S

    def __str__(self) -> str:
        if self.socket:
            return f"mysql://{self.user}@{self.host}/{self.database}?socket={self.socket}"
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.database}"

    @property
    def effective_tls(self) -> Tls:
        return self.tls or default_tls("" if self.socket else self.host)


def parse_mysql_url(url: str) -> MySQLAddress:
    """Parse `mysql://user:password@host:port/db?tls=required`; the password may come from the environment instead."""
    check_is_read(url)
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError as error:
        raise DefiniteError("the source's address cannot be read", hint=_FORM) from error
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname:
        raise DefiniteError("the source's address cannot be read", hint=_FORM)
    password = unquote(parts.password) if parts.password is not None else os.environ.get(PASSWORD_VARIABLE, "")
    user, database = unquote(parts.username or "root"), unquote(parts.path.strip("/"))
    settings = parse_settings(parts.query, _SETTINGS, _WHOSE)
    return MySQLAddress(
        parts.hostname,
        port,
        user,
        password,
        database,
        tls_settings(settings, tuple(TlsMode), _WHOSE),
        settings.get("socket", ""),
        parse_seconds("connect-timeout", settings.get("connect-timeout"), CONNECT_TIMEOUT_S, _WHOSE),
        parse_seconds("read-timeout", settings.get("read-timeout"), READ_TIMEOUT_S, _WHOSE),
    )


class WrongServer(DefiniteError):
    """The server is not the one that was read so far."""


def connect(address: MySQLAddress, *, read_timeout_s: float | None = None, identity: str = "") -> Connection[Any]:
    """Return a connection in UTC with an empty SQL mode, autocommit and REPEATABLE READ, whose results have no limit. It raises Headrace
    errors only. `read_timeout_s` can only shorten the address's own. `identity`: the expected server identity, if known.
    """
    wait_s = min(address.read_timeout_s, read_timeout_s or address.read_timeout_s)
    with server_errors(address):
        connection: Any = BoundedConnection(
            host=address.host,
            port=address.port,
            user=address.user,
            # The servers' own clients send UTF-8. The driver alone would refuse passwords that are not Latin-1.
            password=address.password.encode(),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=address.connect_timeout_s,
            # The driver's own limit ends when the socket is open. A server that then stays silent would block for hours.
            read_timeout=address.connect_timeout_s,
            write_timeout=address.connect_timeout_s,
            init_command=_SESSION,
            defer_connect=True,
            **_driver_options(address.effective_tls),
        )
        if address.socket:
            # On a private channel a password may be sent in the clear.
            connection._secure = True
            connection.connect(_open_socket(address))
        else:
            connection.connect()
        connection.query(_ISOLATION)
    # Both must be equal: the driver sets the socket's timeout when it switches between them, and direct readers of the socket would
    # otherwise get the timeout of the last write.
    connection._read_timeout = connection._write_timeout = wait_s
    connection._current_timeout = wait_s
    connection._sock.settimeout(wait_s)
    if identity:
        try:
            _check_identity(connection, address, identity)
        except HeadraceError:
            connection.close()
            raise
    return connection  # type: ignore[no-any-return]


def _check_identity(connection: Connection[Any], address: MySQLAddress, identity: str) -> None:
    """Raise if the address leads to another server, for example after a failover: it may lack changes, and its log has other positions."""
    [(found,)] = query(connection, address, f"SELECT @@global.{'server_id' if is_mariadb(connection) else 'server_uuid'}")
    if str(found) != identity:
        raise WrongServer(
            f"another server answers at the source's address: {found} instead of {identity}",
            place=str(address),
            hint="start Headrace again with the same state: it resumes there by GTID, if that server has the needed log",
        )


def _open_socket(address: MySQLAddress) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(address.connect_timeout_s)
    try:
        opened.connect(address.socket)
    except OSError as error:
        opened.close()
        if isinstance(error, ConnectionRefusedError | TimeoutError | BlockingIOError):
            raise
        raise DefiniteError(
            f"the source's socket cannot be opened: {error.strerror or error}",
            place=str(address),
            hint="check socket= in the source's address, and that the server runs",
        ) from error
    return opened


@contextmanager
def server_errors(address: MySQLAddress) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translate_error(error, address) from error
    except (OSError, EOFError, ssl.SSLError) as error:
        raise TransientError(f"the connection to {address} broke: {error}") from error


def translate_error(error: pymysql.err.MySQLError, address: MySQLAddress) -> HeadraceError:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = (str(error.args[1]) if len(error.args) > 1 else str(error))[:_LONGEST_TEXT]
    place = str(address)
    if isinstance(error, ProtocolError):
        hint = "check host and port of the source's address: the answer is not from a MySQL or MariaDB server, or it is an attack"
        return DefiniteError(f"the source does not keep to MySQL's protocol: {text}", place=place, hint=hint)
    failure = _tls_failure(error, address.effective_tls, address.host, place)
    if failure is not None:
        return failure
    if code in ACCESS_DENIED:
        hint = "check user and password (also in " + PASSWORD_VARIABLE + ")"
        mode = address.effective_tls.mode
        if mode is TlsMode.DISABLED:
            hint += "; if the account must use TLS, add ?tls=required to the address"
        elif not address.effective_tls.cert:
            hint += "; if the account must show a certificate, add cert= and key= to the address"
        refused = DefiniteError(f"the source refused user {address.user!r}: {text}", place=place, hint=hint)
        refused.wrong_password = code in _WRONG_PASSWORD
        return refused
    if code == _INSECURE:
        return DefiniteError(f"the source takes encrypted connections only: {text}", place=place, hint="add ?tls=required to the address")
    if code in MISSING_PRIVILEGE:
        return missing_privilege(text, address)
    if code == _BINLOG_READ_FAILED:
        return read_failed(text, place)
    if code == 1049:
        return DefiniteError(f"the source has no such database: {text}", place=place, hint="check the database in the source's address")
    if code == _TABLE_CHANGED:
        return TableChanged(f"a table was altered, truncated or created again after the transaction began: {text}", place=place)
    if code in (1146, 1051):
        return DefiniteError(
            f"the source has no such table: {text}", place=place, hint="it was dropped; start again to continue without it"
        )
    if isinstance(error.__cause__, socket.gaierror) or "Name or service not known" in text or "getaddrinfo" in text:
        return DefiniteError(f"unknown host {address.host!r}", place=place, hint="check the host name in the source's address")
    if code == _UNKNOWN_PLUGIN:
        hint = "let the account use mysql_native_password, caching_sha2_password (MySQL) or ed25519 (MariaDB)"
        return DefiniteError(f"user {address.user!r} signs in with an unsupported plugin: {text}", place=place, hint=hint)
    if code == _SAME_ID:
        return read_failed(text, place)
    if 2000 <= code < 3000 or code in _LOST or code in _INTERRUPTED or code == 0:
        return TransientError(f"the source does not answer: {text}", place=place, hint="check that the server runs and can be reached")
    return DefiniteError(f"the source answered with error {code}: {text}", place=place)


class TableChanged(TransientError):
    """A transaction cannot read a table that is newer than its snapshot. The next transaction can."""


def missing_privilege(text: str, address: MySQLAddress) -> DefiniteError:
    grant = f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {address.user!r}@'%'"
    return DefiniteError(f"user {address.user!r} lacks a privilege on the source: {text}", place=str(address), hint=grant)


class LogUnavailable(DefiniteError):
    """The server cannot send its log from the requested position."""


def read_failed(text: str, place: str) -> HeadraceError:
    """Return the error for server error 1236: the server cannot send the log from the requested position."""
    if "purged" in text or "Could not find first log file" in text or "could not find next log" in text:
        return LogUnavailable(
            f"the source no longer has the binary log at the pipe's position: {text}",
            place=place,
            hint=f"keep binary logs longer (binlog_expire_logs_seconds); {READ_AGAIN}",
        )
    if "server_id" in text or "server_uuid" in text:
        return TransientError(f"another replica uses the same server id: {text}", place=place)
    return LogUnavailable(
        f"the source cannot send its binary log: {text}",
        place=place,
        hint="check the log with mysqlbinlog --verify-binlog-checksum on the source; if it is damaged, take a new snapshot",
    )


def query(connection: Connection[Any], address: MySQLAddress, sql: str, arguments: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query; raise Headrace errors only."""
    with server_errors(address), connection.cursor() as cursor:
        # None, not an empty tuple: otherwise the driver would treat a percent sign in a name as a placeholder.
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())


def is_mariadb(connection: Connection[Any]) -> bool:
    return "MariaDB" in str(connection.get_server_info())  # type: ignore[no-untyped-call]


def version_of(connection: Connection[Any]) -> Version:
    """Return the server's version by its handshake."""
    return parse_version(str(connection.get_server_info()))  # type: ignore[no-untyped-call]


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def log_status(connection: Connection[Any], address: MySQLAddress) -> tuple[str, int]:
    rows = query(connection, address, log_status_statement(mariadb=is_mariadb(connection), version=version_of(connection)))
    if not rows:
        raise DefiniteError(
            "the source writes no binary log", place=str(address), hint="set log_bin in the server's configuration and restart it"
        )
    return str(rows[0][0]), int(rows[0][1])


def default_tls(host: str) -> Tls:
    """Return the default: no encryption on loopback and sockets (an empty host), elsewhere encrypted if the server can."""
    return Tls(TlsMode.DISABLED if not host or is_loopback(host) else TlsMode.PREFERRED)


def _driver_options(tls: Tls) -> dict[str, Any]:
    if tls.mode is TlsMode.DISABLED:
        return {"ssl_disabled": True}
    context = tls.context()
    return {"ssl": context} if context is not None else {}


def _tls_failure(error: pymysql.err.MySQLError, tls: Tls, host: str, place: str) -> HeadraceError | None:
    """Return the error for a TLS failure; None if the error has another cause."""
    cause = getattr(error, "original_exception", None) or error.__context__
    if error.args and error.args[0] == _NO_TLS:
        return DefiniteError(
            "the source offers no TLS", place=place, hint="give the server a certificate (ssl_cert, ssl_key), or write tls=disabled"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DefiniteError(
            f"the source's certificate is not accepted: {cause.verify_message}",
            place=place,
            hint=certificate_remedy(cause.verify_message, host),
        )
    # A closed connection is no certificate error, although MySQL closes it when it rejects the client's certificate.
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return TransientError(
            f"the source ended the encrypted connection: {cause}", place=place, hint=_CERT_HINT if tls.cert else _AWAY_HINT
        )
    if isinstance(cause, ssl.SSLError):
        return DefiniteError(f"TLS with the source failed: {cause.reason or cause}", place=place, hint=_CERT_HINT)
    return None


def parse_version(text: str) -> Version:
    """Parse the version that a server reports, such as `11.8.6-MariaDB-log` or `8.0.36-28`."""
    # MariaDB prepends 5.5.5 to its real version in the handshake.
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text.removeprefix("5.5.5-"))
    return (int(found[1]), int(found[2]), int(found[3])) if found else UNKNOWN


def log_status_statement(*, mariadb: bool, version: Version) -> str:
    """Return the statement that shows the end of the log: MySQL 8.4 has only the new one, MariaDB and older MySQL only the old one."""
    return "SHOW MASTER STATUS" if mariadb or version < _FIRST_BINARY_LOG_STATUS else "SHOW BINARY LOG STATUS"


def replica_status_statement(*, mariadb: bool, version: Version) -> str:
    if mariadb:
        return "SHOW ALL SLAVES STATUS"
    return "SHOW SLAVE STATUS" if version < _FIRST_REPLICA_STATUS else "SHOW REPLICA STATUS"


def caches_statistics(*, mariadb: bool, version: Version) -> bool:
    return not mariadb and version >= _FIRST_CACHED_STATISTICS
