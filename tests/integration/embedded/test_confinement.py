"""Attacks by an account that has the password: SQL must not leave the server's own tables."""

from __future__ import annotations

import contextlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.embedded.privileges import DATABASE_ENGINES, FIXED_SETTINGS, TABLE_ENGINES, TABLE_FUNCTIONS
from headrace.embedded.process import EmbeddedServer
from testkit.httpclient import Client
from testkit.unconfined import UnconfinedServer

SECRET = "s3cret-of-the-machine"
ARGUMENTS = (
    "'{file}'",
    "'{file}', 'LineAsString'",
    "'{file}', 'LineAsString', 'a String'",
    "'{host}'",
    "'{host}', 'd', 't', 'u', 'p'",
    "secret",
)
"""What table functions and engines take: a file, a host, a name in this process."""
STATEMENTS = (
    "SELECT file('{file}')",
    "SELECT FILE('{file}'), file /* x */ ('{file}')",
    "SELECT `file`('{file}')",
    'SELECT "file" (\'{file}\')',
    "SELECT `fi\\x6ce`('{file}')",
    "SELECT “file”('{file}')",
    "SELECT \u2018'\u2019, file('{file}'), \u2018'\u2019",
    "SELECT\xa0file('{file}')",
    "SELECT * APPLY file FROM (SELECT '{file}' AS x)",
    "SELECT * APPLY(file) FROM (SELECT '{file}' AS x)",
    "SELECT arrayMap(x -> file(x), ['{file}'])",
    "WITH file('{file}') AS x SELECT x",
    "SELECT * FROM `{file}`",
    "SELECT * FROM '{file}'",
    "SELECT * FROM default.`{file}`",
    "SELECT * FROM file('../../../../../../../../{file}', 'LineAsString')",
    "SELECT * FROM file('user_files/../../../../../../{file}', 'LineAsString')",
    "SELECT * FROM url('file://{file}', 'LineAsString')",
    "DESCRIBE TABLE file('{file}')",
    "EXPLAIN SELECT * FROM file('{file}', 'LineAsString')",
    "CREATE FUNCTION f AS x -> file(x)",
    "CREATE VIEW v AS SELECT * FROM file('{file}', 'LineAsString')",
    "CREATE VIEW v DEFINER = default SQL SECURITY DEFINER AS SELECT file('{file}')",
    "CREATE MATERIALIZED VIEW v ENGINE = File(CSV, '{out}') AS SELECT 1",
    "CREATE TABLE t (a String DEFAULT file('{file}')) ENGINE = Memory",
    "CREATE TABLE t (a String) ENGINE File(LineAsString, '{file}')",
    "CREATE TEMPORARY TABLE t (a String) ENGINE = File(LineAsString, '{file}')",
    "CREATE TABLE t (a String) ENGINE = EmbeddedRocksDB(0, '{out}') PRIMARY KEY a",
    "CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local', path = '{out}/')",
    "CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'web', endpoint = 'http://{host}/')",
    "CREATE TABLE t (a String) ENGINE = MergeTree ORDER BY a SETTINGS storage_policy = '{out}'",
    "CREATE DATABASE d ENGINE = Filesystem('/')",
    "ATTACH TABLE t FROM '{home}' (a String) ENGINE = MergeTree ORDER BY a",
    "ATTACH TABLE t UUID '00000000-0000-0000-0000-000000000001' (a String) ENGINE = File(LineAsString, '{file}')",
    "CREATE DICTIONARY d (a String) PRIMARY KEY a SOURCE(FILE(path '{file}' format 'LineAsString')) LAYOUT(FLAT()) LIFETIME(0)",
    "CREATE DICTIONARY d (a String) PRIMARY KEY a SOURCE(EXECUTABLE(command 'touch {out}' format 'TSV')) LAYOUT(FLAT()) LIFETIME(0)",
    "CREATE DICTIONARY d (a String) PRIMARY KEY a SOURCE(HTTP(url 'http://{host}/' format 'TSV')) LAYOUT(FLAT()) LIFETIME(0)",
    "CREATE DICTIONARY d (a String) PRIMARY KEY a SOURCE(CLICKHOUSE(query 'SELECT file(''{file}'')')) LAYOUT(FLAT()) LIFETIME(0)",
    "BACKUP DATABASE default TO File('{out}')",
    "BACKUP DATABASE default TO Disk('default', '{out}')",
    "RESTORE DATABASE default AS d FROM File('{home}')",
    "SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 INTO OUTFILE '{out}' TRUNCATE FORMAT CSV",
    "SELECT * FROM (SELECT 1 INTO OUTFILE '{out}')",
    "EXPLAIN SELECT 1 INTO OUTFILE '{out}'",
    "INSERT INTO vault FROM INFILE '{file}' FORMAT LineAsString",
    "INSERT INTO vault(a) FROM /* x */ INFILE '{file}' FORMAT LineAsString",
    "INSERT INTO FUNCTION file('{out}', 'CSV', 'a Int8') SELECT 1",
    "INSERT INTO TABLE FUNCTION file('{out}', 'CSV', 'a Int8') VALUES (1)",
    "INSERT INTO FUNCTION url('http://{host}/', 'CSV', 'a Int8') VALUES (1)",
    "INSERT INTO vault SELECT x FROM input('x String') UNION ALL SELECT file('{file}') FORMAT TSV\nx",
    "INSERT INTO vault SELECT * FROM file('{file}', 'LineAsString')",
    "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{file}'",
    "SELECT 1 FORMAT Protobuf SETTINGS format_schema = '{file}:M'",
    "SELECT 1 FORMAT Protobuf SETTINGS output_format_schema = '{out}'",
    "SELECT 1 FROM vault SETTINGS additional_table_filters = {{'vault': 'file(''{file}'') != '''''}}",
    "SELECT 1 SETTINGS additional_result_filter = 'file(''{file}'') != '''''",
    "SELECT * FROM eval('SELECT 1') SETTINGS allow_experimental_eval_table_function = 1",
    "SET dialect = 'kusto'",
    "CREATE NAMED COLLECTION n AS a = 1",
    "CREATE USER u",
    "GRANT FILE ON *.* TO default",
    "EXECUTE AS default SELECT 1",
    "SYSTEM SHUTDOWN",
    "SYSTEM RELOAD CONFIG",
    "SYSTEM ENABLE FAILPOINT x",
)  # fmt: skip


@dataclass
class Machine:
    """What must not be reached: a file with a secret, a place to write, a listening port."""

    home: Path
    port: int
    reached: list[str] = field(default_factory=list)

    def statement(self, text: str) -> bytes:
        words = {"file": self.home / "secret.txt", "out": self.home / "written", "host": f"127.0.0.1:{self.port}", "home": self.home}
        return text.format(**words).encode()

    def check_untouched(self) -> None:
        assert sorted(entry.name for entry in self.home.iterdir()) == ["secret.txt"]
        assert self.reached == []


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "secret.txt").write_text(SECRET)
    reached: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            reached.append("connection")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield Machine(home, listener.server_address[1], reached)
        finally:
            listener.shutdown()
            thread.join()


@pytest.fixture
def vault(client: Client) -> str:
    """A table for what an attack might bring in."""
    client.run("CREATE TABLE IF NOT EXISTS vault (a String) ENGINE = MergeTree ORDER BY a")
    return "vault"


def _refused(client: Client, statement: bytes) -> bytes:
    """The answer to a statement that must not work and must not tell the secret."""
    answer = client.ask(body=statement)
    assert answer.status != 200, statement
    assert SECRET.encode() not in answer.body, statement
    return answer.body


def test_no_statement_leaves_the_server_s_own_tables(client: Client, machine: Machine, vault: str) -> None:
    for text in STATEMENTS:
        _refused(client, machine.statement(text))
    assert client.run(f"SELECT count() FROM {vault}") == b"0\n"
    machine.check_untouched()
    assert client.run("SELECT 1") == b"1\n"


def test_the_first_two_walls_hold_by_themselves(machine: Machine, tmp_path: Path) -> None:
    """On a kernel without Landlock. Expressions in rows, which are not looked through, are refused there."""
    with UnconfinedServer(tmp_path / "db") as server:
        made = Client(server.port)
        with contextlib.closing(made.connection):
            made.run("CREATE TABLE vault (a String) ENGINE = MergeTree ORDER BY a")
            for text in (*STATEMENTS, "INSERT INTO vault VALUES (file('{file}'))", "INSERT INTO vault VALUES (concat('a', 'b'))"):
                _refused(made, machine.statement(text))
            assert made.run("SELECT count() FROM vault") == b"0\n"
            made.run(body="INSERT INTO vault VALUES ('plain')", query="")
            machine.check_untouched()
        assert "no Landlock" in (tmp_path / "db" / "headrace-server.log").read_text()


def test_every_table_function_and_engine_that_the_engine_offers_is_allowed_by_name_or_refused(client: Client, machine: Machine) -> None:
    """A new release of the engine brings new ones: they are refused until somebody allows them."""
    functions = client.run("SELECT name FROM system.table_functions").decode().split()
    engines = client.run("SELECT name FROM system.table_engines").decode().split()
    databases = client.run("SELECT name FROM system.database_engines").decode().split()
    assert min(len(functions), len(engines)) > 50
    assert len(databases) > 10
    for arguments in ARGUMENTS:
        for name in set(functions) - set(TABLE_FUNCTIONS):
            body = _refused(client, machine.statement(f"SELECT * FROM {name}({arguments})"))
            assert b"ACCESS_DENIED" in body, name
        for name in set(engines) - set(TABLE_ENGINES):
            body = _refused(client, machine.statement(f"CREATE TABLE t (a String) ENGINE = {name}({arguments})"))
            assert b"ACCESS_DENIED" in body, name
    for name in set(databases) - set(DATABASE_ENGINES):
        assert b"ACCESS_DENIED" in _refused(client, machine.statement(f"CREATE DATABASE d ENGINE = {name}('{{home}}')")), name
    machine.check_untouched()


def test_rows_with_expressions_read_no_file_either(client: Client, machine: Machine, vault: str) -> None:
    """The format Values evaluates expressions in rows, which the server does not look through: the kernel keeps the process out."""
    for target in (
        machine.home / "secret.txt",
        Path("/etc/passwd"),
        Path("/etc/shadow"),
        Path("/proc/self/environ"),
        Path("/proc/1/environ"),
    ):
        _refused(client, f"INSERT INTO {vault} VALUES (file('{target}'))".encode())
    assert client.run(f"SELECT count() FROM {vault}") == b"0\n"
    client.run(body=f"INSERT INTO {vault} VALUES (concat('a', 'b'))", query="")
    assert client.run(f"SELECT a FROM {vault}") == b"ab\n"
    client.run(f"TRUNCATE TABLE {vault}")


def test_settings_that_name_files_hosts_or_parsers_cannot_be_set_in_any_way(client: Client) -> None:
    known = set(client.run("SELECT name FROM system.settings").decode().split())
    for name in FIXED_SETTINGS:
        assert name in known, name
        value = (
            "{'a': 'b'}" if name == "additional_table_filters" else "1" if name.startswith(("allow", "enable", "into", "dynamic")) else "x"
        )
        assert client.ask("SELECT 1", **{name: value}).status != 200, name
        assert client.ask(f"SELECT 1 SETTINGS {name} = '{value.replace(chr(39), chr(92) + chr(39))}'").status != 200, name


def test_names_in_fields_are_names(client: Client, machine: Machine) -> None:
    """A format or a structure that comes beside the statement must not smuggle in a clause."""
    out = machine.home / "written"
    assert client.ask("SELECT 1", default_format=f"CSV INTO OUTFILE '{out}'").code == 73
    assert client.ask("SELECT 1", headers={"X-ClickHouse-Format": "CSV SETTINGS max_threads = 1"}).code == 73
    form = 'Content-Disposition: form-data; name="ext"; filename="x"\r\n\r\n1\r\n'
    for fields in (
        {"ext_structure": f"a String DEFAULT file('{machine.home / 'secret.txt'}')"},
        {"ext_structure": f"a String) ENGINE = File(CSV, '{out}') --"},
        {"ext_structure": "a String", "ext_format": f"CSV FROM INFILE '{out}'"},
    ):
        body = f"--b\r\n{form}--b--\r\n"
        answer = client.ask("SELECT * FROM ext", body=body, headers={"Content-Type": "multipart/form-data; boundary=b"}, **fields)
        assert answer.status != 200
        assert SECRET.encode() not in answer.body
    machine.check_untouched()


def test_tables_and_columns_may_have_the_names_of_functions(client: Client) -> None:
    client.run(
        "CREATE TABLE IF NOT EXISTS file (file String, url String, INDEX disk (lower(file)) TYPE minmax) ENGINE = MergeTree ORDER BY url"
    )
    client.run("INSERT INTO file (file, url) VALUES ('a', 'file(1)')")
    client.run("INSERT INTO `default`.`file` (`file`, `url`) SELECT x, y FROM input('x String, y String') FORMAT TSV", body="b\tpython()\n")
    assert client.run("SELECT file, url FROM file ORDER BY file") == b"a\tfile(1)\nb\tpython()\n"
    assert client.run("SELECT count() FROM file WHERE url = 'INTO OUTFILE' OR file IN (url)") == b"0\n"
    client.run("DROP TABLE file")


_OLD = """
import sys, chdb
connection = chdb.connect(sys.argv[1] + "?implicit_select=0")
for statement in (
    "CREATE TABLE plain (a Int32) ENGINE = MergeTree ORDER BY a", "INSERT INTO plain VALUES (7)",
    "CREATE DATABASE shop", "CREATE TABLE shop.t (a Int32) ENGINE = MergeTree ORDER BY a", "INSERT INTO shop.t VALUES (8)",
):
    connection.query(statement)
connection.close()
"""


def test_a_directory_of_release_0_9_keeps_its_tables(tmp_path: Path) -> None:
    """There the database `default` was a view of the file system as well, and had no definition of its own."""
    subprocess.run([sys.executable, "-c", _OLD, str(tmp_path / "db")], check=True)
    assert not (tmp_path / "db" / "metadata" / "default.sql").exists()
    for turn in (1, 2):
        with EmbeddedServer(tmp_path / "db") as server:
            made = Client(server.port)
            with contextlib.closing(made.connection):
                assert made.run("SELECT sum(a) FROM plain") == b"%d\n" % (7 * turn)
                assert made.run("SELECT sum(a) FROM default.plain") + made.run("SELECT a FROM shop.t") == b"%d\n8\n" % (7 * turn)
                made.run("INSERT INTO plain VALUES (7)")
                names = "('default', 'shop')"
                assert made.run(f"SELECT engine FROM system.databases WHERE name IN {names}") == b"Atomic\nAtomic\n"
                assert b"_headrace" not in made.run("SHOW DATABASES")
