"""`format("headrace")`: a table's changes and rows as typed frames, exact in every type, resumable, and without passwords in the output.

One server (Oracle MySQL, which has the larger set of types) and one session for the whole module: what is read is the same code as in
`headrace.changes`, which is tested on both.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import headrace.spark
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.spark.session.session import start_session
from headrace.spark.spark_runtime import SparkRuntimeSession
from headrace.verify.region_reader import Endpoints
from headrace.verify.region_tasks import Answer, RegionTask, RegionTaskKind, RuntimeTaskRunner, ThreadTaskRunner
from headrace.verify.regions import Region
from headrace.verify.table_spec import describe
from testkit.documents.documents import DOCS, run_examples
from testkit.oracles.binlogs import Logbook, Row, Value, fraction_text, new_logbook, time_text
from testkit.oracles.pairs import open_pair
from testkit.servers.accounts import Account, create_replica_account

DATABASE = "typed"
TYPES = """
id INT PRIMARY KEY, i8 TINYINT, i16 SMALLINT, i24 MEDIUMINT, i64 BIGINT, u8 TINYINT UNSIGNED, u16 SMALLINT UNSIGNED,
u24 MEDIUMINT UNSIGNED, u32 INT UNSIGNED, u64 BIGINT UNSIGNED, f FLOAT, d DOUBLE, n DECIMAL(10,4), wide DECIMAL(65,30), big DECIMAL(50,0),
c CHAR(9), v VARCHAR(40), t TEXT, b VARBINARY(20), bb BLOB, da DATE, dt DATETIME(6), ts TIMESTAMP(3) NULL, ti TIME(6), y YEAR,
e ENUM('small','large'), s SET('a','b','c'), j JSON, b1 BIT(1), b63 BIT(63), b64 BIT(64)"""
ROWS = [
    """(1, -128, -32768, -8388608, -9223372036854775808, 255, 65535, 16777215, 4294967295, 18446744073709551615, 1.5, -2.25e-300,
    -999999.9999, -99999999999999999999999999999999999.999999999999999999999999999999, -99999999999999999999999999999999999999999999999999,
    'é', '日本', 'text', x'00ff', x'', '1000-01-01', '9999-12-31 23:59:59.999999', '1970-01-01 00:00:01.001', '-838:59:58.999999', 1901,
    'large', 'a,c', '{"k": [1, 2.5, "x"]}', b'1', 9223372036854775807, 18446744073709551615)""",
    "(2" + ", NULL" * 30 + ")",
    """(3, 127, 0, 0, 9223372036854775807, 0, 0, 0, 0, 0, 0, 0, 0, 0.000000000000000000000000000001, 7, '', '', '', '', x'01', '2024-02-29',
    '0001-01-01 00:00:00', '2038-01-19 03:14:07.999', '838:59:59', 2155, 'small', '', 'null', b'0', 0, 0)""",
]
ZERO = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def account(mysql_server: PrivateServer) -> Account:
    return create_replica_account(mysql_server, "frames")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session("local[2]", tmp_path_factory.mktemp("spark"), spark_log=False, preload=("headrace.spark.frames.data_source",))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    headrace.spark.register(session)
    yield session
    session.stop()


@pytest.fixture
def book(mysql_server: PrivateServer) -> Iterator[Logbook]:
    with new_logbook(mysql_server, DATABASE) as logbook:
        yield logbook


@dataclass
class Query:
    """A streaming query over one table that can be run to the log's end again and again."""

    spark: SparkSession
    account: Account
    table: str
    checkpoint: Path
    options: dict[str, str] = field(default_factory=dict)
    found: list[pa.Table] = field(default_factory=list)

    def frame(self) -> DataFrame:
        return self.spark.readStream.format("headrace").options(**options_of(self.account, self.table), **self.options).load()

    def run(self) -> list[dict[str, Any]]:
        """Return the changes since the last run, by version."""
        self.found.clear()
        writer = self.frame().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return rows_of(self.found)

    def _take(self, batch: DataFrame, _: int) -> None:
        self.found.append(batch.toArrow())


def options_of(account: Account, table: str) -> dict[str, str]:
    url = account.server.url("", account.user, "x").replace(":x@", "@")
    return {"url": url, "password": account.password, "table": f"{DATABASE}.{table}"}


@pytest.fixture
def stream(spark: SparkSession, account: Account, tmp_path: Path) -> Callable[..., Query]:
    def make(table: str, **options: str) -> Query:
        return Query(spark, account, table, tmp_path / f"checkpoint-{table}", options)

    return make


def rows_of(tables: list[pa.Table]) -> list[dict[str, Any]]:
    """Rows as mappings; times outside of a day, and times with a zone, in microseconds."""
    rows = [row for table in tables for row in _plain(table).to_pylist()]
    return sorted(rows, key=lambda row: row["_version"])


def _plain(table: pa.Table) -> pa.Table:
    def plain(array: pa.Array) -> pa.Array:
        if pa.types.is_struct(array.type):
            parts = [plain(array.field(i)) for i in range(array.type.num_fields)]
            return pa.StructArray.from_arrays(parts, names=[part.name for part in array.type], mask=array.is_null())
        if pa.types.is_duration(array.type) or pa.types.is_timestamp(array.type):
            return array.cast(pa.int64())
        return array.cast(pa.int32()) if pa.types.is_date(array.type) else array

    columns = [plain(column.combine_chunks()) for column in table.columns]
    return pa.table([c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns], names=table.column_names)


def as_server_prints(columns: tuple[Column, ...], row: dict[str, Any]) -> Row:
    return tuple(None if row[column.name] is None else _text(column, row[column.name]) for column in columns)


def _text(column: Column, value: Any) -> Value:
    match column.kind:
        case Kind.DATE:
            return str(np.datetime64(value, "D"))
        case Kind.DATETIME | Kind.TIMESTAMP:
            whole, micros = divmod(value, 1_000_000)
            return str(np.datetime64(whole, "s")).replace("T", " ") + fraction_text(micros, column.precision)
        case Kind.TIME:
            return time_text(value, column.precision)
        case Kind.FLOAT32 | Kind.FLOAT64:
            return float(value)
        case _:
            return (
                value
                if isinstance(value, bytes)
                else f"{value:f}"
                if column.kind is Kind.DECIMAL and not isinstance(value, str)
                else str(value)
            )


def test_every_type_is_exact(book: Logbook, spark: SparkSession, account: Account, stream: Callable[..., Query]) -> None:
    book.run(f"CREATE TABLE everything ({TYPES})")
    changes = stream("everything", startingPosition=str_place(book))
    book.run(f"INSERT INTO everything VALUES {', '.join(ROWS)}")
    schema = book.schema("everything")
    wanted = book.select(schema)

    snapshot = rows_of([spark.read.format("headrace").options(**options_of(account, "everything")).load().toArrow()])
    assert [as_server_prints(schema.columns, row["after"]) for row in sorted(snapshot, key=lambda row: row["after"]["id"])] == wanted
    assert {(row["_op"], row["before"]) for row in snapshot} == {("snapshot", None)}

    found = changes.run()
    assert [as_server_prints(schema.columns, row["after"]) for row in found] == wanted
    assert [(row["_op"], row["before"]) for row in found] == [("insert", None)] * 3
    after = changes.frame().schema["after"].dataType
    assert isinstance(after, StructType)
    types = {field.name: field.dataType.simpleString() for field in after.fields}
    assert (types["u64"], types["wide"], types["ti"], types["dt"], types["b64"]) == (
        "decimal(20,0)",
        "string",
        "interval day to second",
        "timestamp_ntz",
        "decimal(20,0)",
    )


def str_place(book: Logbook) -> str:
    place = book.place()
    return f"{place.file}:{place.offset}"


def test_changes_pair_row_images(book: Logbook, stream: Callable[..., Query]) -> None:
    book.run("CREATE TABLE pairs (id INT, part INT, v VARCHAR(20), PRIMARY KEY (id, part))")
    query = stream("pairs", startingPosition=str_place(book))
    began = datetime.now(UTC)
    book.run("INSERT INTO pairs VALUES (1, 1, 'a'), (2, 1, NULL)", "UPDATE pairs SET v = 'b' WHERE id = 1")
    book.run("BEGIN", "UPDATE pairs SET part = part + 10", "DELETE FROM pairs WHERE id = 2", "COMMIT")
    first = query.run()
    book.run("INSERT INTO pairs SELECT 3, 0, 'late'", "BEGIN", "DELETE FROM pairs", "ROLLBACK")
    second = query.run()
    assert query.run() == []

    def image(row: dict[str, Any] | None) -> tuple[Any, ...] | None:
        return None if row is None else tuple(row.values())

    assert [(row["_op"], image(row["before"]), image(row["after"])) for row in first + second] == [
        ("insert", None, (1, 1, "a")),
        ("insert", None, (2, 1, None)),
        ("update", (1, 1, "a"), (1, 1, "b")),
        ("update", (1, 1, "b"), (1, 11, "b")),
        ("update", (2, 1, None), (2, 11, None)),
        ("delete", (2, 11, None), None),
        ("insert", None, (3, 0, "late")),
    ]
    versions = [row["_version"] for row in first + second]
    assert versions == sorted(set(versions))
    names = [row["_transaction"] for row in first + second]
    assert [names.index(name) for name in names] == [0, 0, 2, 3, 3, 3, 6], "two rows of one statement, and three of one transaction"
    assert all(name.count(":") == 1 for name in names)
    times = [row["_ts"] / 1e6 for row in first]
    assert all(began.timestamp() - 2 < time < datetime.now(UTC).timestamp() + 2 for time in times)


def test_a_frame_of_past_changes(book: Logbook, spark: SparkSession, account: Account) -> None:
    book.run("CREATE TABLE past (id INT PRIMARY KEY, v INT)")
    start = str_place(book)
    book.run("INSERT INTO past VALUES (1, 1), (2, 2)", "UPDATE past SET v = v * 10", "DELETE FROM past WHERE id = 1")
    frame = spark.read.format("headrace").options(**options_of(account, "past")).option("startingPosition", start).load()
    found = [(row["_op"], *(row["after"] or row["before"])) for row in frame.orderBy("_version").collect()]
    assert found == [("insert", 1, 1), ("insert", 2, 2), ("update", 1, 10), ("update", 2, 20), ("delete", 1, 10)]


def test_a_table_that_changes(book: Logbook, stream: Callable[..., Query]) -> None:
    book.run("CREATE TABLE moving (id INT PRIMARY KEY, v INT)")
    query = stream("moving", startingPosition=str_place(book))
    book.run("INSERT INTO moving VALUES (1, 1)", "TRUNCATE TABLE moving", "INSERT INTO moving VALUES (2, 2)")
    book.run("CREATE INDEX by_v ON moving (v)", "INSERT INTO moving VALUES (3, 3)")
    assert [(row["_op"], row["after"] and row["after"]["id"]) for row in query.run()] == [
        ("insert", 1),
        ("truncate", None),
        ("insert", 2),
        ("insert", 3),
    ]
    frame = query.frame()
    book.run("INSERT INTO moving VALUES (4, 4)", "ALTER TABLE moving ADD COLUMN more INT", "INSERT INTO moving VALUES (5, 5, 5)")
    query.found.clear()
    writer = frame.writeStream.foreachBatch(query._take).option("checkpointLocation", str(query.checkpoint))
    with pytest.raises(PySparkException) as caught:
        writer.trigger(availableNow=True).start().awaitTermination()
    said = str(caught.value)
    assert "has other columns from here on" in said
    assert "more int" in said
    assert "remedy: start the query again" in said
    assert "headrace-error[" not in said
    assert [row["after"] for row in rows_of(query.found)] == [{"id": 4, "v": 4}]
    assert [row["after"] for row in query.run()] == [{"id": 5, "v": 5, "more": 5}]


def test_passwords_are_not_shown(book: Logbook, spark: SparkSession, account: Account, stream: Callable[..., Query]) -> None:
    book.run("CREATE TABLE hidden (id INT PRIMARY KEY)")
    query = stream("hidden")
    frames = [query.frame(), spark.read.format("headrace").options(**options_of(account, "hidden")).load()]
    frames.append(spark.read.format("headrace").option("url", account.url()).option("table", f"{DATABASE}.hidden").load())
    for frame in frames:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            frame.explain(True)
            frame.explain("formatted")
        assert "hidden" not in account.password
        assert account.password not in shown.getvalue() + str(frame) + repr(frame)
    progress: list[str] = []
    writer = query.frame().writeStream.foreachBatch(query._take).option("checkpointLocation", str(query.checkpoint))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    progress.append(json.dumps([json.loads(one.json) for one in running.recentProgress]) + str(running.lastProgress))
    assert account.password not in "".join(progress)
    assert not any(account.password in file.read_text(errors="replace") for file in query.checkpoint.rglob("*") if file.is_file())


def test_the_document_s_examples(book: Logbook, spark: SparkSession, account: Account) -> None:
    plain, heading, typed = (DOCS / "api.md").read_text().partition("\n## Spark\n")
    real = {"shop": DATABASE, "reader": account.user, "secret": account.password, "db.example.com:3306": f"127.0.0.1:{account.server.port}"}
    with account.server.root_connection() as connection:
        assert run_examples("docs/api.md", plain, connection, real, {}, python=False) == 0
        assert run_examples("docs/api.md", heading + typed, connection, real, {"spark": spark}) == 3
    assert book.fetch(f"SELECT product FROM {DATABASE}.items ORDER BY line") == [("large lamp",), ("bulb",)]


def test_options_that_cannot_be(spark: SparkSession, account: Account) -> None:
    for options, message in (
        ({"table": "nowhere"}, "url and table are needed"),
        ({"tables": "x"}, "option 'tables' is not known"),
        ({"table": "typed.nothing"}, "the source has no table typed.nothing"),
    ):
        with pytest.raises(PySparkException) as caught:
            spark.read.format("headrace").options(**{**options_of(account, "x"), **options}).load()
        assert message in str(caught.value)
        assert "headrace-error[" not in str(caught.value)
        assert account.password not in str(caught.value)


def test_regions_are_compared_as_tasks(spark: SparkSession, mysql_server: PrivateServer, book: Logbook, tmp_path: Path) -> None:
    """`headrace verify` on Spark (here, because it shares the session): tasks find the same as threads."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
    with EmbeddedServer(tmp_path / "sink") as engine, open_pair(parse_mysql_url(mysql_server.url(DATABASE)), engine) as pair:
        schema = pair.schema("t")
        pair.copy(schema)
        pair.run("UPDATE t SET v = 'changed' WHERE id = 2", "DELETE FROM t WHERE id = 3")
        sides, tables = Endpoints(pair.address, pair.sink), [describe(schema, pair.sink)]
        looks = [RegionTask(kind, 0, 0, Region(("id > 1",), "id > 1", 1), 3) for kind in RegionTaskKind]
        found: list[dict[RegionTaskKind, Answer]] = []
        for lookers in (ThreadTaskRunner(sides, tables, 2), RuntimeTaskRunner(SparkRuntimeSession(spark), sides, tables)):
            answers: dict[RegionTaskKind, Answer] = {}
            lookers.run(looks, lambda look, answer, answers=answers: answers.update({look.kind: answer}))  # type: ignore[misc]
            found.append(answers)
        assert found[0] == found[1]
        narrowed = found[1][RegionTaskKind.NARROW].findings
        assert narrowed is not None
        assert sorted(narrowed.keys.column("id").to_pylist()) == [2, 3]
        pair.run("DROP TABLE t")
        with pytest.raises(DefiniteError, match="no such table"):
            lookers.run(looks[:1], lambda *_: None)
