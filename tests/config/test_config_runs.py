"""Settings files that run: a connector's, mypipe's from its position file, Headrace's with name patterns; PyMySQL is the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace import cli
from headrace.config import load
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.pipes.factory import open_pipe
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.settings.settings_file import UserSettings
from testkit.oracles.both_ends import log_end, sink_client, source_rows
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.servers import execute_in

CONNECTOR = """\
name: "shop"
connector.class: "io.debezium.connector.mysql.MySqlConnector"
database.hostname: "127.0.0.1"
database.port: "{port}"
database.user: "{user}"
database.password: "{password}"
database.include.list: {database}
table.exclude.list: "{database}\\\\.tmp_.*"
clickhouse.server.url: "127.0.0.1"
clickhouse.server.port: "{sink}"
clickhouse.server.user: "default"
clickhouse.database.override.map: "{database}:to_{database}"
replacingmergetree.delete.column: "is_deleted"
auto.create.tables: "true"
snapshot.mode: "initial"
"""

MYPIPE = """\
mypipe {{
  data-dir = "{data}"
  include-event-condition = \"\"\"db == "{database}" && table == "orders" \"\"\"
  consumers {{ here {{ source = "127.0.0.1:{port}:{user}:{password}" }} }}
  producers {{ out {{ class = "mypipe.producer.stdout.StdoutProducer" }} }}
  pipes {{ look {{ consumers = [here], producer {{ out {{}} }} }} }}
}}
"""

OURS = """\
[headrace]
state = "ours"

[sources.east]
url = "mysql://{user}@127.0.0.1:{port}/{database}"
password = "${{SHOP_PASSWORD}}"
exclude = ["tmp_*"]

[sinks.warehouse]
url = "clickhouse://127.0.0.1:{sink}/"

[pipes.shop]
sources = ["east"]
sink = "warehouse"
prefix = "{{source}}_"
"""


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.connect_or_start(tmp_path_factory.mktemp("warehouse")) as server:
        yield server


def run(file: Path) -> None:
    """Run all pipes of a file, one at a time, until they have caught up."""
    for pipe in load(file).pipes:
        for part in pipe.specs:
            with open_pipe(replace(part, settings=replace(part.settings, once=True)), LogView()) as ready:
                ready.pipe.run()


def rows(client: Client, table: str, order: str = "id") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in client.query(f"SELECT * EXCEPT (_version, is_deleted) FROM {table} FINAL ORDER BY {order}").result_rows]


def test_files_of_three_tools_run(
    server: PrivateServer,
    database: str,
    warehouse: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    without_spark(monkeypatch)
    monkeypatch.setenv("SHOP_PASSWORD", server.password)
    execute_in(
        server,
        database,
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))",
        "CREATE TABLE tmp_orders (id INT PRIMARY KEY)",
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
    )
    words = {
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "database": database,
        "sink": warehouse.port,
        "data": tmp_path,
    }
    for name, text in (("config.yml", CONNECTOR), ("application.conf", MYPIPE), ("headrace.toml", OURS)):
        (tmp_path / name).write_text(text.format(**words))
    assert cli.main(["config", "check", "--connect", str(tmp_path / "config.yml")]) == cli.OK
    assert "servers: 0 errors" in capfd.readouterr().out
    wrong = OURS.format(**words).replace(f"/{database}", "/nowhere").replace(str(warehouse.port), "1")
    (tmp_path / "wrong.toml").write_text(wrong)
    assert cli.main(["config", "check", "--connect", str(tmp_path / "wrong.toml")]) == cli.FAILED
    found = capfd.readouterr().out
    assert "error: shop/east, clickhouse://127.0.0.1:1/: answer = none: " in found
    run(tmp_path / "config.yml")
    client = sink_client(warehouse.url)
    assert rows(client, f"to_{database}.orders") == sorted(source_rows(server, database, "orders"))
    assert client.query(f"SELECT count() FROM system.tables WHERE database = 'to_{database}' AND name LIKE 'tmp%'").result_rows == [(0,)]

    (tmp_path / "look-127.0.0.1-{port}.pos".format(**words)).write_text("{}:{}".format(*_end(server)))
    execute_in(server, database, "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (3, 'three')")
    capfd.readouterr()
    run(tmp_path / "application.conf")
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert [(line["op"], (line["after"] or line["before"])["id"]) for line in lines] == [("delete", 1), ("insert", 3)]
    run(tmp_path / "config.yml")
    assert rows(client, f"to_{database}.orders") == sorted(source_rows(server, database, "orders")) == [(2, "two"), (3, "three")]

    run(tmp_path / "headrace.toml")
    execute_in(server, database, "RENAME TABLE orders TO old_orders", "INSERT INTO old_orders VALUES (4, 'four')")
    run(tmp_path / "headrace.toml")
    shown = client.query(f"SELECT id, note FROM `{database}`.east_old_orders FINAL ORDER BY id").result_rows
    assert [tuple(row) for row in shown] == sorted(source_rows(server, database, "old_orders"))
    tables = client.query(f"SELECT name FROM system.tables WHERE database = '{database}'").result_rows
    assert [tuple(row) for row in tables] == [("east_old_orders",)]


def test_a_state_that_began_without_delete_type_continues_with_the_unchanged_file(
    server: PrivateServer, database: str, warehouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    execute_in(
        server,
        database,
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))",
        "CREATE TABLE loose (id INT, note VARCHAR(20))",
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO loose VALUES (1, 'one'), (2, 'two')",
    )
    words = {"port": server.port, "user": server.user, "password": server.password, "database": database, "sink": warehouse.port}
    file = tmp_path / "config.yml"
    file.write_text(CONNECTOR.format(**words).replace("is_deleted", "sign"))
    [spec] = load(file).pipes[0].specs
    assert spec.chosen.plain["sink"]["delete_type"] == "int8"
    before = {"sink": {key: value for key, value in spec.chosen.plain["sink"].items() if key != "delete_type"}}
    settings = replace(spec.settings, choices={**spec.chosen.plain, **before}, once=True)
    with open_pipe(replace(spec, chosen=UserSettings({**spec.chosen.plain, **before}), settings=settings), LogView()) as ready:
        ready.pipe.run()

    execute_in(
        server,
        database,
        "DELETE FROM orders WHERE id = 1",
        "DELETE FROM loose WHERE id = 1",
        # The key's type changes, so the table is rebuilt.
        "ALTER TABLE orders MODIFY id BIGINT",
        # The view is created again.
        "ALTER TABLE loose ADD COLUMN n INT",
        "INSERT INTO orders VALUES (3, 'three')",
        "INSERT INTO loose VALUES (3, 'three', 3)",
        "DELETE FROM orders WHERE id = 2",
        "DELETE FROM loose WHERE id = 2",
        "CREATE TABLE later (id INT PRIMARY KEY)",
    )
    run(file)
    run(file)
    client = sink_client(warehouse.url)
    target = f"`to_{database}`"
    assert client.query(f"SELECT id, note FROM {target}.orders FINAL").result_rows == [(3, "three")]
    assert client.query(f"SELECT id, note, n FROM {target}.loose_current").result_rows == [(3, "three", 3)]
    kinds = f"SELECT table, type FROM system.columns WHERE database = 'to_{database}' AND name = 'sign' AND NOT endsWith(table, '_current')"
    assert sorted(client.query(kinds).result_rows) == [("later", "UInt8"), ("loose", "UInt8"), ("orders", "UInt8")]


def test_a_new_state_stores_delete_type_and_continues_with_it(
    server: PrivateServer, database: str, warehouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    execute_in(server, database, "CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    words = {"port": server.port, "user": server.user, "password": server.password, "database": database, "sink": warehouse.port}
    file = tmp_path / "config.yml"
    file.write_text(CONNECTOR.format(**words).replace("is_deleted", "sign"))
    run(file)
    execute_in(server, database, "DELETE FROM orders WHERE id = 1")
    run(file)
    shown = sink_client(warehouse.url).query(f"SELECT id, sign, toTypeName(sign) FROM `to_{database}`.orders FINAL").result_rows
    assert shown == [(2, 1, "Int8")]


def _end(server: PrivateServer) -> tuple[str, int]:
    """Return the end of the server's log in the form of mypipe's position file."""
    number, offset = log_end(server)
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        names = [row[0] for row in cursor.fetchall()]
    return next(name for name in names if int(name.rpartition(".")[2]) == number), offset
