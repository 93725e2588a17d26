"""Checks the servers of all pipes in a file, as `headrace check` does for one source.

It changes nothing on any server and starts no embedded server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.config.addresses import redact
from headrace.config.configuration import Configuration
from headrace.cql.address import is_cql, parse_cql_url
from headrace.errors import HeadraceError
from headrace.pipes.factory import OFFLINE, PipeSpec
from headrace.sinks.url_schemes import CLICKHOUSE, is_kafka
from headrace.sources.preflight import Finding, failure, ok, warning


def check_servers(configuration: Configuration) -> Iterator[tuple[str, Sequence[Finding]]]:
    """Yield the address and findings of each server of the enabled pipes."""
    asked: set[object] = set()
    for part in (part for pipe in configuration.pipes if pipe.enabled for part in pipe.specs):
        for address, subject, ask in (
            (part.source, (part.source, str(part.settings.selection)), _check_source),
            (part.sink, part.sink, _check_sink),
        ):
            if subject not in asked:
                asked.add(subject)
                yield f"{part.name}, {redact(address)}", _run_check(ask, part)


def _run_check(ask: Callable[[PipeSpec], Sequence[Finding]], part: PipeSpec) -> Sequence[Finding]:
    try:
        return ask(part)
    except HeadraceError as error:
        return (failure("answer", "none", error.message, error.hint),)


def _check_source(part: PipeSpec) -> Sequence[Finding]:
    from headrace.pipes.commands.preflight import check_cluster, check_server
    from headrace.sources.mysql.server.connection import parse_mysql_url

    if is_kafka(part.source):
        return _check_topics(part)
    if part.source.startswith(OFFLINE):
        from headrace.sources.mysql.offline_source import open_directory, parse_directory

        open_directory(parse_directory(part.source), part.settings.start_at or "oldest")
        return ()
    if is_cql(part.source):
        return check_cluster(parse_cql_url(part.source), part.settings.selection)
    return check_server(parse_mysql_url(part.source), part.settings.selection)


def _check_topics(part: PipeSpec) -> Sequence[Finding]:
    from headrace.kafka.address import parse_kafka_url
    from headrace.pipes.debezium.kafka_cluster import standing
    from headrace.pipes.debezium.topic_settings import topic_pattern

    address = parse_kafka_url(part.source)
    pattern = topic_pattern(part.topics.globs, part.topics.pattern, address.topic)
    if standing(address, pattern).ids:
        return ()
    meaning = f"no topic matches {pattern}; a topic that is created later will be read"
    return (warning("topics", "none", meaning, "correct topics of the source, or start the connector"),)


def _check_sink(part: PipeSpec) -> Sequence[Finding]:
    if part.sink.startswith(CLICKHOUSE):
        from headrace.sinks.clickhouse.server.client import connect
        from headrace.sinks.clickhouse.server.errors import translate_errors
        from headrace.sinks.clickhouse.server.url import parse_target

        target = parse_target(part.sink)
        with translate_errors(target, "asking for the version"):
            return (ok("version", str(connect(target).client.server_version)),)
    if is_kafka(part.sink):
        from headrace.kafka.address import parse_kafka_url
        from headrace.pipes.debezium.kafka_cluster import standing

        # No topic has such a name: only whether the cluster answers is asked.
        standing(parse_kafka_url(part.sink), "(?!)")
    return ()
