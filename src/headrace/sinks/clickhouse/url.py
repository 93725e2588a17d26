"""Where a ClickHouse server is, from its URL.

Invariant: the password is in the object and nowhere else; no text form of a target (repr, str, error message) shows it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.errors import DefiniteError

PASSWORD_VARIABLE = "HEADRACE_SINK_PASSWORD"
_EXAMPLE = "write it as clickhouse://user:password@host:8123/database (clickhouses:// for TLS); percent-encode special characters"
_DEFAULT_PORT = {"clickhouse": 8123, "clickhouses": 8443}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class ClickHouseTarget:
    """A ClickHouse server, who we are there, and the database to write to (none: the source's own database names)."""

    host: str
    port: int = 8123
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str | None = None
    secure: bool = False

    def __str__(self) -> str:
        scheme = "clickhouses" if self.secure else "clickhouse"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{self.user}@{host}:{self.port}/{self.database or ''}"

    @property
    def is_loopback(self) -> bool:
        """Bytes to it cost nothing but memory copies, so compressing them only costs CPU."""
        return self.host in _LOOPBACK


def parse_target(url: str, environment: Mapping[str, str] | None = None) -> ClickHouseTarget:
    """The target a URL names; a password that the URL leaves out comes from the environment."""
    variables = os.environ if environment is None else environment
    parts = _split(url)
    path = parts.path.strip("/")
    if "/" in path or parts.query or parts.fragment:
        raise DefiniteError("a ClickHouse URL has nothing after the database name", hint=_EXAMPLE)
    password = unquote(parts.password) if parts.password is not None else variables.get(PASSWORD_VARIABLE, "")
    return ClickHouseTarget(
        host=unquote(parts.hostname or ""),
        port=_port(parts),
        user=unquote(parts.username or "") or "default",
        password=password,
        database=unquote(path) or None,
        secure=parts.scheme == "clickhouses",
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        # The cause is not chained: its text may quote the part of the URL that holds the password.
        raise DefiniteError("the ClickHouse URL cannot be read", hint=_EXAMPLE) from None
    if parts.scheme not in _DEFAULT_PORT:
        raise DefiniteError(f"a ClickHouse URL starts with clickhouse:// or clickhouses://, not {parts.scheme!r}", hint=_EXAMPLE)
    if not parts.hostname:
        raise DefiniteError("the ClickHouse URL names no host", hint=_EXAMPLE)
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        raise DefiniteError("the port in the ClickHouse URL is not a number from 1 to 65535", hint=_EXAMPLE) from None
    return _DEFAULT_PORT[parts.scheme] if port is None else port
