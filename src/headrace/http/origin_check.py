"""Recognises requests that a web page of another site makes through a browser which can reach the server.

A password or token stops a page that does not know it. These rules also stop a browser that has stored the password: the `Host` of a
request must name this server, whatever the page's name resolves to (DNS rebinding), and its `Origin` must be the same host.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from headrace.urls import is_loopback


class OriginCheck:
    """The rules of one server: `host` is its listen address, `names` are further names of it."""

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._host = host.lower()
        self._open = not is_loopback(host)

    def is_own_host(self, host: str) -> bool:
        """Return whether the `Host` header names this server."""
        try:
            parts = urlsplit(f"//{host}")
            name = (parts.hostname or "").rstrip(".") if not parts.username and not parts.path else ""
        except ValueError:
            return False
        # A name can be made to resolve to this machine. An IP address cannot: the client did reach it.
        return name == self._host or name in self._names or is_loopback(name) or (self._open and is_ip_address(name))

    def is_own_page(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request comes from a page of this server, or from no page at all."""
        origin = headers.get("origin")
        if origin is None:
            return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        try:
            parts = urlsplit(origin)
            same = parts.netloc.lower() == headers.get("host", "").lower() or (parts.hostname or "") in self._names
            return parts.scheme in ("http", "https") and same
        except ValueError:
            return False


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_same_secret(given: str, expected: str) -> bool:
    """Compare in constant time; `given` may contain surrogates."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
