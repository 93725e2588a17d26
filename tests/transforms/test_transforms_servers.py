"""Transforms in a pipe: after every change the sink equals the source's SELECT with the same expressions.

The pipe (driver, reader, transforms, sink) runs without Spark; the last test uses Spark and kills it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.settings.settings_file import UserSettings, parse_settings
from headrace.sinks.clickhouse.server.options import ClickHouseOptions, TargetEngine
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.verify import regions
from headrace.verify.result import TableResult, Verdict
from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
from headrace.verify.watched_pipe import KnownPipe, find_watermark
from testkit.faults.killed_pipeline import Victim
from testkit.generators.workload import Workload
from testkit.oracles.binlogs import Logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.pipeline import Pipeline
from testkit.servers.accounts import Account

slow_on_mysql = pytest.mark.slow(
    "mysql",
    because="the test itself on MariaDB; test_the_sink_shows_what_the_sources_own_select_shows[mysql], test_columns_and_keys[mysql]",
)


COLUMNS = """
    id BIGINT UNSIGNED NOT NULL, region VARCHAR(10) NOT NULL, status ENUM('new', 'paid', 'gone') NOT NULL, total DECIMAL(12,2) NULL,
    note VARCHAR(50) NULL, email VARCHAR(100) NULL, created DATETIME(3) NOT NULL, worked TIME NULL, kinds SET('a', 'b', 'c') NULL,
    exact DECIMAL(65,30) NULL, secret VARBINARY(20) NULL
"""
TRANSFORMS = """
filter = "status <> 'gone' AND (total > 50 OR note IS NULL)"
drop = ["secret*"]
rename = { region = "land" }
mask = { email = "email" }
hash = { id = "sha256", note = "sha256" }
hash_salt = "env:HEADRACE_TEST_SALT"
[transforms."DB.*".computed]
day = "CAST(created AS DATE)"
twice = "CAST(total * 2 AS DECIMAL(14,2))"
label = "upper(status) || '-' || coalesce(kinds, 'none')"
long_work = "worked > INTERVAL '30 hours'"
secret_length = "octet_length(secret)"
"""
SOURCE_QUERY = """
    SELECT LOWER(SHA2(CONCAT('pepper', id), 256)), region, status, total, LOWER(SHA2(CONCAT('pepper', note), 256)),
        IF(email LIKE '_%@%', CONCAT(LEFT(email, 1), '***@', SUBSTRING_INDEX(email, '@', -1)), IF(email IS NULL, NULL, '***')),
        created, worked, kinds, exact,
        DATE(created), total * 2, CONCAT(UPPER(status), '-', COALESCE(kinds, 'none')), worked > '30:00:00', LENGTH(secret)
    FROM {table} WHERE status <> 'gone' AND (total > 50 OR note IS NULL)
"""
SHOWN = """
    SELECT id, land, status, toString(total), note, email, toString(created), toString(worked), toString(kinds), toString(exact),
        toString(day), toString(twice), label, long_work, secret_length FROM {place} {how}
"""
TABLES: dict[str, tuple[str, dict[str, object]]] = {
    "merged": ("PRIMARY KEY (id, region)", {}),
    "sorted": ("PRIMARY KEY (id)", {"sort_key": ("day", "id")}),
    "counted": ("PRIMARY KEY (id)", {"engine": TargetEngine.COLLAPSING}),
    "versioned": ("PRIMARY KEY (id)", {"engine": TargetEngine.VERSIONED}),
    "keyless": ("KEY (region)", {}),
}


def plain(value: Any) -> Any:
    text = value.decode() if isinstance(value, bytes) else value
    if isinstance(text, str) and "." in text and text.replace(".", "").replace("-", "").isdigit():
        return text.rstrip("0").rstrip(".")
    return text if text is None else str(text)


def expected(book: Logbook, table: str) -> Counter[Any]:
    return Counter(tuple(map(plain, row)) for row in book.fetch(SOURCE_QUERY.format(table=table)))


def shown(client: Client, book: Logbook, table: str) -> Counter[Any]:
    views = client.query(f"SELECT count() FROM system.tables WHERE database = '{book.database}' AND name = '{table}_current'").result_rows
    place, how = (f"{table}_current", "") if views[0][0] else (table, "FINAL")
    rows = client.query(SHOWN.format(place=f"`{book.database}`.`{place}`", how=how)).result_rows
    return Counter(tuple(map(plain, row)) for row in rows)


def settings_for(book: Logbook, transforms: str = TRANSFORMS, glob: str = "*") -> dict[str, Any]:
    text = f'[transforms."{book.database}.{glob}"]\n{transforms}'.replace('"DB.*"', f'"{book.database}.{glob}"')
    return parse_settings(text, "test.toml").plain


class Traffic:
    """Random changes, the same for each table."""

    def __init__(self, book: Logbook, seed: int) -> None:
        self.book, self.random, self.next = book, random.Random(seed), 1

    def values(self, number: int) -> dict[str, str]:
        pick = self.random
        return {
            "id": str(number),
            "region": pick.choice(("'eu'", "'us'", "'ä€'")),
            "status": pick.choice(("'new'", "'paid'", "'gone'")),
            "total": pick.choice(("NULL", "50", "50.01", "7.25", "9999999999.99", "-3")),
            "note": pick.choice(("NULL", "''", "'hello'", "'wörld'")),
            "email": pick.choice(("NULL", "'ann@example.com'", "'a@b@c.org'", "'none'", "''", "'@x'")),
            "created": pick.choice(("'2024-02-29 23:59:59.999'", "'1970-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'2024-03-01'")),
            "worked": pick.choice(("NULL", "'-838:59:59'", "'838:59:59'", "'30:00:01'", "'12:00:00'")),
            "kinds": pick.choice(("NULL", "''", "'a,c'", "'b'")),
            "exact": pick.choice(("NULL", "1.000000000000000000000000000001", "12345678901234567890123456789012345")),
            "secret": pick.choice(("NULL", "X'00FF'", "'abc'")),
        }

    def insert(self, count: int) -> None:
        for table in TABLES:
            rows = [f"({', '.join(self.values(self.next + place).values())})" for place in range(count)]
            self.book.run(f"INSERT INTO {table} VALUES {', '.join(rows)}")
        self.next += count

    def change(self, count: int) -> None:
        for table in TABLES:
            self.book.run("BEGIN")
            for _ in range(count):
                number = self.random.randrange(1, self.next)
                columns = self.random.sample([*self.values(0)][1:], self.random.randint(1, 3))
                new = self.values(number)
                sets = ", ".join(f"{name} = {new[name]}" for name in columns)
                what = self.random.random()
                if what < 0.7:
                    self.book.run(f"UPDATE {table} SET {sets} WHERE id = {number}")
                elif what < 0.8:
                    self.book.run(f"UPDATE IGNORE {table} SET id = id + 100000 WHERE id = {number}")
                elif what < 0.9:
                    self.book.run(f"DELETE FROM {table} WHERE id = {number}")
                else:
                    self.book.run(f"UPDATE {table} SET status = IF(status = 'gone', 'new', 'gone') WHERE id % 10 = {number % 10}")
            self.book.run("COMMIT")


def assert_same(client: Client, book: Logbook) -> None:
    for table in TABLES:
        source, target = expected(book, table), shown(client, book, table)
        assert source == target, f"{table}: missing {source - target}, extra {target - source}"
        assert source


@pytest.mark.timeout(900)
def test_the_sink_shows_what_the_sources_own_select_shows(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_SALT", "pepper")
    for table, (key, _) in TABLES.items():
        book.run(f"CREATE TABLE {table} ({COLUMNS}, {key})")
    choices = ClickHouseOptions(tables=tuple((f"*.{table}", tuple(own.items())) for table, (_, own) in TABLES.items()))
    traffic = Traffic(book, 7)
    traffic.insert(150)
    state = tmp_path / "state"

    def piped() -> DrivenPipe:
        return DrivenPipe(book, url_of(clickhouse), state, choices=choices, settings=settings_for(book))

    pipe = piped().open()
    assert_same(client, book)
    traffic.change(30)
    traffic.insert(30)
    pipe.catch_up()
    assert_same(client, book)
    for nth in (0, 2, 4):
        # The written part of an interrupted batch is written again.
        traffic.change(10)
        with pytest.raises(Crash), crash_at([(ClickHouseWriter, "_send")], nth, after=bool(nth % 4)):
            pipe.catch_up()
        pipe = piped().open()
        pipe.catch_up()
        assert_same(client, book)
    # A table that is read again is equal, through the same transforms, without rows that were deleted in the meantime.
    client.command(
        f"INSERT INTO `{book.database}`.merged (id, land, status, created, label, _sign, _version) VALUES ('x', 'y', 'new', 0, 'z', 1, 1)"
    )
    request_resync(StateDirectory(state), (f"{book.database}.merged", f"{book.database}.counted"))
    pipe.catch_up()
    assert_same(client, book)
    # Regions of tables with hashed keys, by the first digits.
    monkeypatch.setattr(regions, "_HASHED_ROWS", 40)
    verdicts = {result.schema.name.table: result for result in compared(book, pipe, settings_for(book))}
    assert {name: result.verdict for name, result in verdicts.items()} == dict.fromkeys(TABLES, Verdict.EQUAL)
    assert {name: result.comparison.rows for name, result in verdicts.items()} == {name: expected(book, name).total() for name in TABLES}
    # Every part of a hashed key reads the excluded rows; they count once.
    excluded = {name: count(book, name, "(status <> 'gone' AND (total > 50 OR note IS NULL)) IS NOT TRUE") for name in TABLES}
    assert {name: result.excluded for name, result in verdicts.items()} == excluded
    assert all(excluded.values())
    client.command(f"ALTER TABLE `{book.database}`.merged UPDATE label = 'other' WHERE land = 'eu'", settings={"mutations_sync": 2})
    [merged] = [one for one in compared(book, pipe, settings_for(book)) if one.schema.name.table == "merged"]
    assert merged.verdict is Verdict.DIFFERENT
    assert {difference.column for difference in merged.comparison.differences} == {"label"}


def count(book: Logbook, table: str, condition: str) -> int:
    return int(book.fetch(f"SELECT COUNT(*) FROM {table} WHERE {condition}")[0][0])


def compared(book: Logbook, pipe: DrivenPipe, settings: dict[str, Any], *, repair: bool = False) -> list[TableResult]:
    sink, selection = pipe.sink, Selection((f"{book.database}.*",))
    options = VerifyOptions(chunk_rows=50, spark=SparkUse.NEVER, transforms=UserSettings(settings).transforms, repair=repair)
    watermark = find_watermark(sink, book.address, book.database, KnownPipe(), 5.0)
    return list(verify_tables(book.address, sink, selection, options, watermark=watermark))


def test_a_copy_is_compared_and_repaired_through_transforms(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    rows = ", ".join(f"({number}, 'n{number}', {number % 7})" for number in range(1, 400))
    book.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), rest INT)", f"INSERT INTO t VALUES {rows}")
    settings = settings_for(
        book, "filter = 'rest > 1'\nrename = { id = 'number' }\ncomputed = { odd = 'rest % 2 = 1' }\ndrop = ['rest']", "t"
    )
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", settings=settings).open()
    book.run("UPDATE t SET rest = rest - 1 WHERE id % 3 = 0")
    pipe.catch_up()
    [equal] = compared(book, pipe, settings)
    assert (equal.verdict, equal.comparison.rows) == (Verdict.EQUAL, int(book.fetch("SELECT COUNT(*) FROM t WHERE rest > 1")[0][0]))
    place = f"`{book.database}`.t"
    client.command(f"ALTER TABLE {place} UPDATE odd = 1 - odd WHERE number = 4", settings={"mutations_sync": 2})
    client.command(f"ALTER TABLE {place} DELETE WHERE number = 5", settings={"mutations_sync": 2})
    # Row 1 is in the source, but the filter excludes it.
    client.command(f"INSERT INTO {place} (number, name, odd, _sign, _version) VALUES (1, 'n1', 1, 1, 1)")
    [different] = compared(book, pipe, settings)
    found = sorted((one.key[0], one.kind) for one in different.comparison.differences)
    assert (different.verdict, found) == (Verdict.DIFFERENT, [(1, "extra"), (4, "different"), (5, "missing")])
    [repaired] = compared(book, pipe, settings, repair=True)
    assert (repaired.verdict, repaired.repaired) == (Verdict.EQUAL, 3), repaired.notes


def test_tables_are_cut_by_the_sources_own_key(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    """Also if the sink's key differs: renamed, or hashed to a text."""
    rows = ", ".join(f"({number})" for number in range(1, 2001))
    for table in ("named", "hashed"):
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES {rows}", f"ANALYZE TABLE {table}")
    text = '[transforms."*.named"]\nrename = { id = "number" }\n[transforms."*.hashed"]\nhash = { id = "sha256" }'
    pipe = DrivenPipe(book, url_of(clickhouse), tmp_path / "state", settings=parse_settings(text, "test.toml").plain, chunk_rows=300)
    pipe.open()
    for table in ("named", "hashed"):
        chunks = pipe.parts.snapshots.snapshots.log.tables[f"{book.database}.{table}"].chunks
        assert len(chunks) > 3
        assert re.fullmatch(r"`id` <= \d+", chunks[0]["where"])
        assert client.query(f"SELECT count(), uniqExact(*) FROM `{book.database}`.{table}").result_rows == [(2000, 2000)]


def test_settings_of_existing_tables(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), rank_no INT)", "INSERT INTO t VALUES (1, 'ann', 1), (2, 'bob', 2)")
    state = tmp_path / "state"
    place = f"`{book.database}`.t FINAL"

    def piped(transforms: str) -> DrivenPipe:
        return DrivenPipe(book, url_of(clickhouse), state, settings=settings_for(book, transforms, "t"))

    for wrong, said in (
        ("mask = { nam = 'null' }", "mask names nam"),
        ("filter = 'rankno > 1'", "did you mean rank_no"),
        ("drop = ['id']", "key that tells its rows apart"),
        ("computed = { x = 'id + name' }", "computed.x"),
    ):
        with pytest.raises(DefiniteError) as caught:
            piped(wrong).open()
        assert said in f"{caught.value.message} {caught.value.hint} {caught.value.place}"
        assert not (state / "pipe.json").exists()
    monkeypatch.setenv("SALT_A", "pepper one")
    monkeypatch.setenv("SALT_B", "pepper one")
    first = "filter = 'rank_no < 2'\nhash = { name = 'md5' }\nhash_salt = 'env:SALT_A'"
    piped(first).open().catch_up()
    assert client.query(f"SELECT id FROM {place}").result_rows == [(1,)]
    # The same secret from another place is accepted; another secret or another filter is not.
    piped(first.replace("SALT_A", "SALT_B")).open()
    assert "pepper" not in (state / "pipe.json").read_text()
    monkeypatch.setenv("SALT_B", "two")
    with pytest.raises(DefiniteError, match="another salt") as caught:
        piped(first.replace("SALT_A", "SALT_B")).open()
    assert f"headrace resync {book.database}.t" in caught.value.hint
    second = first.replace("< 2", "> 1")
    with pytest.raises(DefiniteError, match="other transforms"):
        piped(second).open()
    request_resync(StateDirectory(state), (f"{book.database}.t",))
    pipe = piped(second).open()
    pipe.catch_up()
    assert client.query(f"SELECT id FROM {place}").result_rows == [(2,)]
    book.run("UPDATE t SET rank_no = 3 - rank_no")
    pipe.catch_up()
    assert client.query(f"SELECT id FROM {place}").result_rows == [(1,)]


@slow_on_mysql
def test_schema_changes_of_columns_that_transforms_name(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    database, state = book.database, tmp_path / "state"
    book.run(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), score INT NOT NULL, phone VARCHAR(20), extra INT)",
        "INSERT INTO t VALUES (1, 'ann', 5, '0151', 1), (2, 'bob', 50, '0152', NULL)",
    )
    first = "filter = 'score > 9'\nmask = { phone = 'last 2', extra = 'null' }\nrename = { name = 'who' }"
    first += "\ncomputed = { tens = 'floor(score / 10)' }"

    def piped(transforms: str = first) -> DrivenPipe:
        return DrivenPipe(book, url_of(clickhouse), state, settings=settings_for(book, transforms, "t"))

    def rows(columns: str) -> list[tuple[Any, ...]]:
        return sorted(client.query(f"SELECT {columns} FROM `{database}`.t FINAL").result_rows)

    pipe = piped().open()
    book.run("UPDATE t SET score = 60 WHERE id = 2", "ALTER TABLE t ADD COLUMN born DATE DEFAULT '2020-02-02' FIRST")
    book.run("INSERT INTO t VALUES ('2021-01-01', 3, 'cy', 31, '0153', 1)")
    pipe.catch_up()
    assert rows("toString(born), id, who, score, phone, extra, tens") == [
        ("2020-02-02", 2, "bob", 60, "**52", None, 6),
        ("2021-01-01", 3, "cy", 31, "**53", None, 3),
    ]
    # The filter sees other values: excluded rows are added, computed columns follow.
    book.run("ALTER TABLE t MODIFY score DECIMAL(6,1) NOT NULL", "UPDATE t SET score = 9.5 WHERE id = 1")
    pipe.catch_up()
    assert [(one, float(tens)) for one, tens in rows("id, tens")] == [(1, 0.0), (2, 6.0), (3, 3.0)]
    # A dropped masked column drops its mask; a plain column may be renamed; a table may be renamed if the same transforms apply.
    book.run(
        "ALTER TABLE t DROP COLUMN extra",
        "ALTER TABLE t RENAME COLUMN born TO birth",
        "INSERT INTO t VALUES ('2022-01-01', 4, 'di', 44, NULL)",
    )
    pipe.catch_up()
    assert rows("toString(birth), id, phone")[-1] == ("2022-01-01", 4, None)
    assert "extra" not in str(client.query(f"DESCRIBE `{database}`.t").result_rows)
    pipe = piped().open()
    # Renaming a hidden column halts: it must stay hidden.
    book.run("ALTER TABLE t RENAME COLUMN phone TO mobile", "INSERT INTO t VALUES ('2022-01-01', 5, 'ed', 55, '12345')")
    with pytest.raises(DefiniteError, match=r"column phone of .* is called mobile now") as caught:
        pipe.catch_up()
    assert f"headrace resync {database}.t --state {state}" in caught.value.hint
    second = first.replace("phone", "mobile").replace(", extra = 'null'", "")
    with pytest.raises(DefiniteError, match="other transforms"):
        piped(second).open()
    request_resync(StateDirectory(state), (f"{database}.t",))
    pipe = piped(second).open()
    pipe.catch_up()
    assert rows("id, mobile") == [(1, "**51"), (2, "**52"), (3, "**53"), (4, None), (5, "***45")]
    book.run("ALTER TABLE t DROP COLUMN score")
    with pytest.raises(DefiniteError, match=r"transforms no longer fit it: (filter|computed\.tens) names score") as caught:
        pipe.catch_up()
    assert "DROP COLUMN score" in caught.value.place
    request_resync(StateDirectory(state), (f"{database}.t",))
    third = "filter = 'id > 1'\nmask = { mobile = 'last 2' }\nrename = { name = 'who' }"
    pipe = piped(third).open()
    pipe.catch_up()
    assert rows("id, who, mobile") == [(2, "bob", "**52"), (3, "cy", "**53"), (4, "di", None), (5, "ed", "***45")]
    # A name with other transforms: the table is read again with those.
    book.run("RENAME TABLE t TO u", "INSERT INTO u VALUES ('2022-01-01', 6, 'fy', '678')")
    pipe.catch_up()
    found = client.query(f"SELECT id, name, mobile FROM `{database}`.u FINAL ORDER BY id").result_rows
    assert found[0] == (1, "ann", "0151")
    assert found[-1] == (6, "fy", "678")
    assert len(found) == 6
    # A table with a masked column under another name is not replicated.
    book.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), mobile_no VARCHAR(20))", "INSERT INTO t VALUES (7, 'gy', '1234')")
    with pytest.raises(DefiniteError, match="mask names mobile"):
        pipe.catch_up()


SPARK_SETTINGS = """
[transforms."DB.accounts"]
filter = "floor(balance) % 2 = 0"
computed = { whole = "CAST(floor(balance) AS BIGINT)" }
hash = { owner = "sha256" }
hash_salt = "env:HEADRACE_TEST_SALT"
rename = { changed = "touched" }

[transforms."DB.parts"]
filter = "line % 3 <> 0 AND account <> 'a7'"
"""


@slow_on_mysql
@pytest.mark.parametrize("chosen", ["all", "one"])
def test_what_was_hidden_is_not_shown_under_another_name(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path, chosen: str
) -> None:
    """A migration tool creates a table with a renamed column, and swaps the two."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(20))", "INSERT INTO t VALUES (1, 'ann@x.org')")
    exclude = ("*._t_*",) if chosen == "one" else ()

    def piped(transforms: str) -> DrivenPipe:
        settings = settings_for(book, transforms, "t")
        return DrivenPipe(book, url_of(clickhouse), tmp_path / "state", exclude=exclude, settings=settings)

    masked = "mask = { email = 'null' }"
    pipe = piped(masked).open()
    book.run("CREATE TABLE _t_new (id INT PRIMARY KEY, mail VARCHAR(20))", "INSERT INTO _t_new SELECT * FROM t")
    book.run("RENAME TABLE t TO _t_old, _t_new TO t")
    with pytest.raises(DefiniteError, match="email, which its transforms hide, is gone, and mail came"):
        pipe.catch_up()
    with pytest.raises(DefiniteError, match="it would be shown"):
        piped(masked).open().catch_up()
    assert "ann@x.org" not in str(client.query(f"SELECT * FROM `{book.database}`.t").result_rows)
    piped("mask = { mail = 'email' }").open().catch_up()
    assert client.query(f"SELECT mail FROM `{book.database}`.t FINAL").result_rows == [("a***@x.org",)]


def test_a_table_that_came_meanwhile_has_the_columns_that_its_transforms_name(
    book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY)")

    def piped(column: str) -> DrivenPipe:
        settings = settings_for(book, f"mask = {{ {column} = 'null' }}", "later") if column else {}
        return DrivenPipe(book, url_of(clickhouse), tmp_path / "state", settings=settings)

    piped("").open()
    book.run("CREATE TABLE later (id INT PRIMARY KEY, email VARCHAR(20))", "INSERT INTO later VALUES (1, 'ann@x.org')")
    with pytest.raises(DefiniteError, match="mask names emial"):
        piped("emial").open()
    piped("email").open().catch_up()
    assert client.query(f"SELECT id, email FROM `{book.database}`.later FINAL").result_rows == [(1, None)]


@pytest.mark.slow(because="test_the_sink_shows_what_the_sources_own_select_shows without Spark; test_one_kill kills")
@pytest.mark.soak("mysql", because="the other tests are on both, without Spark")
@pytest.mark.timeout(900)
def test_killed_with_spark(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> None:
    (tmp_path / "pipe.toml").write_text(SPARK_SETTINGS.replace("DB", database))
    sink_dir = tmp_path / "sink"
    options = ("--chunk-rows", "60", "--settings", str(tmp_path / "pipe.toml"))
    environment = {"HEADRACE_TEST_SALT": "pepper"}
    pipeline = Pipeline(replica_account.url(database), f"chdb:{sink_dir}", tmp_path / "state", options, environment)
    workload, chooser = Workload(server, database, 11, pause_s=0.05), random.Random(3)
    workload.prepare()
    with workload:
        landed = Victim(pipeline, sink_dir, server, database).strike("written", chooser)
    done = pipeline.once()
    assert done.code == 0, (landed, done.output)
    verified = pipeline.verify()
    assert (verified.code, verified.output.splitlines()[-1].rpartition(", ")[2].partition(";")[0]) == (0, "0 differences"), verified.output
    with server.root_connection(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, SHA2(CONCAT('pepper', owner), 256), CAST(balance AS CHAR), FLOOR(balance), CAST(changed AS CHAR) FROM accounts"
            " WHERE FLOOR(balance) % 2 = 0 ORDER BY id"
        )
        accounts = [tuple(map(plain, row)) for row in cursor.fetchall()]
        cursor.execute("SELECT account, line FROM parts WHERE line % 3 <> 0 AND account <> 'a7' ORDER BY account, line")
        parts = list(cursor.fetchall())
    with pipeline.sink_served(sink_dir) as served, sink_client(served) as client:
        columns = "id, owner, toString(balance), toString(whole), toString(touched)"
        found = client.query(f"SELECT {columns} FROM {database}.accounts FINAL ORDER BY id").result_rows
        assert [tuple(map(plain, row)) for row in found] == accounts
        assert client.query(f"SELECT account, line FROM {database}.parts FINAL ORDER BY account, line").result_rows == parts
    assert len(accounts) > 100
    assert "pepper" not in (tmp_path / "state" / "pipe.json").read_text()
    print(f"the kill landed: {landed}; {len(accounts)} accounts pass")
