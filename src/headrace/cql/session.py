"""Sessions with a CQL cluster, through ScyllaDB's driver (which also serves Cassandra), with translated errors.

A session queries the nodes of one datacenter, replicas first where it can. It is safe for several threads and reconnects to nodes that
were down. It uses protocol version 4, which ScyllaDB speaks and raw values have. Every wait has a limit.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from cassandra import ConsistencyLevel
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ProtocolError
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import PreparedStatement, SimpleStatement

from headrace.cql.address import CqlAddress
from headrace.cql.bounded_connection import RESULT_BYTES, BoundedCqlConnection, RawPageHandler, read_whole_page, violation, violations
from headrace.cql.errors import server_errors
from headrace.errors import DefiniteError

log = logging.getLogger("headrace")

PROTOCOL: Final = 4
_ANSWER_TIMEOUTS: Final = 10
"""All pages of a small answer may take as long as so many timeouts of a page."""
_VALUE_BYTES: Final = 60
RAW: Final = "raw"
"""The execution profile that returns rows as bytes."""


_open: dict[tuple[CqlAddress, int], CqlSession] = {}
_opening = threading.Lock()


class CqlSession:
    def __init__(self, address: CqlAddress, driver: Session) -> None:
        self.address = address
        self.driver = driver
        """The driver's own session, for what is not offered here."""
        self._prepared: dict[str, PreparedStatement] = {}
        self._preparing = threading.Lock()

    def execute(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
        """Return all rows of a statement, as named tuples of Python values; for small results. An answer without an end is an error."""
        with server_errors(self.address, about=_short(query)):
            pages = self.driver.execute(SimpleStatement(query), parameters)
            rows: list[Any] = []
            size = 0
            until = time.monotonic() + _ANSWER_TIMEOUTS * self.address.read_timeout_s
            while True:
                page = list(pages.current_rows)
                rows += page
                size += sum(map(_held_bytes, page))
                if size > RESULT_BYTES or time.monotonic() > until:
                    raise violation(f"its result is not complete after {len(rows)} rows of {size >> 20} MiB: {_short(query)}")
                if not pages.has_more_pages:
                    return rows
                pages.fetch_next_page()

    def prepare(self, query: str) -> PreparedStatement:
        """Prepare a statement, once."""
        with self._preparing:
            if query not in self._prepared:
                with server_errors(self.address, about=_short(query)):
                    self._prepared[query] = self.driver.prepare(query)
            return self._prepared[query]

    @property
    def datacenters(self) -> tuple[str, ...]:
        return _datacenters(self.driver.cluster)

    def close(self) -> None:
        self.driver.cluster.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def connect(address: CqlAddress) -> CqlSession:
    """Connect to the cluster; driver errors are translated. A keyspace in the address is not entered: statements name theirs."""
    cluster = _cluster(address)
    try:
        driver = _opened(cluster, address)
    except BaseException:
        cluster.shutdown()
        raise
    driver.client_protocol_handler = RawPageHandler
    return CqlSession(address, driver)


def _opened(cluster: Cluster, address: CqlAddress) -> Session:
    for host in address.hosts:
        violations.pop(host, None)
    with server_errors(address):
        try:
            return cluster.connect()
        except NoHostAvailable:
            broken = next((violations[host] for host in address.hosts if host in violations), None)
            if broken is not None:
                raise ProtocolError(broken) from None
            # The driver has discovered the nodes by now: none is in the requested datacenter.
            there = _datacenters(cluster)
            if address.dc and there and address.dc not in there:
                hint = "write dc= with one of " + ", ".join(there)
                raise DefiniteError(f"the cluster has no datacenter {address.dc!r}", place=str(address), hint=hint) from None
            raise


def shared_session(address: CqlAddress) -> CqlSession:
    """This process's own session with the cluster, connected once."""
    # A forked process has none of its parent's threads and therefore none of its sessions.
    key = (address, os.getpid())
    with _opening:
        if key not in _open:
            _open[key] = connect(address)
        return _open[key]


def close_shared_sessions(host: tuple[str, int] | None = None) -> None:
    """Close the sessions of `shared_session` (with one host); they must not be used any more."""
    for key in [key for key in _open if host is None or host in key[0].hosts]:
        _open.pop(key).close()


def _cluster(address: CqlAddress) -> Cluster:
    if address.shows_password:
        log.warning("the password of %s travels unencrypted: write tls=verify-identity if the cluster can encrypt", address)
    level = ConsistencyLevel.name_to_value[address.consistency.upper()]
    routing = TokenAwarePolicy(DCAwareRoundRobinPolicy(address.dc))
    common = {"load_balancing_policy": routing, "consistency_level": level, "request_timeout": address.read_timeout_s}
    account = PlainTextAuthProvider(address.user, address.password) if address.user else None
    return Cluster(
        contact_points=list(address.hosts),
        port=address.hosts[-1][1],
        protocol_version=PROTOCOL,
        connection_class=BoundedCqlConnection,
        auth_provider=account,
        ssl_context=address.tls.context(),
        connect_timeout=address.connect_timeout_s,
        control_connection_timeout=address.connect_timeout_s,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(**common),
            RAW: ExecutionProfile(**common, row_factory=read_whole_page),
        },
    )


def _datacenters(cluster: Cluster) -> tuple[str, ...]:
    return tuple(sorted({host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}))


def _held_bytes(value: Any) -> int:
    """About as many bytes as Python holds for a value or a row."""
    if isinstance(value, str | bytes):
        return _VALUE_BYTES + len(value)
    if isinstance(value, Mapping):
        value = itertools.chain(value.keys(), value.values())
    return _VALUE_BYTES + (sum(map(_held_bytes, value)) if isinstance(value, Iterable) else 0)


def _short(query: str) -> str:
    text = " ".join(query.split())
    return text if len(text) <= 120 else text[:117] + "..."
