"""What all server addresses share: the settings after the question mark, and TLS.

No error repeats a value: it may be a secret in the wrong place. `whose` names the peer in error messages ("the source"). No requested
protection is dropped: a setting that would have no effect is refused, and a mode that demands encryption or certificate verification never
falls back to less.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import parse_qsl

from headrace.errors import DefiniteError

_LONGEST_S: Final = 31_536_000.0
"""One year, the longest time that timers accept."""


def parse_settings(text: str, names: Sequence[str], whose: str) -> dict[str, str]:
    """Return the settings; refuse names that are not in `names`."""
    known = "known settings: " + ", ".join(names)
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in names:
            raise DefiniteError(f"{whose}'s address has an unknown setting {name!r}", hint=known)
        if name in found:
            raise DefiniteError(f"{whose}'s address has the setting {name!r} twice", hint="give it once")
        if not value:
            raise DefiniteError(f"{whose}'s address gives {name!r} no value", hint=f"write {name}=VALUE, or leave it out")
        found[name] = value
    if text and not found:
        raise DefiniteError(f"the settings in {whose}'s address cannot be read", hint=f"write ?name=value&name=value; {known}")
    return found


def parse_seconds(name: str, text: str | None, default: float, whose: str) -> float:
    """Return a setting that is a duration in seconds."""
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise DefiniteError(f"{name} in {whose}'s address is not a number of seconds", hint=f"write {name}=10 or {name}=0.5")
    return seconds


def is_loopback(host: str) -> bool:
    """Whether traffic to this host stays on the machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


SETTINGS: Final = ("tls", "ca", "cert", "key")


class TlsMode(StrEnum):
    """How much protection is demanded, in the terms of MySQL's clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    """Encrypted if the server supports it. Only for protocols that negotiate encryption."""
    REQUIRED = "required"
    """Encrypted, without certificate verification."""
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    @property
    def demands(self) -> bool:
        """Whether an unencrypted connection is refused."""
        return self not in (TlsMode.DISABLED, TlsMode.PREFERRED)

    @property
    def verifies(self) -> bool:
        return self in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY)


@dataclass(frozen=True, slots=True)
class Tls:
    """A mode and the files it needs. It holds paths only, so that it can be printed and pickled."""

    mode: TlsMode
    ca: str = ""
    """Trusted certificates, a PEM file; the system's own if empty."""
    cert: str = ""
    """The client certificate, a PEM file; it may also hold the key."""
    key: str = ""

    def context(self) -> ssl.SSLContext | None:
        """Return the SSL context for the driver; None if encryption is not demanded."""
        if not self.mode.demands:
            return None
        with _loading("ca", self.ca):
            context = ssl.create_default_context(cafile=self.ca or None)
        # Self-made certificate authorities often lack extensions that Python 3.13 requires by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.mode is TlsMode.VERIFY_IDENTITY
        if not self.mode.verifies:
            context.verify_mode = ssl.CERT_NONE
        if self.cert:
            with _loading("cert" if not self.key else "cert or key", f"{self.cert} {self.key}".strip()):
                context.load_cert_chain(self.cert, self.key or None, password=_refuse_passphrase)
        return context


def tls_settings(found: Mapping[str, str], modes: Sequence[TlsMode], whose: str) -> Tls | None:
    """Return the TLS settings of an address; None if it has none. The peer supports these modes."""
    mode, ca, cert, key = (found.get(name, "") for name in SETTINGS)
    if mode not in ("", *modes):
        raise DefiniteError(f"tls in {whose}'s address is none of its words", hint="write tls=" + "|".join(modes))
    if key and not cert:
        raise DefiniteError(f"key= in {whose}'s address needs cert=", hint="give the certificate that belongs to the key")
    if not mode:
        if not (ca or cert):
            return None
        # A user who names a CA wants verification; a user who gives only a client certificate wants encryption.
        mode = TlsMode.VERIFY_IDENTITY if ca else TlsMode.REQUIRED
    chosen = TlsMode(mode)
    if ca and not chosen.verifies:
        raise DefiniteError(f"ca= has no effect with tls={chosen}", hint="write tls=verify-identity or tls=verify-ca, or leave ca= out")
    if cert and not chosen.demands:
        raise DefiniteError(f"cert= has no effect with tls={chosen}", hint="write tls=required, verify-ca or verify-identity")
    return Tls(chosen, ca, cert, key)


def certificate_remedy(message: str, host: str = "") -> str:
    """Return a remedy for a rejected certificate, from the library's message."""
    text = message.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate, and check the clocks of both machines"
    if "mismatch" in text or "not valid for" in text:
        instead = f" instead of {host!r}" if host else ""
        return f"use a host name that the certificate bears{instead}, or write tls=verify-ca to check the issuer only"
    return "give the issuer's certificate with ca=FILE; to encrypt without checking, write tls=required"


@contextmanager
def _loading(setting: str, paths: str) -> Iterator[None]:
    """Name the setting in errors about a file that cannot be loaded."""
    try:
        yield
    except OSError as error:
        raise DefiniteError(
            f"the file of {setting} cannot be loaded: {error.strerror or error}", place=paths, hint="give a PEM file that can be read"
        ) from error


def _refuse_passphrase() -> str:
    raise ssl.SSLError("the key is protected by a passphrase")
