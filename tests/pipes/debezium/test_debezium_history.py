"""A history of a topic's changes: every record is stored once, after any replay.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`), with the embedded ClickHouse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from testkit.pipelines.connector_records import repeat_tasks
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord

Open = Callable[..., LocalTopicPipe]


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> Open:
    """Opens the pipe of the test's state directory, with options of the sink's tables."""

    def opened(name: str = "state", **chosen: Any) -> LocalTopicPipe:
        return LocalTopicPipe(tmp_path / name, replace(sink, options=ClickHouseOptions(tuple(chosen.items()))))

    return opened


def change(op: str, number: int, offset: int, *, pos: int = 0, partition: int = 0, keyed: bool = True, **columns: Any) -> KafkaRecord:
    """A record of a MySQL connector, without a schema."""
    row = {"id": number, **columns}
    source = {"connector": "mysql", "db": "shop", "table": "goods", "snapshot": "true" if op == "r" else "false", "server_id": 1}
    source |= {"file": "bin.000007", "pos": pos or 100 + offset, "row": 0}
    value = {"before": row if op == "d" else None, "after": None if op == "d" else row, "source": source, "op": op}
    key = json.dumps({"id": number}).encode() if keyed else None
    return KafkaRecord("srv.shop.goods", partition, offset, 1, key, json.dumps(value).encode(), ())


def history(pipe: LocalTopicPipe, columns: str = "id, name, _operation") -> list[list[object]]:
    database = pipe.sink.target.database
    return pipe.sink.reader().query(f"SELECT {columns} FROM {database}.goods ORDER BY _version, id, _operation")[1]


SNAPSHOT = [change("r", number, number, pos=50, name="old") for number in range(3)]
CHANGES = [
    change("c", 7, 3, name="a"),
    change("u", 7, 4, name="b"),
    # A changed key: two records of one position, in two partitions.
    change("d", 7, 5, pos=900, name="b"),
    change("c", 8, 0, pos=900, partition=1, name="b"),
]
STORED = [
    [0, "old", "snapshot"],
    [1, "old", "snapshot"],
    [2, "old", "snapshot"],
    [7, "a", "insert"],
    [7, "b", "update"],
    [7, "b", "delete"],
    [8, "b", "insert"],
]


def test_a_batch_that_was_written_and_not_committed_is_stored_once(open_pipe: Open) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    pipe.run(CHANGES, commit=False)
    assert history(pipe) == STORED
    for _ in range(2):
        pipe = open_pipe(engine="history")
        pipe.run(CHANGES, commit=False)
        assert history(pipe) == STORED


def test_the_first_batch_with_its_new_table_is_stored_once(open_pipe: Open) -> None:
    open_pipe(engine="history").run([*SNAPSHOT, *CHANGES], commit=False)
    pipe = open_pipe(engine="history")
    pipe.run([*SNAPSHOT, *CHANGES])
    assert history(pipe) == STORED


def test_a_batch_of_which_a_part_was_written_is_completed(open_pipe: Open) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    # The crash came after one partition was written.
    pipe.run(CHANGES[:3], commit=False)
    pipe = open_pipe(engine="history")
    pipe.run(CHANGES)
    assert history(pipe) == STORED


def test_a_new_column_reads_the_batch_again_and_stores_it_once(open_pipe: Open) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    rounds = pipe.rounds
    pipe.run([*CHANGES, change("c", 9, 1, pos=950, partition=1, name="c", color="red")])
    assert pipe.rounds > rounds + 1
    assert history(pipe) == [*STORED, [9, "c", "insert"]]
    assert history(pipe, "color")[-1] == ["red"]


def test_an_insert_whose_answer_was_lost_is_not_repeated(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    lost: list[int] = []
    send = ClickHouseWriter._send

    def lose(self: ClickHouseWriter, connection: Any, route: Any, block: ChangeBlock, settings: Any) -> None:
        send(self, connection, route, block, settings)
        if len(lost) < 2:
            lost.append(block.rows)
            raise TransientError("the answer was lost")

    monkeypatch.setattr(ClickHouseWriter, "_send", lose)
    pipe.run(CHANGES)
    assert len(lost) == 2
    assert history(pipe) == STORED


def test_a_task_that_spark_starts_again_writes_what_is_missing(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    repeat_tasks(monkeypatch)
    pipe.run(CHANGES)
    assert history(pipe) == STORED


def test_a_batch_that_is_not_read_again_is_not_compared(open_pipe: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = open_pipe(engine="history")
    pipe.run(SNAPSHOT)
    monkeypatch.setattr("headrace.sinks.clickhouse.write.deduplication.DedupChecker._missing_images", None)
    pipe.run(CHANGES)
    assert history(pipe) == STORED


def test_the_remedy_of_an_existing_mergetree_makes_it_a_history(open_pipe: Open, sink: ClickHouseSink) -> None:
    database = sink.target.database
    sink.reader().query(f"CREATE DATABASE IF NOT EXISTS {database}")
    sink.reader().query(f"CREATE TABLE {database}.goods (id Int64, name String) ENGINE = MergeTree ORDER BY id")
    with pytest.raises(DefiniteError, match="no column _version") as refused:
        open_pipe().run([*SNAPSHOT, *CHANGES])
    assert "missing_columns = add" in refused.value.hint
    pipe = open_pipe(missing_columns="add")
    pipe.run([*SNAPSHOT, *CHANGES], commit=False)
    pipe = open_pipe(missing_columns="add")
    pipe.run([*SNAPSHOT, *CHANGES])
    assert history(pipe) == STORED


def test_the_remedy_of_an_existing_table_that_keeps_values_in_the_order_of_writing(open_pipe: Open, sink: ClickHouseSink) -> None:
    database = sink.target.database
    sink.reader().query(f"CREATE DATABASE IF NOT EXISTS {database}")
    sink.reader().query(f"CREATE TABLE {database}.goods (id Int64, name String) ENGINE = CoalescingMergeTree ORDER BY id")
    with pytest.raises(DefiniteError, match="keeps values in the order of writing") as refused:
        open_pipe().run(SNAPSHOT)
    assert "rename the existing table, or give the copy another name" in refused.value.hint
    pipe = open_pipe("other", target="wares")
    pipe.run(SNAPSHOT)
    assert pipe.rows("shop.goods", "id") == [[0], [1], [2]]
    sink.reader().query(f"RENAME TABLE {database}.goods TO {database}.former")
    pipe = open_pipe()
    pipe.run(SNAPSHOT)
    assert pipe.rows("shop.goods", "id") == [[0], [1], [2]]


def test_a_history_without_a_key_is_refused(open_pipe: Open) -> None:
    with pytest.raises(DefiniteError, match="without a key, equal changes cannot be distinguished") as refused:
        open_pipe(engine="history").run([change("c", 1, 0, keyed=False, name="a")])
    assert "--engine replacing" in refused.value.hint
