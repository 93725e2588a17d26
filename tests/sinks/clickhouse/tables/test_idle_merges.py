"""Idle tables are merged into one part: when, what stays, how the age follows the size, and who may choose otherwise."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.clickhouse.server.client import disconnect, run_statements
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.tables import idle_merges
from headrace.sinks.clickhouse.tables.create_table import create_sql, plan_table
from headrace.sinks.clickhouse.tables.idle_merges import LEAST_AGE_S, LEAST_BYTES, find_age_s, merge_age_s
from headrace.sinks.clickhouse.write import merge_ages
from testkit.pipelines.embedded_access import target_of

SCHEMA = TableSchema(TableName("shop", "t"), (Column("id", Kind.INT32, False), Column("word", Kind.STRING)), ("id",))
WHOLE = "min_age_to_force_merge_on_partition_only"
AGE = "min_age_to_force_merge_seconds"


@dataclass
class Table:
    """A target table in a separate database, and its writer."""

    sink: ClickHouseSink

    @property
    def name(self) -> str:
        return f"{self.sink.target.database}.t"

    def write(self, version: int, *images: tuple[Op, int, str]) -> None:
        rows = pa.record_batch(
            [pa.array([image[1] for image in images], pa.int32()), pa.array([image[2] for image in images])], schema=SCHEMA.arrow_schema
        )
        ops, count = pa.array([image[0] for image in images], pa.uint8()), len(images)
        times = pa.array([0] * count, pa.int64())
        self.sink.writer().write(ChangeBlock(SCHEMA, rows, ops, pa.array(range(version, version + count), pa.uint64()), times))

    def ask(self, sql: str) -> list[list[Any]]:
        return self.sink.reader().query(sql.replace("THIS", self.name))[1]

    def run(self, sql: str) -> None:
        run_statements(self.sink.target, "testing", sql.replace("THIS", self.name))

    @property
    def parts(self) -> int:
        where = f"active AND database = '{self.sink.target.database}' AND table = 't'"
        return int(self.ask(f"SELECT count() FROM system.parts WHERE {where}")[0][0])

    @property
    def engine(self) -> str:
        return str(self.ask(f"SELECT engine_full FROM system.tables WHERE database = '{self.sink.target.database}' AND name = 't'")[0][0])

    def look_for_merges(self) -> None:
        """Let the server choose merges now: it looks every ten seconds otherwise."""
        self.run("SYSTEM STOP MERGES THIS")
        self.run("SYSTEM START MERGES THIS")


@pytest.fixture
def target(clickhouse: EmbeddedServer) -> Iterator[ClickHouseTarget]:
    found = target_of(clickhouse, database=f"i_{secrets.token_hex(4)}")
    yield found
    disconnect(found)


def made(target: ClickHouseTarget, **chosen: Any) -> Table:
    sink = ClickHouseSink(target, ClickHouseOptions(tuple(chosen.items())))
    sink.prepare([SCHEMA])
    return Table(sink)


def settings_of(schema: TableSchema = SCHEMA, **chosen: Any) -> dict[str, str]:
    return dict(plan_table(schema, ClickHouseTarget("h"), ClickHouseOptions(tuple(chosen.items()))).storage.settings)


def test_the_age_grows_with_the_size() -> None:
    assert [merge_age_s(LEAST_BYTES * size // 2) for size in (0, 1, 2, 3, 4, 5, 8, 9, 16)] == [
        LEAST_AGE_S * times for times in (1, 1, 1, 2, 2, 4, 4, 8, 8)
    ]
    for size in range(1, 60):
        assert merge_age_s(LEAST_BYTES * size) >= LEAST_AGE_S * size
        assert find_age_s([(AGE, str(merge_age_s(LEAST_BYTES * size))), (WHOLE, "1")]) == merge_age_s(LEAST_BYTES * size)


@pytest.mark.parametrize(
    ("age", "whole"), [("", ""), ("20", ""), ("20", "0"), ("0", "1"), ("30", "1"), ("60", "1"), ("600", "1"), ("320 ", "1"), ("-20", "1")]
)
def test_ages_that_headrace_does_not_set_are_not_recognised(age: str, whole: str) -> None:
    assert find_age_s([(name, value) for name, value in ((AGE, age), (WHOLE, whole)) if value]) is None


def test_which_new_tables_are_merged_when_idle() -> None:
    assert settings_of() == {AGE: str(LEAST_AGE_S), WHOLE: "1"}
    assert create_sql(plan_table(SCHEMA, ClickHouseTarget("h"), ClickHouseOptions())).endswith(
        f" ORDER BY (`id`) SETTINGS {AGE} = {LEAST_AGE_S}, {WHOLE} = 1"
    )
    # The readers of a table without a key sum its images up, and other engines are not read like this.
    assert AGE not in settings_of(replace(SCHEMA, primary_key=()))
    assert not any(AGE in settings_of(engine=engine) for engine in ("collapsing", "versioned", "history"))


@pytest.mark.parametrize("chosen", [{AGE: "0"}, {AGE: "600"}, {"min_partition_age_to_force_merge_seconds": "600"}])
def test_a_user_s_choice_replaces_all_of_it(chosen: dict[str, str], target: ClickHouseTarget) -> None:
    assert settings_of(settings=tuple(chosen.items())) == chosen
    table = made(target, settings=tuple(chosen.items()))
    assert all(f"{name} = {value}" in table.engine for name, value in chosen.items())
    assert WHOLE not in table.engine


def test_an_idle_table_becomes_one_part_and_keeps_its_tombstones(target: ClickHouseTarget) -> None:
    table = made(target)
    table.run("SYSTEM STOP MERGES THIS")
    table.run(f"ALTER TABLE THIS MODIFY SETTING {AGE} = 3")
    batches = [
        (10, (Op.INSERT, 1, "a"), (Op.INSERT, 2, "b"), (Op.INSERT, 3, "c")),
        (20, (Op.UPDATE, 1, "A"), (Op.DELETE, 2, "b")),
        (
            30,
            (Op.INSERT, 4, "d"),
        ),
    ]
    for version, *images in batches:
        table.write(version, *images)
    expected, query = [[1, "A"], [3, "c"], [4, "d"]], "SELECT id, word FROM THIS FINAL ORDER BY id"
    assert table.ask(query) == expected
    assert table.parts == 3
    # One young part is enough: the table is in use.
    time.sleep(3.5)
    table.write(40, (Op.UPDATE, 4, "D"))
    table.look_for_merges()
    time.sleep(0.5)
    assert table.parts == 4
    time.sleep(3.5)
    table.look_for_merges()
    deadline = time.monotonic() + 30
    while table.parts > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert table.parts == 1
    assert table.ask("SELECT id, _sign, _version FROM THIS ORDER BY id") == [[1, 1, 20], [2, -1, 21], [3, 1, 12], [4, 1, 40]]
    # A replay after the merge, and a row that comes late, meet the same rows as before it.
    for version, *images in batches:
        table.write(version, *images)
    table.write(15, (Op.INSERT, 2, "late"))
    assert table.ask(query) == [[1, "A"], [3, "c"], [4, "D"]]


@pytest.mark.parametrize("grows", ["by a process's rows", "before a start"])
def test_the_age_follows_the_size(grows: str, target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(target)
    monkeypatch.setattr(idle_merges, "LEAST_BYTES", 100)
    monkeypatch.setattr(merge_ages, "CHECK_ROWS", 3)
    table.write(10, (Op.INSERT, 1, "a"), (Op.INSERT, 2, "b"))
    assert f"{AGE} = {LEAST_AGE_S}," in table.engine
    if grows == "before a start":
        # As the documentation lets an existing table be merged.
        table.run(f"ALTER TABLE THIS RESET SETTING {AGE}, {WHOLE}")
        table.run(f"ALTER TABLE THIS MODIFY SETTING {AGE} = {LEAST_AGE_S}, {WHOLE} = 1")
        made(target)
    else:
        table.write(20, (Op.INSERT, 3, "c"))
    found = [part for part in table.engine.split(", ") if AGE in part]
    age = int(found[0].split(" = ")[-1])
    assert age > LEAST_AGE_S
    assert find_age_s([(AGE, str(age)), (WHOLE, "1")]) == age


@pytest.mark.parametrize("alteration", [f"MODIFY SETTING {AGE} = 7", f"RESET SETTING {AGE}, {WHOLE}"])
def test_an_age_that_a_user_altered_stays(alteration: str, target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(target)
    monkeypatch.setattr(idle_merges, "LEAST_BYTES", 100)
    monkeypatch.setattr(merge_ages, "CHECK_ROWS", 1)
    table.run(f"ALTER TABLE THIS {alteration}")
    before = table.engine
    table.write(10, (Op.INSERT, 1, "a"))
    made(target)
    assert table.engine == before


def test_a_configured_age_and_an_existing_table_stay_unchanged(target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_merges, "LEAST_BYTES", 100)
    monkeypatch.setattr(merge_ages, "CHECK_ROWS", 1)
    chosen = made(target, settings=((AGE, "20"), (WHOLE, "1")))
    chosen.write(10, (Op.INSERT, 1, "a"))
    assert f"{AGE} = 20," in chosen.engine
    chosen.run("DROP TABLE THIS")
    chosen.run(
        "CREATE TABLE THIS (id Int32, word Nullable(String), _sign Int8, _version UInt64)"
        f" ENGINE = ReplacingMergeTree(_version) ORDER BY id SETTINGS {AGE} = 20, {WHOLE} = 1"
    )
    theirs = made(target)
    before = theirs.engine
    theirs.write(10, (Op.INSERT, 1, "a"))
    assert theirs.engine == before


def test_a_refused_change_of_the_age_stops_nothing(
    target: ClickHouseTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = made(target)
    monkeypatch.setattr(idle_merges, "LEAST_BYTES", 100)
    monkeypatch.setattr(merge_ages, "CHECK_ROWS", 1)
    monkeypatch.setattr(merge_ages, "set_age_sql", lambda _: "MODIFY SETTING no_such_setting = 1")
    with caplog.at_level(logging.WARNING, "headrace.clickhouse"):
        table.write(10, (Op.INSERT, 1, "a"))
    assert "the settings for merges of idle tables stay as they are" in caplog.text
    assert table.ask("SELECT id FROM THIS FINAL") == [[1]]
