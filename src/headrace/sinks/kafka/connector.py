"""The connector of Kafka (`kafka://host:port/topic`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace import extras
from headrace.kafka.address import SCHEME, parse_kafka_url
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.kafka.options import CHANGEABLE, KafkaOptions

if TYPE_CHECKING:
    from headrace.sinks.base import Sink
    from headrace.sinks.cdc_log_sink import LogSink
    from headrace.sinks.target_claims import ClaimStore


@contextmanager
def _open(request: OpenRequest) -> Iterator[NamedSink[Sink]]:
    from headrace.sinks.kafka.sink import KafkaSink

    yield NamedSink(KafkaSink.from_url(request.address, request.options), _redact(request.address))


@contextmanager
def _open_log(request: OpenRequest) -> Iterator[NamedSink[LogSink]]:
    from headrace.sinks.kafka.scylla.log_sink import KafkaLogSink

    yield NamedSink(KafkaLogSink.from_url(request.address, request.options), _redact(request.address))


@contextmanager
def _open_claims(address: str) -> Iterator[tuple[ClaimStore, str]]:
    from headrace.sinks.kafka.topics import KafkaClaims

    cluster = parse_kafka_url(address)
    yield KafkaClaims(cluster, KafkaOptions()), str(cluster)


def _redact(address: str) -> str:
    return str(parse_kafka_url(address))


def _servers(address: str) -> frozenset[object]:
    return frozenset(parse_kafka_url(address).servers.split(","))


def _is_same(one: str, other: str) -> bool:
    # Any broker knows all others: two addresses that share a broker are of the same cluster.
    return parse_kafka_url(one).topic == parse_kafka_url(other).topic and bool(_servers(one) & _servers(other))


KAFKA: Final = SinkConnector(
    name="kafka",
    label="Kafka",
    form="kafka://host:port",
    schemes=(SCHEME,),
    redact=_redact,
    is_same=_is_same,
    section="kafka",
    section_subject="messages in Kafka",
    options=KafkaOptions,
    changeable=CHANGEABLE,
    options_page="kafka",
    check_address=parse_kafka_url,
    servers=_servers,
    preload=("headrace.sinks.kafka.sink",),
    extra=extras.KAFKA,
    content="messages",
    new_target="other topics (kafka.topic)",
    is_topics=True,
    inspect_hint="headrace tail prints what is in a topic",
    open=_open,
    open_log=_open_log,
    open_claims=_open_claims,
)
