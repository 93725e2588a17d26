"""Translates errors of ClickHouse and its client to definite and transient errors.

Invariant: an error is transient only if the server or the network is known to be unavailable, busy or short of a resource. Every other
error is definite, so an unknown failure halts with the server's message instead of being retried forever.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from clickhouse_connect.driver.exceptions import Error as DriverError
from urllib3.exceptions import HTTPError

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.shortage import Shortage, shortage_in, shortage_of
from headrace.sinks.clickhouse.server.bounded_client import InvalidResponse, ResponseTooLarge
from headrace.sinks.clickhouse.server.url import PASSWORD_VARIABLE, ClickHouseTarget, current_host, record_failure, record_success

# Transient error codes of ClickHouse; the numbers never change.
TRANSIENT_CODES = {
    3: "UNEXPECTED_END_OF_FILE",
    159: "TIMEOUT_EXCEEDED",
    160: "TOO_SLOW",
    173: "CANNOT_ALLOCATE_MEMORY",
    198: "DNS_ERROR",
    201: "QUOTA_EXCEEDED",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    225: "NO_ZOOKEEPER",
    236: "ABORTED",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    244: "UNEXPECTED_ZOOKEEPER_ERROR",
    252: "TOO_MANY_PARTS",
    254: "NO_ACTIVE_REPLICAS",
    265: "NO_AVAILABLE_REPLICA",
    279: "ALL_CONNECTION_TRIES_FAILED",
    285: "TOO_FEW_LIVE_REPLICAS",
    286: "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE",
    289: "REPLICA_IS_NOT_IN_QUORUM",
    319: "UNKNOWN_STATUS_OF_INSERT",
    364: "RECEIVED_ERROR_TOO_MANY_REQUESTS",
    369: "ALL_REPLICAS_ARE_STALE",
    # The session of a statement is released a moment after its answer.
    373: "SESSION_IS_LOCKED",
    394: "QUERY_WAS_CANCELLED",
    415: "ALL_REPLICAS_LOST",
    416: "REPLICA_STATUS_CHANGED",
    425: "SYSTEM_ERROR",
    439: "CANNOT_SCHEDULE_TASK",
    473: "DEADLOCK_AVOIDED",
    499: "S3_ERROR",
    677: "THREAD_WAS_CANCELED",
    696: "ASYNC_LOAD_CANCELED",
    700: "USER_SESSION_LIMIT_EXCEEDED",
    718: "TOO_SLOW_PARSING",
    734: "CANNOT_WRITE_AFTER_BUFFER_CANCELED",
    735: "QUERY_WAS_CANCELLED_BY_CLIENT",
    745: "SERVER_OVERLOADED",
    749: "TCP_CONNECTION_LIMIT_REACHED",
    762: "HTTP_CONNECTION_LIMIT_REACHED",
    776: "RESOURCE_LIMIT_EXCEEDED",
    777: "MEMORY_RESERVATION_KILLED",
    778: "MEMORY_RESERVATION_FAILED",
    999: "KEEPER_EXCEPTION",
    1019: "QUERY_SLOT_ACQUISITION_TIMEOUT",
    1020: "MEMORY_RESERVATION_ACQUISITION_TIMEOUT",
}
_HINTS = {
    50: "a newer ClickHouse server is needed for a type in this table (Time64: 25.6 or later), or leave the table out with --exclude",
    60: "the table does not exist; was the pipe run with this sink and database?",
    81: "the database does not exist; was the pipe run with this sink and database?",
    117: 'the type JSON cannot hold a document, such as one with a path twice, or with null among arrays; choose json = "string" for it',
    164: "the user may only read; use a user that may create tables and insert",
    192: f"check the user and the password in the sink's URL (or {PASSWORD_VARIABLE})",
    193: f"check the password in the sink's URL (or {PASSWORD_VARIABLE})",
    194: f"give a password in the sink's URL or in {PASSWORD_VARIABLE}",
    195: "the user may not connect from this address; allow it on the server",
    241: "give the server, or the user, more memory (max_memory_usage), or let smaller batches come (--flush-rows, --flush-bytes)",
    242: "a replica is read-only while it has no Keeper; see the server's log",
    252: "merges do not keep up: give the server more of them, fewer partitions, or larger batches (--flush-seconds)",
    497: "grant the user CREATE DATABASE, CREATE TABLE, INSERT and SELECT on the target database",
    774: "the table was made read-only; ALTER TABLE ... MODIFY SETTING table_readonly = 0 ends that",
    516: f"check the user and the password in the sink's URL (or {PASSWORD_VARIABLE})",
}
_WRONG_PASSWORD: Final = {192, 193, 194, 516}
_DEFAULT_HINT = "the text above is ClickHouse's own; correct the data, the table or the settings it names, then start again"
_NOT_CLICKHOUSE: Final = "check that host and port in the sink's URL are those of a ClickHouse server's HTTP interface"
_SMALLER: Final = (
    "select fewer rows or columns, or use a client that shows rows while they come, such as clickhouse-client; "
    "if the statement has a small result, check that host and port are those of a ClickHouse server"
)
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, struct.error, pa.ArrowException)
"""What the driver and Arrow raise for a malformed response."""
_TOO_MANY_PARTS, _TOO_MANY_PARTITIONS = 252, "Too many partitions for single INSERT block"
_BUSY_STATUSES = ("429", "502", "503", "504")
_STATUS = re.compile(r"HTTP driver received HTTP status (\d+)")
_SYSTEM_ERROR = re.compile(r"errno: \d+, strerror: [A-Z][a-z ]+")
_SYSTEM_CODES = (243, 1000, 1001)
"""NOT_ENOUGH_SPACE, and errors of the server's libraries."""
_NOISE = re.compile(
    r"\s*\(version [^()]*(?:\([^()]*\))?[^()]*\)"
    r"|\s*\(for url [^()]*\)"
    r"|^Received ClickHouse exception, code: \d+, server response: "
)


class RejectedByServer(DefiniteError):
    """A definite error that the server answered to a statement."""

    code = 0
    """ClickHouse's error code."""


class ServerBusy(TransientError):
    """A transient error that the server answered to a statement."""

    code = 0


@contextmanager
def translate_errors(target: ClickHouseTarget, doing: str) -> Iterator[None]:
    """Within this context, every error of ClickHouse or the network is raised as a definite or transient error that names the host."""
    try:
        yield
    except (ClickHouseError, HTTPError, OSError, *_UNREADABLE) as error:
        raised = translate_error(error, current_host(target), doing, has_others=bool(target.others))
        if isinstance(raised, TransientError):
            raised.elsewhere = record_failure(target)
        raise raised from error
    record_success(target)


def translate_error(error: BaseException, target: ClickHouseTarget, doing: str, *, has_others: bool = False) -> HeadraceError:
    """Return the definite or transient error for a driver's error."""
    place = f"{target}, {doing}"
    for cause in _causes(error):
        if isinstance(cause, InvalidResponse):
            return _broken(str(cause), place)
        if isinstance(cause, ResponseTooLarge):
            return DefiniteError(f"ClickHouse's answer is too large: {cause}", place=place, hint=_SMALLER)
    if isinstance(error, _UNREADABLE) and not isinstance(error, OSError | MemoryError):
        return _broken(f"its answer cannot be read ({type(error).__name__}: {_shorten(str(error))})", place)
    code = error.code if isinstance(error, DriverError) else None
    if code is not None:
        return _from_server(code, str(error), place)
    short = next((found for cause in _causes(error) if isinstance(found := shortage_of(cause), Shortage)), None)
    if short is not None:
        # This process lacks the resource, not the server.
        short.place = place
        return short
    network = _network_error(error, target, place, has_others=has_others)
    if network is not None:
        return network
    status = _STATUS.search(str(error))
    if status is not None and status.group(1) in _BUSY_STATUSES:
        return TransientError(f"ClickHouse answered HTTP {status.group(1)}", place=place, hint="it, or a proxy before it, is busy")
    return DefiniteError(f"ClickHouse: {_shorten(str(error))}", place=place, hint=_DEFAULT_HINT)


def _broken(what: str, place: str) -> DefiniteError:
    return DefiniteError(f"the server does not keep to ClickHouse's HTTP interface: {what}", place=place, hint=_NOT_CLICKHOUSE)


def _from_server(code: int, text: str, place: str) -> HeadraceError:
    message = f"ClickHouse error {code}: {_shorten(text)}"
    kind: type[RejectedByServer | ServerBusy] = ServerBusy if code in TRANSIENT_CODES else RejectedByServer
    hint = _HINTS.get(code, _DEFAULT_HINT if kind is RejectedByServer else "the server is busy or short of something; see its log")
    short = _shortage(code, text)
    if code == _TOO_MANY_PARTS and _TOO_MANY_PARTITIONS in text:
        # The same code, but waiting does not reduce the number of partitions in a block.
        kind, hint = RejectedByServer, "partition the table more coarsely, or raise max_partitions_per_insert_block"
    elif short is not None:
        kind, message, hint = ServerBusy, f"{message}: {short.message}", f"on the server: {short.hint}"
    raised = kind(message, place=place, hint=hint)
    raised.code = code
    if isinstance(raised, RejectedByServer):
        raised.wrong_password = code in _WRONG_PASSWORD
    return raised


def _shortage(code: int, text: str) -> Shortage | None:
    """Return the resource that the server's machine lacks, if the server reports the system's error; other error texts may contain row
    values."""
    named = _SYSTEM_ERROR.search(text)
    if named is not None:
        return shortage_in(named.group())
    return shortage_in(text) if code in _SYSTEM_CODES else None


def _network_error(error: BaseException, target: ClickHouseTarget, place: str, *, has_others: bool) -> HeadraceError | None:
    causes = list(_causes(error))
    for cause in causes:
        # The name of a stopped host may not resolve; that is not fatal while there are other hosts.
        if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN and not has_others:
            return DefiniteError(f"host {target.host} is unknown: {cause.strerror}", place=place, hint="check the host in the sink's URL")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DefiniteError(f"the certificate of {target.host} is not trusted: {cause.verify_message}", place=place, hint="check it")
        if isinstance(cause, ssl.SSLError):
            return DefiniteError(f"no TLS on port {target.port}", place=place, hint="use clickhouse:// or the server's HTTPS port (8443)")
    if isinstance(error, OperationalError) or any(isinstance(cause, HTTPError | OSError) for cause in causes):
        reason = next((cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
        return TransientError(
            f"ClickHouse cannot be reached: {reason or _shorten(str(causes[-1]))}",
            place=place,
            hint="check that the server runs and that host and port in the sink's URL are right",
        )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        reason = getattr(at, "reason", None)
        at = at.__cause__ or (reason if isinstance(reason, BaseException) else at.__context__)


def _shorten(text: str) -> str:
    flat = " ".join(_NOISE.sub("", text).split())
    return flat if len(flat) <= 600 else f"{flat[:600]}..."
