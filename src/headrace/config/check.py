"""Checks whether the settings of a pipe are consistent, without contacting a server."""

from __future__ import annotations

from headrace.cql.address import is_cql
from headrace.errors import DefiniteError
from headrace.pipes.factory import PipeSpec, check_sections
from headrace.settings.pipe_settings import SnapshotMode
from headrace.settings.settings_file import KAFKA, REPLAY, SINK
from headrace.sinks.url_schemes import CLICKHOUSE, is_kafka


def check_spec(spec: PipeSpec) -> None:
    """Raise `DefiniteError` for settings that would make the pipe fail at its start."""
    check_sections(spec)
    chosen = spec.chosen
    # Building the options validates their combination.
    for section, build in ((SINK, lambda: chosen.sink), (KAFKA, lambda: chosen.kafka)):
        if chosen.plain.get(section):
            build()
    if chosen.plain.get(REPLAY):
        chosen.replay.check()
    if is_cql(spec.source):
        _check_scylla(spec)
    elif is_cql(spec.sink):
        raise DefiniteError("a CQL cluster takes ScyllaDB's log only", hint="choose ClickHouse or Kafka for other sources")
    elif is_kafka(spec.source):
        _check_topics(spec)


def _check_scylla(spec: PipeSpec) -> None:
    from headrace.pipes.scylla.settings_check import check_chosen
    from headrace.pipes.scylla.start_position import parse_start

    check_chosen(spec.settings, spec.chosen)
    spec.chosen.scylla.check()
    if spec.settings.snapshot is SnapshotMode.CONSISTENT:
        raise DefiniteError(
            "a cluster has no moment at which all tables could be read", place="snapshot", hint='leave it out, or write snapshot = "none"'
        )
    parse_start(spec.settings.start_at)


def _check_topics(spec: PipeSpec) -> None:
    from headrace.kafka.address import parse_kafka_url
    from headrace.pipes.debezium.schema_evolution import check_policy
    from headrace.pipes.debezium.topic_settings import TopicSettings, parse_start, topic_pattern

    if not spec.sink.startswith((*CLICKHOUSE, "chdb:")):
        raise DefiniteError("topics of Debezium's are read into ClickHouse only", hint="give a ClickHouse sink")
    topics, choices = spec.topics, spec.chosen.debezium
    pattern = topic_pattern(topics.globs, topics.pattern, parse_kafka_url(spec.source).topic)
    start = parse_start(topics.start)
    TopicSettings(pattern, start, topics.max_offsets, topics.min_partitions, topics.jars, choices).check()
    assert choices.topic_map is not None
    check_policy(spec.settings.schema_changes)
