"""The pipe from topics to ClickHouse, over recorded records of real connectors: the sink's rows equal the servers'.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`); with them: `test_debezium_stream`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError
from headrace.pipes.debezium import batch_runner
from headrace.pipes.debezium.kafka_cluster import ClusterTopics
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.state.event_skips import EventSkips, note_halt, request_skip, skipped_events
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium.events.options import DebeziumOptions, MalformedPolicy, UnavailablePolicy
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord, load_records, load_truth

PLAIN_TABLES = ("sbtest1", "uniques", "emptied", "evolving", "late")
"""Types whose text is the same in ClickHouse and MySQL."""
Open = Callable[..., LocalTopicPipe]


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> Open:
    """Opens the pipe of the test's state directory."""

    def opened(choices: DebeziumOptions | None = None, **more: Any) -> LocalTopicPipe:
        return LocalTopicPipe(tmp_path / f"state_{sink.target.database}", more.pop("sink", sink), choices, **more)

    return opened


def records_of(recording: str, *tables: str) -> list[KafkaRecord]:
    """Return the records of tables; of all if none is given."""
    found = [one for one in load_records(recording) if one.topic.count(".") == 2 and not one.topic.startswith("__")]
    return [one for one in found if not tables or one.topic.split(".")[-1] in tables]


def assert_true(pipe: LocalTopicPipe, connector: str = "mysql", tables: tuple[str, ...] = PLAIN_TABLES) -> None:
    truth = load_truth(connector)
    for table in tables:
        # A column of `evolving` was renamed: no event has the values of unchanged rows under the new name.
        compared = [place for place, (name, _) in enumerate(truth[table].columns) if (table, name) != ("evolving", "name")]
        names = ", ".join(f"toString({truth[table].columns[place][0]})" for place in compared)
        shown = sorted((tuple(row) for row in pipe.rows(f"shop.{table}", names)), key=repr)
        assert shown == sorted((tuple(row[place] for place in compared) for row in truth[table].rows), key=repr), table


def counts(pipe: LocalTopicPipe) -> dict[str, int]:
    return {name.table: len(pipe.rows(str(name))) for name in pipe.tables if name.table not in ("sentinel", "dropped")}


@pytest.mark.slow(
    "plain",
    because=("test_sink_rows_equal_the_servers_select with schemas; test_records_lead_to_what_the_server_showed reads both"),
)
@pytest.mark.parametrize("recording", ["mysql-schema", "mysql-plain", "mariadb-schema"])
def test_sink_rows_equal_the_servers_select(open_pipe: Open, recording: str) -> None:
    """One batch with every table, new columns, changed keys, tables without keys, and a truncation."""
    described = [one.value for one in load_records(recording) if "." not in one.topic and one.value is not None]
    pipe = open_pipe(schema_records=described if recording.endswith("plain") else None)
    pipe.run(records_of(recording))
    connector = recording.split("-", maxsplit=1)[0]
    assert_true(pipe, connector)
    assert counts(pipe) == {table: len(truth.rows) for table, truth in load_truth(connector).items()}
    assert pipe.rounds <= 4


def test_batches_may_be_cut_anywhere_and_come_again(open_pipe: Open, sink: ClickHouseSink) -> None:
    """Each batch is read by a process that ends before the commit, then by the next one; another partition comes last."""
    records = records_of("mysql-schema", *PLAIN_TABLES)
    moved = [replace(one, partition=1) for one in records if one.headers and any("newkey" in name for name, _ in one.headers)]
    others = [one for one in records if all("newkey" not in name for name, _ in one.headers)]
    size = len(others) // 3 + 1
    for piece in [others[start : start + size] for start in range(0, len(others), size)] + [moved]:
        open_pipe().run(piece, commit=False)
        open_pipe().run(piece)
    pipe = open_pipe()
    assert_true(pipe)
    mine = f"pipe = 'state_{sink.target.database}' AND kind = 'create_table'"
    entries = sink.reader().query(f"SELECT source_table, count() FROM headrace.schema_changes WHERE {mine} GROUP BY ALL ORDER BY 1")[1]
    assert entries == [[str(name), 1] for name in pipe.tables]


def test_a_table_of_another_pipe_is_refused(open_pipe: Open, sink: ClickHouseSink, tmp_path: Path) -> None:
    """Also a table whose first event comes while the pipe runs; the owner's rows do not change."""
    owner = open_pipe()
    owner.run(records_of("mysql-schema", "sbtest1"))
    rows = sorted(owner.rows("shop.sbtest1"), key=repr)
    second = LocalTopicPipe(tmp_path / "second", sink)
    second.run(records_of("mysql-schema", "uniques"))
    with pytest.raises(DefiniteError, match=rf"another pipe writes to the target {sink.target.database}.sbtest1: pipe state_"):
        second.run(records_of("mysql-schema", "sbtest1"))
    assert sorted(owner.rows("shop.sbtest1"), key=repr) == rows
    open_pipe().run(records_of("mysql-schema", "late"))
    with pytest.raises(DefiniteError, match=rf"another pipe writes to the target {sink.target.database}.uniques: pipe second"):
        open_pipe().run(records_of("mysql-schema", "uniques"))


def test_other_columns_are_chosen_by_starting_over(open_pipe: Open, sink: ClickHouseSink, tmp_path: Path) -> None:
    """The printed remedy: drop the tables, and read the topics again with a new state."""
    chosen, records = {"exclude_columns": ("shop.sbtest1.pad",)}, records_of("mysql-schema", "sbtest1")
    first = open_pipe()
    first.run(records)
    rows, now = len(first.rows("shop.sbtest1")), ClusterTopics("cluster", KafkaPosition(), KafkaPosition(), ())
    fresh = LocalTopicPipe(tmp_path / "fresh", sink, **chosen)
    with pytest.raises(DefiniteError, match="the state was made with other --columns") as caught:
        fresh._pipe._checked(first.batches.context.state, now)
    assert "drop the tables in ClickHouse and use a new --state" in caught.value.hint
    connect(sink.target).client.command(f"DROP TABLE {sink.target.database}.sbtest1")
    fresh.run(records)
    columns = sink.reader().query(f"SELECT name FROM system.columns WHERE database = '{sink.target.database}' AND table = 'sbtest1'")[1]
    assert len(fresh.rows("shop.sbtest1")) == rows
    assert ["k"] in columns
    assert ["pad"] not in columns


def test_a_topic_that_is_created_again_while_the_pipe_runs_halts_it(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets refer to other records now, and some of them would never be read."""
    monkeypatch.setattr(batch_runner, "_IDENTIFY_S", 0.0)
    records = records_of("mysql-schema", "sbtest1")
    pipe = open_pipe()
    pipe.run(records[:3])
    pipe.batches.identify = lambda names: dict.fromkeys(names, "created again")
    with pytest.raises(DefiniteError, match="was deleted and recreated"):
        pipe.run(records[3:])
    pipe.batches.identify = lambda names: dict.fromkeys(names, "made here")
    pipe.run(records[3:])
    assert_true(pipe, tables=("sbtest1",))


def test_types_come_from_an_existing_target(open_pipe: Open, sink: ClickHouseSink) -> None:
    ask = sink.reader().query
    ask(f"CREATE DATABASE `{sink.target.database}`")
    marks = "_sign Int8, _version UInt64"
    ask(
        f"CREATE TABLE `{sink.target.database}`.pairs (note String, code String, day Date32, n UInt64, {marks}) "
        "ENGINE = ReplacingMergeTree(_version) ORDER BY (day, code, n)"
    )
    pipe = open_pipe()
    pipe.run(records_of("mysql-plain", "pairs"))
    assert pipe.rows("shop.pairs", "toString(day), code, toString(n), note", "day") == [
        ["2024-02-29", "x", "18446744073709551615", "changed"],
        ["2024-03-01", "z", "1", "b"],
    ]


def test_values_that_did_not_change_stay(open_pipe: Open) -> None:
    toasted = records_of("postgres-schema", "toasted")
    first, unchanged, half, created = toasted[:4]
    big = json.loads(first.value or b"")["payload"]["after"]["big"]
    pipe = open_pipe()
    pipe.run([first])
    pipe.run([unchanged])
    assert pipe.rows("public.toasted", "id, n, big, length(bytes) > 0") == [[1, 2, big, 1]]
    pipe.run([half, created])
    pipe.run([unchanged, half], commit=False)
    pipe.run([first, unchanged, half])
    assert [row[:2] for row in pipe.rows("public.toasted", "id, n, big", "id")] == [[1, 3], [2, 1]]
    assert pipe.rows("public.toasted", "big, length(bytes) > 0", "id")[0] == ["short", 1]


def test_an_unchanged_value_of_an_absent_row_halts(open_pipe: Open, sink: ClickHouseSink) -> None:
    unchanged = records_of("postgres-schema", "toasted")[1]
    with pytest.raises(DefiniteError, match="no row to take it from: id=1"):
        open_pipe().run([unchanged])
    with pytest.raises(DefiniteError, match="big"):
        open_pipe(DebeziumOptions(unavailable=UnavailablePolicy.HALT)).run([unchanged])
    assert sink.reader().query(f"SELECT count() FROM `{sink.target.database}`.toasted")[1] == [[0]]


def test_a_record_that_is_none_halts_or_is_kept_once(open_pipe: Open, sink: ClickHouseSink) -> None:
    records = records_of("mysql-schema", "late")
    bad = replace(records[-1], offset=100, value=b"\xff no JSON", headers=(("h", None),))
    with pytest.raises(DefiniteError, match="cannot be read") as halted:
        open_pipe().run([*records, bad])
    assert halted.value.place == f"{bad.topic}[0]@100"
    kept = DebeziumOptions(on_malformed=MalformedPolicy.DEAD_LETTER)
    open_pipe(kept).run([*records, bad], commit=False)
    pipe = open_pipe(kept)
    pipe.run([*records, bad])
    assert_true(pipe, tables=("late",))
    pipe_name = f"state_{sink.target.database}"
    found = sink.reader().query(f"SELECT table, position, row FROM headrace.errors FINAL WHERE pipe = '{pipe_name}'")[1]
    assert [row[:2] for row in found] == [[bad.topic, f"{bad.topic}[0]@100"]]
    assert json.loads(found[0][2])["headers"] == [["h", None]]


def test_a_record_that_is_none_does_not_fix_the_order_of_a_new_table(open_pipe: Open) -> None:
    """It looked like a row without envelope, ordered by offset; other tasks of the batch found another order."""
    records = records_of("mysql-schema", "sbtest1")
    bad = replace(records[-1], offset=9000, value=b"\xff no JSON")
    pipe = open_pipe(DebeziumOptions(on_malformed=MalformedPolicy.DEAD_LETTER))
    pipe.run([*records, bad])
    assert_true(pipe, tables=("sbtest1",))


def test_one_record_that_is_none_is_skipped(open_pipe: Open, sink: ClickHouseSink, tmp_path: Path) -> None:
    """Only the requested one is skipped, also when its batch is repeated."""
    records = records_of("mysql-schema", "late")
    bad, worse = (replace(records[-1], offset=offset, value=b"\xff no JSON") for offset in (100, 101))
    state = tmp_path / f"state_{sink.target.database}"
    with pytest.raises(DefiniteError, match="cannot be read") as halted:
        open_pipe().run([*records, bad])
    note_halt(state, halted.value)
    request_skip(state, f"{bad.topic}[0]@100")
    with pytest.raises(DefiniteError, match="cannot be read") as second:
        open_pipe().run([*records, bad, worse])
    assert second.value.event == f"{bad.topic}[0]@101"
    open_pipe().run([*records, bad], commit=False)
    pipe = open_pipe()
    pipe.run([*records, bad])
    assert_true(pipe, tables=("late",))
    asked = f"SELECT position, state FROM headrace.errors FINAL WHERE pipe = 'state_{sink.target.database}'"
    assert sink.reader().query(asked)[1] == [[f"{bad.topic}[0]@100", "skipped"]]
    assert skipped_events(state) == 1
    assert EventSkips(state).pending
    pipe.run([replace(records[-1], offset=102)])
    assert not EventSkips(state).pending


def _retyped(record: KafkaRecord, column: str, kind: str) -> KafkaRecord:
    """The same event, of a table in which a column has another type."""
    document = json.loads(record.value or b"")
    for side in ("before", "after"):
        row = next(one for one in document["schema"]["fields"] if one["field"] == side)
        next(one for one in row["fields"] if one["field"] == column)["type"] = kind
        if document["payload"][side] is not None:
            document["payload"][side][column] = "1"
    return replace(record, offset=record.offset + 50, value=json.dumps(document).encode())


def test_a_change_that_rows_cannot_follow_halts(open_pipe: Open) -> None:
    records = records_of("mysql-schema", "uniques")
    pipe = open_pipe()
    pipe.run(records)
    created = next(one for one in records if one.value is not None and json.loads(one.value)["payload"]["after"] is not None)
    other = _retyped(created, "code", "string")
    with pytest.raises(DefiniteError, match="code") as halted:
        pipe.run([other])
    assert f"{other.topic}[0]@{other.offset}" in halted.value.place
    assert "int32" in halted.value.message
    assert "string" in halted.value.message


@pytest.mark.parametrize("word", ["apply", "ignore", "halt"])
def test_new_columns_by_policy(open_pipe: Open, word: str) -> None:
    records = records_of("mysql-schema", "evolving")
    shapes = [tuple(json.loads(one.value or b"null")["payload"]["after"] or ()) for one in records]
    cut = next(place for place, shape in enumerate(shapes) if shape and shape != shapes[0])
    pipe = open_pipe(policy=SchemaPolicy.from_dict({"add_column": word}))
    pipe.run(records[:cut])
    if word == "halt":
        with pytest.raises(DefiniteError, match="add_column is set to halt"):
            pipe.run(records[cut : cut + 1])
        return
    pipe.run(records[cut : cut + 1])
    names = {column.name for column in pipe.batches.shown()[pipe.tables[0]].columns}
    assert names == {*shapes[0], *(shapes[cut] if word == "apply" else ())}


def test_tables_that_are_not_chosen_are_passed_over(open_pipe: Open) -> None:
    pipe = open_pipe(exclude=("shop.sb*",))
    pipe.run(records_of("mysql-schema", "late", "sbtest1"))
    assert [str(name) for name in pipe.tables] == ["shop.late"]
