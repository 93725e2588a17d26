"""Parses the URL of a ClickHouse server, or of the hosts of a cluster.

Invariant: the password is only in the object; no text form of a target (repr, str, error message) shows it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.errors import DefiniteError

PASSWORD_VARIABLE = "HEADRACE_SINK_PASSWORD"
_EXAMPLE = (
    "write it as clickhouse://user:password@host:8123/database (clickhouses:// for TLS; host1:8123,host2:8123 for a cluster's hosts); "
    "percent-encode special characters"
)
_DEFAULT_PORT = {"clickhouse": 8123, "clickhouses": 8443}
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class ClickHouseTarget:
    """A ClickHouse server, the user, and the target database (None: the source's database names)."""

    host: str
    port: int = 8123
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str | None = None
    secure: bool = False
    others: tuple[tuple[str, int], ...] = ()
    """More hosts of the same cluster, with their ports."""

    def __str__(self) -> str:
        scheme = "clickhouses" if self.secure else "clickhouse"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{self.user}@{hosts}/{self.database or ''}"

    @property
    def hosts(self) -> tuple[tuple[str, int], ...]:
        return ((self.host, self.port), *self.others)

    def at(self, index: int) -> ClickHouseTarget:
        """Return one of the hosts as a target."""
        host, port = self.hosts[index]
        return replace(self, host=host, port=port, others=())

    @property
    def is_loopback(self) -> bool:
        """Whether all hosts are local: compressing traffic would only cost CPU."""
        return all(host in _LOOPBACK for host, _ in self.hosts)


def parse_target(url: str, environment: Mapping[str, str] | None = None) -> ClickHouseTarget:
    """Parse a URL; a password that the URL omits comes from the environment."""
    variables = os.environ if environment is None else environment
    parts = _split(url)
    path = parts.path.strip("/")
    if "/" in path or parts.query or parts.fragment:
        raise DefiniteError("a ClickHouse URL has nothing after the database name", hint=_EXAMPLE)
    password = unquote(parts.password) if parts.password is not None else variables.get(PASSWORD_VARIABLE, "")
    (host, port), *others = _hosts(parts)
    return ClickHouseTarget(
        host=host,
        port=port,
        user=unquote(parts.username or "") or "default",
        password=password,
        database=unquote(path) or None,
        secure=parts.scheme == "clickhouses",
        others=tuple(others),
    )


def same_sink(one: str, other: str) -> bool:
    """Whether two sink names mean the same tables: equal, or the same database on at least one common host."""
    if one == other:
        return True
    prefixes = tuple(f"{scheme}://" for scheme in _DEFAULT_PORT)
    if not (one.startswith(prefixes) and other.startswith(prefixes)):
        return False
    try:
        first, second = parse_target(one, {}), parse_target(other, {})
    except DefiniteError:
        # A database name that a URL must escape.
        return False
    return first.database == second.database and bool(set(first.hosts) & set(second.hosts))


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        # The cause is not chained: its text may quote the part of the URL that holds the password.
        raise DefiniteError("the ClickHouse URL cannot be read", hint=_EXAMPLE) from None
    if parts.scheme not in _DEFAULT_PORT:
        raise DefiniteError(f"a ClickHouse URL starts with clickhouse:// or clickhouses://, not {parts.scheme!r}", hint=_EXAMPLE)
    return parts


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    """Every host with its port."""
    found = [_host(one, parts.scheme) for one in parts.netloc.rpartition("@")[2].split(",")]
    if any(not host for host, _ in found):
        raise DefiniteError("the ClickHouse URL names no host", hint=_EXAMPLE)
    repeated = next((host for index, host in enumerate(found) if host in found[:index]), None)
    if repeated is not None:
        raise DefiniteError(f"the ClickHouse URL names {repeated[0]}:{repeated[1]} twice", hint=_EXAMPLE)
    return found


def _host(text: str, scheme: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        raise DefiniteError("the port in the ClickHouse URL is not a number from 1 to 65535", hint=_EXAMPLE) from None
    return unquote(parts.hostname or ""), _DEFAULT_PORT[scheme] if port is None else port


@dataclass(slots=True)
class _HostState:
    """One thread's view of a target's hosts."""

    index: int = 0
    """The host it used last."""
    failed: set[int] = field(default_factory=set)
    """The hosts that failed since the last success."""


_current: dict[tuple[int, ClickHouseTarget], int] = {}
_lock = threading.Lock()
_visits = threading.local()


def choose_host(target: ClickHouseTarget) -> ClickHouseTarget:
    """Return the current host as a target; this thread's next operations count as done there."""
    if not target.others:
        return target
    visit = _host_state(target)
    with _lock:
        # A forked worker determines its own host.
        visit.index = _current.setdefault((os.getpid(), target), 0)
    return target.at(visit.index)


def current_host(target: ClickHouseTarget) -> ClickHouseTarget:
    return target.at(_host_state(target).index) if target.others else target


def record_failure(target: ClickHouseTarget) -> bool:
    """Make another host current. Return whether one is left to try; else all have failed, and the caller should wait."""
    if not target.others:
        return False
    visit, count = _host_state(target), len(target.hosts)
    visit.failed.add(visit.index)
    with _lock:
        current = _current.get((os.getpid(), target), 0)
        # Another thread may have switched already; its choice comes first.
        order = [current, *((visit.index + step) % count for step in range(1, count))]
        untried = next((one for one in order if one not in visit.failed), None)
        _current[os.getpid(), target] = (visit.index + 1) % count if untried is None else untried
    if untried is None:
        visit.failed.clear()
    return untried is not None


def record_success(target: ClickHouseTarget) -> None:
    if target.others:
        _host_state(target).failed.clear()


def _host_state(target: ClickHouseTarget) -> _HostState:
    known: dict[ClickHouseTarget, _HostState] | None = getattr(_visits, "known", None)
    if known is None:
        known = _visits.known = {}
    return known.setdefault(target, _HostState())
