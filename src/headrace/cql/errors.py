"""Translates errors of CQL servers and of the driver into `DefiniteError` or `TransientError`, with a location and a hint."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cassandra import (
    AlreadyExists,
    AuthenticationFailed,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    RateLimitReached,
    ReadTimeout,
    RequestExecutionException,
    RequestValidationException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteTimeout,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException, ProtocolError
from cassandra.protocol import ErrorMessage, SyntaxException

from headrace.cql.address import CqlAddress, password_variable
from headrace.cql.bounded_connection import BROKEN
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.urls import TlsMode, certificate_remedy

DRIVER_ERRORS: Final = (DriverException, NoHostAvailable, ConnectionException, ProtocolError, ErrorMessage, OSError)
"""Errors that the driver raises for problems of the server, the network or a statement."""
_TLS: Final = re.compile(r"\[SSL: (?P<reason>\w+)\] (?P<text>.*?)(?: \(_ssl\.c:\d+\))?$")
_BUSY: Final = "wait until the cluster's nodes are available and less busy; nothing is lost meanwhile"


@contextmanager
def server_errors(address: CqlAddress, about: str = "") -> Iterator[None]:
    """Translate driver errors raised inside; `about` names the request."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate_error(error, address, about) from error


def translate_error(error: BaseException, address: CqlAddress, about: str = "") -> HeadraceError:
    place = f"{address} {about}".rstrip()
    if isinstance(error, HeadraceError):
        return error
    if isinstance(error, NoHostAvailable):
        return _no_host_error(error, address, place)
    if BROKEN in str(error):
        broken = BROKEN + str(error).partition(BROKEN)[2][:400]
        return DefiniteError(broken, place=place, hint=_other_port(address))
    if isinstance(error, AuthenticationFailed):
        return _auth_error(error, address, place)
    text = _error_text(error)
    if isinstance(error, Unauthorized):
        return DefiniteError(f"the account may not do this: {text}", place=place, hint="GRANT it what the message names")
    if isinstance(error, RateLimitReached):
        return TransientError(f"the cluster limits the rate of requests: {text}", place=place, hint=_BUSY)
    if isinstance(error, AlreadyExists | InvalidRequest | SyntaxException | RequestValidationException):
        return DefiniteError(f"the server refuses: {text}", place=place, hint="check the keyspace, the table and their columns")
    if isinstance(error, Unavailable):
        missing = f"{error.alive_replicas} of {error.required_replicas} replicas that the consistency demands are alive"
        return TransientError(f"too few replicas: {missing}", place=place, hint=_BUSY + ", or choose another consistency=")
    if isinstance(error, ReadTimeout | WriteTimeout | OperationTimedOut):
        return TransientError(f"the cluster took too long: {text}", place=place, hint=_BUSY + ", or raise read-timeout=")
    if isinstance(error, OSError) and (found := _tls_failure(error, place)) is not None:
        return found
    if isinstance(error, UnresolvableContactPoints):
        return TransientError("no host of the address can be found by its name", place=place, hint="check the names in the address")
    if isinstance(error, ProtocolError):
        return DefiniteError(f"the server and the driver have no common protocol: {text}", place=place, hint=_other_port(address))
    if isinstance(error, RequestExecutionException | ErrorMessage):
        return TransientError(f"the cluster could not do it: {text}", place=place, hint=_BUSY)
    if isinstance(error, DriverException):
        return DefiniteError(f"the driver cannot do it: {text}", place=place, hint="this should not happen; please report it")
    return TransientError(f"the server cannot be reached: {text}", place=place, hint="check that it runs and can be reached")


def _no_host_error(error: NoHostAvailable, address: CqlAddress, place: str) -> HeadraceError:
    """Return the error when no host can be used, with the most specific host's reason."""
    host_errors = list(error.errors.values()) if isinstance(error.errors, dict) else []
    ours = [translate_error(one, address) for one in host_errors]
    definite = next((one for one in ours if isinstance(one, DefiniteError)), None)
    if definite is not None:
        return definite
    why = "; ".join(dict.fromkeys(_error_text(one) for one in host_errors)) or _error_text(error)
    message = f"no host of the cluster can be reached: {why}"
    return TransientError(message, place=place, hint=f"check that it runs and can be reached{_possible_tls_mismatch(address)}")


def _auth_error(error: AuthenticationFailed, address: CqlAddress, place: str) -> DefiniteError:
    variable = password_variable(f"{address.scheme}://")
    if not address.user:
        hint = f"write {address.scheme}://user:password@host/keyspace, or give the password in {variable}"
        return DefiniteError("the server demands an account", place=place, hint=hint)
    hint = f"check the account and its password (in the address or {variable})"
    denied = DefiniteError(f"access is denied to {address.user!r}: {_error_text(error)}", place=place, hint=hint)
    denied.wrong_password = True
    return denied


def _tls_failure(error: OSError, place: str) -> HeadraceError | None:
    """Return the TLS error, if that is the cause. (The driver wraps TLS errors and keeps their text.)"""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        hint = "check that the server runs, that it encrypts, and cert= and key= if it requires a client certificate"
        return TransientError(f"the server ended the encrypted connection: {error}", place=place, hint=hint)
    found = _TLS.search(str(error))
    if found is None:
        return None
    reason, text = found["reason"], found["text"]
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = text.removeprefix("certificate verify failed: ")
        return DefiniteError(f"the server's certificate is not accepted: {why}", place=place, hint=certificate_remedy(why))
    hint = "check that the server encrypts on this port, cert= and key="
    return DefiniteError(f"TLS with the server failed: {text}", place=place, hint=hint)


def _possible_tls_mismatch(address: CqlAddress) -> str:
    return "; if it demands encryption, write tls=verify-identity" if address.tls.mode is TlsMode.DISABLED else ""


def _other_port(address: CqlAddress) -> str:
    return f"check that a CQL server with protocol 4 listens on this port{_possible_tls_mismatch(address)}"


def _error_text(error: BaseException) -> str:
    """Return the server's message without the driver's decoration."""
    text = str(getattr(error, "summary_msg", lambda: "")() or error)
    if 'message="' in text:
        text = text.split('message="', 1)[1].rsplit('"', 1)[0]
    return " ".join(text.split()) or type(error).__name__
