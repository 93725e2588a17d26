"""`headrace sql SINK "CREATE DATABASE … ENGINE = MaterializeMySQL(…)"`: one statement creates a live copy, another drops it.

The tests check what a user sees: results, processes, files. One server is enough here: pipes are tested on both.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import DefiniteError
from headrace.materialize_mysql.background_pipe import BackgroundPipe
from headrace.materialize_mysql.statement_router import run_statement
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from testkit.pipelines.embedded_access import basic
from testkit.pipelines.pipeline import command_lines, marked_processes, run_command
from testkit.servers.accounts import Account

MARK = "HEADRACE_TEST_RUN"
PATIENCE_S = 240.0
ROWS = "SELECT arrayStringConcat(groupArray(concat(toString(id), '/', toString(customer), '/', toString(total))), ' ') FROM "
CURRENT = ROWS + "(SELECT * FROM shop.orders FINAL ORDER BY id)"


class Sink:
    """An embedded sink, the processes that its statements started, and their files."""

    def __init__(self, path: Path) -> None:
        self.path, self.token = path, secrets.token_hex(8)
        self.address = f"chdb:{path}"
        self.pipe = BackgroundPipe(path / "headrace" / "pipes" / "shop")

    def command(self, query: str) -> str:
        """Return the output of `headrace sql`."""
        done = run_command("sql", self.address, query, environment={MARK: self.token}, timeout_s=200)
        return f"{done.code}: {done.output}"

    def run_statement(self, query: str) -> str:
        """The same in this process."""
        found = run_statement(self.address, query)
        assert found is not None, f"{query} is for the server"
        return str(found[1][0][0])

    def pipes(self) -> list[list[str]]:
        found = run_statement(self.address, "SHOW PIPES")
        assert found is not None
        return found[1]

    def rejection(self, query: str) -> str:
        with pytest.raises(DefiniteError) as caught:
            run_statement(self.address, query)
        return str(caught.value)

    def until(self, query: str, expected: str) -> None:
        """Wait until the server of the directory returns this result."""
        deadline, found = time.monotonic() + PATIENCE_S, ""
        while found != expected:
            assert time.monotonic() < deadline, f"{query}: {found}, not {expected}\n{self.pipe.log.read_text()}"
            time.sleep(0.3)
            holder = read_serving_process(self.path)
            if holder is not None and holder.port:
                asked = Request(f"http://{holder.host}:{holder.port}/", query.encode(), basic())
                with urlopen(asked, timeout=60) as response:
                    found = response.read().decode().strip()

    def processes(self) -> list[int]:
        return marked_processes(self.token)

    def kill(self) -> None:
        while left := self.processes():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)

    def files_with(self, text: str) -> list[Path]:
        return [file for file in self.path.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    opened = Sink(tmp_path / "ch")
    monkeypatch.setenv(MARK, opened.token)
    try:
        yield opened
    finally:
        monkeypatch.undo()
        opened.kill()


@pytest.mark.slow(
    because="test_a_client_creates_detaches_attaches_and_drops_a_database runs the same statements over HTTP, with their pipe"
)
@pytest.mark.timeout(900)
def test_a_database_is_created_followed_shown_and_dropped(
    mysql_server: PrivateServer, account: Account, execute: Callable[[str], None], sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    execute("CREATE TABLE mirrored.orders (id INT PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL, total DECIMAL(10,2), KEY (customer))")
    execute("INSERT INTO mirrored.orders VALUES (1, 7, 1.50), (2, 7, 2.50), (3, 9, 3.50)")
    engine = f"MaterializeMySQL('127.0.0.1:{mysql_server.port}', 'mirrored', '{account.user}', '{account.password}')"
    create = f"CREATE DATABASE shop ENGINE = {engine} SETTINGS max_rows_in_buffer = 1000"
    if_not_exists = create.replace("DATABASE", "DATABASE IF NOT EXISTS")
    hidden = create.replace(account.password, "[HIDDEN]")

    # An invalid statement fails at once and leaves no files.
    assert "denied" in sink.rejection(create.replace(account.password, "wrong"))
    assert (sink.processes(), sink.pipe.directory.exists()) == ([], False)

    made = sink.command(create)
    assert made.startswith("0: "), made
    assert sink.pipe.is_running
    sink.until(CURRENT, "1/7/1.5 2/7/2.5 3/9/3.5")
    made_by = "SELECT create_table_query FROM system.tables WHERE database = 'shop' AND name = 'orders'"
    shown = sink.command(made_by)
    assert "_sign" in shown
    assert "_version" in shown
    assert "PARTITION BY intDiv(id, 4294967) ORDER BY (customer, id)" in shown, shown

    execute("INSERT INTO mirrored.orders VALUES (4, 9, 4.50)")
    execute("UPDATE mirrored.orders SET total = 100, customer = 8 WHERE id = 1")
    execute("DELETE FROM mirrored.orders WHERE id = 2")
    sink.until(CURRENT, "1/8/100 3/9/3.5 4/9/4.5")
    sink.until("SELECT * FROM shop.orders ORDER BY id", "1\t8\t100\n3\t9\t3.5\n4\t9\t4.5")

    assert sink.run_statement("SHOW CREATE DATABASE shop") == hidden
    source = f"mysql://{account.user}@127.0.0.1:{mysql_server.port}/mirrored"
    assert sink.pipes() == [["shop", source, "running", "", str(sink.pipe.log)]]
    assert "IF NOT EXISTS" in sink.rejection(create)
    assert "is running" in sink.run_statement(if_not_exists)
    assert "made by another statement" in sink.rejection(if_not_exists.replace("1000", "2000"))
    assert "from under its pipe" in sink.rejection("RENAME DATABASE shop TO store")

    # DETACH stops the pipe, ATTACH continues it.
    assert "is detached" in sink.run_statement("DETACH DATABASE shop")
    assert not sink.pipe.is_running
    execute("UPDATE mirrored.orders SET total = 101 WHERE id = 1")
    assert "is attached" in sink.run_statement("ATTACH DATABASE shop")
    assert "its pipe is running" in sink.rejection("ATTACH DATABASE shop")
    sink.until(CURRENT, "1/8/101 3/9/3.5 4/9/4.5")
    execute("UPDATE mirrored.orders SET total = 100 WHERE id = 1")
    sink.until(CURRENT, "1/8/100 3/9/3.5 4/9/4.5")

    # The sink stores the pipe's tables and settings: the statement does not repeat them.
    assert cli.main(["verify", account.url("mirrored"), sink.address]) == 0
    assert "1 tables, 3 rows, 0 differences" in capsys.readouterr().out

    # The password is only in a file that only its owner can read.
    assert account.password not in command_lines(sink.processes())
    [holding] = sink.files_with(account.password)
    assert (holding.name, holding.stat().st_mode & 0o777) == ("secret", 0o600)

    # Everything is killed; the statement of SHOW CREATE continues the pipe.
    sink.kill()
    while sink.pipe.is_running:
        # The kernel releases the locks of a killed process a moment later.
        time.sleep(0.05)
    execute("INSERT INTO mirrored.orders VALUES (5, 5, 5.50)")
    # Its settings may be changed, but not those that would change its tables.
    settings = sink.pipe.directory / "settings.toml"
    written = settings.read_text()
    conventions = 'sort_key = "materialize"\npartition_by = "primary"\nhidden_columns = true\nkeyless_views = true\n'
    assert written == f'[sink]\ndatabase = "shop"\n{conventions}'
    settings.write_text(f"{written}sign_column = 'sign'\n")
    rejection = sink.rejection(hidden.replace("DATABASE", "DATABASE IF NOT EXISTS"))
    assert 'the table mirrored.orders was begun with sign_column = "_sign"' in rejection
    [[*_, status, reason, _]] = sink.pipes()
    assert (status, reason in rejection) == ("failed", True)
    settings.write_text(f"{written}view = true\n")
    sink.run_statement(hidden.replace("DATABASE", "DATABASE IF NOT EXISTS"))
    sink.until(CURRENT, "1/8/100 3/9/3.5 4/9/4.5 5/5/5.5")

    sink.until("SELECT count() FROM shop.orders_current", "4")

    assert "is dropped" in sink.run_statement("DROP DATABASE shop")
    assert (sink.processes(), (sink.path / "headrace").exists()) == ([], False)
    assert sink.files_with(account.password) == []
    with open_clickhouse_sink(sink.address) as named:
        reader = named.sink.reader()
        left = "SELECT countIf(name = 'shop'), (SELECT count() FROM headrace.positions), (SELECT count() FROM headrace.pipes)"
        assert reader.query(f"{left} FROM system.databases")[1] == [[0, 0, 0]]
