"""TLS options of the driver for MySQL and MariaDB, and translation of TLS failures."""

from __future__ import annotations

import ssl
from typing import Any, Final

import pymysql

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.urls.query_settings import is_loopback
from headrace.urls.tls import Tls, TlsMode, certificate_remedy

_NO_TLS: Final = 2026
_AWAY_HINT: Final = "check that the server runs and can be reached"
_CERT_HINT: Final = "check cert= and key=, that the server trusts their issuer (ssl_ca), and its TLS versions (tls_version)"


def default_tls(host: str) -> Tls:
    """Return the default: no encryption on loopback and sockets (an empty host), elsewhere encrypted if the server can."""
    return Tls(TlsMode.DISABLED if not host or is_loopback(host) else TlsMode.PREFERRED)


def driver_options(tls: Tls) -> dict[str, Any]:
    """Return the driver's TLS options."""
    if tls.mode is TlsMode.DISABLED:
        return {"ssl_disabled": True}
    context = tls.context()
    return {"ssl": context} if context is not None else {}


def tls_failure(error: pymysql.err.MySQLError, tls: Tls, host: str, place: str) -> HeadraceError | None:
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
