"""Names that would be SQL without quotes, through a whole pipe: read, copied, followed, altered, compared.

The pipe runs without Spark (`testkit.pipelines.local_pipeline`). Another table, which must not change, shows that no part of a name was
executed.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from clickhouse_connect.driver.client import Client
from rich.console import Console

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle import progress_view
from headrace.pipes.lifecycle.progress_view import LogView, ProgressView, TerminalView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.service.log_formats import TextFormatter
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.terminal_text import escape_text
from headrace.verify.result import Verdict
from headrace.verify.verifier import verify_tables
from headrace.verify.view import result_lines
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.local_pipeline import without_spark

pytestmark = pytest.mark.slow("mysql", because="the test itself on MariaDB; test_columns_and_keys[mysql]")

DATABASE = "sh`op'; DROP TABLE x; -- !"
NAMES = (
    "wi`th",
    "`whole`",
    "quote's",
    'dou"ble',
    "back\\slash\\'",
    "x; DROP TABLE innocent; --",
    "`; DROP DATABASE innocent; -- !",
    "/* comment",
    "per%cent %s %(x)s",
    "{x:Int8} {0} ${HOME}",
    "tab\tnew\nline",
    "<script>alert(1)</script>",
    "select",
    "漢字 é",
    "a,b)",
    "?",
)
FEW_NAMES = ("wi`th", "back\\slash\\'", "`; DROP DATABASE innocent; -- !", "per%cent %s %(x)s", "select", "?")


def mysql_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@pytest.fixture
def source(server: PrivateServer) -> Iterator[Any]:
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {mysql_name(DATABASE)}")
        cursor.execute(f"USE {mysql_name(DATABASE)}")
        try:
            yield cursor
        finally:
            cursor.execute(f"DROP DATABASE {mysql_name(DATABASE)}")


@pytest.fixture
def clickhouse(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "clickhouse") as server:
        yield server


def rows_of(source: Any, client: Client, table: str) -> tuple[list[Any], list[Any]]:
    """Return the rows of a table on both sides."""
    source.execute(f"SELECT * FROM {mysql_name(table)}")
    columns = ", ".join(quote_name(column[0]) for column in source.description)
    found = client.query(f"SELECT {columns} FROM {quote_name(DATABASE)}.{quote_name(table)} FINAL").result_rows
    return sorted(source.fetchall()), sorted(map(tuple, found))


@pytest.mark.slow("all", because="test_hostile_names_are_replicated_unchanged[mariadb-few]")
@pytest.mark.parametrize("names", [FEW_NAMES, NAMES], ids=["few", "all"])
def test_hostile_names_are_replicated_unchanged(
    server: PrivateServer, source: Any, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    without_spark(monkeypatch)
    address = MySQLAddress("127.0.0.1", server.port, server.user, server.password, DATABASE)
    sink = ClickHouseSink(target_of(clickhouse))
    selection = Selection.of_globs([f"{DATABASE.replace('[', '[[]')}.*"])

    def run() -> None:
        MySQLPipe(address, sink, "sink", PipeSettings(selection, tmp_path / "state", once=True, chunk_rows=2), LogView()).run()

    def execute(statement: str, *values: object) -> None:
        # A statement without values is sent unchanged: % in names is not a format.
        source.execute(statement, values or None)

    with sink_client(clickhouse.url) as client:
        client.command("CREATE DATABASE innocent")
        for place in ("innocent.innocent", "default.innocent", "default.x"):
            client.command(f"CREATE TABLE {place} (id UInt8) ENGINE = MergeTree ORDER BY id AS SELECT 1")
        for name in names:
            key, value, kind = mysql_name(name), mysql_name(f"{name}2"), mysql_name(f"x{name}")
            member = name.replace("\\", "\\\\").replace("'", "''").replace(",", ";")
            columns = f"{key} INT PRIMARY KEY, {value} VARCHAR(80), {kind} ENUM('{member}', 'b'), gone INT"
            execute(f"CREATE TABLE {mysql_name(name)} ({columns}) COMMENT '{member}'")
            execute(f"INSERT INTO {mysql_name(name)} VALUES (1, 'one', 1, 1), (2, 'two', NULL, 2), (3, 'three', 2, 3)")
        run()
        for name in names:
            key, value = mysql_name(name), mysql_name(f"{name}2")
            execute(f"UPDATE {mysql_name(name)} SET {value} = 'changed', {key} = 7 WHERE {key} = 2")
            execute(f"DELETE FROM {mysql_name(name)} WHERE {key} = 3")
            execute(f"ALTER TABLE {mysql_name(name)} ADD COLUMN {mysql_name('new ' + name)} VARCHAR(80) DEFAULT 'here', DROP COLUMN gone")
            execute(f"ALTER TABLE {mysql_name(name)} CHANGE {value} {mysql_name(name + '3')} VARCHAR(90)")
            execute(f"INSERT INTO {mysql_name(name)} ({key}) VALUES (9)")
        run()
        for name in names:
            execute(f"RENAME TABLE {mysql_name(name)} TO {mysql_name('r' + name)}")
            execute(f"UPDATE {mysql_name('r' + name)} SET {mysql_name(name)} = 8 WHERE {mysql_name(name)} = 9")
        execute(f"TRUNCATE TABLE {mysql_name('rselect')}")
        execute(f"DROP TABLE {mysql_name('r?')}")
        run()
        for name in names[:-1]:
            there, copied = rows_of(source, client, f"r{name}")
            assert copied == there, name
            assert len(there) == (0 if name == "select" else 3)
        results = list(verify_tables(address, sink, selection))
        assert len(results) == len(names) - 1
        assert {result.verdict for result in results} == {Verdict.EQUAL}
        for place in ("innocent.innocent", "default.innocent", "default.x"):
            assert client.query(f"SELECT count() FROM {place}").result_rows == [(1,)]
    disconnect(sink.target)


CONTROLS = "e\x1b[2J\x1b]0;t\x07s\nERROR forged\r\x7f\x9b31m\u202edcba\u2066\u200b"
MARKUP = "[bold red]x[/][/nothing]"


def test_names_cannot_steer_a_terminal_or_forge_a_line(
    server: PrivateServer, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output of a pipe, `verify`, `check`, `sql`, `tail` and errors for such names: printable lines that Headrace started."""
    without_spark(monkeypatch)
    logged, screen = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(message)s"))
    monkeypatch.setattr(logging.getLogger("headrace"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("headrace"), "level", logging.DEBUG)
    monkeypatch.setattr(progress_view, "Console", lambda **_: Console(file=screen, width=10_000, force_terminal=False))
    database, sink = f"d{CONTROLS}", ClickHouseSink(target_of(clickhouse))
    address = MySQLAddress("127.0.0.1", server.port, server.user, server.password, database)
    source = f"mysql://{server.user}:{server.password}@127.0.0.1:{server.port}/{quote(database, safe='')}"
    # Escape brackets, which open a set of letters in a glob.
    selection = Selection.of_globs([f"{database.replace('[', '[[]')}.*"])

    def run(view: ProgressView) -> None:
        MySQLPipe(address, sink, "sink", PipeSettings(selection, tmp_path / "state", once=True), view).run()

    def table(name: str) -> str:
        return f"{mysql_name(database)}.{mysql_name(name)}"

    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {mysql_name(database)}")
        try:
            for name in (CONTROLS, MARKUP):
                cursor.execute(f"CREATE TABLE {table(name)} ({mysql_name(name)} INT PRIMARY KEY, v TEXT)")
                cursor.execute(f"INSERT INTO {table(name)} VALUES (1, %s)", (CONTROLS,))
            run(TerminalView())
            for name in (CONTROLS, MARKUP):
                cursor.execute(f"INSERT INTO {table(name)} VALUES (2, %s)", (MARKUP,))
                cursor.execute(f"ALTER TABLE {table(name)} ADD COLUMN {mysql_name(name + 'n')} INT")
            run(LogView(every_s=0))
            with sink_client(clickhouse.url) as client:
                client.command(
                    f"ALTER TABLE {quote_name(database)}.{quote_name(CONTROLS)} UPDATE v = 'wrong' WHERE 1 SETTINGS mutations_sync = 2"
                )
            results = list(verify_tables(address, sink, selection))
            assert {result.verdict for result in results} == {Verdict.EQUAL, Verdict.DIFFERENT}
            assert all(line.isprintable() for result in results for line in result_lines(result))
            assert cli.main(["check", source]) in (cli.OK, cli.FAILED)
            assert cli.main(["tail", source, "--once", "--start-at", "oldest", "--tables", selection.include[0]]) == cli.OK
            assert (
                cli.main(
                    [
                        "sql",
                        f"clickhouse://127.0.0.1:{clickhouse.port}",
                        "SELECT database, name FROM system.tables WHERE database LIKE 'd%'",
                    ]
                )
                == cli.OK
            )
            assert cli.main(["tail", f"binlog:{tmp_path}/{CONTROLS}{MARKUP}"]) == cli.FAILED
        finally:
            cursor.execute(f"DROP DATABASE {mysql_name(database)}")
    disconnect(sink.target)
    out, err = capsys.readouterr()
    shown, marked = escape_text(CONTROLS), escape_text(MARKUP)
    for text, names in (
        (logged.getvalue(), (shown, marked)),
        (screen.getvalue(), (shown, marked)),
        (out, (shown, marked)),
        (err, (shown,)),
    ):
        assert all(name in text for name in names)
        for line in text.removesuffix("\n").split("\n"):
            assert line.isprintable(), ascii(line)
            assert not line.startswith("ERROR forged")
    assert all(re.match(r"20\d\d-\S+ \S+ [A-Z]+ |  ", line) for line in logged.getvalue().splitlines())
