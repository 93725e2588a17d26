"""The driver's reaction to a statement: sink changes and resync requests, in an order that survives a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from headrace.model.table_selection import Selection
from headrace.pipes.commands.ddl_dry_run import ImaginedTables
from headrace.pipes.lifecycle.context import PipeContext
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor, resume
from headrace.pipes.lifecycle.sink_schema import SinkSchemaResolver
from headrace.pipes.mysql.schema_follower import SchemaChangeFollower
from headrace.pipes.state.pipe_state import PipeState, SnapshotLog, StateDirectory, TableState
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.tables.create_table import plan_table
from headrace.sinks.clickhouse.tables.target_cache import TargetScope
from headrace.sinks.schema_changes import LedgerEntry, Step
from headrace.sources.mysql.ddl.dialect import STRICT, Dialect
from headrace.sources.mysql.events.event_types import Query, Session
from headrace.sources.mysql.schema.schema_history import SchemaHistory
from headrace.sources.mysql.server.position import BinlogPosition

T, N = TableName("shop", "t"), TableName("shop", "n")
WANTED = Selection(("shop.*",), ("shop.aside*",))
INT = Column("id", Kind.INT32, nullable=False, source_type="int")
TEXT = Column("a", Kind.STRING, source_type="varchar(20)", charset="utf8mb4")
SCHEMA = TableSchema(T, (INT, TEXT, replace(TEXT, name="b")), ("id",), charset="utf8mb4")
SCOPE = TargetScope(parse_target("clickhouse://default@127.0.0.1:1"), ClickHouseOptions())


class Stop(Exception):
    """The process ends here."""


class NotingSchemaApplier(ClickHouseSchemaApplier):
    """Describes tables as they would be created; records its writes."""

    def __init__(self, sink: Sink, tables: Iterable[TableSchema]) -> None:
        super().__init__(SCOPE, ImaginedTables(plan_table(schema, SCOPE.target, SCOPE.options) for schema in tables))
        self._sink = sink

    def record(self, entries: Iterable[LedgerEntry]) -> None:
        self._sink.note(*(("ledger", entry.source_table, entry.kind, entry.outcome) for entry in entries))


@dataclass
class Sink:
    """A sink that records its calls: only the driver's decisions are tested."""

    there: list[TableSchema]
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    fails_at: int = -1
    refuses: bool = False
    append_only: bool = False

    def note(self, *entries: tuple[Any, ...]) -> None:
        if len(self.asked) == self.fails_at:
            raise Stop
        self.asked += entries

    @property
    def sink(self) -> Sink:
        return self

    def schema_applier(self) -> ClickHouseSchemaApplier:
        return NotingSchemaApplier(self, self.there)

    def run_step(self, step: Step, names: Iterable[TableName]) -> None:
        del names
        if self.refuses:
            raise DefiniteError("the step was refused")
        self.note(*(("run", statement) for statement in step.statements))

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        self.note(*(("prepare", schema.name.table) for schema in schemas))

    def claim(self, names: Iterable[TableName]) -> None:
        """No other pipe is here."""

    def check_target_conflicts(self, schemas: Iterable[TableSchema]) -> None:
        names = [schema.name for schema in schemas]
        assert len(set(names)) == len(names)

    def target_of(self, name: TableName) -> str:
        return str(name)

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        self.note(("sweep", schema.name.table, before))

    @property
    def done(self) -> list[tuple[Any, ...]]:
        return [entry for entry in self.asked if entry[0] != "ledger"]


def at(offset: int) -> BinlogPosition:
    return BinlogPosition("binlog.000001", offset)


class Pipe:
    """A follower over one table, its state, and the record of its actions."""

    def __init__(self, path: Path, *policy: str) -> None:
        self.directory = StateDirectory(path)
        self.state = PipeState("s", "i", "k", WANTED.to_json(), at(4).to_json(), 0, {}, {T: TableState(SCHEMA, at(100).to_json())})
        history = SchemaHistory(WANTED, Dialect(mariadb=False, version=90700))
        history.begin(SchemaCatalog({T: SCHEMA}, {"shop": "utf8mb4"}), at(100))
        self.sink, self.snapshots = Sink([SCHEMA]), SnapshotLog(self.directory)
        self.done: list[tuple[Any, ...]] = []
        settings = PipeSettings(WANTED, path, name="p")
        context = PipeContext(settings, self.state, self.directory, cast(Any, self.sink), LogView())
        self.executor = IntentExecutor(context, self.snapshots, self.ask)
        self.follower = SchemaChangeFollower(history, self.executor, SchemaPolicy.from_dict(dict(pair.split("=") for pair in policy)))

    def restarted(self) -> IntentExecutor:
        """The executor of a run that starts from the saved state."""
        return replace(self.executor, context=replace(self.executor.context, state=self.saved))

    def ask(self, tables: tuple[str, ...]) -> None:
        saved = self.directory.load()
        self.done.append(("ask", tables, set() if saved is None else saved.awaiting_resync))

    def follow(self, statement: str, offset: int = 200, left_out: TableName | None = None) -> None:
        session = Session(sql_mode=STRICT, server_charset="utf8mb4")
        self.follower.apply(Query("shop", statement, session), at(offset), left_out)

    @property
    def saved(self) -> PipeState:
        state = self.directory.load()
        assert state is not None
        return state


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def test_a_truncated_table_is_emptied_and_its_older_changes_are_left_out(pipe: Pipe) -> None:
    pipe.follow("TRUNCATE TABLE t")
    assert pipe.sink.done == [("run", "TRUNCATE TABLE IF EXISTS `shop`.`t`")]
    assert pipe.saved.tables[T].rows_from == at(200).to_json()
    pipe.follow("TRUNCATE TABLE t", 90)
    pipe.follow("TRUNCATE TABLE t", 200)
    assert len(pipe.sink.done) == 1, "the table was inspected after that"


def test_a_table_that_is_being_read_is_emptied_by_version(pipe: Pipe) -> None:
    pipe.snapshots.plan(T, 0, [{"number": 0}])
    pipe.follow("TRUNCATE TABLE t")
    assert pipe.sink.done == [("sweep", "t", at(200).version)]
    assert pipe.snapshots.tables["shop.t"].stale_before == at(200).to_json(), (
        "rows that its chunks have read and not yet written must be discarded"
    )
    pipe.follow("ALTER TABLE t ADD c INT", 300)
    assert pipe.sink.done[1:] == []
    assert pipe.saved.awaiting_resync == {T}, "its rows are read with the old definition"


def test_a_dropped_table_is_remembered_until_no_replay_holds_it(pipe: Pipe) -> None:
    pipe.follow("DROP TABLE t")
    assert pipe.sink.done == [("run", "DROP TABLE IF EXISTS `shop`.`t`")]
    assert (pipe.saved.tables, pipe.saved.dropped_tables) == ({}, {T: at(200).to_json()})
    pipe.follow("CREATE TABLE n (id INT PRIMARY KEY)", 300)
    assert pipe.saved.dropped_tables == {}


def test_an_alteration_is_done_once_and_older_changes_are_left_out(pipe: Pipe) -> None:
    pipe.follow("ALTER TABLE t ADD COLUMN c INT DEFAULT 3")
    assert pipe.sink.asked == [
        ("run", "ALTER TABLE `shop`.`t` ADD COLUMN IF NOT EXISTS `c` Nullable(Int32) DEFAULT 3 AFTER `b`"),
        ("ledger", "shop.t", "add_column", "applied"),
    ]
    table = pipe.saved.tables[T]
    assert (table.captured_at, table.rows_from) == (at(200).to_json(), at(200).to_json())
    assert [column.name for column in table.schema.columns] == ["id", "a", "b", "c"]
    pipe.follow("ALTER TABLE t ADD COLUMN c INT DEFAULT 3")
    assert len(pipe.sink.asked) == 2


@pytest.mark.parametrize("fails_at", range(6))
def test_what_a_crash_interrupts_is_finished_from_the_state_alone(tmp_path: Path, fails_at: int) -> None:
    pipe = Pipe(tmp_path)
    statement = "ALTER TABLE t DROP COLUMN a, RENAME COLUMN b TO a, ADD COLUMN c INT"
    pipe.sink.fails_at = fails_at
    try:
        pipe.follow(statement)
    except Stop:
        assert fails_at < 4
        executor = pipe.restarted()
        pipe.sink.fails_at = -1
        resume(executor, lambda _: False)
    assert [entry[1].partition("`t` ")[2].split(" IF ")[0] for entry in pipe.sink.done] == ["DROP COLUMN", "RENAME COLUMN", "ADD COLUMN"]
    assert pipe.saved.intent is None
    assert [column.name for column in pipe.saved.tables[T].schema.columns] == ["id", "a", "c"]
    assert [entry for entry in pipe.sink.asked if entry[0] == "ledger"] == [
        ("ledger", "shop.t", "add_column, drop_column, rename_column", "applied")
    ]


@pytest.mark.parametrize("refuses", [False, True])
def test_steps_are_left_out_only_if_the_sink_refuses_them_and_the_table_is_to_be_read_again(pipe: Pipe, refuses: bool) -> None:
    pipe.sink.fails_at = 0
    with pytest.raises(Stop):
        pipe.follow("ALTER TABLE t DROP COLUMN a")
    pipe.sink.fails_at, pipe.sink.refuses = -1, refuses
    if refuses:
        with pytest.raises(DefiniteError, match="refused"):
            resume(pipe.restarted(), lambda _: False)
    resume(pipe.restarted(), lambda name: name == T)
    assert pipe.sink.done == ([] if refuses else [("run", "ALTER TABLE `shop`.`t` DROP COLUMN IF EXISTS `a`")])
    assert pipe.saved.intent is None
    assert pipe.saved.awaiting_resync == ({T} if refuses else set())


def test_an_alteration_that_keeps_every_value_only_changes_the_state(pipe: Pipe) -> None:
    for offset, statement in enumerate(["ALTER TABLE t MODIFY a VARCHAR(30) DEFAULT 'x'", "ALTER TABLE t ADD INDEX (a)"], 200):
        pipe.follow(statement, offset)
    assert pipe.sink.asked == []
    assert pipe.saved.tables[T].schema.indexes


def test_a_resync_is_requested_before_the_table_waits(pipe: Pipe) -> None:
    pipe.follow("ALTER TABLE t MODIFY a INT")
    assert pipe.done == [("ask", ("shop.t",), set())]
    assert pipe.saved.awaiting_resync == {T}
    pipe.follow("ALTER TABLE t DROP COLUMN a", 300)
    assert len(pipe.done) == 1, "it is read with its later definition"


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
    assert pipe.state.awaiting_resync == {TableName("shop", made)}
    assert pipe.sink.done == []
    pipe.follow("CREATE TABLE aside1 (id INT)", 300, TableName("shop", "aside1"))
    assert len(pipe.done) == 1, "that table is not selected"


@pytest.mark.parametrize(
    ("statement", "left_out", "table"),
    [
        ("ALTER TABLE t DISCARD TABLESPACE", None, T),
        ("CREATE TABLE n (id INT PRIMARY KEY) START TRANSACTION", N, N),
        ("RENAME TABLE t TO aside_t, aside TO t", None, T),
    ],
)
def test_an_append_only_sink_gets_every_change(pipe: Pipe, statement: str, left_out: TableName | None, table: TableName) -> None:
    """Rows that are not in the log are read while the table's changes continue; a sink that counts rows makes them wait."""
    pipe.sink.append_only = True
    aside = replace(SCHEMA, name=TableName("shop", "aside"), columns=(INT,))
    pipe.follower.history.learn([aside], at(150))
    pipe.follow(statement, left_out=left_out)
    assert pipe.done == [("ask", (str(table),), set())]
    assert pipe.saved.awaiting_resync == set()
    there = pipe.saved.tables[table]
    assert (there.captured_at, there.rows_from) == (at(200).to_json(), at(200).to_json())
    assert ("prepare", table.table) in pipe.sink.asked
    pipe.follow(statement, left_out=left_out)
    assert len(pipe.done) == 1, "the table was inspected after that"


def test_renamed_tables_take_their_state_along(pipe: Pipe) -> None:
    pipe.state.tables[T].hidden = ("b",)
    pipe.sink.there = [SinkSchemaResolver(PipeSettings(WANTED, pipe.directory.path))(SCHEMA, ("b",))]
    pipe.follow("RENAME TABLE t TO n")
    assert pipe.sink.done == [("run", "RENAME TABLE IF EXISTS `shop`.`t` TO `shop`.`n`"), ("prepare", "n")]
    table = pipe.saved.tables[N]
    assert (table.hidden, table.schema.name, table.rows_from) == (("b",), N, at(200).to_json())
    assert pipe.saved.dropped_tables == {T: at(200).to_json()}
    assert pipe.snapshots.is_planned(N, table.snapshot), "no part of it must be read"


def test_ignored_columns_are_hidden_under_any_name(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, "add_column=ignore")
    pipe.follow("ALTER TABLE t ADD COLUMN c INT, ADD COLUMN d INT")
    assert pipe.saved.tables[T].hidden == ("c", "d")
    pipe.follow("ALTER TABLE t RENAME COLUMN c TO x, DROP COLUMN d", 300)
    assert pipe.saved.tables[T].hidden == ("x",)
    assert pipe.sink.done == []


def test_ignored_tables_stay_ignored_until_they_go(tmp_path: Path) -> None:
    pipe = Pipe(tmp_path, "create_table=ignore", "drop_table=ignore")
    pipe.follow("CREATE TABLE n (id INT PRIMARY KEY)")
    assert (pipe.saved.ignored, set(pipe.saved.tables)) == ({N}, {T})
    pipe.follow("DROP TABLE n, t", 300)
    assert (pipe.saved.ignored, set(pipe.saved.tables)) == (set(), set())
    assert pipe.sink.done == []


def test_a_statement_that_is_not_understood_halts_until_its_tables_were_read_after_it(pipe: Pipe) -> None:
    with pytest.raises(DefiniteError, match=r"changed shop\.t was not understood"):
        pipe.follow("FROBNICATE t")
    with pytest.raises(DefiniteError, match=r"a change of rows of shop\.t was logged as a statement"):
        pipe.follow("UPDATE t SET a = 1", 210)
    pipe.state.tables[T].captured_at = at(250).to_json()
    pipe.follow("FROBNICATE t")
    pipe.follow("UPDATE t SET a = 1", 210)


def test_reading_from_the_past_halts_where_a_definition_changed(pipe: Pipe) -> None:
    pipe.state.schemas_captured_at = at(300).to_json()
    pipe.follow("TRUNCATE TABLE t", 150)
    with pytest.raises(DefiniteError, match="reading began before a table was changed"):
        pipe.follow("ALTER TABLE t MODIFY b VARCHAR(20) AFTER id", 200)
