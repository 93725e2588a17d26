"""`capture(session)` on a real Cassandra: tables and logs agree with each other and with the model.

The Python paths of docs/scylla.md, now and in earlier releases, import it.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from uuid import UUID

import pytest
from cassandra.query import UNSET_VALUE, SimpleStatement
from cassandra.util import Duration

import headrace.sources.scylla.capture as package
from headrace.cli import main
from headrace.cql.decode.pages import read_rows
from headrace.cql.language.ddl_printer import table_name
from headrace.cql.log import END, OPERATION, SEQUENCE, STREAM, TIME, log_table
from headrace.cql.options import CdcOptions
from headrace.cql.schema_reader import describe
from headrace.cql.session import CqlSession, connect
from headrace.cql.tables import CqlTable
from headrace.cql.timeuuid import micros
from headrace.errors import DefiniteError, TransientError
from headrace.model.schema import TableName
from headrace.sources.scylla.capture.captured_session import CapturedSession, capture
from headrace.sources.scylla.capture.partition_state_loader import replay_log
from headrace.sources.scylla.capture.statement_capture import Capture
from headrace.sources.scylla.capture.storage_model import CapturedTables
from headrace.sources.scylla.capture.stream_ids import Generations, even_generation, read_generations, token_of
from testkit.generators.cql_histories import random_history
from testkit.oracles.cql_contents import is_scylla, model_rows, server_rows
from testkit.servers import scylla_tables

PACKAGE = "headrace.sources.scylla.capture"


def test_package_exports_both_entry_points() -> None:
    assert package.capture is capture
    assert package.Capture is Capture


def test_package_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Captured'"):
        _ = package.Captured


@pytest.mark.parametrize(("module", "name", "target"), [("wrapping", "capture", capture), ("capturing", "Capture", Capture)])
def test_old_path_works_and_warns_once(module: str, name: str, target: object) -> None:
    path = f"{PACKAGE}.{module}"
    sys.modules.pop(path, None)
    with pytest.warns(DeprecationWarning, match=f"import {name} from {PACKAGE}") as warned:
        old = importlib.import_module(path)
    assert importlib.import_module(path) is old
    assert getattr(old, name) is target
    assert len(warned) == 1


ONE = Generations((even_generation(),))
IMAGES = CdcOptions(enabled=True, preimage="full", postimage=True)


def log_rows(cql: CqlSession, table: CqlTable) -> list[dict[str, bytes | None]]:
    """Return the server's log in the order of its batches."""
    query = f"SELECT * FROM {table_name(log_table(table).name)}"
    rows = [row for batch in read_rows(cql, query) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (micros(UUID(bytes=row[TIME])), row[TIME], row[SEQUENCE]))


def from_log(table: CqlTable, rows: list[dict[str, bytes | None]], now: int) -> CapturedTables:
    state = CapturedTables()
    state.merge(table.name, replay_log(table, rows, now))
    return state


@pytest.fixture(autouse=True)
def _not_on_scylla(cql: CqlSession) -> None:
    if is_scylla(cql):
        pytest.skip("ScyllaDB writes its log itself: test_scylla_examples looks at that")


@pytest.mark.parametrize("seed", [7, 18, 22, 31])
def test_tables_logs_and_the_model_agree(cql: CqlSession, keyspace: str, seed: int) -> None:
    """Random statements: SELECT (values, write times, expiries), the model and the log agree."""
    history = random_history(seed, 35, keyspace=keyspace)
    for definition in history.definitions:
        cql.execute(definition)
    options = IMAGES if seed % 2 else CdcOptions(enabled=True)
    model = Capture([history.table], options=options)
    expected = []
    for i, statement in enumerate(history.statements):
        if i % 12 == 0:
            # Another process continues: it reads the state of lists from the table and the log.
            captured = capture(cql, [history.table.name], ONE, options)
        captured.execute(statement.text)
        expected += model.log(statement.text)
    now = int(time.time())
    shown = server_rows(cql, history.table)
    assert shown == model_rows(history.table, model.state.rows(history.table, now))
    logged = log_rows(cql, history.table)
    assert shown == model_rows(history.table, from_log(history.table, logged, now).rows(history.table, now))
    lists = {column.name for column in history.table.cells if column.type.name == "list" and not column.type.is_atomic}
    free = {STREAM, TIME, *lists, *(f"cdc$deleted_elements_{name}" for name in lists)}
    plain = [{name: value for name, value in row.items() if value is not None and name not in free} for row in logged]
    wanted = [{name: value for name, value in row.values.items() if name not in free} for row in expected]
    assert sorted(sorted(row.items()) for row in plain) == sorted(sorted(row.items()) for row in wanted)


@pytest.fixture
def table(cql: CqlSession, keyspace: str) -> CqlTable:
    cql.execute(f"CREATE TYPE {keyspace}.ut (a int, b text)")
    cql.execute(
        f"CREATE TABLE {keyspace}.t (pk int, ck int, s text static, v int, l list<int>, m map<text, int>, u ut, PRIMARY KEY (pk, ck))"
    )
    return describe(cql, TableName(keyspace, "t"))


def test_parameters_batches_and_other_statements(cql: CqlSession, table: CqlTable) -> None:
    captured = capture(cql, [str(table.name)], ONE)
    name = table_name(table.name)
    captured.execute(f"INSERT INTO {name} (pk, ck, v, m) VALUES (?, ?, ?, ?) USING TTL ?", (1, 1, 5, {"a": 1}, 1000))
    captured.execute(f"UPDATE {name} USING TTL :life SET v = :v WHERE pk = :pk AND ck = :ck", {"v": 6, "pk": 1, "ck": 1, "life": 2000})
    captured.execute(f"UPDATE {name} USING TIMESTAMP ? SET s = ? WHERE pk = ?", (2_000_000_000_000_000, "later", 1))
    prepared = cql.prepare(f"DELETE m[?] FROM {name} WHERE pk = ? AND ck = ?")
    captured.execute(prepared, ("a", 1, 1))
    captured.execute(prepared.bind(("b", 1, 1)))
    captured.execute(SimpleStatement(f"UPDATE {name} SET u = {{a: %(a)s}} WHERE pk = %(pk)s AND ck = 1"), {"a": 1, "pk": 1})
    captured.execute(
        f"BEGIN BATCH UPDATE {name} SET v = ? WHERE pk = 2 AND ck = 1; INSERT INTO {name} (pk, ck, v) VALUES (?, 2, ?); APPLY BATCH",
        (1, 2, 3),
    )
    (row,) = captured.execute(f"SELECT v, s, u FROM {name} WHERE pk = 1")
    assert (row.v, row.s, row.u.a, row.u.b) == (6, "later", 1, None)
    now = int(time.time())
    logged = log_rows(cql, table)
    assert [int.from_bytes(row[OPERATION] or b"", "big") for row in logged] == [2, 1, 1, 1, 1, 1, 1, 1, 2, 1]
    assert server_rows(cql, table) == model_rows(table, from_log(table, logged, now).rows(table, now))
    (kept,) = captured.execute(f'SELECT TTL("{OPERATION}") AS ttl FROM {table_name(log_table(table).name)} LIMIT 1')
    assert 86_000 < kept.ttl <= 86_400


def test_what_is_unset_is_left_alone_and_percent_signs_are_no_marks(cql: CqlSession, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.u (pk int, ck int, v int, w text, m map<int, int>, PRIMARY KEY (pk, ck))")
    table = describe(cql, TableName(keyspace, "u"))
    captured = capture(cql, [table.name], ONE)
    insert = cql.prepare(f"INSERT INTO {keyspace}.u (pk, ck, v, w, m) VALUES (?, ?, ?, ?, ?) USING TTL ?")
    update = cql.prepare(f"UPDATE {keyspace}.u SET v = ?, m = m + ? WHERE pk = ? AND ck = ?")
    captured.execute(insert.bind((1, 1, 5, "five", {1: 2}, UNSET_VALUE)))
    captured.execute(insert, (1, 1, UNSET_VALUE, None, UNSET_VALUE, 0))
    captured.execute(insert.bind((1, 2)))
    captured.execute(update.bind((UNSET_VALUE, UNSET_VALUE, 1, 3)))
    captured.execute(update.bind((UNSET_VALUE, {3: 4}, 1, 1)))
    captured.execute(f"INSERT INTO {keyspace}.u (pk, ck, w) VALUES (?, 4, '50%% off')", (1,))
    assert [tuple(row) for row in cql.execute(f"SELECT ck, v, w, m FROM {keyspace}.u")] == [
        (1, 5, None, {1: 2, 3: 4}), (2, None, None, None), (4, None, "50%% off", None),
    ]  # fmt: skip
    now = int(time.time())
    assert model_rows(table, from_log(table, log_rows(cql, table), now).rows(table, now)) == server_rows(cql, table)
    with pytest.raises(DefiniteError, match="a timestamp is unset"):
        captured.execute(cql.prepare(f"DELETE FROM {keyspace}.u USING TIMESTAMP ? WHERE pk = 1").bind((UNSET_VALUE,)))


def test_what_cannot_be_logged_is_refused_and_not_written(cql: CqlSession, table: CqlTable) -> None:
    captured = capture(cql, [table.name], ONE)
    name = table_name(table.name)
    cql.execute(f"CREATE TABLE {name}2 (pk int PRIMARY KEY, v int)")
    captured.execute(f"INSERT INTO {name}2 (pk, v) VALUES (1, 2)")
    for statement, said in (
        (f"INSERT INTO {name} (pk, ck, v) VALUES (1, 1, 1) IF NOT EXISTS", "condition"),
        (f"UPDATE {name} SET v = 1 WHERE pk = 1 AND ck = 1 IF v = 0", "condition"),
        (f"INSERT INTO {name} JSON '{{}}'", "JSON"),
        (f"UPDATE {name} SET v = 1 WHERE pk = 1", "primary key"),
        (f"UPDATE {name} SET s = toJson(1) WHERE pk = 1", "server alone"),
        (f"UPDATE {name} SET nothing = 1 WHERE pk = 1 AND ck = 1", "no column nothing"),
        (f"UPDATE {name} SET l[3] = 1 WHERE pk = 1 AND ck = 1", "out of bound"),
        (
            f"BEGIN BATCH UPDATE {name} SET v = 1 WHERE pk = 1 AND ck = 1; UPDATE {name}2 SET v = 1 WHERE pk = 1; APPLY BATCH",
            "not captured",
        ),
        (f"UPDATE {name} SET v = 99999999999 WHERE pk = 1 AND ck = 1", "no value of type int"),
        (f"UPDATE {name} USING TIMESTAMP 0 SET v = 1 WHERE pk = 1 AND ck = 1", ""),
    ):
        if said:
            with pytest.raises(DefiniteError, match=said):
                captured.execute(statement)
        else:
            captured.execute(statement)
    assert len(log_rows(cql, table)) == 1
    assert [row.v for row in captured.execute(f"SELECT v FROM {name}2")] == [2]


def test_lists_are_named_by_what_table_and_log_know(cql: CqlSession, table: CqlTable) -> None:
    name = table_name(table.name)
    row = "WHERE pk = 1 AND ck = 1"
    one, two = (capture(cql, [table.name], ONE, options) for options in (None, IMAGES))
    one.execute(f"UPDATE {name} SET l = [1, 2, 3] {row}")
    two.execute(f"UPDATE {name} SET l = [0] + l {row}")
    one.execute(f"UPDATE {name} SET l[0] = 10 {row}")
    two.execute(f"UPDATE {name} SET l = l - [2] {row}")
    one.execute(f"DELETE l[1] FROM {name} {row}")
    now = int(time.time())
    (shown,) = cql.execute(f"SELECT l FROM {name}")
    assert shown.l == [10, 3]
    assert server_rows(cql, table) == model_rows(table, from_log(table, log_rows(cql, table), now).rows(table, now))

    key = list(from_log(table, log_rows(cql, table), now).list_elements(table, (b"\0\0\0\1",), (b"\0\0\0\1",), "l", now))[1][0]
    two.execute(f"UPDATE {name} SET l[SCYLLA_TIMEUUID_LIST_INDEX({UUID(bytes=key)})] = 30 {row}")
    one.execute(f"UPDATE {name} SET l[SCYLLA_TIMEUUID_LIST_INDEX(?)] = ? WHERE pk = ? AND ck = 1", (UUID(bytes=key), 31, 1))
    assert cql.execute(f"SELECT l FROM {name}")[0].l == [10, 31]
    with pytest.raises(DefiniteError, match="Cassandra chooses the keys of lists itself"):
        one.execute(f"UPDATE {name} SET l[SCYLLA_TIMEUUID_LIST_INDEX(50554d6e-29bb-11e5-b345-feff819cdc9f)] = 1 {row}")

    cql.execute(f"UPDATE {name} SET l = l + [4] {row}")
    with pytest.raises(DefiniteError, match="keys of the elements of l are not known"):
        one.execute(f"UPDATE {name} SET l[0] = 11 {row}")
    with pytest.raises(DefiniteError, match="keys of the elements of l are not known"):
        two.execute(f"UPDATE {name} SET v = 1 {row}")
    one.execute(f"UPDATE {name} SET v = 2 {row}")
    one.execute(f"UPDATE {name} SET l = [5, 6] {row}")
    two.execute(f"UPDATE {name} SET l[1] = 7 {row}")
    now = int(time.time())
    assert server_rows(cql, table) == model_rows(table, from_log(table, log_rows(cql, table), now).rows(table, now))


def test_long_lists_are_named_too(cql: CqlSession, table: CqlTable) -> None:
    captured, name = capture(cql, [table.name], ONE), table_name(table.name)
    captured.execute(f"INSERT INTO {name} (pk, ck, l) VALUES (1, 1, ?)", (list(range(300)),))
    captured.execute(f"UPDATE {name} SET l = l - [5] WHERE pk = 1 AND ck = 1")
    captured.execute(f"UPDATE {name} SET l[260] = -1 WHERE pk = 1 AND ck = 1")
    ((found,),) = cql.execute(f"SELECT l FROM {name}")
    assert found == [*range(5), *range(6, 261), -1, *range(262, 300)]
    now = int(time.time())
    assert server_rows(cql, table) == model_rows(table, from_log(table, log_rows(cql, table), now).rows(table, now))


def test_definitions_change_with_their_logs(cql: CqlSession, table: CqlTable) -> None:
    captured = capture(cql, [table.name], ONE)
    name = table_name(table.name)
    captured.execute(f"ALTER TABLE {name} ADD n set<int>")
    captured.execute(f"ALTER TYPE {table.name.database}.ut ADD c int")
    captured.execute(f"ALTER TABLE {name} WITH default_time_to_live = 7000")
    captured.execute(f"INSERT INTO {name} (pk, ck, n, u) VALUES (1, 1, {{3}}, {{c: 4}})")
    captured.execute(f"ALTER TABLE {name} DROP m")
    captured.execute(f"UPDATE {name} SET v = 1 WHERE pk = 1 AND ck = 1")
    assert {row["cdc$ttl"] for row in log_rows(cql, describe(cql, table.name))} == {None, (7000).to_bytes(8, "big")}
    cql.execute(f"CREATE TABLE {name}3 (pk int PRIMARY KEY)")
    captured.execute(f"ALTER TABLE {name}3 ADD v int")
    altered = describe(cql, table.name)
    assert captured.tables[table.name] == altered
    assert describe(cql, log_table(table).name) == log_table(altered)
    now = int(time.time())
    assert server_rows(cql, altered) == model_rows(altered, from_log(altered, log_rows(cql, altered), now).rows(altered, now))


def test_log_tables_are_printed_from_a_server_s_tables(cql: CqlSession, table: CqlTable, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of `headrace scylla log-schema URL` equals the server's description afterwards."""
    url = str(cql.address) + table.name.database
    assert main(["scylla", "log-schema", url, "--table", "t", "--cassandra"]) == 0
    printed = capsys.readouterr().out
    assert main(["scylla", "log-schema", url, "--cassandra"]) == 0
    assert capsys.readouterr().out == printed
    cql.execute(printed.rstrip().rstrip(";"))
    assert describe(cql, log_table(table).name) == log_table(table)


def test_streams_are_those_of_the_generation_that_operates(cql: CqlSession, keyspace: str, table: CqlTable) -> None:
    scylla_tables.create_tables(cql, keyspace)
    first = scylla_tables.add_generation(cql, keyspace, scylla_tables.make_generation(1_000, ranges=3, streams=2))
    second = scylla_tables.add_generation(cql, keyspace, scylla_tables.make_generation(2_000_000, ranges=5))
    captured = capture(cql, [table.name], keyspace)
    name = table_name(table.name)
    for key in range(12):
        captured.execute(f"INSERT INTO {name} (pk, ck) VALUES ({key}, 0) USING TIMESTAMP 1500000")
        captured.execute(f"INSERT INTO {name} (pk, ck) VALUES ({key}, 0) USING TIMESTAMP 2500000000")
    streams = {bool(micros(UUID(bytes=row[TIME] or b"")) > 2_000_000_000): set() for row in log_rows(cql, table)}
    for row in log_rows(cql, table):
        streams[micros(UUID(bytes=row[TIME] or b"")) > 2_000_000_000].add(row[STREAM])
        token = scylla_tables.token_of([row["pk"] or b""])
        owner = next(found for end, found in (first if row[STREAM] in first.streams else second).ranges if token <= end)
        assert row[STREAM] in owner
    assert streams[False] <= set(first.streams)
    assert streams[True] <= set(second.streams)
    assert len(streams[True]) > 1
    assert all(row[END] == b"\1" for row in log_rows(cql, table))


def test_missing_generations_are_created(cql: CqlSession, keyspace: str, table: CqlTable) -> None:
    captured = capture(cql, [table.name], keyspace)
    name = table_name(table.name)
    for key in range(30):
        captured.execute(f"INSERT INTO {name} (pk, ck) VALUES ({key}, 0)")
    (generation,) = read_generations(cql, keyspace).known
    capture(cql, [table.name], keyspace)
    assert read_generations(cql, keyspace).known == (generation,)
    rows = log_rows(cql, table)
    assert all(row[STREAM] == generation.stream(token_of((row["pk"] or b"",))) for row in rows)
    assert len({row[STREAM] for row in rows}) > 5
    with pytest.raises(DefiniteError, match="before the first generation"):
        captured.execute(f"INSERT INTO {name} (pk, ck) VALUES (1, 0) USING TIMESTAMP 1000")


_WRITER = """
import sys
from headrace.cql.address import parse_cql_url
from headrace.cql.session import connect
from headrace.sources.scylla.capture import capture
url, t, keyspace = sys.argv[1:]
session = capture(connect(parse_cql_url(url)), [t], keyspace)
for i in range(1_000_000):
    row = f"WHERE pk = {i % 7} AND ck = 0"
    session.execute(f"UPDATE {t} SET v = {i}, l = l + [{i}], m = m + {{'{i % 5}': {i}}} {row}")
    session.execute(f"BEGIN BATCH DELETE l[0] FROM {t} {row}; UPDATE {t} SET s = '{i}' WHERE pk = 0; APPLY BATCH")
    print(i, flush=True)
"""


def test_a_writer_that_is_killed_leaves_table_and_log_alike(cql: CqlSession, keyspace: str, table: CqlTable) -> None:
    command = [sys.executable, "-c", _WRITER, str(cql.address), str(table.name), keyspace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) >= 20:
                writer.kill()
                break
        writer.wait()
    now = int(time.time())
    logged = log_rows(cql, table)
    assert len(logged) >= 60
    assert server_rows(cql, table) == model_rows(table, from_log(table, logged, now).rows(table, now))


def test_the_driver_s_own_session_and_a_default_life(cql: CqlSession, table: CqlTable) -> None:
    """A plain driver session is accepted; a table's default TTL is in the log."""
    cql.execute(f"ALTER TABLE {table_name(table.name)} WITH default_time_to_live = 5000")
    with connect(cql.address) as other:
        captured = capture(other.driver, [table.name], ONE)
        assert isinstance(captured, CapturedSession)
        captured.execute(f"INSERT INTO {table_name(table.name)} (pk, ck, v) VALUES (1, 1, 1)")
    (row,) = log_rows(cql, table)
    assert int.from_bytes(row["cdc$ttl"] or b"", "big") == 5000


def test_a_timeout_of_scylladbs_is_taken_and_kept(cql: CqlSession, keyspace: str) -> None:
    """Cassandra does not know USING TIMEOUT: the client applies it, and the log is the same."""
    cql.execute(f"CREATE TABLE {keyspace}.timed (k int PRIMARY KEY, v int, l list<int>)")
    captured = capture(cql, [f"{keyspace}.timed"], keyspace)
    captured.execute(f"INSERT INTO {keyspace}.timed (k, v) VALUES (1, 1) USING TIMEOUT 10s")
    captured.execute(f"INSERT INTO {keyspace}.timed (k, v) VALUES (?, ?) USING TIMEOUT ? AND TTL ?", (2, 2, Duration(0, 0, 10**10), 1000))
    captured.execute(
        f"UPDATE {keyspace}.timed USING TTL :t AND TIMEOUT :o SET v = :v WHERE k = 3", {"t": 900, "o": Duration(0, 0, 10**10), "v": 3}
    )
    captured.execute(
        f"BEGIN BATCH USING TIMEOUT 10s UPDATE {keyspace}.timed SET l = [4], v = 4 WHERE k = 4; "
        f"DELETE FROM {keyspace}.timed USING TIMEOUT 9s WHERE k = 1; APPLY BATCH"
    )
    rows = cql.execute(f"SELECT k, v, TTL(v) FROM {keyspace}.timed")
    assert sorted((row[0], row[1], row[2] is not None) for row in rows) == [(2, 2, True), (3, 3, True), (4, 4, False)]
    logged = cql.execute(f'SELECT k, v, "cdc$ttl", "cdc$operation" FROM {keyspace}.timed_scylla_cdc_log')
    assert sorted((row[0], row[1] or 0, row[2] or 0, row[3]) for row in logged if row[3] != 1 or row[0] == 3) == [
        (1, 0, 0, 4),
        (1, 1, 0, 2),
        (2, 2, 1000, 2),
        (3, 3, 900, 1),
    ]
    for wrong in ("-1s", "1d", "1us", "null"):
        with pytest.raises(DefiniteError, match=r"not a whole number of milliseconds|cannot read this CQL"):
            captured.execute(f"UPDATE {keyspace}.timed USING TIMEOUT {wrong} SET v = 9 WHERE k = 9")
    with pytest.raises(TransientError):
        captured.execute(f"UPDATE {keyspace}.timed USING TIMEOUT 0ms SET v = 9 WHERE k = 9")


def test_a_log_table_s_name_that_is_used_is_refused_at_once(cql: CqlSession, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.taken (k int PRIMARY KEY, v int)")
    with pytest.raises(DefiniteError, match=rf"{keyspace}.taken has no log table"):
        capture(cql, [f"{keyspace}.taken"], keyspace, create=False)
    cql.execute(f"CREATE TABLE {keyspace}.taken_scylla_cdc_log (k int PRIMARY KEY, note text)")
    with pytest.raises(DefiniteError, match=r"taken_scylla_cdc_log exists and is not the log of") as raised:
        capture(cql, [f"{keyspace}.taken"], keyspace)
    assert "drop that table" in raised.value.hint
    # The remedy.
    cql.execute(f"DROP TABLE {keyspace}.taken_scylla_cdc_log")
    capture(cql, [f"{keyspace}.taken"], keyspace).execute(f"INSERT INTO {keyspace}.taken (k, v) VALUES (1, 1)")
    assert len(cql.execute(f"SELECT * FROM {keyspace}.taken_scylla_cdc_log")) == 1
    # A log without a column, because another session altered the table, is refused too: the column would be lost.
    cql.execute(f"ALTER TABLE {keyspace}.taken ADD w int")
    with pytest.raises(DefiniteError, match=r"its column \S*w should be"):
        capture(cql, [f"{keyspace}.taken"], keyspace)
