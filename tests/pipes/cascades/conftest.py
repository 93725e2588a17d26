"""Servers that do not log cascades, and pipes over them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from testkit.oracles.binlogs import Logbook
from testkit.pipelines.cascade_replica import Replica
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.servers import build


@pytest.fixture(scope="session")
def native_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A MySQL server that does not log cascades, as before 9.6; one for all files of a process."""
    server = build("mysql", tmp_path_factory.mktemp("native") / "server", innodb_native_foreign_keys="ON")
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture
def replica_account_of(server: PrivateServer) -> Account:
    return create_replica_account(server, f"reader_{secrets.token_hex(4)}")


@pytest.fixture
def server(flavour: str, request: pytest.FixtureRequest) -> PrivateServer:
    found: PrivateServer = request.getfixturevalue("native_server" if flavour == "mysql" else "mariadb_server")
    return found


@pytest.fixture
def replica(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Replica:
    return Replica(book, clickhouse, client, tmp_path / "state")
