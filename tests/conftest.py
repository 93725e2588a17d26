"""Real servers for the tests: one of each flavour per session, a database per test, and private servers on demand.

Every test that uses `server` (or `flavour`) runs on MariaDB and on Oracle MySQL. A flavour that is not available is never dropped silently:
its tests are skipped with one loud line at the end of the run, and fail when `CI=true`.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from playwright.sync_api import Browser

from headrace.cql.session import CqlSession, close_shared_sessions, connect
from headrace.demo.private_server import PrivateServer, Setting
from headrace.embedded.process import EmbeddedServer
from headrace.errors import HeadraceError
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.machine.distribution import Spreading, expected_seconds, flavour_of, longest_first
from testkit.machine.durations import DURATIONS, write_durations
from testkit.machine.tiers import CollectedTest, collected_test
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.embedded_access import set_password, target_of
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.broker import PrivateBroker
from testkit.servers.browser import SCREENSHOTS, chromium, find_chromium, kept_since
from testkit.servers.cassandra import GivenCluster, PrivateCassandra
from testkit.servers.debezium import Worker
from testkit.servers.maven_fetch import fetch_broker, fetch_cassandra, fetch_connect_worker, fetch_debezium_mariadb, fetch_registry
from testkit.servers.schema_registry import PrivateRegistry
from testkit.servers.servers import FLAVOURS, NEWER_MARIADB, build, find_program

if TYPE_CHECKING:
    # The sink's package chooses the driver's Python parser: it must be imported before the driver.
    from clickhouse_connect.driver.client import Client

set_password()
IN_CI = os.environ.get("CI") == "true"
IN_SOAK = bool(os.environ.get("HEADRACE_SOAK"))
_CQL = {"cassandra", "fresh_cassandra"}
UNAVAILABLE = pytest.StashKey[dict[str, str]]()
BEGAN = pytest.StashKey[float]()
COLLECTED = pytest.StashKey[list[CollectedTest]]()
SLOW = pytest.StashKey[int]()
"""How many slow tests are deselected."""

_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None, suppress_health_check=_quiet, database=None)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="deselect the tests that are marked slow, as make test does")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts pytest in the background ignores SIGINT; processes that the tests start and interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # So does nohup with SIGHUP.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[UNAVAILABLE] = {}
    config.stash[BEGAN] = time.time()
    config.stash[SLOW] = 0


def pytest_itemcollected(item: pytest.Item) -> None:
    if _CQL.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.cql)
    for mark in item.iter_markers("soak"):
        if not IN_SOAK and (not mark.args or flavour_of(item.nodeid) in mark.args):
            item.add_marker(pytest.mark.skip(reason=f"only in make soak-suites: {mark.kwargs['because']}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    config.stash[COLLECTED] = [collected_test(item) for item in items]
    slow = {test.nodeid for test in config.stash[COLLECTED] if not test.is_fast} if config.getoption("--fast") else set()
    yield
    deselected = [item for item in items if item.nodeid in slow]
    items[:] = [item for item in items if item.nodeid not in slow]
    config.hook.pytest_deselected(items=deselected)
    config.stash[SLOW] = len(deselected)
    if hasattr(config, "workerinput"):
        longest_first(items, expected_seconds())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spreading:
    return Spreading(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["unavailable"] = session.config.stash[UNAVAILABLE]
        session.config.workeroutput["slow"] = session.config.stash[SLOW]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the unavailable parts of each worker process for the summary."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[UNAVAILABLE].update(output.get("unavailable", {}))
    node.config.stash[SLOW] = max(node.config.stash[SLOW], output.get("slow", 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    write_durations(terminalreporter.stats, DURATIONS)
    for part, reason in config.stash[UNAVAILABLE].items():
        terminalreporter.write_line(f"NOT TESTED with {part}: it is not available: {reason}", red=True, bold=True)
    if slow := config.stash[SLOW]:
        terminalreporter.write_line(f"{slow} slow tests are deselected: make test-all runs them", yellow=True, bold=True)
    if kept := kept_since(config.stash[BEGAN]):
        terminalreporter.write_line(f"{kept} screenshots of the dashboard are in {SCREENSHOTS}")


@pytest.fixture(scope="session")
def every_test(pytestconfig: pytest.Config) -> list[CollectedTest]:
    """The tests of all files, in any tier."""
    if [Path(argument).name for argument in pytestconfig.args] != pytestconfig.getini("testpaths"):
        pytest.skip("this needs a run over all files: make test")
    return pytestconfig.stash[COLLECTED]


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """Restore the logger after the test: a command's handler writes to a stream that is closed then."""
    log = logging.getLogger("headrace")
    handlers, level, propagate = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)


def _require(part: str, config: pytest.Config, find: Callable[[], object]) -> None:
    """Skip the test if a part is not available; fail in CI."""
    unavailable = config.stash[UNAVAILABLE]
    if part not in unavailable:
        try:
            find()
        except HeadraceError as error:
            unavailable[part] = " ".join(str(error).split())
    if part in unavailable:
        reason = f"no {part}: {unavailable[part]}"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)


def _serve(flavour: str, config: pytest.Config, directory: Path) -> Iterator[PrivateServer]:
    _require(flavour, config, lambda: find_program(flavour))
    server = build(flavour, directory)
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def mariadb_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """The session's MariaDB. Do not stop it or change its global settings."""
    yield from _serve("mariadb", pytestconfig, tmp_path_factory.mktemp("mariadb") / "server")


@pytest.fixture(scope="session")
def mysql_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """The session's Oracle MySQL. Do not stop it or change its global settings."""
    yield from _serve("mysql", pytestconfig, tmp_path_factory.mktemp("mysql") / "server")


@pytest.fixture(scope="session")
def newer_mariadb_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """MariaDB of Debian 13, for the tests of server versions. Restore global settings that a test changes."""
    yield from _serve(NEWER_MARIADB, pytestconfig, tmp_path_factory.mktemp(NEWER_MARIADB) / "server")


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> Iterator[Browser]:
    """The session's Chromium."""
    _require("Chromium", pytestconfig, find_chromium)
    with chromium() as shared:
        yield shared


@pytest.fixture(scope="session", params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> str:
    """`mariadb`, then `mysql`: a test that uses it runs once on each."""
    return str(request.param)


@pytest.fixture(scope="session")
def server(flavour: str, request: pytest.FixtureRequest) -> PrivateServer:
    """The session's server of the flavour. Do not stop it or change its global settings."""
    shared: PrivateServer = request.getfixturevalue(f"{flavour}_server")
    return shared


@pytest.fixture
def database(server: PrivateServer) -> Iterator[str]:
    """The name of a new, empty database on `server`."""
    name = f"test_{secrets.token_hex(4)}"
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        yield name
        cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture(scope="session")
def replica_accounts() -> dict[str, Account]:
    """The accounts by flavour: pytest drops those of a flavour when it changes to the other."""
    return {}


@pytest.fixture(scope="session")
def replica_account(server: PrivateServer, replica_accounts: dict[str, Account]) -> Account:
    """An account on `server` with only the rights that replication needs."""
    if server.flavour not in replica_accounts:
        replica_accounts[server.flavour] = create_replica_account(server)
    return replica_accounts[server.flavour]


@pytest.fixture
def fresh_server(
    flavour: str, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., PrivateServer]]:
    """Starts servers of the flavour that belong to this test alone: `fresh_server(binlog_format="STATEMENT")`."""
    with ExitStack() as started:

        def start(**settings: Setting) -> PrivateServer:
            _require(flavour, pytestconfig, lambda: find_program(flavour))
            one = build(flavour, tmp_path_factory.mktemp("fresh") / "server", **settings)
            started.callback(one.remove)
            return one.start()

        yield start


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateBroker]:
    """The session's Kafka broker. Do not stop it; `create_topic()` makes a private topic."""
    _require("Kafka", pytestconfig, fetch_broker)
    shared = PrivateBroker(tmp_path_factory.mktemp("broker") / "broker")
    try:
        yield shared.start()
    finally:
        shared.remove()


@pytest.fixture
def fresh_broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., PrivateBroker]]:
    """Starts brokers that belong to this test alone: `fresh_broker(accounts={"reader": "secret"})`."""
    with ExitStack() as started:

        def start(**settings: Any) -> PrivateBroker:
            _require("Kafka", pytestconfig, fetch_broker)
            one = PrivateBroker(tmp_path_factory.mktemp("broker") / "broker", **settings)
            started.callback(one.remove)
            return one.start()

        yield start


@pytest.fixture(scope="session")
def schema_registry(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRegistry]:
    """The session's schema registry (Apicurio); `url` is the address for clients of a Confluent registry."""
    _require("the schema registry", pytestconfig, fetch_registry)
    with PrivateRegistry(tmp_path_factory.mktemp("registry")) as shared:
        yield shared


@pytest.fixture
def connect_worker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Worker]]:
    """Starts workers of Kafka Connect with Debezium that belong to this test alone: `connect_worker(broker, mariadb=True)`."""
    with ExitStack() as started:

        def start(broker: PrivateBroker, *, mariadb: bool = False) -> Worker:
            _require("Kafka Connect", pytestconfig, fetch_connect_worker)
            if mariadb:
                _require("Debezium for MariaDB", pytestconfig, fetch_debezium_mariadb)
            one = Worker(tmp_path_factory.mktemp("connect") / "worker", broker.servers, mariadb=mariadb)
            started.callback(one.remove)
            return one.start()

        yield start


@pytest.fixture(scope="session")
def debezium_mariadb_jars(pytestconfig: pytest.Config) -> Path:
    """The folder of Debezium's engine with the MariaDB connector."""
    _require("Debezium for MariaDB", pytestconfig, fetch_debezium_mariadb)
    return fetch_debezium_mariadb()


@pytest.fixture(scope="session")
def cassandra(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCassandra | GivenCluster]:
    """The session's Cassandra, or the given cluster (`make test-scylla`). Do not stop it; `keyspace` is a private keyspace."""
    given = GivenCluster.from_environment()
    if given is not None:
        yield given
        return
    _require("Cassandra", pytestconfig, fetch_cassandra)
    shared = PrivateCassandra(tmp_path_factory.mktemp("cassandra") / "server")
    try:
        yield shared.start()
    finally:
        close_shared_sessions()
        shared.remove()


@pytest.fixture(scope="session")
def cql(cassandra: PrivateCassandra | GivenCluster) -> Iterator[CqlSession]:
    """The session's connection to the session's Cassandra."""
    with connect(cassandra.address()) as session:
        yield session


@pytest.fixture
def keyspace(cql: CqlSession) -> Iterator[str]:
    """The name of a new, empty keyspace on `cassandra`."""
    name = f"test_{secrets.token_hex(4)}"
    cql.execute(f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    yield name
    cql.execute(f"DROP KEYSPACE IF EXISTS {name}")


@pytest.fixture
def fresh_cassandra(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., PrivateCassandra]]:
    """Starts nodes that belong to this test alone: `fresh_cassandra(accounts=True)`. A start is some five seconds of a core."""
    with ExitStack() as started:

        def start(**settings: Any) -> PrivateCassandra:
            if GivenCluster.from_environment() is not None:
                pytest.skip("this needs a node that can be killed, and a cluster was given")
            _require("Cassandra", pytestconfig, fetch_cassandra)
            one = PrivateCassandra(tmp_path_factory.mktemp("cassandra") / "server", **settings)
            started.callback(one.remove)
            # A session that outlives its server tries to connect again until the process ends.
            started.callback(close_shared_sessions, one.address().hosts[0])
            return one.start()

        yield start


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    """A `Logbook` of `database`."""
    with open_logbook(server, database) as opened:
        yield opened


@pytest.fixture(scope="module")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The module's embedded ClickHouse server."""
    with EmbeddedServer(tmp_path_factory.mktemp("clickhouse") / "data") as running:
        yield running


@pytest.fixture
def client(clickhouse: EmbeddedServer) -> Iterator[Client]:
    """A client of `clickhouse`."""
    with sink_client(clickhouse.url) as connected:
        yield connected


@pytest.fixture
def target(clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    """A new database of `clickhouse`."""
    found = target_of(clickhouse, database=f"d_{secrets.token_hex(6)}")
    yield found
    disconnect(found)


@pytest.fixture
def sink(target: ClickHouseTarget) -> ClickHouseSink:
    """A sink that writes to `target`."""
    return ClickHouseSink(target)
