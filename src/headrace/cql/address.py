"""Addresses of ScyllaDB and Cassandra clusters.

`scylla://user:password@host,host:9042/keyspace?dc=DC&tls=…&consistency=quorum` is a source; `cql://…`, with the same form, is a sink. An
address never reveals its password: not in `repr`, a log or an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from headrace import urls as encryption
from headrace.errors import DefiniteError
from headrace.urls import Tls, TlsMode, is_loopback, parse_seconds, parse_settings, tls_settings

PORT: Final = 9042
PASSWORD_VARIABLES: Final = {"scylla": "HEADRACE_SOURCE_PASSWORD", "cql": "HEADRACE_SINK_PASSWORD"}
"""The environment variable of the password, by the scheme of the address."""
CONSISTENCIES: Final = ("one", "two", "three", "quorum", "all", "local_one", "local_quorum", "each_quorum")
STRONG_CONSISTENCIES: Final = frozenset({"quorum", "local_quorum", "each_quorum", "all"})
"""Levels of reads that find every write of such a level."""
CONNECT_TIMEOUT_S: Final = 10.0
READ_TIMEOUT_S: Final = 60.0
_FORM: Final = "write scylla://user:password@host,host:9042/keyspace"
_SETTINGS: Final = ("dc", *encryption.SETTINGS, "consistency", "connect-timeout", "read-timeout")
_MODES: Final = (TlsMode.DISABLED, TlsMode.REQUIRED, TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY)
"""TLS modes. There is no "preferred": a client cannot find out whether a server encrypts."""
_WHOSE: Final = "the server"


@dataclass(frozen=True, slots=True)
class CqlAddress:
    """Some hosts of a cluster (the others are discovered), an account, and optionally a keyspace."""

    hosts: tuple[tuple[str, int], ...]
    keyspace: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    dc: str = ""
    """The datacenter whose nodes are queried; by default that of the first host that answers."""
    tls: Tls = field(default_factory=lambda: Tls(TlsMode.DISABLED))
    consistency: str = "quorum"
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    read_timeout_s: float = READ_TIMEOUT_S
    scheme: str = "scylla"

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{self.servers}/{self.keyspace}"

    @property
    def servers(self) -> str:
        """host:port, separated by commas."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    @property
    def shows_password(self) -> bool:
        """Return whether the password is sent unencrypted to another machine."""
        return bool(self.user) and self.tls.mode is TlsMode.DISABLED and not all(is_loopback(host) for host, _ in self.hosts)


def is_cql(url: str) -> bool:
    return url.startswith(tuple(f"{scheme}://" for scheme in PASSWORD_VARIABLES))


def password_variable(url: str) -> str:
    """Return the environment variable for the address's password."""
    return PASSWORD_VARIABLES[url.partition("://")[0]]


def parse_cql_url(url: str) -> CqlAddress:
    """Parse `scylla://user:password@host,host:9042/keyspace?setting=value`; the password may come from the environment instead."""
    if not is_cql(url):
        raise _unreadable()
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    where, _, keyspace = place.partition("/")
    account, at, servers = where.rpartition("@")
    user, colon, password = account.partition(":")
    if (at and not user) or "/" in keyspace.strip("/"):
        raise _unreadable()
    secret = (unquote(password) if colon else os.environ.get(password_variable(url), "")) if user else ""
    settings = parse_settings(query, _SETTINGS, _WHOSE)
    consistency = settings.get("consistency", "quorum").lower().replace("-", "_")
    if consistency not in CONSISTENCIES:
        raise DefiniteError("consistency in the server's address is none of CQL's levels", hint="write one of " + ", ".join(CONSISTENCIES))
    return CqlAddress(
        _hosts(servers),
        unquote(keyspace.strip("/")),
        unquote(user),
        secret,
        settings.get("dc", ""),
        tls_settings(settings, _MODES, _WHOSE) or Tls(TlsMode.DISABLED),
        consistency,
        parse_seconds("connect-timeout", settings.get("connect-timeout"), CONNECT_TIMEOUT_S, _WHOSE),
        parse_seconds("read-timeout", settings.get("read-timeout"), READ_TIMEOUT_S, _WHOSE),
        scheme,
    )


def _hosts(servers: str) -> tuple[tuple[str, int], ...]:
    """Parse `host,host:port`; a host without a port has that of the last one."""
    named = [_host(server) for server in servers.split(",") if server]
    if not named:
        raise _unreadable()
    common = named[-1][1] or PORT
    return tuple((host, port or common) for host, port in named)


def _host(server: str) -> tuple[str, int]:
    if server.startswith("["):
        host, bracket, port = server[1:].partition("]")
        port = port.removeprefix(":")
        if not bracket or ":" not in host:
            raise _unreadable()
    else:
        host, _, port = server.partition(":")
    if not host or (port and not (port.isdigit() and 0 < int(port) < 65536)):
        raise _unreadable()
    return unquote(host), int(port or 0)


def _unreadable() -> DefiniteError:
    return DefiniteError("the address of the CQL server cannot be read", hint=_FORM)
