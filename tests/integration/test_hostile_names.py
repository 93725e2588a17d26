"""Names that would be SQL if anybody forgot to quote them, through a whole pipe: read, copied, followed, altered, compared.

The pipe is the real one, without Spark (`testkit.sparkless`). A table beside them, which nobody may touch, is the witness that no part of
a name was ever run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.pipes.pipe import Pipe
from headrace.pipes.progress import LogView
from headrace.pipes.settings import PipeSettings
from headrace.pipes.verification import verify_tables
from headrace.pipes.verifying.result import Verdict
from headrace.sinks.clickhouse.client import disconnect
from headrace.sinks.clickhouse.names import quote_name
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.connection import MySQLAddress
from headrace.sources.mysql.selection import Selection
from testkit.embedded_access import target_of
from testkit.sparkless import without_spark
from testkit.witness import sink_client

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
    """What both sides say is in a table."""
    source.execute(f"SELECT * FROM {mysql_name(table)}")
    columns = ", ".join(quote_name(column[0]) for column in source.description)
    found = client.query(f"SELECT {columns} FROM {quote_name(DATABASE)}.{quote_name(table)} FINAL").result_rows
    return sorted(source.fetchall()), sorted(map(tuple, found))


def test_names_stay_names(
    server: PrivateServer, source: Any, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    address = MySQLAddress("127.0.0.1", server.port, server.user, server.password, DATABASE)
    sink = ClickHouseSink(target_of(clickhouse))
    selection = Selection.of_globs([f"{DATABASE.replace('[', '[[]')}.*"])

    def run() -> None:
        Pipe(address, sink, "sink", PipeSettings(selection, tmp_path / "state", once=True, chunk_rows=2), LogView()).run()

    def execute(statement: str, *values: object) -> None:
        # A statement without values is sent as it is: names with % are no formats.
        source.execute(statement, values or None)

    with sink_client(clickhouse.url) as client:
        client.command("CREATE DATABASE innocent")
        for place in ("innocent.innocent", "default.innocent", "default.x"):
            client.command(f"CREATE TABLE {place} (id UInt8) ENGINE = MergeTree ORDER BY id AS SELECT 1")
        for name in NAMES:
            key, value, kind = mysql_name(name), mysql_name(f"{name}2"), mysql_name(f"x{name}")
            member = name.replace("\\", "\\\\").replace("'", "''").replace(",", ";")
            columns = f"{key} INT PRIMARY KEY, {value} VARCHAR(80), {kind} ENUM('{member}', 'b'), gone INT"
            execute(f"CREATE TABLE {mysql_name(name)} ({columns}) COMMENT '{member}'")
            execute(f"INSERT INTO {mysql_name(name)} VALUES (1, 'one', 1, 1), (2, 'two', NULL, 2), (3, 'three', 2, 3)")
        run()
        for name in NAMES:
            key, value = mysql_name(name), mysql_name(f"{name}2")
            execute(f"UPDATE {mysql_name(name)} SET {value} = 'changed', {key} = 7 WHERE {key} = 2")
            execute(f"DELETE FROM {mysql_name(name)} WHERE {key} = 3")
            execute(f"ALTER TABLE {mysql_name(name)} ADD COLUMN {mysql_name('new ' + name)} VARCHAR(80) DEFAULT 'here', DROP COLUMN gone")
            execute(f"ALTER TABLE {mysql_name(name)} CHANGE {value} {mysql_name(name + '3')} VARCHAR(90)")
            execute(f"INSERT INTO {mysql_name(name)} ({key}) VALUES (9)")
        run()
        for name in NAMES:
            execute(f"RENAME TABLE {mysql_name(name)} TO {mysql_name('r' + name)}")
            execute(f"UPDATE {mysql_name('r' + name)} SET {mysql_name(name)} = 8 WHERE {mysql_name(name)} = 9")
        execute(f"TRUNCATE TABLE {mysql_name('rselect')}")
        execute(f"DROP TABLE {mysql_name('r?')}")
        run()
        for name in NAMES[:-1]:
            there, copied = rows_of(source, client, f"r{name}")
            assert copied == there, name
            assert len(there) == (0 if name == "select" else 3)
        results = list(verify_tables(address, sink, selection))
        assert len(results) == len(NAMES) - 1
        assert {result.verdict for result in results} == {Verdict.EQUAL}
        for place in ("innocent.innocent", "default.innocent", "default.x"):
            assert client.query(f"SELECT count() FROM {place}").result_rows == [(1,)]
    disconnect(sink.target)
