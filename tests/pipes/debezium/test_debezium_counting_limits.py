"""Topics that cannot fill an engine that counts rows exactly: refused, or the pipe halts before anything counts; and the remedies.

Without Spark and without a broker (`testkit.pipelines.topic_pipe`), with the embedded ClickHouse.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.debezium.topic_settings import TopicSettings
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium import offset_range_reader
from headrace.sources.debezium.events.options import DebeziumOptions, VersionSource
from testkit.pipelines.connector_records import (
    CountingPipes,
    TopicConnector,
    changes,
    check_exact,
    first_rows,
    in_log_order,
    start_over,
    stored,
)
from testkit.recordings.debezium_recordings import KafkaRecord, load_records, load_truth

ENGINES = ("versioned", "collapsing")


@pytest.fixture
def open_pipe(sink: ClickHouseSink, tmp_path: Path) -> CountingPipes:
    """Opens the pipe of a state directory, with options of the sink's tables."""
    return CountingPipes(sink, tmp_path)


@pytest.mark.slow("collapsing", because="test_a_second_snapshot_halts_before_it_counts[True-versioned]")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_changes", [True, False])
def test_a_second_snapshot_halts_before_it_counts(open_pipe: CountingPipes, engine: str, with_changes: bool) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine=engine)
    pipe.run(first_rows(connector))
    if with_changes:
        pipe.run(changes(connector))
    connector.position += 1000
    for _ in range(2):
        with pytest.raises(DefiniteError, match="has taken another snapshot") as halted:
            open_pipe(engine=engine).run(connector.snapshot())
    assert "start over with another --state, from the first record of a new snapshot on" in halted.value.hint
    check_exact(pipe, connector)
    start_over(open_pipe, connector, engine=engine)


def test_two_snapshots_in_one_batch_and_in_several_partitions_halt(open_pipe: CountingPipes) -> None:
    connector = TopicConnector(partitions=2)
    first = connector.snapshot([{"id": 0, "name": "a"}])
    connector.position += 500
    second = connector.snapshot([{"id": 0, "name": "a"}, {"id": 1, "name": "b"}])
    with pytest.raises(DefiniteError, match="has taken another snapshot"):
        open_pipe(engine="versioned").run([*first, *second])
    # Each partition has rows of one snapshot.
    with pytest.raises(DefiniteError, match="has taken another snapshot"):
        open_pipe("other", engine="versioned", target="others").run([*first, second[1]])


def test_a_snapshot_after_changes_halts(open_pipe: CountingPipes) -> None:
    """The pipe started after the first snapshot, or the table was empty then."""
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(connector.insert(id=1, name="a"))
    connector.position += 500
    with pytest.raises(DefiniteError, match="has taken another snapshot"):
        pipe.run(connector.snapshot())
    check_exact(pipe, connector)


@pytest.mark.parametrize("kind", ["incremental", "false"])
def test_rows_of_an_incremental_snapshot_halt(open_pipe: CountingPipes, kind: str) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    with pytest.raises(DefiniteError, match=f"not of an initial snapshot \\(source.snapshot: {kind}\\)") as halted:
        pipe.run(connector.snapshot(kind=kind))
    check_exact(pipe, connector)
    assert "drop the target table, and start over with another --state and --engine replacing" in halted.value.hint
    start_over(open_pipe, connector, engine="replacing")


def test_a_log_that_was_reset_halts(open_pipe: CountingPipes) -> None:
    """Its positions are below the mark, but its events are newer than all that were read."""
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run([*first_rows(connector), *changes(connector)])
    counted = stored(pipe)
    connector.file, connector.position = "bin.000001", 100
    with pytest.raises(DefiniteError, match="the source's log was reset"):
        pipe.run(connector.insert(id=50, name="after the reset"))
    assert stored(pipe) == counted
    start_over(open_pipe, connector, engine="versioned")


def test_a_raised_epoch_halts(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run([*first_rows(connector), *changes(connector)])
    connector.file, connector.position = "bin.000001", 100
    with pytest.raises(DefiniteError, match="has a new log") as halted:
        open_pipe(engine="versioned", more={"choices": DebeziumOptions(epoch=1)}).run(connector.insert(id=50, name="x"))
    assert "from the first record of a new snapshot on" in halted.value.hint


@pytest.mark.parametrize("gtid", ["3e11fa47-71ca-11e1-9e33-c80aa9429562:{}", "3e11fa47-71ca-11e1-9e33-c80aa9429562:tag:{}", "0-1-{}"])
def test_a_failover_of_the_source_halts_where_transactions_come_again(open_pipe: CountingPipes, gtid: str) -> None:
    """The connector resumes by GTID at another server, and sends its last transactions again, at higher positions of another log."""
    connector = TopicConnector(gtid=gtid)
    pipe = open_pipe(engine="versioned")
    pipe.run([*first_rows(connector), *changes(connector)])
    pipe.run(connector.insert(id=40, name="b"))
    again = replace(connector, rows=dict(connector.rows), file="bin.000019", position=100, transactions=connector.transactions - 1)
    with pytest.raises(DefiniteError, match="was read before, at another position") as halted:
        pipe.run(again.insert(id=40, name="b"))
    assert "from the first record of a new snapshot on" in halted.value.hint
    check_exact(pipe, connector)
    # The same server continues in its next file, and so may another one that repeats nothing.
    connector.file, connector.position = "bin.000008", 100
    pipe.run(connector.insert(id=41, name="c"))
    check_exact(pipe, connector)
    start_over(open_pipe, connector, engine="versioned")


def test_a_table_that_was_not_selected_for_a_while_halts(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    open_pipe(engine="versioned").run(first_rows(connector))
    open_pipe(engine="versioned", more={"exclude": ("shop.goods",)}).run(connector.insert(id=20, name="missed"))
    pipe = open_pipe(engine="versioned")
    with pytest.raises(DefiniteError, match="got the topic's records up to offset 4; the next batch begins at 5") as halted:
        pipe.run(connector.update(20, name="x"))
    assert "the table was not selected for a while" in halted.value.hint
    start_over(open_pipe, connector, engine="versioned")


def test_two_connectors_in_one_topic_halt(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    connector.name = "other"
    with pytest.raises(DefiniteError, match=r"come from two connectors in one topic \(srv, other\)") as halted:
        pipe.run(connector.insert(id=50, name="x"))
    assert "let each connector have its own topic" in halted.value.hint


def test_topics_of_two_connectors_fill_one_table(open_pipe: CountingPipes) -> None:
    """The remedy for two connectors in one topic."""
    one, other = TopicConnector(), TopicConnector(topic="eu.shop.goods", name="eu")
    choices = DebeziumOptions(topics=(("eu.shop.goods", "shop.goods"),))
    records = [*first_rows(one), *other.snapshot([{"id": 100, "name": "eu"}]), *other.update(100, name="EU")]
    for commit in (False, True):
        pipe = open_pipe(engine="versioned", more={"choices": choices})
        pipe.run(records, commit=commit)
    both = replace(one, rows=one.rows | other.rows, images=one.images + other.images)
    check_exact(pipe, both)


def test_several_events_at_one_position_halt(open_pipe: CountingPipes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed transaction that is cut between its events."""
    monkeypatch.setattr(offset_range_reader, "WINDOW_ROWS", 1)
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    records = connector.insert(id=50, name="a")
    connector.position -= 50
    records += connector.insert(id=51, name="b")
    connector.clock_ms -= 1000
    late = [records[0], _at_time(records[1], records[0])]
    with pytest.raises(DefiniteError, match=r"several events of shop\.goods are at one position") as halted:
        pipe.run(late)
    assert "binlog_transaction_compression" in halted.value.hint


def _at_time(record: KafkaRecord, of: KafkaRecord) -> KafkaRecord:
    """Return a record with the commit time of another."""
    event, other = json.loads(record.value or b""), json.loads(of.value or b"")
    event["payload"]["source"]["ts_ms"] = other["payload"]["source"]["ts_ms"]
    return replace(record, value=json.dumps(event).encode())


@pytest.mark.parametrize("batches", [1, 2])
def test_a_partition_that_is_not_in_the_order_of_the_log_halts(open_pipe: CountingPipes, batches: int) -> None:
    """Another program has copied the topic to fewer partitions: events that are not repeated look so."""
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    records = [*connector.update(0, name="a"), *connector.update(1, name="b"), *connector.update(2, name="c")]
    swapped = [replace(record, offset=offset) for record, offset in zip((records[i] for i in (0, 2, 1)), (4, 5, 6), strict=True)]
    if batches == 2:
        pipe.run(swapped[:2])
    with pytest.raises(DefiniteError, match="are not in the order of the source's log") as halted:
        pipe.run(swapped[2:] if batches == 2 else swapped)
    assert "read the topic that the connector itself writes" in halted.value.hint
    start_over(open_pipe, connector, engine="replacing")


def test_more_partitions_halt(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    connector.partitions = 2
    with pytest.raises(DefiniteError, match="had 1 partitions, and has 2") as halted:
        open_pipe(engine="versioned").run(connector.update(1, name="moved"))
    assert "start over with another --state" in halted.value.hint
    start_over(open_pipe, connector, engine="versioned")


def test_a_collapsing_table_needs_one_partition(open_pipe: CountingPipes) -> None:
    connector = TopicConnector(partitions=2)
    with pytest.raises(DefiniteError, match="needs the changes of a row in their order") as refused:
        open_pipe(engine="collapsing").run(first_rows(connector))
    assert "drop the target table, and start over with another --state and --engine versioned" in refused.value.hint
    start_over(open_pipe, connector, engine="versioned")


def test_a_compacted_topic_is_refused(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    records = first_rows(connector)
    compacted = {"compacted": frozenset({connector.topic})}
    with pytest.raises(DefiniteError, match=r"cleanup\.policy=compact") as refused:
        open_pipe(engine="versioned", more=compacted).run(records)
    assert "set cleanup.policy=delete" in refused.value.hint
    # Other targets do not mind.
    other = open_pipe("other", more=compacted, engine="replacing", target="others")
    other.run(records)
    assert len(other.rows("shop.goods")) == 4
    pipe = open_pipe(engine="versioned")
    pipe.run(records)
    check_exact(pipe, connector)


def test_a_truncation_halts_or_is_ignored_by_choice(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    emptied = connector.insert(id=50, name="x")[0]
    event = json.loads(emptied.value or b"")["payload"]
    truncation = replace(emptied, key=None, value=json.dumps({**event, "op": "t", "after": None}).encode())
    del connector.rows[50]
    connector.images -= 1
    with pytest.raises(DefiniteError, match="was emptied in its source, and the target counts rows") as halted:
        pipe.run([truncation])
    assert "--schema-changes truncate_table=ignore" in halted.value.hint
    pipe = open_pipe(engine="versioned", more={"policy": SchemaPolicy.from_dict({"truncate_table": "ignore"})})
    pipe.run([truncation, *connector.insert(id=51, name="y")])
    check_exact(pipe, connector)


def test_min_partitions_are_refused(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    records = first_rows(connector)
    with pytest.raises(DefiniteError, match="with --min-partitions several tasks") as refused:
        open_pipe(engine="versioned", more={"topics": TopicSettings("unused", min_partitions=4)}).run(records)
    assert refused.value.hint == "leave it out"
    pipe = open_pipe(engine="versioned")
    pipe.run(records)
    check_exact(pipe, connector)


def _postgres(record: KafkaRecord) -> KafkaRecord:
    event = json.loads(record.value or b"")["payload"]
    event["source"] = {"connector": "postgresql", "name": "pg", "schema": "shop", "table": "goods", "lsn": 5, "snapshot": "true"}
    return replace(record, value=json.dumps(event).encode())


def _flat(record: KafkaRecord) -> KafkaRecord:
    event = json.loads(record.value or b"")["payload"]
    fields = {f"__{name}": event["source"][name] for name in ("file", "pos", "row", "name", "snapshot")}
    return replace(record, value=json.dumps({**event["after"], "__op": event["op"], "__deleted": "false", **fields}).encode())


@pytest.mark.parametrize("made", [_postgres, _flat, lambda record: replace(record, key=None)])
@pytest.mark.parametrize("engine", ENGINES)
def test_topics_without_positions_or_keys_are_refused_before_a_table_is_created(
    open_pipe: CountingPipes, sink: ClickHouseSink, made: Callable[[KafkaRecord], KafkaRecord], engine: str
) -> None:
    """The remedy replicates them."""
    records = list(map(made, first_rows(TopicConnector())))
    keyless = records[0].key is None
    wanted = "nothing tells this table's rows apart" if keyless and engine == "collapsing" else "the target of shop.goods counts rows"
    with pytest.raises(DefiniteError, match=wanted) as refused:
        open_pipe(engine=engine).run(records)
    assert "replacing" in refused.value.hint
    assert sink.existing_family(TableName("shop", "goods")) is None
    pipe = open_pipe(engine="replacing")
    pipe.run(records)
    assert pipe.rows("shop.goods", "id") == [[0], [1], [2], [3]]


def test_versions_by_offset_are_refused(open_pipe: CountingPipes) -> None:
    choices = DebeziumOptions(versions=VersionSource.OFFSET)
    with pytest.raises(DefiniteError, match="whose events have a position in the binary log") as refused:
        open_pipe(engine="versioned", more={"choices": choices}).run(first_rows(TopicConnector()))
    assert "--engine replacing" in refused.value.hint


def test_events_that_lose_their_positions_later_halt(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    [record] = connector.insert(id=50, name="x")
    event = json.loads(record.value or b"")["payload"]
    del event["source"]["name"]
    with pytest.raises(DefiniteError, match=r"come from two connectors in one topic \(srv, without a name\)"):
        pipe.run([replace(record, value=json.dumps(event).encode())])
    with pytest.raises(DefiniteError, match="counts rows: only envelopes"):
        pipe.run([_flat(record)])


def test_an_update_without_the_row_before_halts(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    [record] = connector.update(1, name="x")
    event = {**json.loads(record.value or b"")["payload"], "before": None}
    with pytest.raises(DefiniteError, match="has no before image"):
        pipe.run([replace(record, value=json.dumps(event).encode())])


def test_a_hash_of_values_that_differ_in_snapshots_is_refused(open_pipe: CountingPipes) -> None:
    """MySQL rounds a FLOAT to six digits when it is selected, and spells JSON otherwise. The remedies replicate such tables."""
    records = in_log_order(one for one in load_records("mysql-schema") if one.topic.endswith(".numbers"))
    with pytest.raises(DefiniteError, match="otherwise in a snapshot than in a change: f, d") as refused:
        open_pipe(engine="versioned").run(records)
    assert "leave the columns out (--exclude-columns); or use --engine collapsing" in refused.value.hint
    found = load_truth("mysql")["numbers"].rows
    for name, more, engine in (
        ("chosen", {"exclude_columns": ("shop.numbers.f", "shop.numbers.d")}, "versioned"),
        ("other", {}, "collapsing"),
        ("newest", {}, "replacing"),
    ):
        pipe = open_pipe(name, more, engine=engine, target=f"numbers_{name}")
        pipe.run(records)
        signs = f"SELECT _sign, count() FROM {pipe.sink.target.database}.numbers_{name} FINAL GROUP BY _sign"
        assert pipe.sink.reader().query(signs)[1] == [[1, len(found)]]


def test_events_without_schemas(open_pipe: CountingPipes) -> None:
    """They do not show which text is a JSON document, which only a hash of all values needs to know."""
    connector = TopicConnector(schemas=False)
    records = [*first_rows(connector), *changes(connector)]
    with pytest.raises(DefiniteError, match="its events carry no schemas") as refused:
        open_pipe(engine="versioned").run(records)
    assert "debezium.schema_topic; or use --engine collapsing" in refused.value.hint
    for commit in (False, True):
        pipe = open_pipe(engine="collapsing")
        pipe.run(records, commit=commit)
    check_exact(pipe, connector)
    recorded = load_records("mysql-plain")
    described = [one.value for one in recorded if one.topic == "plain"]
    for commit in (False, True):
        pipe = open_pipe("other", {"schema_records": described}, engine="versioned", target="others")
        pipe.run([one for one in recorded if one.topic.endswith(".sbtest1")], commit=commit)
    assert stored(pipe, "others") == (4 + 9 + 2 * 6 + 7, len(load_truth("mysql")["sbtest1"].rows))


def test_a_filter_is_refused(open_pipe: CountingPipes) -> None:
    settings = {"transforms": {"shop.goods": {"filter": "id > 1"}}}
    connector = TopicConnector()
    records = first_rows(connector)
    with pytest.raises(DefiniteError, match="a filter deletes rows that may not be in the target") as refused:
        open_pipe(engine="versioned", more={"settings": settings}).run(records)
    assert "remove the filter" in refused.value.hint
    pipe = open_pipe(engine="versioned")
    pipe.run(records)
    check_exact(pipe, connector)


def test_a_placeholder_of_an_unknown_value_halts(open_pipe: CountingPipes) -> None:
    connector = TopicConnector()
    pipe = open_pipe(engine="versioned")
    pipe.run(first_rows(connector))
    records = connector.update(1, name="__debezium_unavailable_value")
    with pytest.raises(DefiniteError, match="has the placeholder of an unknown value in name") as halted:
        pipe.run(records)
    assert "--set debezium.placeholder=TEXT" in halted.value.hint
    pipe = open_pipe(engine="versioned", more={"choices": DebeziumOptions(placeholder="TEXT")})
    pipe.run(records)
    check_exact(pipe, connector)
