"""Access to the embedded server."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.embedded.access.credentials import CREDENTIALS_FILE
from headrace.embedded.process import PASSWORD_VARIABLE, EmbeddedServer
from headrace.errors import DefiniteError
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from testkit.pipelines.embedded_access import PASSWORD, basic
from testkit.pipelines.httpclient import Client


def test_a_page_of_another_site_cannot_use_the_server_even_with_the_password(client: Client) -> None:
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "cross-site"}).code == 516
    assert client.ask(body="SELECT 1", headers={"Sec-Fetch-Site": "none"}).body == b"1\n"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("locked") / "db", user="ann", password="s3:cret") as running:
        yield running


@pytest.mark.parametrize(
    ("headers", "fields", "status", "code"),
    [
        (basic("s3:cret", "ann"), {}, 200, 0),
        ({"X-ClickHouse-User": "ann", "X-ClickHouse-Key": "s3:cret"}, {}, 200, 0),
        ({}, {"user": "ann", "password": "s3:cret"}, 200, 0),
        (basic("wrong", "ann"), {}, 403, 516),
        (basic("s3:cret", "bob"), {}, 403, 516),
        ({"X-ClickHouse-User": "ann"}, {}, 401, 194),
        ({}, {"user": "ann", "password": ""}, 401, 194),
        ({}, {}, 403, 516),
        ({"Authorization": "Bearer token"}, {}, 403, 516),
        ({"Authorization": "Basic ***"}, {}, 403, 516),
        (basic("s3:cret", "ann"), {"user": "ann"}, 403, 516),
    ],
)
def test_only_the_account_may_query(
    locked: EmbeddedServer, headers: dict[str, str], fields: dict[str, str], status: int, code: int
) -> None:
    made = Client(locked.port, {})
    with contextlib.closing(made.connection):
        answer = made.ask("SELECT 1", headers=headers, **fields)
        assert (answer.status, answer.code) == (status, code)
        assert b"s3:cret" not in answer.body


def test_ping_needs_no_account_and_the_password_is_not_in_the_process_list(locked: EmbeddedServer) -> None:
    made = Client(locked.port, {})
    with contextlib.closing(made.connection):
        made.connection.request("GET", "/ping")
        assert made.connection.getresponse().read() == b"Ok.\n"
    assert b"s3:cret" not in Path(f"/proc/{locked.pid}/cmdline").read_bytes()


def _ask(server: EmbeddedServer, headers: dict[str, str]) -> tuple[int, int]:
    made = Client(server.port, {})
    with contextlib.closing(made.connection):
        answer = made.ask("SELECT 1", headers=headers)
        return answer.status, answer.code


def test_a_server_that_is_given_no_password_asks_for_a_random_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server started by a pipe requires the password; Headrace's commands find it; a restart keeps it."""
    monkeypatch.delenv(PASSWORD_VARIABLE)
    sink = f"chdb:{tmp_path / 'db'}"
    with open_clickhouse_sink(sink, creates=True) as named:
        target = named.sink.target
        server = EmbeddedServer.connect_or_start(tmp_path / "db")
        password = server.password
        assert len(password) >= 32
        assert (_ask(server, {}), _ask(server, basic(""))) == ((401, 194), (401, 194))
        assert (_ask(server, basic("guess")), _ask(server, basic(password))) == ((403, 516), (200, 0))
        assert main(["sql", sink, "SELECT 41 + 1 FORMAT TSV"]) == 0
        assert capsys.readouterr().out == "42\n"
        assert password not in repr(target) + str(target) + named.name
        assert main(["connection", sink]) == 0
        shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        url = f"http://127.0.0.1:{server.port}/"
        assert shown == {"host": "127.0.0.1", "port": str(server.port), "user": "default", "password": password, "url": url}
        assert main(["connection", sink, "password"]) == 0
        assert capsys.readouterr().out == f"{password}\n"
        assert password not in (tmp_path / "db" / "headrace-server.log").read_text()
    with open_clickhouse_sink(sink) as named:
        assert named.sink.target.password == password
    assert main(["connection", sink]) == 2
    assert f"headrace serve {tmp_path / 'db'}" in capsys.readouterr().err


def test_every_start_of_the_server_uses_the_password_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "chosen by me")
    with open_clickhouse_sink(f"chdb:{tmp_path / 'db'}", creates=True):
        # A command in another terminal finds the server without the variable.
        monkeypatch.delenv(PASSWORD_VARIABLE)
        with open_clickhouse_sink(f"chdb:{tmp_path / 'db'}") as other:
            assert other.sink.target.password == "chosen by me"
            assert other.sink.reader().text("SELECT 1 FORMAT TSV") == "1\n"


def test_nothing_in_the_directory_can_be_read_by_other_users(tmp_path: Path) -> None:
    """A directory of release 0.9, or one that the user made, is readable by others, as the umask of most systems allows."""
    root = tmp_path / "db"
    before = os.umask(0o022)
    try:
        (root / "store").mkdir(parents=True)
        with EmbeddedServer(root) as server:
            made = Client(server.port)
            made.run("CREATE TABLE t (a Int32) ENGINE = MergeTree ORDER BY a")
            made.run("INSERT INTO t VALUES (1)")
            made.connection.close()
            entries = list(root.iterdir())
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / CREDENTIALS_FILE).stat().st_mode) == 0o600
    assert root.stat().st_mode & 0o055 == 0o055
    assert {entry.name for entry in entries} >= {"store", "headrace-server.log", "headrace-server.json", CREDENTIALS_FILE}
    assert [entry.name for entry in root.iterdir() if entry.lstat().st_mode & 0o077] == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"user": "default"}', '{"user": "default", "password": ""}'])
def test_a_damaged_file_with_the_password_is_a_definite_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    root = tmp_path / "db"
    root.mkdir()
    (root / CREDENTIALS_FILE).write_text(content)
    with pytest.raises(DefiniteError, match="damaged") as caught:
        EmbeddedServer(root).start()
    assert "remove the file" in caught.value.hint
    (root / CREDENTIALS_FILE).unlink()
    with EmbeddedServer(root) as server:
        assert server.password == PASSWORD


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, 516),
        ({"Host": "127.0.0.1.evil.example:8123"}, 516),
        ({"Host": "user@localhost"}, 516),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 516),
        ({"Host": "localhost", "Origin": "null"}, 516),
        ({"Host": "localhost", "Origin": "http://[::1"}, 516),
        ({"Host": "localhost", "Sec-Fetch-Site": "same-site"}, 516),
        ({"Host": "localhost:99", "Origin": "http://localhost:99"}, 0),
        ({"Host": "LOCALHOST."}, 0),
        ({"Host": "[::1]:8123"}, 0),
        ({"Host": "127.9.9.9"}, 0),
    ],
)
def test_a_request_must_be_meant_for_this_server(client: Client, headers: dict[str, str], code: int) -> None:
    """DNS rebinding: a page whose name resolves to this machine, in a browser that has the password."""
    assert client.ask("SELECT 1", headers=headers).code == code
