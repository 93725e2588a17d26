"""Encrypted connections to CQL servers: what an address may ask for.

The protocol has no way to find out whether a server encrypts, so nothing is tried: a connection is encrypted if the address says so.
Nothing that was asked for is dropped: a setting that would have no effect is refused.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import DefiniteError


class TlsMode(StrEnum):
    """How much is demanded."""

    DISABLED = "disabled"
    REQUIRED = "required"
    """Encrypted, to whoever answers."""
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

    def context(self) -> ssl.SSLContext | None:
        """What the driver is told; None: not encrypted."""
        if self.mode is TlsMode.DISABLED:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # Authorities that people make for their clusters lack extensions that Python 3.13 demands by default.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.check_hostname = self.mode is TlsMode.VERIFY_IDENTITY
            if not self.mode.verifies:
                context.verify_mode = ssl.CERT_NONE
        except OSError as error:
            raise _unreadable("ca", self.ca, error) from error
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None, password=_refuse_passphrase)
            except OSError as error:
                raise _unreadable("cert or key", f"{self.cert} {self.key}".strip(), error) from error
        return context


def tls_settings(mode: str, ca: str, cert: str, key: str) -> Tls:
    """The address's `tls`, `ca`, `cert` and `key`."""
    if mode not in ("", *TlsMode):
        raise DefiniteError("tls in the server's address is none of its words", hint="write tls=" + "|".join(TlsMode))
    if key and not cert:
        raise DefiniteError("key= in the server's address needs cert=", hint="give the certificate that belongs to the key")
    if not mode:
        # Who names whom to trust wants it checked; who shows a certificate wants encryption.
        mode = TlsMode.VERIFY_IDENTITY if ca else TlsMode.REQUIRED if cert else TlsMode.DISABLED
    chosen = TlsMode(mode)
    if ca and not chosen.verifies:
        raise DefiniteError(f"ca= has no effect with tls={chosen}", hint="write tls=verify-identity or tls=verify-ca, or leave ca= out")
    if cert and chosen is TlsMode.DISABLED:
        raise DefiniteError(f"cert= has no effect with tls={chosen}", hint="write tls=required, verify-ca or verify-identity")
    return Tls(chosen, ca, cert, key)


def certificate_remedy(said: str) -> str:
    """What to do about a certificate that is not accepted."""
    text = said.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate, and check the clocks of both machines"
    if "mismatch" in text or "not valid for" in text:
        return "use a host name that the certificate bears, or write tls=verify-ca to check the issuer only"
    return "give the issuer's certificate with ca=FILE; to encrypt without checking, write tls=required"


def _unreadable(setting: str, paths: str, error: OSError) -> DefiniteError:
    why = error.strerror or str(error)
    return DefiniteError(f"the file of {setting} cannot be loaded: {why}", place=paths, hint="give a PEM file that can be read")


def _refuse_passphrase() -> str:
    raise ssl.SSLError("the key is protected by a passphrase")
