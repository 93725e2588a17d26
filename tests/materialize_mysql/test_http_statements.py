"""Statements about MaterializeMySQL databases over the HTTP interface of an embedded server, by any client.

A server that hosts the pipes (`headrace serve`) starts and stops them with itself. A server that a pipe owns ends with that pipe.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.materialize_mysql.background_pipe import BackgroundPipe
from headrace.service.embedded_servers import EmbeddedServers
from testkit.pipelines.httpclient import Answer, Client
from testkit.pipelines.pipeline import Run, command_lines, marked_processes, run_command
from testkit.servers.accounts import Account

PATIENCE_S = 300.0
ROWS = "SELECT arrayStringConcat(groupArray(concat(toString(id), '/', toString(total))), ' ') FROM "
CURRENT = ROWS + "(SELECT * FROM shop.orders FINAL ORDER BY id)"


class Served:
    """A directory, the server that runs on it now, and its pipe."""

    def __init__(self, path: Path) -> None:
        self.path = path / "ch"
        self.pipe = BackgroundPipe(self.path / "headrace" / "pipes" / "shop")

    @contextmanager
    def client(self) -> Iterator[Client]:
        deadline = time.monotonic() + PATIENCE_S
        while (serving := read_serving_process(self.path)) is None or not serving.port:
            assert time.monotonic() < deadline, "no server runs on the directory"
            time.sleep(0.1)
        found = Client(serving.port)
        found.connection.timeout = PATIENCE_S
        with closing(found.connection):
            yield found

    def ask(self, query: str = "", body: str | None = None, **fields: str) -> Answer:
        with self.client() as client:
            return client.ask(query, body, **fields)

    def until(self, expected: str) -> None:
        """Wait until the table has these rows."""
        deadline, found = time.monotonic() + PATIENCE_S, b""
        while found.decode().strip() != expected:
            assert time.monotonic() < deadline, f"{found!r}, not {expected}\n{self.pipe.log.read_text()}"
            time.sleep(0.3)
            try:
                found = self.ask(CURRENT).body
            except (OSError, http.client.HTTPException):
                # The server is being restarted.
                continue

    def until_ended(self, token: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while left := marked_processes(token):
            assert time.monotonic() < deadline, command_lines(left)
            time.sleep(0.1)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def create_statement(server: PrivateServer, account: Account) -> str:
    engine = f"MaterializeMySQL('127.0.0.1:{server.port}', 'mirrored', '{account.user}', '{account.password}')"
    return f"CREATE DATABASE shop ENGINE = {engine}"


@contextmanager
def serving(served: Served, log: Path) -> Iterator[Run]:
    with Run(["serve", str(served.path), "--port", "0"], log).killed() as run:
        run.until(lambda: "ClickHouse at" in run.output, PATIENCE_S)
        yield run


@pytest.mark.timeout(1800)
def test_a_client_creates_detaches_attaches_and_drops_a_database(
    mysql_server: PrivateServer, account: Account, execute: Callable[[str], None], served: Served, tmp_path: Path
) -> None:
    execute("CREATE TABLE mirrored.orders (id INT PRIMARY KEY, total INT)")
    execute("INSERT INTO mirrored.orders VALUES (1, 10)")
    execute("CREATE TABLE mirrored.words (id INT, word VARCHAR(10))")
    execute(f"GRANT LOCK TABLES ON mirrored.* TO '{account.user}'@'%'")
    execute("INSERT INTO mirrored.words VALUES (1, 'a'), (1, 'a'), (1, 'a'), (2, 'b'), (3, NULL)")
    create = create_statement(mysql_server, account)
    with serving(served, tmp_path / "serve.log") as run:
        wrong = served.ask(body=create.replace(account.password, "wrong"))
        assert (wrong.code, b"denied" in wrong.body) == (501, True), wrong.body

        # Two clients at once, one with the statement in the body, one with half of it in `query`.
        answers: list[Answer] = []
        half = create.index("ENGINE")
        threads = [
            threading.Thread(target=lambda: answers.append(served.ask(body=create))),
            threading.Thread(target=lambda: answers.append(served.ask(create[:half], create[half:]))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answer.code for answer in answers) == [0, 82], answers
        served.until("1/10")
        assert account.password not in command_lines(run.processes())

        shown = served.ask("SHOW CREATE DATABASE shop FORMAT JSONEachRow")
        # A statement in two parts is joined by a line break.
        assert " ".join(json.loads(shown.body)["statement"].split()) == create.replace(account.password, "[HIDDEN]")
        assert served.ask("RENAME DATABASE shop TO b").code == 36
        assert served.ask("DROP DATABASE shop", readonly="1").code == 164

        assert served.ask("DETACH DATABASE shop").status == 200
        assert not served.pipe.is_running
        assert served.ask("SELECT count() FROM shop.orders").code == 81
        execute("DELETE FROM mirrored.words WHERE id = 1 LIMIT 1")
        execute("UPDATE mirrored.words SET word = 'new' WHERE id = 3")
        execute("INSERT INTO mirrored.orders VALUES (2, 20)")
        assert served.ask("ATTACH DATABASE shop").status == 200
        served.until("1/10 2/20")
        # A table without a key shows each row as often as the source does.
        words = served.ask("SELECT * FROM shop.words ORDER BY id FORMAT JSONCompactEachRowWithNames").body
        assert list(map(json.loads, words.splitlines())) == [["id", "word"], [1, "a"], [1, "a"], [2, "b"], [3, "new"]]
        assert served.ask("SELECT count() FROM shop.words").body == b"4\n"
        assert served.ask("ATTACH DATABASE shop").code == 82

        # The name of the database may be a query parameter.
        assert served.ask("DROP DATABASE {db:Identifier}", param_db="shop").status == 200
        assert not (served.path / "headrace").exists()
        assert served.ask("SHOW CREATE DATABASE shop").code == 81
        assert "replicate" not in command_lines(run.processes())
        assert run.terminate().code == 128 + signal.SIGTERM
        served.until_ended(run.token)


@pytest.mark.slow(because="test_a_client_creates_detaches_attaches_and_drops_a_database runs the same statements and processes")
@pytest.mark.timeout(1800)
def test_databases_stop_and_resume_with_the_server_that_hosts_them(
    mysql_server: PrivateServer, account: Account, execute: Callable[[str], None], served: Served, tmp_path: Path
) -> None:
    execute("CREATE TABLE mirrored.orders (id INT PRIMARY KEY, total INT)")
    execute("INSERT INTO mirrored.orders VALUES (1, 10)")
    with serving(served, tmp_path / "first.log") as run:
        assert served.ask(create_statement(mysql_server, account)).status == 200
        served.until("1/10")
        # A second server does not get the directory, and does not touch the pipes of the first.
        second = run_command("serve", str(served.path), "--port", "0", timeout_s=PATIENCE_S)
        assert (second.code, "is already served" in second.output, served.pipe.is_running) == (2, True, True), second.output
        run.terminate()
        served.until_ended(run.token)
    execute("INSERT INTO mirrored.orders VALUES (2, 20)")
    with serving(served, tmp_path / "second.log") as run:
        served.until("1/10 2/20")
        run.signal_all(signal.SIGKILL, spare=[pid for pid in run.processes() if pid != run.pid])
        # Bridge, keeper and pipe end without their server.
        served.until_ended(run.token)
    execute("INSERT INTO mirrored.orders VALUES (3, 30)")
    with serving(served, tmp_path / "third.log") as run:
        served.until("1/10 2/20 3/30")


@pytest.mark.slow(because="test_a_client_creates_detaches_attaches_and_drops_a_database runs the same statements and processes")
@pytest.mark.timeout(1800)
def test_databases_stop_and_resume_with_a_service(
    mysql_server: PrivateServer,
    account: Account,
    execute: Callable[[str], None],
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The embedded servers of `headrace run` host databases, too."""
    token, sink = f"service-{served.path.parent.name}", f"chdb:{served.path}"
    monkeypatch.setenv("HEADRACE_TEST_RUN", token)
    execute("CREATE TABLE mirrored.orders (id INT PRIMARY KEY, total INT)")
    execute("INSERT INTO mirrored.orders VALUES (1, 10)")
    with EmbeddedServers() as servers:
        servers.ensure(sink)
        assert served.ask(create_statement(mysql_server, account)).status == 200
        served.until("1/10")
    served.until_ended(token)
    execute("INSERT INTO mirrored.orders VALUES (2, 20)")
    with EmbeddedServers() as servers:
        servers.ensure(sink)
        served.until("1/10 2/20")
        assert served.ask("DROP DATABASE shop").status == 200
    served.until_ended(token)


@pytest.mark.slow(because="test_a_client_creates_detaches_attaches_and_drops_a_database runs the same statements and processes")
@pytest.mark.timeout(1800)
def test_a_pipe_that_owns_its_server_is_dropped_over_http(
    mysql_server: PrivateServer, account: Account, execute: Callable[[str], None], served: Served, tmp_path: Path
) -> None:
    execute("CREATE TABLE mirrored.orders (id INT PRIMARY KEY, total INT)")
    execute("INSERT INTO mirrored.orders VALUES (1, 10)")
    create, mark = create_statement(mysql_server, account), {"HEADRACE_TEST_RUN": "owned-by-a-pipe"}
    token = mark["HEADRACE_TEST_RUN"]
    assert run_command("sql", f"chdb:{served.path}", create, environment=mark, timeout_s=PATIENCE_S).code == 0
    served.until("1/10")
    assert served.pipe.owns_server(served.path)

    # A `headrace serve` that cannot start leaves the pipe running.
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        failed = run_command("serve", str(served.path), "--port", str(taken.getsockname()[1]), environment=mark, timeout_s=PATIENCE_S)
    assert (failed.code, "cannot listen" in failed.output) == (2, True), failed.output
    execute("INSERT INTO mirrored.orders VALUES (0, 0)")
    served.until("0/0 1/10")
    execute("DELETE FROM mirrored.orders WHERE id = 0")
    served.until("1/10")

    # `headrace serve` takes the directory over, and continues the pipe.
    with serving(served, tmp_path / "serve.log") as run:
        served.until_ended(token)
        execute("INSERT INTO mirrored.orders VALUES (2, 20)")
        served.until("1/10 2/20")
        run.terminate()
        served.until_ended(run.token)

    again = create.replace("DATABASE", "DATABASE IF NOT EXISTS")
    assert run_command("sql", f"chdb:{served.path}", again, environment=mark, timeout_s=PATIENCE_S).code == 0
    served.until("1/10 2/20")
    # DETACH ends the pipe with its server, after the answer.
    assert served.ask("DETACH DATABASE shop").status == 200
    served.until_ended(token)
    execute("INSERT INTO mirrored.orders VALUES (3, 30)")
    attached = run_command("sql", f"chdb:{served.path}", "ATTACH DATABASE shop", environment=mark, timeout_s=PATIENCE_S)
    assert attached.code == 0, attached.output
    served.until("1/10 2/20 3/30")
    assert served.ask("DROP DATABASE shop").status == 200
    served.until_ended(token)
    assert not (served.path / "headrace").exists()
    found = run_command("sql", f"chdb:{served.path}", "SELECT count() FROM system.databases WHERE name = 'shop' FORMAT TSV")
    assert found.output == "0\n"
