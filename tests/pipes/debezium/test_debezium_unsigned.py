"""BIGINT UNSIGNED in Debezium's events with schema type `int64`: exact wherever the type is known, in every recorded format."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.pipes.debezium.type_lookup import TypeLookup
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import DetectedSchema
from testkit.pipelines.topic_pipe import LocalTopicPipe
from testkit.recordings.debezium_recordings import KafkaRecord, load_records, load_schemas, load_truth

WITH_SCHEMAS = ("mysql-schema", "mysql-schema flattened", "mysql-avro", "mysql-texts", "mariadb-schema", "mariadb-doubles")
DOUBT = "the events do not show whether the 64-bit integers of"


def recorded_registry(recording: str, folder: Path) -> str:
    """The schemas of a recording, as a directory of files with the ids that the registry gave them."""
    for number, text in load_schemas(recording).items():
        (folder / f"schema-{number}").mkdir(parents=True)
        (folder / f"schema-{number}" / f"1.{number}.avsc").write_text(text)
    return str(folder)


def records_of(recording: str) -> list[KafkaRecord]:
    """The events of the tables with unsigned columns, one of them in a changed key; some recordings have only one table."""
    name, _, flattened = recording.partition(" ")
    found = [one for one in load_records(name) if one.topic.split(".")[-1] in ("numbers", "pairs")]
    return list(map(_flat, found)) if flattened else found


def _flat(record: KafkaRecord) -> KafkaRecord:
    """An envelope as Kafka Connect's ExtractNewRecordState makes it: the row and its schema alone, no value where it was deleted."""
    if record.value is None:
        return record
    said = json.loads(record.value)
    if said["payload"]["after"] is None:
        return replace(record, value=None)
    schema = next(one for one in said["schema"]["fields"] if one["field"] == "after")
    return replace(record, value=json.dumps({"schema": schema, "payload": said["payload"]["after"]}).encode())


def replicated(
    recording: str, sink: ClickHouseSink, tmp_path: Path, described: list[bytes] | None = None, tables: str = ""
) -> LocalTopicPipe:
    registry = recorded_registry(recording, tmp_path / "registry") if recording.endswith("avro") else ""
    pipe = LocalTopicPipe(tmp_path / "state", sink, DebeziumOptions(registry=registry), schema_records=described)
    pipe.run([one for one in records_of(recording) if one.topic.endswith(tables)])
    return pipe


def schema_topic() -> list[bytes]:
    """MariaDB's tables are the same."""
    return [one.value for one in load_records("mysql-plain") if "." not in one.topic and one.value is not None]


COLUMNS = {"numbers": ("id", "bi", "bu"), "pairs": ("n", "note")}


def shown(pipe: LocalTopicPipe) -> dict[str, list[list[object]]]:
    return {
        name.table: pipe.rows(str(name), ", ".join(f"toString({one})" for one in COLUMNS[name.table]), COLUMNS[name.table][0])
        for name in pipe.tables
    }


def true(pipe: LocalTopicPipe) -> dict[str, list[list[object]]]:
    """The same rows by MySQL's SELECT."""
    found: dict[str, list[list[object]]] = {}
    for name in pipe.tables:
        truth = load_truth("mysql")[name.table]
        places = [next(i for i, (column, _) in enumerate(truth.columns) if column == wanted) for wanted in COLUMNS[name.table]]
        found[name.table] = sorted(([row[place] for place in places] for row in truth.rows), key=lambda row: int(str(row[0])))
    assert found
    return found


@pytest.mark.parametrize("recording", WITH_SCHEMAS)
@pytest.mark.parametrize("told_by", ["topic", "target"])
def test_what_is_known_of_a_column_makes_its_values_exact(
    recording: str, told_by: str, sink: ClickHouseSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if told_by == "target":
        ask, database = sink.reader().query, sink.target.database
        ask(f"CREATE DATABASE `{database}`")
        marks = "_sign Int8, _version UInt64"
        ask(
            f"CREATE TABLE `{database}`.pairs (note Nullable(String), code String, day Date32, n UInt64, {marks}) "
            "ENGINE = ReplacingMergeTree(_version) ORDER BY (day, code, n)"
        )
        if "schema" not in recording and "avro" not in recording:
            pytest.skip("the recording has no such table")
    pipe = replicated(recording, sink, tmp_path, *((schema_topic(),) if told_by == "topic" else (None, ".pairs")))
    assert shown(pipe) == true(pipe)
    assert "18446744073709551615" in str(shown(pipe))
    if told_by == "topic":
        assert DOUBT not in caplog.text


def test_the_type_that_the_connector_passes_on_is_enough(sink: ClickHouseSink, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = replicated("mysql-propagated", sink, tmp_path)
    assert shown(pipe) == true(pipe)
    assert DOUBT not in caplog.text


def test_where_nothing_is_known_one_warning_names_the_columns_and_the_remedies(
    sink: ClickHouseSink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe = replicated("mysql-schema", sink, tmp_path)
    assert shown(pipe)["numbers"][0] == ["2", "9223372036854775807", "-1"], "the event's value, with a warning"
    [said] = [record.getMessage() for record in caplog.records if DOUBT in record.getMessage()]
    assert all(
        word in said
        for word in (
            "shop.numbers.bi",
            "shop.numbers.bu",
            "shop.pairs.n",
            "schema_topic",
            "column.propagate.source.type",
            "precise",
            "UInt64",
        )
    )
    # Such a pipe warns at each start, unless the topic of schema changes shows that the columns are signed.
    caplog.clear()
    LocalTopicPipe(tmp_path / "state", sink)
    assert caplog.text.count(DOUBT) == 1


def test_integers_of_postgresql_are_signed_for_any_target(caplog: pytest.LogCaptureFixture) -> None:
    name = TableName("public", "t")
    detected = TableSchema(name, (Column("n", Kind.INT64, False, source_type="int64"),), ("n",))
    unsigned = TableSchema(name, (Column("n", Kind.UINT64, False, source_type="UInt64"),), ("n",))
    descriptions = TypeLookup(lambda _: {name: unsigned})
    of_postgres = DetectedSchema(detected, "srv.public.t", 0, 0, unsigned=False)
    assert descriptions.refine([of_postgres]) == [of_postgres]
    assert not caplog.records
    [of_mysql] = descriptions.refine([DetectedSchema(detected, "srv.public.t", 0, 0)])
    assert of_mysql.schema == unsigned


def test_a_signed_column_of_the_schema_topic_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    name = TableName("shop", "numbers")
    columns = (Column("id", Kind.INT32, False, source_type="int32"), Column("bi", Kind.INT64, source_type="int64"))
    with caplog.at_level(logging.WARNING):
        TypeLookup(lambda _: {}, schema_topic).check_known([TableSchema(name, columns, ("id",))])
        assert not caplog.records
        unsigned = (*columns, Column("bu", Kind.INT64, source_type="int64"))
        TypeLookup(lambda _: {}, schema_topic).check_known([TableSchema(name, unsigned, ("id",))])
    assert "shop.numbers.bu are signed" in caplog.text
