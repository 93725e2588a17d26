"""Debezium's topics to ClickHouse through a real broker and Spark's Kafka source, by the command."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.kafka_cluster import compacted_topics
from headrace.pipes.debezium.pipe import DebeziumPipe
from headrace.pipes.debezium.topic_settings import TopicSettings
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium import offset_range_reader
from testkit.pipelines.connector_records import TopicConnector
from testkit.pipelines.embedded_access import target_of
from testkit.pipelines.local_runtime import LocalRuntime
from testkit.pipelines.pipeline import Run
from testkit.recordings.debezium_recordings import KafkaRecord, load_records, load_truth
from testkit.servers.broker import PrivateBroker

TABLES = ("sbtest1", "uniques", "emptied", "evolving", "late")
"""`test_debezium_pipe` tests the types, without Spark."""


class TopicScenario:
    """Topics of a recording in a broker, and a pipe that reads them."""

    def __init__(self, broker: PrivateBroker, clickhouse: EmbeddedServer, directory: Path) -> None:
        self.broker, self.directory = broker, directory
        self.database = f"d_{secrets.token_hex(4)}"
        self.pipe = f"pipe_{self.database}"
        self.sink = ClickHouseSink(target_of(clickhouse, database=self.database))
        self.url = f"clickhouse://default@127.0.0.1:{clickhouse.port}/{self.database}"

    def send(self, records: Sequence[KafkaRecord]) -> None:
        """Put records into topics of two partitions, by key, as a connector's producer does."""
        for topic in dict.fromkeys(record.topic for record in records):
            if topic not in self.broker.admin().list_topics(timeout=10).topics:
                self.broker.create_topic(topic, partitions=2)
            self.broker.produce(topic, [_sent(one) for one in records if one.topic == topic])

    def start(self, *more: str) -> Run:
        source = f"{self.broker.url()}?metadata.max.age.ms=1000"
        arguments = ("replicate", source, self.url, "--topics", "schema.shop.*", "--name", self.pipe)
        choices = ("--state", str(self.directory / "state"), "--set", "debezium.on_malformed=dead_letter")
        return Run([*arguments, *choices, *more], self.directory / f"{len(list(self.directory.iterdir()))}.log")

    def noted(self) -> set[str]:
        """The topics whose identity is stored."""
        return set(json.loads((self.directory / "state" / "debezium.json").read_text())["topics"])

    def query(self, sql: str) -> list[list[Any]]:
        return self.sink.reader().query(sql.replace("$", f"`{self.database}`"))[1]

    def counted(self, table: str) -> int:
        """Count the rows of a table; 0 if it does not exist."""
        there = self.query(f"SELECT count() FROM system.tables WHERE database = '{self.database}' AND name = '{table}'")
        if not there[0][0]:
            return 0
        (engine,) = self.query(f"SELECT engine FROM system.tables WHERE database = '{self.database}' AND name = '{table}'")[0]
        return int(self.query(f"SELECT count() FROM $.{table}{'' if engine == 'MergeTree' else ' FINAL'}")[0][0])

    def shown(self, table: str) -> list[tuple[str | None, ...]]:
        """A table's rows as text, in the columns of the recording."""
        truth = load_truth("mysql")[table]
        names = ", ".join(f"toString({name})" for name, _ in truth.columns)
        return sorted((tuple(row) for row in self.query(f"SELECT {names} FROM $.{table} FINAL")), key=repr)


def _sent(record: KafkaRecord) -> dict[str, Any]:
    return {"key": record.key, "value": record.value, "headers": list(record.headers)}


@pytest.mark.slow(because="test_one_kill[DebeziumTopics]; test_sink_rows_equal_the_servers_select without Spark")
def test_debezium_topics_become_tables(fresh_broker: Callable[..., PrivateBroker], clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    """Created and altered tables, changed keys, new topics, an invalid record, a restarted broker, a killed pipe."""
    scenario = TopicScenario(fresh_broker(), clickhouse, tmp_path)
    records = [one for one in load_records("mysql-schema") if one.topic.split(".")[-1] in TABLES]
    early, evolving = ("sbtest1",), [one for one in records if one.topic.endswith(".evolving")]
    scenario.send([one for one in records if one.topic.split(".")[-1] in early] + evolving[:2])
    run = scenario.start()
    try:
        run.until(lambda: scenario.counted("sbtest1") == 6 and scenario.counted("evolving"))
        scenario.broker.kill()
        scenario.broker.start()
        scenario.send([one for one in records if one.topic.split(".")[-1] not in early and one not in evolving] + evolving[2:])
        scenario.broker.produce(evolving[0].topic, [{"key": b"{}", "value": b"no JSON", "headers": [("h", b"1")]}])
        run.until(
            lambda: scenario.counted("evolving") == 4 and scenario.counted("late") and scenario.noted() == {one.topic for one in records}
        )
    finally:
        run.kill()
    ended = scenario.start("--once").wait()
    assert ended.code == 0, ended.output
    truth = load_truth("mysql")
    whole = [table for table in TABLES if table != "evolving"]
    assert {table: scenario.shown(table) for table in whole} == {table: sorted(truth[table].rows, key=repr) for table in whole}
    # No event has the values of unchanged rows in a renamed column.
    rows = sorted((int(str(row[0])), None if row[2] is None else int(str(row[2]))) for row in truth["evolving"].rows)
    assert scenario.query("SELECT id, b FROM $.evolving FINAL ORDER BY id") == [list(row) for row in rows]
    letters = scenario.query(f"SELECT table, state, row FROM headrace.errors FINAL WHERE pipe = '{scenario.pipe}'")
    assert [tuple(letter[:2]) for letter in letters] == [(evolving[0].topic, "unreadable")]
    assert json.loads(letters[0][2]) == {"key": "{}", "value": "no JSON", "headers": [["h", "1"]]}
    kinds = [kind for (kind,) in scenario.query(f"SELECT kind FROM headrace.schema_changes WHERE pipe = '{scenario.pipe}'")]
    assert kinds.count("create_table") == len(TABLES)
    assert any("column" in kind for kind in kinds)
    progress = scenario.query(f"SELECT total_rows, position FROM headrace.positions FINAL WHERE pipe = '{scenario.pipe}'")
    assert "schema.shop.sbtest1[0]@" in progress[0][1]

    again = scenario.start("--once").wait()
    assert again.code == 0
    assert "nothing new" in again.output
    assert scenario.query(f"SELECT total_rows, position FROM headrace.positions FINAL WHERE pipe = '{scenario.pipe}'") == progress


def test_topics_are_read_on_any_runtime(broker: PrivateBroker, clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    scenario = TopicScenario(broker, clickhouse, tmp_path)
    scenario.send(
        [replace(one, topic=f"{scenario.database}.shop.sbtest1") for one in load_records("mysql-schema") if one.topic.endswith(".sbtest1")]
    )
    settings = PipeSettings(Selection(("*.*",)), tmp_path / "state", once=True, name=scenario.pipe)
    topics, address = TopicSettings(f"{scenario.database}\\..*"), parse_kafka_url(broker.url())
    for _ in range(2):
        DebeziumPipe(address, topics, scenario.sink, scenario.url, settings, LogView(), LocalRuntime()).run()
        assert scenario.shown("sbtest1") == sorted(load_truth("mysql")["sbtest1"].rows, key=repr)


def test_a_batch_of_a_history_that_is_read_again_is_stored_once(
    broker: PrivateBroker, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the write and the commit of each of two batches."""
    scenario = TopicScenario(broker, clickhouse, tmp_path)
    records = [
        replace(one, topic=f"{scenario.database}.shop.sbtest1") for one in load_records("mysql-schema") if one.topic.endswith(".sbtest1")
    ]
    events = sum(one.value is not None for one in records)
    sink = replace(scenario.sink, options=ClickHouseOptions((("engine", "history"),)))
    settings = PipeSettings(Selection(("*.*",)), tmp_path / "state", once=True, name=scenario.pipe)
    topics, address = TopicSettings(f"{scenario.database}\\..*"), parse_kafka_url(broker.url())

    def crash(*_: Any) -> None:
        raise DefiniteError("crashed before the commit")

    stored: list[int] = []
    for part in (records[: len(records) // 2], records[len(records) // 2 :]):
        scenario.send(part)
        crashing = DebeziumPipe(address, topics, sink, scenario.url, settings, LogView(), LocalRuntime())
        with monkeypatch.context() as patch:
            patch.setattr(ProgressReporter, "batch_written", crash)
            with pytest.raises(DefiniteError, match="crashed before the commit"):
                crashing.run()
        stored.append(scenario.counted("sbtest1"))
        DebeziumPipe(address, topics, sink, scenario.url, settings, LogView(), LocalRuntime()).run()
        assert scenario.counted("sbtest1") == stored[-1] > 0
    assert stored[-1] == events
    assert scenario.query("SELECT count() FROM (SELECT DISTINCT id, _version, _operation FROM $.sbtest1)") == [[events]]


def _sums(scenario: TopicScenario) -> tuple[int, int]:
    """Return the number of images of a table that counts rows, and the sum of their signs."""
    [[images, signs]] = scenario.query("SELECT count(), sum(_sign) FROM $.goods")
    return int(images), int(signs)


@pytest.mark.parametrize(("engine", "partitions"), [("versioned", 3), ("collapsing", 1)])
def test_engines_that_count_rows_get_every_change_once(
    broker: PrivateBroker, clickhouse: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, partitions: int
) -> None:
    """The process ends between the write and the commit of each batch; the connector restarts and sends its last events again."""
    scenario = TopicScenario(broker, clickhouse, tmp_path)
    connector = TopicConnector(topic=f"{scenario.database}.shop.goods", partitions=partitions)
    broker.create_topic(connector.topic, partitions=partitions)
    unmerged = (("max_bytes_to_merge_at_max_space_in_pool", "1"), ("max_bytes_to_merge_at_min_space_in_pool", "1"))
    sink = replace(scenario.sink, options=ClickHouseOptions((("engine", engine), ("settings", unmerged))))
    settings = PipeSettings(Selection(("*.*",)), tmp_path / "state", once=True, name=scenario.pipe)
    topics, address = TopicSettings(f"{scenario.database}\\..*"), parse_kafka_url(broker.url())
    # Windows end in the middle of what the connector sends again.
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 2)

    def crash(*_: Any) -> None:
        raise DefiniteError("crashed before the commit")

    def run() -> None:
        DebeziumPipe(address, topics, sink, scenario.url, settings, LogView(), LocalRuntime()).run()

    sent: list[KafkaRecord] = []
    for make in (
        lambda: connector.snapshot([{"id": number, "name": f"row {number}"} for number in range(6)]),
        lambda: [*connector.update(1, name="one"), *connector.delete(2), *connector.move(3, 10), *connector.insert(id=2, name="again")],
        lambda: [*connector.update(2, name="two"), *connector.update(10, name="ten"), *connector.delete(0)],
    ):
        records = make()
        for part in (records, connector.resend((sent + records)[-5:])):
            broker.produce(connector.topic, [{**_sent(one), "partition": one.partition} for one in part])
        sent += records
        with monkeypatch.context() as patch:
            patch.setattr(ProgressReporter, "batch_written", crash)
            with pytest.raises(DefiniteError, match="crashed before the commit"):
                run()
        run()
        assert _sums(scenario) == (connector.images, len(connector.rows))
        rows = scenario.query("SELECT id, name, sum(_sign) AS times FROM $.goods GROUP BY id, name HAVING times != 0 ORDER BY id")
        assert rows == [[row["id"], row["name"], 1] for _, row in sorted(connector.rows.items())]


def test_a_state_that_is_older_than_a_table_that_counts_rows_is_refused(
    broker: PrivateBroker, clickhouse: EmbeddedServer, tmp_path: Path
) -> None:
    scenario = TopicScenario(broker, clickhouse, tmp_path)
    connector = TopicConnector(topic=f"{scenario.database}.shop.goods")
    broker.create_topic(connector.topic, partitions=1)
    sink = replace(scenario.sink, options=ClickHouseOptions((("engine", "collapsing"),)))
    settings = PipeSettings(Selection(("*.*",)), tmp_path / "state", once=True, name=scenario.pipe)
    topics, address = TopicSettings(f"{scenario.database}\\..*"), parse_kafka_url(broker.url())

    def run(records: list[KafkaRecord]) -> None:
        broker.produce(connector.topic, [{**_sent(one), "partition": one.partition} for one in records])
        DebeziumPipe(address, topics, sink, scenario.url, settings, LogView(), LocalRuntime()).run()

    run(connector.snapshot([{"id": 1, "name": "a"}]))
    shutil.copytree(tmp_path / "state", tmp_path / "old")
    run(connector.insert(id=2, name="b"))
    (tmp_path / "state").rename(tmp_path / "newer")
    (tmp_path / "old").rename(tmp_path / "state")
    with pytest.raises(DefiniteError, match=r"the state is older than the sink, .* would count twice in shop\.goods") as refused:
        run([])
    assert _sums(scenario) == (connector.images, len(connector.rows))
    assert "restore a newer copy of the state directory" in refused.value.hint
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "newer").rename(tmp_path / "state")
    run(connector.insert(id=3, name="c"))
    assert _sums(scenario) == (connector.images, len(connector.rows))


def test_topics_that_kafka_compacts(broker: PrivateBroker) -> None:
    names = [broker.create_topic(cleanup_policy=policy) for policy in ("delete", "compact", "compact,delete")]
    assert compacted_topics(parse_kafka_url(broker.url()), names) == {names[1], names[2]}
    assert compacted_topics(parse_kafka_url(broker.url()), []) == frozenset()


@pytest.mark.slow(because="test_engines_that_count_rows_get_every_change_once, without Spark")
def test_a_killed_pipe_to_an_engine_that_counts_rows(
    fresh_broker: Callable[..., PrivateBroker], clickhouse: EmbeddedServer, tmp_path: Path
) -> None:
    scenario = TopicScenario(fresh_broker(), clickhouse, tmp_path)
    connector = TopicConnector(topic="schema.shop.goods", partitions=2)
    scenario.broker.create_topic(connector.topic, partitions=2)
    records = connector.snapshot([{"id": number, "name": f"row {number}"} for number in range(20)])
    for number in range(20):
        records += connector.update(number, name=f"changed {number}")
    records += connector.resend(records[-15:])
    scenario.broker.produce(connector.topic, [{**_sent(one), "partition": one.partition} for one in records])
    chosen = ("--engine", "versioned", "--max-offsets", "6")
    for _ in range(2):
        run = scenario.start(*chosen)
        try:
            run.until(lambda: scenario.counted("goods") > 0)
            written = scenario.query("SELECT max(_version) FROM $.goods")
            run.until(lambda written=written: scenario.query("SELECT max(_version) FROM $.goods") > written)  # type: ignore[misc]
        finally:
            run.kill()
    ended = scenario.start(*chosen, "--once").wait()
    assert ended.code == 0, ended.output
    [[signs, live]] = scenario.query("SELECT sum(_sign), sum(_sign * (name LIKE 'changed %')) FROM $.goods")
    assert (signs, live) == (len(connector.rows), len(connector.rows))
    assert scenario.query("SELECT count() FROM $.goods FINAL WHERE _sign = -1") == [[0]]


@pytest.mark.slow(because="test_a_batch_of_a_history_that_is_read_again_is_stored_once, without Spark")
def test_a_killed_pipe_to_a_history(fresh_broker: Callable[..., PrivateBroker], clickhouse: EmbeddedServer, tmp_path: Path) -> None:
    scenario = TopicScenario(fresh_broker(), clickhouse, tmp_path)
    records = [one for one in load_records("mysql-schema") if one.topic.endswith(".sbtest1")]
    events = sum(one.value is not None for one in records)
    scenario.send(records)
    run = scenario.start("--engine", "history", "--max-offsets", "3")
    try:
        run.until(lambda: scenario.counted("sbtest1") > 0)
    finally:
        run.kill()
    ended = scenario.start("--engine", "history", "--max-offsets", "3", "--once").wait()
    assert ended.code == 0, ended.output
    assert scenario.counted("sbtest1") == events
    assert scenario.query("SELECT count() FROM (SELECT DISTINCT id, _version, _operation FROM $.sbtest1)") == [[events]]
