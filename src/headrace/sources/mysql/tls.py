"""Encrypted connections: what an address may ask for, and what a failure means.

Nothing that was asked for is dropped: a setting that would have no effect is refused, and a mode that demands encryption or a checked
certificate never falls back to less.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pymysql

from headrace.errors import DefiniteError, HeadraceError, TransientError

_NO_TLS: Final = 2026
_AWAY_HINT: Final = "check that the server runs and can be reached"
_CERT_HINT: Final = "check cert= and key=, that the server trusts their issuer (ssl_ca), and its TLS versions (tls_version)"


class TlsMode(StrEnum):
    """How much encryption is demanded; the words of the servers' own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    @property
    def verifies(self) -> bool:
        return self in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY)


@dataclass(frozen=True, slots=True)
class Tls:
    """A mode and the files it needs; only paths, so that it can be shown and carried to other processes."""

    mode: TlsMode
    ca: str = ""
    """Certificates we trust, a PEM file; the system's own if none is given."""
    cert: str = ""
    """Our certificate, a PEM file; it may hold the key too."""
    key: str = ""

    @classmethod
    def for_host(cls, host: str) -> Tls:
        """Without settings: nothing leaves the machine on loopback and sockets (an empty host), elsewhere encrypted if the server can."""
        return cls(TlsMode.DISABLED if not host or _is_loopback(host) else TlsMode.PREFERRED)

    def driver_options(self) -> dict[str, Any]:
        """What the driver is told."""
        if self.mode is TlsMode.DISABLED:
            return {"ssl_disabled": True}
        if self.mode is TlsMode.PREFERRED:
            return {}
        return {"ssl": self._context()}

    def _context(self) -> ssl.SSLContext:
        with _loading("ca", self.ca):
            context = ssl.create_default_context(cafile=self.ca or None)
        # The servers' own self-made certificates lack extensions that Python 3.13 demands by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.mode is TlsMode.VERIFY_IDENTITY
        if not self.mode.verifies:
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            with _loading("cert" if not self.key else "cert or key", f"{self.cert} {self.key}".strip()):
                context.load_cert_chain(self.cert, self.key or None, password=_refuse_passphrase)
        return context


def tls_settings(mode: str, ca: str, cert: str, key: str) -> Tls | None:
    """The address's `tls`, `ca`, `cert` and `key`; None if it has none of them."""
    if mode not in ("", *TlsMode):
        raise DefiniteError("tls in the source's address is none of its words", hint="write tls=" + "|".join(TlsMode))
    if key and not cert:
        raise DefiniteError("key= in the source's address needs cert=", hint="give the certificate that belongs to the key")
    if not mode:
        if not (ca or cert):
            return None
        # Who names whom to trust wants it checked; who shows a certificate wants encryption.
        mode = TlsMode.VERIFY_IDENTITY if ca else TlsMode.REQUIRED
    chosen = TlsMode(mode)
    if ca and not chosen.verifies:
        raise DefiniteError(f"ca= has no effect with tls={chosen}", hint="write tls=verify-identity or tls=verify-ca, or leave ca= out")
    if cert and chosen in (TlsMode.DISABLED, TlsMode.PREFERRED):
        raise DefiniteError(f"cert= has no effect with tls={chosen}", hint="write tls=required, verify-ca or verify-identity")
    return Tls(chosen, ca, cert, key)


def tls_failure(error: pymysql.err.MySQLError, tls: Tls, host: str, place: str) -> HeadraceError | None:
    """What went wrong with the encryption, if that is what went wrong."""
    cause = getattr(error, "original_exception", None) or error.__context__
    if error.args and error.args[0] == _NO_TLS:
        return DefiniteError(
            "the source offers no TLS", place=place, hint="give the server a certificate (ssl_cert, ssl_key), or write tls=disabled"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return DefiniteError(f"the source's certificate is not accepted: {cause.verify_message}", place=place, hint=_remedy(cause, host))
    # A peer that went away in the middle is no verdict on certificates, though MySQL goes away when it does not like ours.
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return TransientError(
            f"the source ended the encrypted connection: {cause}", place=place, hint=_CERT_HINT if tls.cert else _AWAY_HINT
        )
    if isinstance(cause, ssl.SSLError):
        return DefiniteError(f"TLS with the source failed: {cause.reason or cause}", place=place, hint=_CERT_HINT)
    return None


def _remedy(cause: ssl.SSLCertVerificationError, host: str) -> str:
    text = cause.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate, and check the clocks of both machines"
    if "mismatch" in text or "not valid for" in text:
        return f"use a host name that the certificate bears instead of {host!r}, or write tls=verify-ca to check the issuer only"
    return "give the issuer's certificate with ca=FILE; to encrypt without checking, write tls=required"


@contextmanager
def _loading(setting: str, paths: str) -> Iterator[None]:
    """Names the setting whose file cannot be loaded."""
    try:
        yield
    except OSError as error:
        raise DefiniteError(
            f"the file of {setting} cannot be loaded: {error.strerror or error}", place=paths, hint="give a PEM file that can be read"
        ) from error


def _refuse_passphrase() -> str:
    raise ssl.SSLError("the key is protected by a passphrase")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
