"""Which statements about databases the embedded server passes to the owner of pipes, and how it answers without one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from headrace.embedded.database_statements import parse_database_statement
from headrace.embedded.process import EmbeddedServer
from headrace.materialize_mysql import keeper
from headrace.materialize_mysql.background_pipe import PYTHON, BackgroundPipe
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE as SOURCE_PASSWORD
from testkit.pipelines.httpclient import Client

ENGINE = "MaterializeMySQL('127.0.0.1:1', 'd', 'u', 'secret')"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"CREATE DATABASE shop ENGINE = {ENGINE}", ("CREATE", "shop")),
        (f"/* a */ create database if not exists `my shop` engine {ENGINE.replace('eM', 'edM')}", ("CREATE", "my shop")),
        (f"CREATE DATABASE {{db:Identifier}} ENGINE = {ENGINE}", ("CREATE", "chosen")),
        (f"CREATE TABLE t (a Int8) ENGINE = {ENGINE}", ("CREATE", "t")),
        ("CREATE DATABASE shop ENGINE = MaterializeMySQL('h:1', 'd', 'u', 'secret", ("CREATE", "shop")),
        (f"ATTACH DATABASE shop ENGINE = {ENGINE}", ("CREATE", "shop")),
        ("CREATE DATABASE shop ENGINE = Atomic COMMENT 'ENGINE = MaterializeMySQL'", None),
        ("CREATE TABLE t (materializemysql Int8) ENGINE = Memory", None),
        ("CREATE DATABASE shop", None),
        ("DROP DATABASE shop SYNC", ("DROP", "shop")),
        ('drop database if exists "a"', ("DROP", "a")),
        ("DROP DATABASE {db:Identifier}", ("DROP", "chosen")),
        ("DROP DATABASE IF EXISTS IF EMPTY a", ("DROP IF EMPTY", "a")),
        ("DROP DATABASE 1shop", ("DROP", "1shop")),
        ("DROP DATABASE $my$shop1 SYNC", ("DROP", "$my$shop1")),
        ("\ufeffDROP\u00a0DATABASE\u3000shop", ("DROP", "shop")),
        ("DROP DATABASE \u201cmy ` \\shop\u201d", ("DROP", "my ` \\shop")),
        ("DROP DATABASE \u201cunclosed", None),
        ("DROP DATABASE \u2018shop\u2019", None),
        ("DROP TABLE shop.t", None),
        ("DETACH DATABASE shop", ("DETACH", "shop")),
        ("ATTACH DATABASE IF NOT EXISTS shop", ("ATTACH", "shop")),
        ("RENAME DATABASE a TO b", ("RENAME", "a")),
        ("ALTER DATABASE a MODIFY COMMENT 'x'", ("ALTER", "a")),
        ("TRUNCATE DATABASE a", ("TRUNCATE", "a")),
        ("SHOW CREATE DATABASE a", ("SHOW", "a")),
        ("SHOW CREATE TABLE a", None),
        ("SELECT 'DROP DATABASE a'", None),
        ("", None),
    ],
)
def test_statements_about_databases_are_found(text: str, expected: tuple[str, str] | None) -> None:
    found = parse_database_statement(text, {"db": "chosen"})
    assert (found and (found.verb, found.name)) == expected


def test_other_databases_are_the_engine_s(client: Client) -> None:
    client.run("CREATE DATABASE plain")
    assert b"ENGINE = Atomic" in client.run("SHOW CREATE DATABASE plain")
    client.run("DETACH DATABASE plain")
    assert client.ask("SHOW CREATE DATABASE plain").code == 81
    client.run("ATTACH DATABASE plain")
    client.run("DROP DATABASE plain")
    assert client.ask("DROP DATABASE plain").code == 81


@pytest.mark.parametrize(
    ("statement", "code", "status", "text"),
    [
        (f"CREATE DATABASE a ENGINE = {ENGINE} nonsense", 62, 400, "SETTINGS, TABLE OVERRIDE or the end is expected"),
        ("CREATE DATABASE a ENGINE = MaterializeMySQL('h', 'd', 'u', 'secret", 62, 400, "has no end"),
        ("CREATE DATABASE a ENGINE = MaterializeMySQL(collection)", 62, 400, "named collections are not supported"),
        (f"CREATE TABLE a (b Int8) ENGINE = {ENGINE}", 62, 400, "CREATE DATABASE is expected"),
        (f"CREATE DATABASE a ENGINE = {ENGINE} SETTINGS use_binlog_client = 1", 115, 404, "cannot be 1"),
        (f"CREATE DATABASE a ENGINE = {ENGINE} SETTINGS key = '/etc/passwd'", 115, 404, "on that machine"),
        (f"CREATE DATABASE a ENGINE = {ENGINE} SETTINGS master = 'spark://host:7077'", 115, 404, "a file or host of the server's machine"),
        (f"CREATE DATABASE default ENGINE = {ENGINE}", 82, 500, "it is not a pipe"),
        (f"CREATE DATABASE a ENGINE = {ENGINE}", 279, 500, "127.0.0.1:1"),
    ],
)
def test_a_rejected_statement_has_clickhouse_s_error(client: Client, statement: str, code: int, status: int, text: str) -> None:
    answer = client.ask(body=statement)
    assert (answer.code, answer.status) == (code, status), answer.body
    assert text in answer.body.decode()
    assert b"secret" not in answer.body
    assert answer.body.startswith(f"Code: {code}. DB::Exception: ".encode())
    assert client.run("SELECT count() FROM system.databases WHERE name = 'a'") == b"0\n"


def forge_entry(client: Client, name: str, state: Path) -> None:
    """Enter a database in `headrace.pipes`."""
    client.run("CREATE DATABASE IF NOT EXISTS headrace")
    columns = "pipe String, source String, selection String, options String, state String, host String, statement String"
    client.run(f"CREATE TABLE headrace.pipes ({columns}, created DateTime64(6, 'UTC')) ENGINE = ReplacingMergeTree ORDER BY pipe")
    entry = {"pipe": name, "source": "mysql://u@h/d", "selection": "{}", "options": "{}", "state": str(state)}
    entry |= {"host": socket.gethostname(), "statement": f"CREATE DATABASE {name} ENGINE = {ENGINE}", "created": "2026-01-01 00:00:00"}
    client.run("INSERT INTO headrace.pipes FORMAT JSONEachRow", json.dumps(entry))


def test_a_forged_entry_does_not_lead_out_of_the_directory(client: Client, tmp_path: Path) -> None:
    """Clients can write to `headrace.pipes`; neither path nor settings of a pipe are taken from there."""
    (tmp_path / "file").touch()
    forge_entry(client, "forged", tmp_path)
    attached = client.ask("ATTACH DATABASE forged")
    assert (attached.code, list(tmp_path.iterdir())) == (36, [tmp_path / "file"]), attached.body
    client.run("CREATE DATABASE forged")
    attached = client.ask("ATTACH DATABASE forged")
    assert (attached.code, b"the pipe has no plan" in attached.body) == (36, True), attached.body
    client.run("DROP DATABASE forged")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert client.run("SELECT count() FROM headrace.pipes") == b"0\n"
    client.run("DROP DATABASE headrace")


def test_a_statement_about_a_pipe_is_read_to_its_end(client: Client, tmp_path: Path) -> None:
    forge_entry(client, "shop", tmp_path)
    client.run("CREATE DATABASE shop")
    for statement, text in (
        ("DROP DATABASE shop-old", "the end of the statement is expected"),
        ("DROP DATABASE shop.orders", "the end of the statement is expected"),
        ("DROP DATABASE {db:Identifier}.orders", "the end of the statement is expected"),
        ("DROP DATABASE {db:String}", "the end of the statement is expected"),
        ("DROP DATABASE shop ON CLUSTER c", "an embedded server is in no cluster"),
        ("DETACH DATABASE shop PERMANENTLY", "PERMANENTLY is not supported"),
        ("ATTACH DATABASE shop ENGINE = Atomic", "the end of the statement is expected"),
        ("SHOW CREATE DATABASE shop.orders", "the end of the statement is expected"),
    ):
        answer = client.ask(body=statement, param_db="shop")
        assert (answer.code, text in answer.body.decode()) == (62, True), (statement, answer.body)
    assert client.run("SELECT count() FROM system.databases WHERE name = 'shop'") == b"1\n"
    client.run("DROP DATABASE shop SYNC SETTINGS max_threads = 1")
    assert client.run("SELECT count() FROM headrace.pipes") == b"0\n"
    client.run("DROP DATABASE headrace")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("DROP\u00a0DATABASE shop, x", 62),
        ("DROP DATABASE\u0085\u201cshop\u201d-x", 62),
        ("RENAME DATABASE a TO b, shop TO c", 36),
        ("RENAME DATABASE a TO shop", 36),
        ("DROP DATABASE shop PARALLEL WITH DROP TABLE IF EXISTS t", 36),
        ("DROP TABLE IF EXISTS t PARALLEL WITH DROP DATABASE shop", 36),
        ("DROP TABLE IF EXISTS t parallel\u00a0/**/with DROP TABLE IF EXISTS u PARALLEL WITH DETACH DATABASE `shop`", 36),
        ("INSERT INTO FUNCTION null('x Int8') SELECT 1 PARALLEL WITH DROP DATABASE shop", 36),
        (f"DROP TABLE IF EXISTS t PARALLEL WITH CREATE DATABASE a ENGINE = {ENGINE}", 36),
    ],
)
def test_no_statement_reaches_the_engine_under_a_pipe(client: Client, tmp_path: Path, statement: str, code: int) -> None:
    forge_entry(client, "shop", tmp_path)
    client.run("CREATE DATABASE shop")
    try:
        answer = client.ask(body=statement.encode())
        assert (answer.code, b"secret" in answer.body) == (code, False), answer.body
        assert client.run("SELECT count() FROM system.databases WHERE name = 'shop'") == b"1\n"
        client.run("CREATE DATABASE plain PARALLEL WITH CREATE TABLE IF NOT EXISTS parallel (a Int8) ENGINE = Memory")
        client.run("DROP DATABASE\u00a0\u201cplain\u201d")
    finally:
        client.run("DROP TABLE IF EXISTS headrace.pipes")
        client.run("DROP DATABASE IF EXISTS shop")
        client.run("DROP DATABASE headrace")


def test_a_stored_password_goes_to_its_own_server_only(server: EmbeddedServer, client: Client) -> None:
    """A client can remove a pipe's row from `headrace.pipes`, and then create the database with another source."""
    pipe = BackgroundPipe(server.path / "headrace" / "pipes" / "bank")
    pipe.write((*PYTHON, "headrace", "replicate", "mysql://u@127.0.0.1:1/d", f"chdb:{server.path}"), {}, {SOURCE_PASSWORD: "hunter2"}, 0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            other.settimeout(0)
            for source, user in ((f"127.0.0.1:{other.getsockname()[1]}", "u"), ("localhost:1", "u"), ("127.0.0.1:1", "root")):
                refused = client.ask(body=f"CREATE DATABASE bank ENGINE = MaterializeMySQL('{source}', 'd', '{user}', '[HIDDEN]')")
                assert (refused.code, b"belongs to another host, port or user" in refused.body) == (501, True), refused.body
            with pytest.raises(BlockingIOError):
                other.accept()
        own = client.ask(body="CREATE DATABASE bank ENGINE = MaterializeMySQL('127.0.0.1:1', 'd', 'u', '[HIDDEN]')")
        assert (own.code, b"127.0.0.1:1" in own.body) == (279, True), own.body
        (pipe.directory / keeper.PLAN).unlink()
        assert client.ask(body="CREATE DATABASE bank ENGINE = MaterializeMySQL('127.0.0.1:1', 'd', 'u', '[HIDDEN]')").code == 501
    finally:
        pipe.remove()


def test_reading_requests_create_nothing(client: Client) -> None:
    statement = f"CREATE DATABASE a ENGINE = {ENGINE}"
    assert client.ask(statement, method="GET").code == 164
    assert client.ask(statement, readonly="1").code == 164
    assert client.ask(statement, headers={"Authorization": "Basic Og=="}).code == 516
