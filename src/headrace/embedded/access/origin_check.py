"""Rejects requests that a web page of another site makes through a browser which can reach the server.

The password stops a page that does not know it. These rules also stop a browser that has stored the password: the `Host` of a request must
name this server, whatever the page's name resolves to (DNS rebinding), and its `Origin` must be the same host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from headrace.embedded.engine.errors import AUTHENTICATION_FAILED, clickhouse_error

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class OriginCheck:
    """The rules of one server: `host` is its listen address, `names` are further names of it."""

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._hosts = _LOOPBACK | self._names | {host.lower()}
        self._open = not _is_loopback(host)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `QueryFailure` unless the request names this server and does not come from a page of another site."""
        host = headers.get("host")
        if host is not None and not self._is_own(_host_name(host)):
            raise clickhouse_error(
                AUTHENTICATION_FAILED, f"{host!r} is not a name of this server; `headrace serve --allow-host NAME` adds one"
            )
        origin = headers.get("origin")
        if origin is None:
            if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
                return
        elif self._is_same(origin, host or ""):
            return
        raise clickhouse_error(AUTHENTICATION_FAILED, "A page of another site may not query this server")

    def _is_own(self, name: str) -> bool:
        # A name can be made to resolve to this machine. An IP address cannot: the client did reach it.
        return name in self._hosts or _is_loopback(name) or (self._open and _is_address(name))

    def _is_same(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
            return parts.scheme in ("http", "https") and (parts.netloc.lower() == host.lower() or (parts.hostname or "") in self._names)
        except ValueError:
            return False


def _host_name(host: str) -> str:
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").rstrip(".") if not parts.username and not parts.path else ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
