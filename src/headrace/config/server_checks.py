"""Checks the servers of all pipes in a file, as `headrace check` does for one source.

It changes nothing on any server and starts no embedded server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.config.addresses import redact
from headrace.config.configuration import Configuration
from headrace.errors import HeadraceError
from headrace.pipes.source_registry import source_connector
from headrace.pipes.spec import PipeSpec
from headrace.sinks.registry import sink_connector
from headrace.sources.preflight import Finding, failure, ok


def check_servers(configuration: Configuration) -> Iterator[tuple[str, Sequence[Finding]]]:
    """Yield the address and findings of each server of the enabled pipes."""
    checked: set[object] = set()
    for part in (part for pipe in configuration.pipes if pipe.enabled for part in pipe.specs):
        for address, subject, check in (
            (part.source, (part.source, str(part.settings.selection)), _check_source),
            (part.sink, part.sink, _check_sink),
        ):
            if subject not in checked:
                checked.add(subject)
                yield f"{part.name}, {redact(address)}", _run_check(check, part)


def _run_check(check: Callable[[PipeSpec], Sequence[Finding]], part: PipeSpec) -> Sequence[Finding]:
    try:
        return check(part)
    except HeadraceError as error:
        return (failure("answer", "none", error.message, error.hint),)


def _check_source(part: PipeSpec) -> Sequence[Finding]:
    return source_connector(part.source).preflight(part)


def _check_sink(part: PipeSpec) -> Sequence[Finding]:
    connector = sink_connector(part.sink)
    if connector.probe is not None:
        return (ok("version", connector.probe(part.sink)),)
    if connector.is_topics:
        from headrace.kafka.address import parse_kafka_url
        from headrace.pipes.debezium.kafka_cluster import query_topics

        # No topic has such a name: the request only checks that the cluster answers.
        query_topics(parse_kafka_url(part.sink), "(?!)")
    return ()
