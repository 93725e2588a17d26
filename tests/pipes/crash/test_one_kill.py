"""One `kill -9` of each kind of pipe, through Spark: the smallest proof for every source and every sink; `make soak` has hundreds.

A pipe runs while its source changes. When a batch is open, all its processes are killed. Another run finishes, and both ends are compared
row by row. The sink `stdout:` has its kill in `tests/sinks/stdout/test_stdout.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cql.session import CqlSession
from headrace.demo.private_server import PrivateServer
from testkit.servers.accounts import Account, create_locking_account
from testkit.servers.broker import PrivateBroker
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.debezium import Worker, json_converters, mysql_settings
from testkit.soak.kill_peers import KillPeers
from testkit.soak.kill_routes import (
    ROUTES,
    DebeziumTopics,
    DirectoryLog,
    KillRoute,
    MariaDbToServer,
    MySqlToDebeziumJson,
    ScyllaToCql,
)

FAST = (MariaDbToServer, MySqlToDebeziumJson, DirectoryLog, DebeziumTopics, ScyllaToCql)
"""Every source and every sink once."""


class SessionPeers(KillPeers):
    """The servers of the test session."""

    def __init__(self, directory: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(directory)
        self._request = request

    def _database_server(self, flavour: str) -> tuple[PrivateServer, Account]:
        if flavour not in self._servers:
            server: PrivateServer = self._request.getfixturevalue(f"{flavour}_server")
            self._servers[flavour] = server, create_locking_account(server)
        return self._servers[flavour]

    @property
    def broker(self) -> PrivateBroker:  # type: ignore[override]
        found: PrivateBroker = self._request.getfixturevalue("broker")
        return found

    @property
    def cassandra(self) -> PrivateCassandra | GivenCluster:  # type: ignore[override]
        found: PrivateCassandra | GivenCluster = self._request.getfixturevalue("cassandra")
        return found

    @property
    def cql(self) -> CqlSession:  # type: ignore[override]
        found: CqlSession = self._request.getfixturevalue("cql")
        return found

    def start_debezium(self, database: str, prefix: str) -> None:
        start: Callable[..., Worker] = self._request.getfixturevalue("connect_worker")
        settings = mysql_settings(self.database_server("mysql"), prefix, self.directory / "history.dat", [database], 3)
        start(self.broker).add(prefix, {**settings, **json_converters(schemas=True), "errors.max.retries": "-1"})


@pytest.fixture
def peers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KillPeers]:
    with SessionPeers(tmp_path, request) as found:
        yield found


@pytest.mark.slow(
    *(kind.__name__ for kind in ROUTES if kind not in FAST),
    because="test_one_kill has every source and every sink once: test_one_kill[MariaDbToServer], test_one_kill[MySqlToDebeziumJson]",
)
@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
@pytest.mark.timeout(900)
def test_one_kill(kind: Callable[[KillPeers], KillRoute], peers: KillPeers) -> None:
    route: Any = kind(peers)
    route.begin()
    pipeline = route.pipeline
    with route.changing(5), pipeline.running() as run:
        if not isinstance(route, DirectoryLog):  # (its files do not grow while it runs)
            run.until(lambda: pipeline.last_committed_batch() >= 0)
        run.until(
            lambda: pipeline.batch_is_open() or (isinstance(route, DirectoryLog) and pipeline.last_committed_batch() >= 0), poll_s=0.002
        )
        run.kill()
    route.change(random.Random(5))
    route.settle()
    done = pipeline.once()
    assert done.code == 0, done.output
    assert route.compare() > 10
