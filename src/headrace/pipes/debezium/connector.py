"""The connector of Debezium's topics in Kafka (`kafka://host:port/topics`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace import extras
from headrace.errors import DefiniteError
from headrace.kafka.address import SCHEME, parse_kafka_url
from headrace.pipes.spec import BuiltPipe, PipeSpec, SourceConnector
from headrace.sinks.registry import has_table_store, sink_connector
from headrace.sources.preflight import Finding, ok, warning

if TYPE_CHECKING:
    from headrace.pipes.debezium.topic_settings import TopicSettings
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime


@contextmanager
def _open(spec: PipeSpec, view: ProgressView, runtime: Runtime | None, host: str) -> Iterator[BuiltPipe]:
    from headrace.pipes.debezium.pipe import DebeziumPipe
    from headrace.pipes.lifecycle.sink_factory import check_sink_sections, open_clickhouse_sink

    del host
    _check_sink(spec)
    check_sink_sections(sink_connector(spec.sink), spec.chosen)
    with open_clickhouse_sink(spec.sink, choices=spec.chosen.sink, creates=True) as named:
        pipe = DebeziumPipe(parse_kafka_url(spec.source), _topic_settings(spec), named.sink, named.name, spec.settings, view, runtime)
        yield BuiltPipe(pipe, named.is_lost)


def _check(spec: PipeSpec) -> None:
    from headrace.pipes.debezium.schema_evolution import check_policy

    _check_sink(spec)
    _topic_settings(spec).check()
    assert spec.chosen.debezium.topic_map is not None
    check_policy(spec.settings.schema_changes)


def _check_sink(spec: PipeSpec) -> None:
    if not has_table_store(spec.sink):
        place = sink_connector(spec.sink).redact(spec.sink)
        raise DefiniteError("topics of Debezium's are read into ClickHouse only", place=place, hint="give a ClickHouse sink")


def _topic_settings(spec: PipeSpec) -> TopicSettings:
    from headrace.pipes.debezium.topic_settings import TopicSettings, parse_start, topic_pattern

    keys = spec.topics
    return TopicSettings(
        topic_pattern(keys.topics, keys.topic_pattern, parse_kafka_url(spec.source).topic),
        parse_start(keys.start),
        keys.max_offsets,
        keys.min_partitions,
        keys.kafka_jars,
        spec.chosen.debezium,
        spec.settings.latency_seconds,
    )


def _preflight(spec: PipeSpec) -> Sequence[Finding]:
    from headrace.pipes.debezium.kafka_cluster import query_topics
    from headrace.pipes.debezium.topic_settings import topic_pattern

    address = parse_kafka_url(spec.source)
    pattern = topic_pattern(spec.topics.topics, spec.topics.topic_pattern, address.topic)
    found = query_topics(address, pattern).ids
    if found:
        return (ok("topics", f"{len(found)} selected"),)
    meaning = f"no topic matches {pattern}; a topic that is created later will be read"
    return (warning("topics", "none", meaning, "correct topics of the source, or start the connector"),)


def _spark_settings(spec: PipeSpec) -> Mapping[str, str]:
    from headrace.spark.connector import kafka_settings

    return kafka_settings(spec.topics.kafka_jars)


DEBEZIUM: Final = SourceConnector(
    name="kafka",
    label="in Kafka",
    schemes=(SCHEME,),
    redact=lambda address: str(parse_kafka_url(address)),
    preload=("headrace.sources.debezium.reader", "headrace.sources.debezium.offset_range_reader", "headrace.pipes.debezium.record_task"),
    extra=extras.KAFKA,
    open=_open,
    preflight=_preflight,
    check=_check,
    spark_settings=_spark_settings,
    sections=("debezium",),
    section_subject="Debezium's topics",
    selects_all=True,
    has_rows=False,
)
