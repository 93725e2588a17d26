"""Checks whether the sink of a pipe can be reached, for `headrace init`, `headrace config check --connect` and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.kafka.address import parse_kafka_url
from headrace.pipes.spec import PipeSpec
from headrace.sinks.registry import sink_connector
from headrace.sources.preflight import Finding, ok


def check_sink(part: PipeSpec) -> Sequence[Finding]:
    """Ask the sink's server whether it can be reached. No server is changed or started."""
    connector = sink_connector(part.sink)
    if connector.probe is not None:
        return (ok("version", connector.probe(part.sink)),)
    if connector.is_embedded:
        return (ok("directory", connector.redact(part.sink), "the pipe starts an embedded ClickHouse there"),)
    if connector.is_topics:
        from headrace.pipes.debezium.kafka_cluster import query_topics

        # No topic has such a name: the request only checks that the cluster answers.
        query_topics(parse_kafka_url(part.sink), "(?!)")
        return (ok("answer", "yes"),)
    return ()
