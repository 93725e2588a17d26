"""Errors of a source, a sink or a setting are reported before anything is written: exit code 2, the remedy, and never a password."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace import cli, retry
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.embedded_access import url_of
from testkit.servers.accounts import Account, account_with
from testkit.servers.servers import execute, execute_in

PASSWORD = f"pass/{secrets.token_hex(6)}"
GOOD = "CREATE TABLE good (id INT PRIMARY KEY, v VARCHAR(10))"


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("sink") / "ch", password=PASSWORD) as running:
        yield running


@pytest.fixture
def client(sink: EmbeddedServer) -> Iterator[Client]:
    with sink_client(sink.url, PASSWORD) as found:
        yield found


class Refusal:
    """Runs `replicate` in this process (it fails before Spark starts) and checks the error."""

    def __init__(self, sink: EmbeddedServer, client: Client, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._sink, self._client, self._state, self._capsys = sink, client, state, capsys
        self.sink_url = url_of(sink)
        self.secrets = [PASSWORD]

    def __call__(self, source: str, *options: str, sink: str | None = None) -> str:
        before = self._databases()
        arguments = ["replicate", source, sink or self.sink_url, "--state", str(self._state), *options]
        assert cli.main(arguments) == 2
        output = "".join(self._capsys.readouterr())
        assert output.splitlines()[-2].startswith("headrace: ") or "remedy:" in output
        assert "remedy: " in output, output
        assert "Traceback" not in output
        assert not [secret for secret in self.secrets if secret in output]
        assert self._databases() == before, "nothing was created"
        assert not (self._state / "pipe.json").exists()
        return output

    def _databases(self) -> list[tuple[str, ...]]:
        query = "SELECT database, name, total_rows FROM system.tables WHERE lower(database) NOT IN ('system', 'information_schema')"
        databases = self._client.query("SELECT name FROM system.databases ORDER BY name").result_rows
        return [*map(tuple, databases), *sorted(map(tuple, self._client.query(query).result_rows), key=repr)]


@pytest.fixture
def refused(
    sink: EmbeddedServer, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Refusal]:
    monkeypatch.setenv("HEADRACE_SINK_PASSWORD", PASSWORD)
    monkeypatch.setattr(retry, "FIRST_CONTACT_S", 0.5)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Refusal(sink, client, tmp_path / "state", capsys)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_addresses(server: PrivateServer, database: str, replica_account: Account, refused: Refusal) -> None:
    execute_in(server, database, GOOD)
    refused.secrets += [replica_account.password, "wr0ng"]
    good = replica_account.url(database)
    assert "check user and password" in refused(good.replace(replica_account.password, "wr0ng"))
    assert "unknown host 'no-such-host.invalid'" in refused(good.replace("127.0.0.1", "no-such-host.invalid"))
    assert "check that the server runs" in refused(f"mysql://root:wr0ng@127.0.0.1:1/{database}")
    assert "mysql://user:password@host:port/db" in refused(f"nosuch://root:wr0ng@127.0.0.1:1/{database}")
    assert "Debezium's connector for PostgreSQL" in refused(f"postgres://root:wr0ng@127.0.0.1:1/{database}")
    assert "mysql://user:password@host:port/db" in refused(f"mysql://root:wr0ng@127.0.0.1:nine/{database}")
    assert "--tables 'db.*'" in refused(replica_account.url())
    assert "the source has no table nothing.t, " in refused(good, "--tables", "nothing.t")
    assert "the source has no database nothing, " in refused(replica_account.url("nothing"))
    assert "FILE:OFFSET" in refused(good, "--start-at", "here")
    assert "no longer has binary log binlog.999999" in refused(good, "--start-at", "binlog.999999:4")


def test_sinks(
    server: PrivateServer, database: str, replica_account: Account, refused: Refusal, sink: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute_in(server, database, GOOD)
    refused.secrets += [replica_account.password, "wr0ng"]
    source = replica_account.url(database)
    assert "chdb:PATH" in refused(source, sink="nonsense:wr0ng")
    assert "clickhouse://127.0.0.1" not in refused(source, sink="clickhouse://default:wr0ng@127.0.0.1:nine")
    away = refused(source, sink="clickhouse://default:wr0ng@127.0.0.1:1/x")
    assert "127.0.0.1:1" in away
    monkeypatch.delenv("HEADRACE_SINK_PASSWORD")
    assert "password" in refused(source, sink=f"clickhouse://default:wr0ng@127.0.0.1:{sink.port}")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("CREATE TABLE bad (id INT PRIMARY KEY, _version INT)", "_version"),
    ],
)
def test_tables(server: PrivateServer, database: str, replica_account: Account, refused: Refusal, table: str, says: str) -> None:
    """One table that cannot be replicated stops the pipe before other tables are created."""
    execute_in(server, database, GOOD, table)
    output = refused(replica_account.url(database))
    assert says in output
    assert f"{database}.bad" in output


@pytest.mark.parametrize(
    "grants",
    [
        ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*",),
        ("SELECT, REPLICATION CLIENT ON *.*",),
        ("SELECT, REPLICATION SLAVE ON *.*",),
        ("SELECT ON *.*",),
    ],
    ids=["no SELECT", "no REPLICATION SLAVE", "no REPLICATION CLIENT", "SELECT only"],
)
def test_privileges(server: PrivateServer, database: str, refused: Refusal, grants: tuple[str, ...]) -> None:
    execute_in(server, database, GOOD)
    with account_with(server, *grants) as account:
        refused.secrets.append(account.password)
        output = refused(account.url(database))
    assert "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT" in output or "the user's rights" in output


def test_server_settings(fresh_server: Callable[..., PrivateServer], refused: Refusal) -> None:
    server = fresh_server()
    execute(server, "CREATE DATABASE shop", f"{GOOD.replace('good', 'shop.good')}")
    source = server.url("shop")
    refused.secrets.append(server.password)
    settings = [("binlog_format", "STATEMENT", "ROW"), ("binlog_format", "MIXED", "ROW"), ("binlog_row_image", "MINIMAL", "FULL")]
    settings += [("binlog_row_image", "NOBLOB", "FULL")]
    for name, wrong, right in settings:
        execute(server, f"SET GLOBAL {name} = '{wrong}'")
        output = refused(source)
        assert f"{name} = {wrong}" in output
        assert f"SET GLOBAL {name} = " in output
        execute(server, f"SET GLOBAL {name} = '{right}'")


def test_binary_log_off(fresh_server: Callable[..., PrivateServer], refused: Refusal) -> None:
    server = fresh_server(log_bin=None, skip_log_bin=True, gtid_mode=None, enforce_gtid_consistency=None)
    execute(server, "CREATE DATABASE shop", f"{GOOD.replace('good', 'shop.good')}")
    refused.secrets.append(server.password)
    assert "writes no binary log" in refused(server.url("shop"))
