"""What the driver does about a statement: what goes to the sink, what is asked for, and in which order, so that a crash loses nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.model.evolution import Catalogue
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.following import Follower
from headrace.pipes.progress import LogView
from headrace.pipes.settings import OnSchemaChange
from headrace.pipes.state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.history import SchemaHistory
from headrace.sources.mysql.position import BinlogPosition
from headrace.sources.mysql.selection import Selection

T = TableName("shop", "t")
WANTED = Selection(("shop.*",), ("shop.aside*",))
INT = Column("id", Kind.INT32, nullable=False, source_type="int")
TEXT = Column("a", Kind.STRING, source_type="varchar(20)", charset="utf8mb4")
SCHEMA = TableSchema(T, (INT, TEXT, replace(TEXT, name="b")), ("id",), charset="utf8mb4")


@dataclass
class Sink:
    """Notes what is asked of it, in the place of a sink: here only the driver's decisions are looked at."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        self.asked += [("prepare", schema.name.table) for schema in schemas]

    def sweep(self, schema: TableSchema, before: int) -> None:
        self.asked.append(("sweep", schema.name.table, before))


def at(offset: int) -> BinlogPosition:
    return BinlogPosition("binlog.000001", offset)


class Pipe:
    """A follower over one table, its state, and all that it did."""

    def __init__(self, path: Path, policy: OnSchemaChange = OnSchemaChange.HALT) -> None:
        self.directory = StateDirectory(path)
        self.state = PipeState("s", "i", "k", WANTED.to_json(), at(4).to_json(), 0, {}, {T: TableState(SCHEMA, at(100).to_json())})
        history = SchemaHistory(WANTED, Dialect(mariadb=False, version=90700))
        history.begin(Catalogue({T: SCHEMA}, {"shop": "utf8mb4"}), at(100))
        self.sink, self.snapshots = Sink(), SnapshotLog(self.directory)
        self.done: list[tuple[Any, ...]] = []
        self.follower = Follower(
            history, WANTED, self.state, self.directory, self.snapshots, self.sink, lambda s: s, policy, self.ask, self.check, LogView()
        )

    def ask(self, tables: tuple[str, ...]) -> None:
        saved = self.directory.load()
        self.done.append(("ask", tables, set() if saved is None else saved.waiting))

    def check(self) -> None:
        self.done.append(("check", sorted(name.table for name in self.state.tables)))

    def follow(self, statement: str, offset: int = 200, left_out: TableName | None = None) -> None:
        self.follower.follow(Query("shop", statement), at(offset), left_out)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def test_a_truncated_table_is_swept_at_the_statement(pipe: Pipe) -> None:
    pipe.follow("TRUNCATE TABLE t")
    assert pipe.sink.asked == [("sweep", "t", at(200).version)]
    pipe.follow("TRUNCATE TABLE t", 90)
    assert len(pipe.sink.asked) == 1, "the table was looked at after that"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "ALTER TABLE t DROP COLUMN a, ADD COLUMN a VARCHAR(20) DEFAULT 'x' AFTER id",
        "ALTER TABLE t MODIFY a VARCHAR(10)",
        "ALTER TABLE t MODIFY a CHAR(20)",
        "ALTER TABLE t MODIFY a VARCHAR(20) CHARACTER SET latin1",
        "ALTER TABLE t ADD COLUMN c INT",
        "ALTER TABLE t DROP PRIMARY KEY",
    ],
)
def test_an_alteration_that_may_rewrite_rows_halts_and_halts_again(pipe: Pipe, statement: str) -> None:
    for _ in range(2):
        with pytest.raises(DefiniteError, match="does not follow yet") as caught:
            pipe.follow(statement)
        assert "headrace resync shop.t" in caught.value.hint
    assert pipe.state.tables[T].schema == SCHEMA


@pytest.mark.parametrize("statement", ["ALTER TABLE t MODIFY a VARCHAR(30) COMMENT 'x'", "ALTER TABLE t ADD INDEX (a), COMMENT 'y'"])
def test_an_alteration_that_keeps_every_value_goes_on_by_the_new_definition(pipe: Pipe, statement: str) -> None:
    pipe.follow(statement)
    assert pipe.state.tables[T].schema != SCHEMA
    assert pipe.sink.asked == []


def test_a_table_that_must_be_read_again_is_asked_for_before_it_waits(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, OnSchemaChange.RESYNC)
    pipe.follow("ALTER TABLE t ADD COLUMN c INT")
    assert pipe.done == [("ask", ("shop.t",), set())]
    saved = pipe.directory.load()
    assert saved is not None
    assert saved.waiting == {T}


@pytest.mark.parametrize(
    ("statement", "made"),
    [
        ("CREATE TABLE n (id INT PRIMARY KEY) START TRANSACTION", "n"),
        ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20))", "t"),
        ("CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)", "t"),
    ],
)
def test_a_table_whose_rows_were_left_out_is_read_again_and_not_swept(pipe: Pipe, statement: str, made: str) -> None:
    pipe.follow(statement, left_out=TableName("shop", made))
    assert [entry[:2] for entry in pipe.done] == [("ask", (f"shop.{made}",))]
    assert pipe.state.waiting == {TableName("shop", made)}
    assert pipe.sink.asked == []
    pipe.follow("CREATE TABLE aside1 (id INT)", 300, TableName("shop", "aside1"))
    assert len(pipe.done) == 1, "nobody chose that one"


def test_a_new_table_with_a_foreign_key_is_there_when_keys_are_checked(pipe: Pipe) -> None:
    pipe.follow("CREATE TABLE kid (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES t (id) ON DELETE CASCADE)")
    assert pipe.sink.asked == [("prepare", "kid"), ("sweep", "kid", at(200).version)]
    assert pipe.done == [("check", ["kid", "t"])]


def test_a_statement_that_is_not_understood_halts_until_its_tables_were_read_after_it(pipe: Pipe) -> None:
    with pytest.raises(DefiniteError, match=r"changed shop\.t was not understood"):
        pipe.follow("FROBNICATE t")
    with pytest.raises(DefiniteError, match=r"a change of rows of shop\.t was logged as a statement"):
        pipe.follow("UPDATE t SET a = 1", 210)
    pipe.state.tables[T].captured_at = at(250).to_json()
    pipe.follow("FROBNICATE t")
    pipe.follow("UPDATE t SET a = 1", 210)


def test_reading_from_the_past_halts_where_a_definition_changed(pipe: Pipe) -> None:
    pipe.state.looked_at = at(300).to_json()
    pipe.follow("TRUNCATE TABLE t", 150)
    with pytest.raises(DefiniteError, match="reading began before a table was changed"):
        pipe.follow("ALTER TABLE t MODIFY b VARCHAR(20) AFTER id", 200)
