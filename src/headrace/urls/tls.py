"""Encrypted connections: what an address may ask for.

Nothing that was asked for is dropped: a setting that would have no effect is refused, and a mode that demands encryption or a checked
certificate never falls back to less.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError

SETTINGS: Final = ("tls", "ca", "cert", "key")


class TlsMode(StrEnum):
    """How much encryption is demanded; the words of MySQL's own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    """Encrypted if the server can: only where a protocol tells."""
    REQUIRED = "required"
    """Encrypted, to whoever answers."""
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    @property
    def demands(self) -> bool:
        """Whether there is no connection without encryption."""
        return self not in (TlsMode.DISABLED, TlsMode.PREFERRED)

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

    def context(self) -> ssl.SSLContext | None:
        """What a driver is told; None if encryption is not demanded."""
        if not self.mode.demands:
            return None
        with _loading("ca", self.ca):
            context = ssl.create_default_context(cafile=self.ca or None)
        # Authorities that servers and people make for themselves lack extensions that Python 3.13 demands by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.mode is TlsMode.VERIFY_IDENTITY
        if not self.mode.verifies:
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            with _loading("cert" if not self.key else "cert or key", f"{self.cert} {self.key}".strip()):
                context.load_cert_chain(self.cert, self.key or None, password=_refuse_passphrase)
        return context


def tls_settings(found: Mapping[str, str], modes: Sequence[TlsMode], whose: str) -> Tls | None:
    """What the settings of an address say, of which the peer knows these modes; None if they say nothing."""
    mode, ca, cert, key = (found.get(name, "") for name in SETTINGS)
    if mode not in ("", *modes):
        raise DefiniteError(f"tls in {whose}'s address is none of its words", hint="write tls=" + "|".join(modes))
    if key and not cert:
        raise DefiniteError(f"key= in {whose}'s address needs cert=", hint="give the certificate that belongs to the key")
    if not mode:
        if not (ca or cert):
            return None
        # Who names whom to trust wants it checked; who shows a certificate wants encryption.
        mode = TlsMode.VERIFY_IDENTITY if ca else TlsMode.REQUIRED
    chosen = TlsMode(mode)
    if ca and not chosen.verifies:
        raise DefiniteError(f"ca= has no effect with tls={chosen}", hint="write tls=verify-identity or tls=verify-ca, or leave ca= out")
    if cert and not chosen.demands:
        raise DefiniteError(f"cert= has no effect with tls={chosen}", hint="write tls=required, verify-ca or verify-identity")
    return Tls(chosen, ca, cert, key)


def certificate_remedy(said: str, host: str = "") -> str:
    """What to do about a certificate that is not accepted, given what the library said of it."""
    text = said.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate, and check the clocks of both machines"
    if "mismatch" in text or "not valid for" in text:
        instead = f" instead of {host!r}" if host else ""
        return f"use a host name that the certificate bears{instead}, or write tls=verify-ca to check the issuer only"
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
