"""Reads of MaterializeMySQL databases are merged as with FINAL, and reads of other databases are not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.embedded.statement_clauses import reads_databases
from testkit.pipelines.httpclient import Client


@pytest.fixture
def database(server: EmbeddedServer, client: Client) -> Iterator[str]:
    """A database that has the directory of a pipe, with a table of one key in two parts."""
    name = f"pipe {secrets.token_hex(4)}"
    directory = server.path / "headrace" / "pipes" / name.replace(" ", "%20")
    directory.mkdir(parents=True)
    client.run(f"CREATE DATABASE `{name}`")
    fill(client, f"`{name}`.t")
    yield name
    directory.rmdir()
    directory.parent.rmdir()
    client.run(f"DROP DATABASE `{name}`")


def fill(client: Client, table: str) -> None:
    client.run(f"CREATE TABLE {table} (a Int32, v UInt64) ENGINE = ReplacingMergeTree(v) ORDER BY a")
    client.run(f"SYSTEM STOP MERGES {table}")
    for version in (1, 2):
        client.run(f"INSERT INTO {table} VALUES (1, {version})")


def test_reads_are_merged(client: Client, database: str, table: str) -> None:
    count = f"SELECT count() FROM `{database}`.t"
    assert client.run(count) == b"1\n"
    assert client.run(count, readonly="1") == b"1\n"
    assert client.ask(count, method="GET").body == b"1\n"
    assert client.run("SELECT count() FROM t", database=database) == b"1\n"
    assert client.run(f"WITH x AS ({count}) SELECT * FROM x") == b"1\n"
    assert client.run("SELECT count() FROM {db:Identifier}.t", param_db=database) == b"1\n"
    assert client.run(f'FROM "{database}".t SELECT count()') == b"1\n"
    client.run(f"INSERT INTO {table} (a) SELECT a FROM `{database}`.t")
    assert client.run(f"SELECT count() FROM {table}") == b"1\n"
    session = f"s{secrets.token_hex(4)}"
    client.run(f"USE `{database}`", session_id=session)
    assert client.run("SELECT count() FROM t", session_id=session) == b"1\n"
    assert client.run("SELECT getSetting('final')", session_id=session, database="default") == b"false\n"


def test_read_only_sessions_read(client: Client, database: str) -> None:
    count, session = f"SELECT count() FROM `{database}`.t", f"s{secrets.token_hex(4)}"
    client.run("SET readonly = 2", session_id=f"{session}-2")
    assert client.run(count, session_id=f"{session}-2") == b"1\n"
    # No setting can be changed from here on, so neither can `final`.
    client.run("SET readonly = 1", session_id=session)
    assert client.run(count, session_id=session) == b"2\n"
    assert client.run(f"{count} FINAL", session_id=session) == b"1\n"
    assert client.ask(count, session_id=session, final="1").code == 164
    client.run("SET final = 1, readonly = 1", session_id=f"{session}-3")
    assert client.run(count, session_id=f"{session}-3") == b"1\n"


def test_a_request_chooses_otherwise(client: Client, database: str) -> None:
    count = f"SELECT count() FROM `{database}`.t"
    assert client.run(f"{count} SETTINGS final = 0") == b"2\n"
    assert client.run(count, final="0") == b"2\n"
    # Headrace's own statements write FINAL where they need it.
    assert client.ask(count, headers={"User-Agent": "headrace clickhouse-connect/1.0"}).body == b"2\n"


def test_other_databases_are_read_as_they_are(client: Client, database: str) -> None:
    other = f"other_{secrets.token_hex(4)}"
    fill(client, f"default.{other}")
    assert database
    assert client.run(f"SELECT count() FROM {other}") == b"2\n"
    assert client.run(f"SELECT count() FROM {other} FINAL") == b"1\n"
    assert client.run(f"SELECT count(`{database}`.a) FROM {other} AS `{database}`") == b"2\n"


@pytest.mark.parametrize(
    ("text", "current", "expected"),
    [
        ("SELECT 1 FROM shop.t", "default", True),
        ("SELECT 1 FROM `shop` . t", "default", True),
        ("SELECT 1 FROM t", "shop", True),
        ("SELECT 1 FROM t", "default", False),
        ("SELECT 'shop.t' FROM t", "default", False),
        ("SELECT 1 FROM workshop.t", "default", False),
        ("OPTIMIZE TABLE shop.t", "default", False),
        ("SELECT 1 FROM crm.t", "shop", False),
        ("SELECT shop.id FROM crm.stores AS shop WHERE shop.x = 1 ORDER BY shop.id, shop.x", "default", False),
        ("SELECT 1 FROM crm.a AS shop JOIN crm.b USING id, shop.x", "default", False),
        ("SELECT 1 FROM crm.a AS shop LEFT ARRAY JOIN shop.x, shop.y", "default", False),
        ("SELECT trim(LEADING 'a' FROM shop.x), position('a' IN shop.x) FROM crm.a AS shop", "default", False),
        ("SELECT 1 FROM crm.a AS shop WHERE 1 IS DISTINCT FROM shop.x AND 1 IN (shop.x, 2)", "default", False),
        ("SELECT 1 FROM {db:Identifier}.t", "default", True),
        ("SELECT 1 FROM {other:Identifier}.t", "default", False),
        ("SELECT 1 FROM {t:Identifier}", "shop", True),
        ("SELECT 1 FROM numbers(3)", "shop", False),
        ("SELECT 1 FROM crm.a AS x, shop.b", "default", True),
        ("SELECT 1 FROM numbers(3) AS x JOIN crm.b ON x.a = b.a, shop.c", "default", True),
        ("SELECT 1 FROM crm.a AS limit, shop.c", "default", True),
        ("SELECT 1 FROM crm.a GLOBAL ANY LEFT JOIN shop.b USING (x)", "default", True),
        ("SELECT 1 WHERE 1 IN shop.t", "default", True),
        ("SELECT 1 WHERE 1 NOT IN ({db:Identifier}.t)", "default", True),
        ("SELECT (SELECT max(a) FROM shop.t)", "default", True),
        ("(SELECT 1 FROM crm.t) UNION ALL (SELECT 1 FROM shop.t)", "default", True),
        ("WITH t AS (SELECT 1 FROM t) SELECT 1 FROM t", "shop", True),
        ("EXPLAIN indexes = 1 SELECT 1 FROM shop.t", "default", True),
        ("INSERT INTO crm.t SELECT 1 FROM shop.t", "default", True),
        ("INSERT INTO shop.t SELECT 1 FROM crm.t", "default", False),
        ("CREATE TABLE crm.t ENGINE = Memory AS SELECT 1 FROM shop.t", "default", True),
        ("ALTER TABLE crm.t DELETE WHERE a IN (SELECT a FROM shop.t)", "default", False),
        ("DELETE FROM shop.t WHERE a = 1", "shop", False),
        ("SHOW TABLES FROM shop", "shop", False),
        ("SELECT 1 FROM", "shop", False),
        ("SELECT 1 FROM {", "shop", False),
    ],
)
def test_which_statements_read_a_database(text: str, current: str, expected: bool) -> None:
    assert reads_databases(text, frozenset({"shop"}), current, {"db": "shop", "other": "crm", "t": "t"}) is expected
