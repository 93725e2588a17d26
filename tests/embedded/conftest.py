"""One embedded server for all tests of its HTTP interface, a client and a table for each."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.pipelines.httpclient import Client


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The session's embedded server; all tests share its databases."""
    with EmbeddedServer(tmp_path_factory.mktemp("embedded") / "db") as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    made = Client(server.port)
    with contextlib.closing(made.connection):
        yield made


@pytest.fixture
def table(client: Client) -> str:
    """The name of a new table: a number, a text with a default made of it, and twice the number."""
    name = f"t_{secrets.token_hex(8)}"
    client.run(
        f"CREATE TABLE {name} (a Int32, b String DEFAULT concat('x', toString(a)), m Int32 MATERIALIZED a * 2) "
        "ENGINE = MergeTree ORDER BY a"
    )
    return name
