"""Access control: the checks that every request passes first.

Invariant: a page of another site, open in a browser of this machine, can neither read nor change anything here. It cannot read, because
the `Host` header must name this server, whatever the page's own name resolves to (DNS rebinding). It cannot change anything, because it
has no token and a foreign `Origin`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from headrace.errors import DefiniteError
from headrace.http.origin_check import OriginCheck, is_ip_address, is_same_secret
from headrace.http.request import HttpError
from headrace.urls import is_loopback

_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(listen: str) -> Address:
    """Parse `127.0.0.1:8088`, `[::1]:8088` or `:8088` (this machine only)."""
    parts = urlsplit(f"//{listen.strip()}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.username is not None or parts.path or parts.query:
        raise DefiniteError(f"{listen!r} is no address to listen on", place="listen", hint="write it as 127.0.0.1:8088")
    return Address(parts.hostname or "127.0.0.1", port)


def check_exposure(address: Address, hosts: Sequence[str]) -> None:
    """Raise `DefiniteError` for an invalid host name, or if other machines could connect without a configured host name."""
    wrong = next((host for host in hosts if not _NAME.fullmatch(host) and not is_ip_address(host)), None)
    if wrong is not None:
        raise DefiniteError(
            f"{wrong!r} is no host's name", place="hosts", hint='write names alone, without http:// and port: hosts = ["headrace.internal"]'
        )
    if not address.is_loopback and not hosts:
        raise DefiniteError(
            f"listening on {address} would let other machines in",
            place="listen",
            hint='listen on 127.0.0.1 behind a proxy with TLS, or name the hosts it is to be reached by: hosts = ["headrace.internal"]',
        )


class RequestAuth:
    """Checks the host, origin and token of requests to one server."""

    def __init__(self, address: Address, token: str, hosts: Sequence[str] = ()) -> None:
        if not token:
            raise DefiniteError("the control API needs a token", hint="make one with secrets.token_urlsafe()")
        self._token = token
        self._origin_check = OriginCheck(address.host, hosts)

    def check_host(self, host: str) -> None:
        """Raise `HttpError` unless the `Host` header names this server."""
        if not self._origin_check.is_own_host(host):
            remedy = "use an address that the server listens on, or name this host in [headrace] hosts"
            raise HttpError(HTTPStatus.FORBIDDEN, f"{host!r} is not served here", place="Host", remedy=remedy)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise `HttpError` if a page of another site sends the request."""
        if not self._origin_check.is_own_page(headers):
            raise HttpError(
                HTTPStatus.FORBIDDEN, "a page of another site may not request this", place="Origin", remedy="use Headrace's own page"
            )

    def check_token(self, headers: Mapping[str, str]) -> None:
        """Raise `HttpError` unless the request has the token."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not is_same_secret(given.strip(), self._token):
            raise HttpError(
                HTTPStatus.UNAUTHORIZED,
                "this needs the process's token" if not given else "this is not the process's token",
                place="Authorization",
                remedy="`headrace dashboard` prints the link with the token; send it as `Authorization: Bearer TOKEN`",
                headers={"WWW-Authenticate": 'Bearer realm="headrace"'},
            )
