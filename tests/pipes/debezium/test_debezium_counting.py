"""Topics into engines that count rows: each change counts once, after any replay and any repeated event.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`), with the embedded ClickHouse; with a broker: `test_debezium_stream`.
Every check compares the number of stored images, not only the rows that a query with FINAL shows.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from headrace.sources.debezium import offset_range_reader
from headrace.sources.debezium.offset_range_reader import cut_windows
from testkit.pipelines.connector_records import (
    UNMERGED,
    CountingPipes,
    TopicConnector,
    changes,
    check_exact,
    check_sums,
    first_rows,
    in_log_order,
    killed_after,
    repeat_tasks,
    start_over,
    stored,
)
from testkit.recordings.debezium_recordings import as_batches, load_records, load_truth

ENGINES = ("versioned", "collapsing")


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> CountingPipes:
    """Opens the pipe of a state directory, with options of the sink's tables."""
    return CountingPipes(sink, tmp_path)


@pytest.mark.parametrize(("engine", "partitions"), [("versioned", 1), ("versioned", 3), ("collapsing", 1)])
def test_every_change_counts_once_though_each_batch_is_replayed(open_pipe: CountingPipes, engine: str, partitions: int) -> None:
    """Each batch is written by a process that ends before the commit, then by the next one, twice."""
    connector = TopicConnector(partitions=partitions)
    for make in (first_rows, changes, lambda source: source.update(0, name="zero")):
        records = make(connector)
        for _ in range(2):
            open_pipe(engine=engine).run(records, commit=False)
        pipe = open_pipe(engine=engine)
        pipe.run(records)
        check_exact(pipe, connector)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_snapshot_and_changes_in_one_first_batch(open_pipe: CountingPipes, engine: str) -> None:
    connector = TopicConnector()
    records = [*first_rows(connector), *changes(connector)]
    open_pipe(engine=engine).run(records, commit=False)
    pipe = open_pipe(engine=engine)
    pipe.run(records)
    check_exact(pipe, connector)
    # A process that continues without a replay.
    pipe.run(connector.update(10, name="newer"))
    check_exact(pipe, connector)


@pytest.mark.parametrize(("engine", "partitions"), [("versioned", 2), ("collapsing", 1)])
def test_images_that_were_merged_away_do_not_count_again(
    open_pipe: CountingPipes, engine: str, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has rows of a snapshot, some of them twice, and changes that cancel them. The process ends after each INSERT, and merges
    remove what was cancelled."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 3)
    connector = TopicConnector(partitions=partitions)
    read = first_rows(connector, 6)
    records = [*read, *connector.resend(read[2:]), *changes(connector), *connector.delete(0), *connector.update(4, name="four")]
    records += connector.resend([read[4], *records[-2:]])
    for allowed in (1, 3, 5, 7):
        with killed_after(allowed):
            pipe = open_pipe(engine=engine, settings=())
            pipe.run(records, commit=False)
        if pipe.tables:
            pipe.sink.reader().query(f"OPTIMIZE TABLE {pipe.sink.target.database}.goods FINAL")
    for commit in (False, True):
        pipe = open_pipe(engine=engine, settings=())
        pipe.run(records, commit=commit)
        pipe.sink.reader().query(f"OPTIMIZE TABLE {pipe.sink.target.database}.goods FINAL")
        check_sums(pipe, connector)
        assert stored(pipe) == (len(connector.rows), len(connector.rows))


@pytest.mark.parametrize("engine", ENGINES)
def test_events_that_the_connector_sends_again_do_not_count(open_pipe: CountingPipes, engine: str) -> None:
    """In the same batch and in later ones, also in a batch that is replayed, and of a snapshot."""
    connector = TopicConnector()
    pipe = open_pipe(engine=engine)
    # A producer repeats a request; a connector restarts its snapshot at the same position.
    read = first_rows(connector)
    pipe.run([*read, *connector.resend(read[1:3]), *connector.resend(read)])
    check_exact(pipe, connector)
    pipe.run(connector.resend(read[2:]))
    check_exact(pipe, connector)
    # The connector repeats rows of the snapshot with the first changes.
    changed = [*connector.update(3, name="three"), *connector.delete(0)]
    pipe.run([*changed, *connector.resend([read[3], read[0], *changed])])
    check_exact(pipe, connector)
    changed += changes(connector)
    records = [*changed[3:], *connector.resend(changed[4:]), *connector.resend(changed)]
    pipe.run(records, commit=False)
    check_exact(pipe, connector)
    pipe = open_pipe(engine=engine)
    pipe.run(records)
    check_exact(pipe, connector)
    pipe.run([*connector.resend(changed[-1:]), *connector.update(1, name="end"), *connector.resend(changed[3:])])
    check_exact(pipe, connector)


def test_partitions_have_their_own_marks(open_pipe: CountingPipes) -> None:
    """A partition may lag behind: its events are older than those of others, and count."""
    connector = TopicConnector(partitions=2)
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    records = [*connector.update(0, name="first"), *connector.update(1, name="second"), *connector.update(0, name="third")]
    pipe.run([one for one in records if one.partition == 1])
    pipe.run([*(one for one in records if one.partition == 0), *connector.resend(records)])
    check_exact(pipe, connector)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_insert_whose_answer_was_lost_is_not_repeated(open_pipe: CountingPipes, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connector = TopicConnector()
    lost: list[int] = []
    send = ClickHouseWriter._send

    def lose(self: ClickHouseWriter, connection: Any, route: Any, block: ChangeBlock, settings: Any) -> None:
        send(self, connection, route, block, settings)
        lost.append(block.rows)
        if len(lost) % 2:
            raise TransientError("the answer was lost")

    monkeypatch.setattr(ClickHouseWriter, "_send", lose)
    pipe = open_pipe(engine=engine)
    pipe.run(first_rows(connector))
    pipe.run(changes(connector))
    assert len(lost) >= 2
    check_exact(pipe, connector)


@pytest.mark.slow("collapsing", because="test_a_task_that_spark_starts_again_writes_what_is_missing[versioned]")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_that_spark_starts_again_writes_what_is_missing(
    open_pipe: CountingPipes, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = TopicConnector()
    repeat_tasks(monkeypatch)
    pipe = open_pipe(engine=engine)
    pipe.run(first_rows(connector))
    pipe.run(changes(connector))
    check_exact(pipe, connector)


@pytest.mark.slow("versioned", because="test_a_batch_of_which_some_windows_were_written[collapsing]")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_which_some_windows_were_written(open_pipe: CountingPipes, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends after each INSERT of a batch of several windows."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 2)
    connector = TopicConnector()
    for records in ([*first_rows(connector, 5), *changes(connector)], connector.update(0, name="zero")):
        for allowed in (0, 2, 5):
            with killed_after(allowed):
                open_pipe(engine=engine).run(records, commit=False)
        open_pipe(engine=engine).run(records)
    pipe = open_pipe(engine=engine)
    check_exact(pipe, connector)


def test_a_new_column_reads_the_batch_again_and_counts_it_once(open_pipe: CountingPipes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The column comes in the middle of a window, of a later window, and of a batch that is replayed."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 3)
    connector = TopicConnector()
    pipe = open_pipe(engine="collapsing")
    pipe.run(first_rows(connector))
    rounds = pipe.rounds
    records = [
        *connector.update(1, name="one"),
        *connector.insert(id=10, name="colored", color="red"),
        *connector.update(0, name="zero"),
        *connector.update(10, color="blue"),
        *connector.insert(id=11, name="sized", color="red", size=5),
        *connector.delete(2),
    ]
    pipe.run(records, commit=False)
    assert pipe.rounds > rounds + 1
    check_exact(pipe, connector)
    pipe = open_pipe(engine="collapsing")
    pipe.run(records)
    check_exact(pipe, connector)
    query = f"SELECT id, color, size FROM {pipe.sink.target.database}.goods FINAL WHERE _sign = 1 ORDER BY id"
    assert pipe.sink.reader().query(query)[1] == [[0, None, None], [1, None, None], [3, None, None], [10, "blue", None], [11, "red", 5]]


def test_a_new_column_of_a_versioned_table_halts_before_it_counts(open_pipe: CountingPipes) -> None:
    """Its rows cancel each other by a hash of all columns. The remedy starts over with the rows of a new snapshot."""
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    before = stored(pipe)
    changed = [*connector.update(1, name="one"), *connector.insert(id=10, name="colored", color="red"), *connector.update(10, color="blue")]
    for _ in range(2):
        with pytest.raises(DefiniteError, match="cannot follow its change") as halted:
            open_pipe(engine="versioned").run(changed)
        assert stored(pipe) == before
    assert "start over with another --state, from the first record of a new snapshot on" in halted.value.hint
    assert "--schema-changes add_column=ignore" in halted.value.hint
    pipe = open_pipe(engine="versioned", more={"policy": SchemaPolicy.from_dict({"add_column": "ignore"})})
    pipe.run(changed)
    check_exact(pipe, connector)
    start_over(open_pipe, connector, engine="versioned")


CREATE = {
    "collapsing": "(id Int64, name String, _sign Int8) ENGINE = CollapsingMergeTree(_sign) ORDER BY id",
    "versioned": "(id Int64, name String, _sign Int8, hash UInt64) ENGINE = VersionedCollapsingMergeTree(_sign, hash) ORDER BY id",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_existing_tables_that_count_rows(open_pipe: CountingPipes, sink: ClickHouseSink, engine: str) -> None:
    """An empty one with a version column is filled; the remedies make others fit."""
    database, query = sink.target.database, sink.reader().query
    query(f"CREATE DATABASE IF NOT EXISTS {database}")
    query(f"CREATE TABLE {database}.goods {CREATE[engine]} SETTINGS {', '.join(f'{name} = {value}' for name, value in UNMERGED)}")
    connector = TopicConnector()
    records = [*first_rows(connector), *changes(connector)]
    with pytest.raises(DefiniteError, match="it has no version column") as refused:
        open_pipe().run(records)
    query(refused.value.hint.partition(";")[0])
    query(f"INSERT INTO {database}.goods (id, name, _sign) VALUES (77, 'x', 1)")
    with pytest.raises(DefiniteError, match="it holds rows already") as refused:
        open_pipe().run(records)
    query(refused.value.hint.partition(";")[0])
    open_pipe().run(records, commit=False)
    pipe = open_pipe()
    pipe.run(records)
    check_exact(pipe, connector)
    assert "give the copy another name" in refused.value.hint
    other = open_pipe("other", target="wares", engine=engine)
    other.run(records)
    check_exact(other, connector, "wares")


def test_sums_by_a_view_count_once(open_pipe: CountingPipes) -> None:
    """A materialized view over the target adds up each change once, although every batch is replayed."""
    connector = TopicConnector()
    read = first_rows(connector)
    pipe = open_pipe(engine="collapsing")
    pipe.run(read)
    database, query = pipe.sink.target.database, pipe.sink.reader().query
    query(
        f"CREATE TABLE {database}.sums (name String, items Int64) ENGINE = SummingMergeTree ORDER BY name "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    rows = f"SELECT name, sum(_sign) AS items FROM {database}.goods GROUP BY name"
    query(f"CREATE MATERIALIZED VIEW {database}.sums_view TO {database}.sums AS {rows}")
    records = [*connector.insert(id=20, name="row 0"), *connector.insert(id=21, name="row 0"), *connector.delete(20)]
    records += connector.resend(records)
    for _ in range(2):
        open_pipe(engine="collapsing").run(records, commit=False)
    open_pipe(engine="collapsing").run(records)
    assert query(f"SELECT name, sum(items) AS times FROM {database}.sums GROUP BY name HAVING times != 0")[1] == [["row 0", 1]]


def test_windows_depend_on_the_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However brokers cut the records into pieces, and wherever the bytes of a window end."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 7)
    monkeypatch.setattr(offset_range_reader, "WINDOW_BYTES", 2000)
    connector = TopicConnector(schemas=False)
    records = [
        *first_rows(connector, 20),
        *changes(connector),
        *connector.insert(id=70, name="x" * 5000),
        *connector.insert(id=71, name="y"),
    ]
    bounds = set()
    for size in (1, 2, 3, 5, 8, 50):
        pieces = [as_batches(records[start : start + size])[0] for start in range(0, len(records), size)]
        windows = list(cut_windows(pieces))
        assert [value for one in windows for value in one.value.to_pylist()] == [one.value for one in records]
        assert [value for one in windows for value in one.key.to_pylist()] == [one.key for one in records]
        found = [header for one in windows for header in (one.headers.to_pylist() if one.headers is not None else [None] * one.rows)]
        assert [[(entry["key"], entry["value"]) for entry in header or ()] for header in found] == [list(one.headers) for one in records]
        bounds.add(tuple((one.offset[0].as_py(), one.offset[-1].as_py()) for one in windows))
    [cut] = bounds
    assert len(cut) > 4
    assert max(last - first for first, last in cut) == 6


def test_window_size_limits_do_not_change() -> None:
    """A batch that is open while Headrace is replaced would be cut otherwise, and count twice."""
    assert (offset_range_reader.WINDOW_ROWS, offset_range_reader.WINDOW_BYTES) == (32_768, 32 << 20)


RECORDED = ("sbtest1", "uniques", "pairs", "times")
"""Tables of which rows of a snapshot are changed or deleted."""


@pytest.mark.slow("mariadb", because="test_recorded_events_count_once[versioned-mysql]; test_recorded_events_count_once[collapsing-mysql]")
@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
@pytest.mark.parametrize("engine", ENGINES)
def test_recorded_events_count_once(open_pipe: CountingPipes, connector: str, engine: str) -> None:
    """Events of real connectors. Each batch is replayed, and the connector repeats all events."""
    tables = (*RECORDED, "evolving", "numbers", "texts") if engine == "collapsing" else RECORDED
    found = [one for one in load_records(f"{connector}-schema") if one.topic.split(".")[-1] in tables]
    records = found if engine == "versioned" else in_log_order(found)
    wanted: Counter[tuple[str, str]] = Counter()
    for record in records:
        if record.value is not None:
            wanted[record.topic.split(".")[-1], json.loads(record.value)["payload"]["op"]] += 1
    again = [replace(one, offset=one.offset + 1000) for one in records if one.value is not None]
    for batch in (records, again):
        open_pipe(engine=engine).run(batch, commit=False)
        pipe = open_pipe(engine=engine)
        pipe.run(batch)
    truth = load_truth(connector)
    for table in tables:
        reads, inserts, updates, deletions = (wanted[table, op] for op in "rcud")
        live = len(truth[table].rows)
        assert (table, stored(pipe, table)) == (table, (reads + inserts + 2 * updates + deletions, live))
        assert live == reads + inserts - deletions
        # All images of former rows are cancelled.
        signs = f"SELECT _sign, count() FROM {pipe.sink.target.database}.{table} FINAL GROUP BY _sign"
        assert (table, pipe.sink.reader().query(signs)[1]) == (table, [[1, live]])
