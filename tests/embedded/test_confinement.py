"""Attacks by an account that has the password: SQL must not access anything outside of the server's tables."""

from __future__ import annotations

import contextlib
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.embedded.access.privileges import DATABASE_ENGINES, FIXED_SETTINGS, TABLE_ENGINES, TABLE_FUNCTIONS
from headrace.embedded.process import EmbeddedServer
from testkit.faults.unconfined import UnconfinedServer
from testkit.pipelines.httpclient import Client

SECRET = "s3cret-of-the-machine"
ARGUMENTS = (
    "'{file}'",
    "'{file}', 'LineAsString'",
    "'{file}', 'LineAsString', 'a String'",
    "'{host}'",
    "'{host}', 'd', 't', 'u', 'p'",
    "secret",
)
"""Arguments of table functions and engines: a file, a host, a name in this process."""
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
    """What SQL must not reach: a file with a secret, a writable directory, a listening port."""

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
    """A table into which an attack might insert."""
    client.run("CREATE TABLE IF NOT EXISTS vault (a String) ENGINE = MergeTree ORDER BY a")
    return "vault"


def _refused(client: Client, statement: bytes) -> bytes:
    """Run a statement that must fail and must not return the secret."""
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
    """On a kernel without Landlock."""
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
    """Unknown functions of a new engine release are refused until they are allowed."""
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


def test_no_file_of_the_data_directory_is_read_or_written_as_a_file(
    server: EmbeddedServer, client: Client, machine: Machine, vault: str
) -> None:
    """Landlock allows the engine its directory, which holds the password, the rows of all tables and possibly links to other places."""
    account, link = server.path / "headrace-credentials.json", server.path / "link.txt"
    link.symlink_to(machine.home / "secret.txt")
    folder = server.path / "user_files"
    folder.mkdir()
    (folder / "rows.csv").write_text(SECRET)
    (folder / "link.json").symlink_to(account)
    paths = (
        *(account, account.name, f"../{account.name}", f"{folder}/../{account.name}", server.path / "*.json", server.path / "**"),
        *(server.path / "{headrace-credentials,x}.json", link, "link.txt", folder / "rows.csv", folder / "link.json"),
        *("rows.csv", "user_files/rows.csv", f"file://{account}", "/proc/self/cwd/../headrace-credentials.json"),
    )
    try:
        for path in map(str, paths):
            for statement in (
                f"SELECT * FROM file('{path}', 'LineAsString')",
                f"SELECT * FROM file('{path}')",
                f"SELECT file('{path}')",
                f"SELECT * FROM url('{path}', 'LineAsString')",
                f"SELECT * FROM s3('{path}', 'LineAsString')",
                f"SELECT * FROM fileCluster('x', '{path}', 'LineAsString')",
                f"SELECT * FROM executable('{path}', 'TSV', 'a String')",
                f"INSERT INTO {vault} FROM INFILE '{path}' FORMAT LineAsString",
                f"INSERT INTO {vault} SELECT file('{path}')",
                f"INSERT INTO FUNCTION file('{path}', 'LineAsString', 'a String') VALUES ('x')",
                f"SELECT 1 INTO OUTFILE '{path}' APPEND",
                f"SELECT 1 INTO OUTFILE '{path}.new'",
                f"BACKUP TABLE {vault} TO File('{path}.backup')",
                f"CREATE DICTIONARY d (a String) PRIMARY KEY a SOURCE(FILE(path '{path}' format 'CSV')) LAYOUT(FLAT()) LIFETIME(0)",
                *_rows_with_expressions(vault, path),
            ):
                body = _refused(client, statement.encode())
                assert server.password.encode() not in body, statement
        assert client.run(f"SELECT count() FROM {vault}") == b"0\n"
        assert [entry.name for entry in sorted(folder.iterdir())] == ["link.json", "rows.csv"]
        assert (folder / "rows.csv").read_text() == SECRET
        machine.check_untouched()
    finally:
        shutil.rmtree(folder)
        link.unlink()


def _rows_with_expressions(table: str, path: str) -> Iterator[str]:
    """Statements whose rows in the Values format, which the server does not scan, call the function `file`."""
    row = f"(file('{path}'))"
    quoted = row.replace("'", "\\'")
    yield f"INSERT INTO {table} VALUES {row}"
    yield f"INSERT INTO {table} FORMAT Values {row}"
    yield f"INSERT INTO {table} SETTINGS input_format_values_interpret_expressions = 1 VALUES {row}"
    yield f"INSERT INTO {table} VALUES ('plain'), {row}"
    yield f"INSERT INTO {table} VALUES (concat('', file('{path}')))"
    yield f"INSERT INTO {table} VALUES ((SELECT file('{path}')))"
    yield f"INSERT INTO {table} VALUES (`fi\\x6ce`('{path}'))"
    yield f"INSERT INTO {table} SELECT x FROM input('x String') FORMAT Values {row}"
    yield f"SELECT * FROM format(Values, 'x String', '{quoted}')"
    yield f"SELECT * FROM format(Values, 'x String', '{quoted.replace('file', 'fi' + chr(92) + 'x6ce')}')"
    yield f"SELECT * FROM format('Values', 'x String', $${row}$$) SETTINGS input_format_values_interpret_expressions = 1"
    yield f"CREATE TABLE made ENGINE = Memory AS SELECT * FROM format(Values, 'x String', '{quoted}')"


def test_rows_of_requests_that_only_read_hold_no_expressions(server: EmbeddedServer, client: Client) -> None:
    """A read-only account (`readonly`, GET) could read the password, and write with it."""
    row = f"(file('{server.path / 'headrace-credentials.json'}'))"
    form = f'--b\r\nContent-Disposition: form-data; name="ext"; filename="x"\r\n\r\n{row}\r\n--b--\r\n'
    query = f"SELECT * FROM format(Values, 'x String', $${row}$$)"
    fields = {"ext_structure": "a String", "ext_format": "Values"}
    for answer in (
        client.ask(query, method="GET"),
        client.ask(query, readonly="1"),
        client.ask(query, input_format_values_interpret_expressions="1"),
        client.ask("SELECT * FROM ext", body=form, headers={"Content-Type": "multipart/form-data; boundary=b"}, **fields),
        client.ask("SET input_format_values_interpret_expressions = 1", session_id="expressions"),
    ):
        assert answer.status != 200
        assert server.password.encode() not in answer.body


def test_plain_values_are_taken_and_the_refusal_of_an_expression_says_how_to_evaluate_it(client: Client) -> None:
    client.run("CREATE TABLE plain (a Int32, b String, d DateTime, n Nullable(Float64), l Array(String)) ENGINE = MergeTree ORDER BY a")
    client.run("INSERT INTO plain VALUES (1, 'file(1)', '2024-01-02 03:04:05', NULL, ['x', 'y']), (-2, 'it''s', 0, 1.5e3, [])")
    for row in ("(1 + 1, 'a', 0, 0, [])", "(3, concat('a', 'b'), 0, 0, [])", "(3, 'a', now(), 0, [])", "('3', 'a', 0, 0, [])"):
        answer = client.ask(f"INSERT INTO plain VALUES {row}")
        assert answer.code == 344
        assert b"evaluate expressions by INSERT INTO ... SELECT" in answer.body
    client.run("INSERT INTO plain SELECT 1 + 2, concat('a', 'b'), toDateTime(0), '7', []")
    assert client.run("SELECT a, b, n, l FROM plain ORDER BY a") == b"-2\tit\\'s\t1500\t[]\n1\tfile(1)\t\\N\t['x','y']\n3\tab\t7\t[]\n"
    client.run("DROP TABLE plain")


_KERNEL_ALONE = """
import os, pathlib, socket, subprocess, sys
from headrace.embedded.access.sandbox import confine
folder, home, port = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
(folder / "inside.txt").write_text("inside")
(folder / "link.txt").symlink_to(home / "secret.txt")
os.chdir(folder)
os.environ["TMPDIR"] = str(folder)
assert confine(folder)
import chdb
connection = chdb.connect(str(folder / "db"))
print(connection.query(f"SELECT file('{folder}/inside.txt')", "TSV").bytes().decode().strip())
def attempt(name, work):
    try:
        found = work()
    except (RuntimeError, OSError):
        return
    # A pattern finds nothing where no folder can be listed.
    if "*" not in str(name) or found.bytes():
        print(name, "was done")
paths = (home / "secret.txt", "../elsewhere/secret.txt", home / "*.txt", "/etc/passwd", "/proc/self/environ", "/proc/1/environ", "link.txt")
for path in paths:
    attempt(path, lambda: connection.query(f"SELECT file('{path}')"))
    attempt(path, lambda: connection.query(f"SELECT * FROM file('{path}', 'LineAsString')"))
attempt("write", lambda: connection.query(f"SELECT 1 INTO OUTFILE '{home}/written'"))
attempt("url", lambda: connection.query(f"SELECT * FROM url('http://127.0.0.1:{port}/', 'LineAsString') SETTINGS http_max_tries = 1"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", port), 5))
attempt("executable", lambda: connection.query("SELECT * FROM executable('/bin/ls', 'TSV', 'a String')"))
attempt("program", lambda: subprocess.run(["/bin/ls"], check=True))
"""


def test_the_kernel_holds_by_itself(machine: Machine, tmp_path: Path) -> None:
    """Landlock alone, without grants and without rules for statements."""
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-c", _KERNEL_ALONE, str(tmp_path / "data"), str(machine.home), str(machine.port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["inside"]
    machine.check_untouched()


def test_the_kernel_binds_every_thread_that_runs_statements(server: EmbeddedServer, client: Client) -> None:
    """`NoNewPrivs` is inherited as the rules of Landlock are, and the kernel shows it for each thread."""
    client.run("SELECT sum(number) FROM numbers_mt(1000000)")
    unbound = []
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = (task / "status").read_text()
            if "NoNewPrivs:\t0" in status:
                unbound.append(status.split("\n", 1)[0].removeprefix("Name:\t"))
    # The thread that watches the parent, and those of numpy and Arrow; none of the engine.
    assert set(unbound) <= {"python", "jemalloc_bg_thd"}
    assert len(unbound) < 6


_USER_FILES = """
import pathlib, sys, chdb
folder = pathlib.Path(sys.argv[1])
(folder / "user_files").mkdir()
(folder / "outside.txt").write_text("outside")
(folder / "config.xml").write_text(f"<clickhouse><user_files_path>{folder}/user_files/</user_files_path></clickhouse>")
connection = chdb.connect(f"{folder}/db?config-file={folder}/config.xml")
print(connection.query("SELECT value FROM system.server_settings WHERE name = 'user_files_path'", "TSV").bytes().decode().strip())
print(connection.query(f"SELECT * FROM file('{folder}/outside.txt', 'LineAsString')", "TSV").bytes().decode().strip())
print(connection.query(f"SELECT file('{folder}/outside.txt')", "TSV").bytes().decode().strip())
"""


def test_the_engine_itself_does_not_confine_files_to_user_files(tmp_path: Path) -> None:
    """The reason why the server refuses them (decision 48). If this fails, a new engine release refuses them itself: then they could be
    allowed."""
    done = subprocess.run([sys.executable, "-c", _USER_FILES, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{tmp_path}/user_files/", "outside", "outside"]


def test_settings_that_name_files_hosts_or_parsers_cannot_be_set_in_any_way(client: Client) -> None:
    known = set(client.run("SELECT name FROM system.settings").decode().split())
    for name in FIXED_SETTINGS:
        assert name in known, name
        flags = ("allow", "enable", "into", "dynamic", "input_format_values")
        value = "{'a': 'b'}" if name == "additional_table_filters" else "1" if name.startswith(flags) else "x"
        assert client.ask("SELECT 1", **{name: value}).status != 200, name
        assert client.ask(f"SELECT 1 SETTINGS {name} = '{value.replace(chr(39), chr(92) + chr(39))}'").status != 200, name


def test_names_in_fields_are_names(client: Client, machine: Machine) -> None:
    """A format or a structure outside of the statement must not add a clause."""
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
    """There the database `default` was also a view of the file system, without a definition file."""
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
