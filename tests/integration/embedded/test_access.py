"""Who may come in."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.embedded.process import EmbeddedServer
from testkit.httpclient import Client


def test_a_page_of_another_site_cannot_use_a_server_without_password(client: Client) -> None:
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "cross-site"}).code == 516
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "none"}).body == b"1\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("locked") / "db", user="ann", password="s3:cret") as running:
        yield running


def _basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.mark.parametrize(
    ("headers", "fields", "status", "code"),
    [
        (_basic("ann", "s3:cret"), {}, 200, 0),
        ({"X-ClickHouse-User": "ann", "X-ClickHouse-Key": "s3:cret"}, {}, 200, 0),
        ({}, {"user": "ann", "password": "s3:cret"}, 200, 0),
        (_basic("ann", "wrong"), {}, 403, 516),
        (_basic("bob", "s3:cret"), {}, 403, 516),
        ({"X-ClickHouse-User": "ann"}, {}, 401, 194),
        ({}, {"user": "ann", "password": ""}, 401, 194),
        ({}, {}, 403, 516),
        ({"Authorization": "Bearer token"}, {}, 403, 516),
        ({"Authorization": "Basic ***"}, {}, 403, 516),
        (_basic("ann", "s3:cret"), {"user": "ann"}, 403, 516),
    ],
)
def test_only_the_account_may_query(
    locked: EmbeddedServer, headers: dict[str, str], fields: dict[str, str], status: int, code: int
) -> None:
    made = Client(locked.port)
    with contextlib.closing(made.connection):
        answer = made.ask("SELECT 1", headers=headers, **fields)
        assert (answer.status, answer.code) == (status, code)
        assert b"s3:cret" not in answer.body


def test_ping_needs_no_account_and_the_password_is_not_in_the_process_list(locked: EmbeddedServer) -> None:
    made = Client(locked.port)
    with contextlib.closing(made.connection):
        made.connection.request("GET", "/ping")
        assert made.connection.getresponse().read() == b"Ok.\n"
    assert b"s3:cret" not in Path(f"/proc/{locked.pid}/cmdline").read_bytes()
