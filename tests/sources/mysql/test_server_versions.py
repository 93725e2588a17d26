"""MariaDB 11.8, the newest tested version, against the server's own SELECT; the versions that `headrace check` knows.

The other tests run on MariaDB 10.11 and MySQL 9.7. `HEADRACE_TEST_MARIADB=11 make test` runs them on MariaDB 11.8, too.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from pymysql.err import IntegrityError

from headrace import cli
from headrace.demo import run
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.change_block import Op
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.settings.pipe_keys import SnapshotMode
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.preflight.checks import KNOWN_DIFFERENCES, TESTED, is_tested, judge_version
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import (
    caches_statistics,
    connect,
    log_status_statement,
    parse_version,
    replica_status_statement,
)
from headrace.sources.preflight import Level
from testkit.generators.server_types import ROWS, TYPES, literals
from testkit.oracles.binlogs import Logbook, Row, images_of, kinds_of, open_logbook
from testkit.oracles.both_ends import source_rows
from testkit.oracles.ddl import Follower
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.local_pipeline import without_spark
from testkit.servers.servers import FLAVOURS, NEWER_MARIADB, find_program

ROOT = Path(__file__).parents[3]
SERVERS = (*FLAVOURS, NEWER_MARIADB)
EVERY_IMAGE = ReadOptions(every_before=True)
NEW_COLUMNS = "u UUID, a INET4, i INET6, v VECTOR(3), late TIMESTAMP(6) NULL"
NEW_VALUES = (
    "'123e4567-e89b-12d3-a456-426655440000', '10.1.2.3', 'fe80::1', VEC_FromText('[1,-0.5,1.5e18]'), '2106-02-07 06:28:15.999999'",
    "NULL, NULL, NULL, NULL, NULL",
    "'ffffffff-ffff-ffff-ffff-ffffffffffff', '0.0.0.0', '::', x'000000000000803f000000c0', '2038-01-19 03:14:08'",
)


@pytest.fixture(scope="session")
def server(newer_mariadb_server: PrivateServer) -> PrivateServer:
    return newer_mariadb_server


@contextmanager
def globals_set(book: Logbook, **settings: str | int) -> Iterator[None]:
    """Change global settings of the server, and restore them."""
    before = {name: book.fetch(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    try:
        for name, value in settings.items():
            book.run(f"SET GLOBAL {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            book.run(f"SET GLOBAL {name} = {value}")


class Runs:
    """A pipe to ClickHouse, run again and again up to the end of the log."""

    def __init__(self, book: Logbook, sink: ClickHouseSink, client: Client, state: Path) -> None:
        self.book, self.sink, self.client, self.state = book, sink, client, state

    def __call__(self) -> None:
        settings = PipeSettings(Selection((f"{self.book.database}.*",)), self.state, once=True, flush_seconds=0.0, master="local[2]")
        MySQLPipe(self.book.address, self.sink, "sink", settings, LogView()).run()

    def check(self, table: str) -> int:
        """Run the pipe; the sink has the rows of the source's SELECT."""
        self()
        expected = source_rows(self.book.server, self.book.database, table)
        place = f"`{self.sink.target.database}`.`{table}`"
        columns = ", ".join(f"`{row[0]}`" for row in self.book.fetch(f"SHOW COLUMNS FROM `{table}`"))
        found = self.client.query(f"SELECT {columns} FROM {place} FINAL").result_rows
        assert sorted(map(tuple, found), key=repr) == expected
        return len(expected)


@pytest.fixture
def runs(book: Logbook, sink: ClickHouseSink, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    without_spark(monkeypatch)
    return Runs(book, sink, client, tmp_path / "state")


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(str(row[0])))


def test_every_type_is_read_as_the_server_shows_it(book: Logbook) -> None:
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
    book.run(f"CREATE TABLE every_type (id INT PRIMARY KEY, {columns}, {NEW_COLUMNS}) ROW_FORMAT=DYNAMIC")
    start = book.place()
    for row in range(ROWS):
        book.run(f"INSERT INTO every_type VALUES ({row}, {literals(row)}, {NEW_VALUES[row % len(NEW_VALUES)]})")
    book.run("INSERT INTO every_type (id) VALUES (1000)")
    schema = book.schema("every_type")
    inserted = book.select(schema)
    assert book.scanned(schema) == inserted
    book.run("UPDATE every_type SET late = NULL, v = VEC_FromText('[0,0,1]')")
    changed = book.select(schema)
    book.run("DELETE FROM every_type")
    images = images_of(book.read_by(start, schema, EVERY_IMAGE))
    assert by_id([image.row for image in images if image.op is Op.INSERT]) == inserted
    assert by_id([image.row for image in images if image.op is Op.DELETE]) == changed


def test_every_form_of_row_events(book: Logbook, runs: Runs) -> None:
    """With and without positions inside transactions, which MariaDB omits since 11.7; compressed; without names of columns."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s TEXT, n INT)")
    runs()
    forms: list[dict[str, str | int]] = [{}, {"log_bin_compress": 1, "log_bin_compress_min_len": 10}, {"binlog_row_metadata": "'MINIMAL'"}]
    for turn, (legacy, form) in enumerate(itertools.product((0, 1), forms)):
        with globals_set(book, binlog_legacy_event_pos=legacy, **form), open_logbook(book.server, book.database) as session:
            start, first = session.place(), turn * 1000
            session.insert("t", [(first + n, f"text {n}" * 40, n) for n in range(300)])
            session.run(
                "BEGIN", f"UPDATE t SET n = n + 1 WHERE id >= {first}", f"DELETE FROM t WHERE id % 3 = 0 AND id >= {first}", "COMMIT"
            )
            data = session.bytes_of(session.segment(start))
        assert (bytes(4) in [data[at + 13 : at + 17] for at in starts_of(data)]) == (not legacy)
        assert ({166, 167, 168} <= set(kinds_of(data))) == ("log_bin_compress" in form)
        if turn % 3 == 2:
            assert runs.check("t") == 200 * (turn + 1)


def starts_of(data: bytes) -> list[int]:
    """Return the offsets of the events in a piece of log."""
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return found


def test_a_transaction_that_becomes_a_log_file(book: Logbook, runs: Runs) -> None:
    """Since 11.7 the server renames the cache of a large transaction to a log file instead of copying it."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s LONGTEXT)")
    runs()
    with globals_set(book, binlog_large_commit_threshold=10 * 1024 * 1024):
        before = book.place().file
        rows = ", ".join(f"({n}, REPEAT('row {n}', 200000))" for n in range(14))
        book.run("BEGIN", f"INSERT INTO t VALUES {rows}", "UPDATE t SET s = CONCAT(s, 'x') WHERE id = 3", "COMMIT")
        assert book.place().file != before
        book.run("INSERT INTO t VALUES (100, 'after')")
        assert runs.check("t") == 15


def test_altered_tables(book: Logbook, runs: Runs) -> None:
    """Instant ALTERs, renames, an ALTER in two phases, and the default collation of 11.8."""
    name = book.database
    book.run(f"ALTER DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci")
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b INT DEFAULT 7)", "INSERT INTO t (id, a) VALUES (1, 'ä€😀'), (2, NULL)")
    assert runs.check("t") == 2
    book.run(
        "ALTER TABLE t ADD COLUMN c BIGINT DEFAULT 5 FIRST, ALGORITHM=INSTANT",
        "INSERT INTO t (id, a, c) VALUES (3, 'three', 3)",
        "ALTER TABLE t DROP COLUMN b, ALGORITHM=INSTANT",
        "UPDATE t SET a = 'two' WHERE id = 2",
        "ALTER TABLE t RENAME COLUMN a TO renamed, MODIFY c BIGINT AFTER id",
        "INSERT INTO t VALUES (4, 44, 'four')",
        "SET SESSION binlog_alter_two_phase = 1",
        "ALTER TABLE t ADD COLUMN d UUID",
        "SET SESSION binlog_alter_two_phase = 0",
        "RENAME TABLE t TO moved",
        "CREATE TABLE made (id INT PRIMARY KEY, s VARCHAR(10)) SELECT 1 AS id, 'x' AS s",
        "DELETE FROM moved WHERE id = 1",
    )
    assert runs.check("moved") == 3
    assert runs.check("made") == 1


def test_a_statement_whose_session_maps_character_sets_to_collations(book: Logbook, runs: Runs) -> None:
    """Since 11.2 the server logs the mapping before the session's character sets and the phase of an ALTER."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (1, 1), (2, 1)")
    runs()
    follower = Follower(book, (book.database,))
    with book.server.root_connection(book.database, charset="latin1") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION character_set_collations = 'utf8mb4=utf8mb4_general_ci,utf8mb3=utf8mb3_bin'")
        cursor.execute("ALTER TABLE t ADD c VARCHAR(9) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'Zürich'")
        assert runs.check("t") == 2
        cursor.execute("SET SESSION binlog_alter_two_phase = 1")
        with pytest.raises(IntegrityError):
            cursor.execute("ALTER TABLE t MODIFY c VARCHAR(6) CHARACTER SET utf8mb4, ADD UNIQUE (a)")
    book.run("INSERT INTO t VALUES (3, 3, 'more text')")
    assert runs.check("t") == 3
    assert [answer.outcome.name for answer in follower.catch_up()] == ["CHANGED", "NOTHING", "NOTHING"]
    assert follower.differences() == []


def test_defaults_of_binary_strings_are_described_as_on_other_servers(book: Logbook) -> None:
    """11.8 prints them as x'610000'."""
    book.run("CREATE TABLE t (a BINARY(3) DEFAULT 'a', b VARBINARY(4) DEFAULT x'6200', c VARCHAR(9) DEFAULT 'c', d BLOB DEFAULT 'd')")
    assert [column.default for column in book.schema("t").columns] == ["0x61", "0x6200", "c", "0x64"]


def test_a_table_with_a_vector_index(book: Logbook, runs: Runs) -> None:
    """The index has a hidden table, whose rows are not in the log."""
    runs()
    book.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VECTOR(2) NOT NULL, VECTOR INDEX (v) M=8 DISTANCE=cosine)",
        "INSERT INTO t VALUES (1, VEC_FromText('[1,2]')), (2, VEC_FromText('[3,4.5]'))",
        "ALTER TABLE t DROP INDEX v",
        "UPDATE t SET v = VEC_FromText('[5,6]') WHERE id = 1",
        "ALTER TABLE t ADD VECTOR INDEX nearest (v) DISTANCE=euclidean",
    )
    runs()
    found = runs.client.query(f"SELECT id, v FROM `{runs.sink.target.database}`.t FINAL ORDER BY id").result_rows
    assert found == [(1, [5.0, 6.0]), (2, [3.0, 4.5])]


def test_a_pipe_starts_at_a_gtid_and_resumes(
    book: Logbook, sink: ClickHouseSink, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    book.run("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)", "INSERT INTO t VALUES (1, 'before')")
    gtid = book.fetch("SELECT @@gtid_binlog_pos")[0][0]
    book.run("INSERT INTO t VALUES (2, 'after')", "FLUSH BINARY LOGS", "UPDATE t SET s = 'changed' WHERE id = 2")
    chosen = PipeSettings(
        Selection((f"{book.database}.*",)),
        tmp_path / "state",
        once=True,
        flush_seconds=0.0,
        master="local[2]",
        start_at=gtid,
        snapshot=SnapshotMode.NONE,
    )
    MySQLPipe(book.address, sink, "sink", chosen, LogView()).run()
    place = f"`{sink.target.database}`.t"
    assert client.query(f"SELECT id, s FROM {place} FINAL").result_rows == [(2, "changed")]
    book.run("INSERT INTO t VALUES (3, 'later')")
    MySQLPipe(book.address, sink, "sink", chosen, LogView()).run()
    assert client.query(f"SELECT id, s FROM {place} FINAL ORDER BY id").result_rows == [(2, "changed"), (3, "later")]


def test_snapshot_stream_and_verify(book: Logbook, clickhouse: EmbeddedServer, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {NEW_COLUMNS})")
    book.run("INSERT INTO t VALUES " + ", ".join(f"({n}, {NEW_VALUES[n % len(NEW_VALUES)]})" for n in range(2000)))
    runs()
    book.run("UPDATE t SET late = '2099-12-31 23:59:59.5' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0")
    runs()
    target = f"{url_of(clickhouse)}/{runs.sink.target.database}"
    assert cli.main(["verify", book.server.url(book.database), target, "--state", str(runs.state)]) == 0
    assert "0 differences" in capsys.readouterr().out
    assert cli.main(["check", book.server.url(book.database)]) == 0
    assert "one of the versions that the tests run on" in capsys.readouterr().out


@pytest.mark.slow(because="test_snapshot_stream_and_verify, without Spark")
def test_the_demo(
    newer_mariadb_server: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "mariadb", lambda directory: PrivateServer(newer_mariadb_server.program, directory))
    assert run.run_demo(live=False, seconds=3.0, directory=str(tmp_path / "demo")) == 0
    assert "demo: ok" in capsys.readouterr().out


def test_an_account_of_a_new_plugin_is_refused_with_a_remedy(book: Logbook) -> None:
    """PARSEC, of MariaDB 11.6."""
    user = f"parsec_{secrets.token_hex(3)}"
    book.run("INSTALL SONAME 'auth_parsec'", f"CREATE USER '{user}'@'%' IDENTIFIED VIA parsec USING PASSWORD('secret')")
    try:
        address = type(book.address)("127.0.0.1", book.server.port, user, "secret", book.database)
        with pytest.raises(DefiniteError) as refused:
            connect(address)
        assert "parsec" in str(refused.value)
        assert "ed25519" in refused.value.hint
        book.run("INSTALL SONAME 'auth_ed25519'", f"ALTER USER '{user}'@'%' IDENTIFIED VIA ed25519 USING PASSWORD('secret')")
        connect(address).close()
    finally:
        book.run(f"DROP USER '{user}'@'%'", "UNINSTALL SONAME 'auth_parsec'", "UNINSTALL SONAME IF EXISTS 'auth_ed25519'")


@pytest.mark.parametrize("name", SERVERS)
def test_the_tests_run_on_the_versions_that_check_names(name: str) -> None:
    try:
        program = find_program(name)
    except HeadraceError as error:
        pytest.skip(f"no {name}: {error}")
    product = {"mariadb": "MariaDB", "mysql": "MySQL"}[program.flavour]
    assert is_tested(product, parse_version(program.version))
    assert sum(len(series) for series in TESTED.values()) == len(SERVERS)


def test_what_check_reports_of_other_versions() -> None:
    tested = judge_version("MariaDB", "11.8.6-MariaDB-0+deb13u1-log")
    assert (tested.level, tested.value) == (Level.OK, "MariaDB 11.8.6-MariaDB-0+deb13u1-log")
    for product, text, wanted in (
        ("MySQL", "5.6.51-log", ("binlog_format is STATEMENT", "no binlog_row_metadata", "SHOW MASTER STATUS", "cascades")),
        ("MySQL", "5.7.44", ("no binlog_row_metadata", "SHOW MASTER STATUS", "cascades", "no tagged GTIDs")),
        ("MySQL", "8.0.36-28", ("compressed transactions from 8.0.20", "SHOW MASTER STATUS", "cascades", "no VECTOR")),
        ("MySQL", "8.4.3", ("cascades", "no VECTOR")),
        ("MySQL", "9.8.0", ("newer than the tests",)),
        ("MariaDB", "10.4.34-MariaDB", ("no binlog_row_metadata", "no UUID", "no INET4", "2038", "no VECTOR")),
        ("MariaDB", "10.6.18-MariaDB", ("no UUID", "no INET4", "2038", "no VECTOR")),
        ("MariaDB", "12.3.1-MariaDB", ("PARTIAL_ROW_DATA", "binlog_storage_engine")),
    ):
        finding = judge_version(product, text)
        assert finding.level is Level.WARNING
        assert "MariaDB 10.11 and 11.8; MySQL 9.7" in finding.meaning
        assert [word for word in wanted if word not in finding.meaning] == []
    assert "SHOW MASTER STATUS" not in judge_version("MySQL", "8.4.3").meaning
    assert "binlog_format" not in judge_version("MySQL", "5.7.44").meaning
    assert judge_version("MySQL", "5.5.62").level is Level.ERROR
    assert judge_version("MySQL", "a private build").level is Level.WARNING


def test_the_documentation_has_every_known_difference() -> None:
    page = (ROOT / "docs/mysql.md").read_text()
    assert [known.text for known in KNOWN_DIFFERENCES if known.text not in page] == []


def test_statements_by_version() -> None:
    assert parse_version("5.5.5-10.11.6-MariaDB") == (10, 11, 6)
    assert log_status_statement(mariadb=False, version=parse_version("a private build")) == "SHOW BINARY LOG STATUS"
    for text, mariadb, log, replica, cached in (
        ("5.7.44-log", False, "SHOW MASTER STATUS", "SHOW SLAVE STATUS", False),
        ("8.0.21", False, "SHOW MASTER STATUS", "SHOW SLAVE STATUS", True),
        ("8.0.36", False, "SHOW MASTER STATUS", "SHOW REPLICA STATUS", True),
        ("8.2.0", False, "SHOW BINARY LOG STATUS", "SHOW REPLICA STATUS", True),
        ("11.8.6-MariaDB", True, "SHOW MASTER STATUS", "SHOW ALL SLAVES STATUS", False),
    ):
        version = parse_version(text)
        assert log_status_statement(mariadb=mariadb, version=version) == log
        assert replica_status_statement(mariadb=mariadb, version=version) == replica
        assert caches_statistics(mariadb=mariadb, version=version) == cached
