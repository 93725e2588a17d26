"""Sinks by their address: a ClickHouse server, an embedded one that is found running or started for the time of use, a Kafka cluster, the
standard output, or a producer of one's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from headrace.cql.address import is_cql, parse_cql_url
from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import read_serving_process, require_data
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.settings.settings_file import KAFKA as KAFKA_SETTINGS
from headrace.settings.settings_file import PRODUCER, SINK, UserSettings
from headrace.sinks.base import Sink
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.server.url import same_sink as same_clickhouse
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.producer_sink import is_producer, open_producer
from headrace.sinks.target_claims import ClaimStore
from headrace.sinks.url_schemes import CLICKHOUSE, STDOUT, is_kafka, is_stdout

S_co = TypeVar("S_co", bound=Sink, covariant=True)


@dataclass(frozen=True, slots=True)
class NamedSink(Generic[S_co]):
    """A sink and the name by which a state directory knows it."""

    sink: S_co
    name: str
    is_lost: Callable[[], bool] = lambda: False
    """Whether it is gone for good: an embedded server that has ended. (Another one has another port.)"""


@contextmanager
def open_clickhouse_sink(
    address: str, *, choices: ClickHouseOptions | None = None, creates: bool = False
) -> Iterator[NamedSink[ClickHouseSink]]:
    """A sink that holds tables: `clickhouse://user:password@host:port/db`, or `chdb:PATH` for an embedded ClickHouse in a directory.

    `creates`: a directory that does not exist is created, because the caller writes to the sink; otherwise it is an error.
    """
    if address.startswith(CLICKHOUSE):
        target = parse_target(address)
        yield NamedSink(ClickHouseSink(target, choices or ClickHouseOptions()), str(target))
        return
    if is_kafka(address):
        raise DefiniteError(
            "this needs a sink that holds tables, and Kafka holds messages",
            place=str(parse_kafka_url(address)),
            hint="give clickhouse://user:password@host:port/db or chdb:PATH; headrace tail prints what is in a topic",
        )
    if is_stdout(address) or is_producer(address):
        raise DefiniteError(
            "this needs a sink that holds tables",
            place=sink_name(address),
            hint="give clickhouse://user:password@host:port/db or chdb:PATH",
        )
    scheme, _, path = address.partition(":")
    if scheme != "chdb" or not path:
        raise DefiniteError(
            f"the sink's address {scheme!r}… cannot be read",
            hint="write clickhouse://user:password@host:port/db, chdb:PATH, kafka://host:port, stdout: or class:MODULE:CLASS",
        )
    if not creates:
        require_data(Path(path))
    with EmbeddedServer.connect_or_start(Path(path)) as server:
        target = ClickHouseTarget(server.host, server.port, server.user, server.password)
        is_lost = functools.partial(_is_other, Path(path).resolve(), server.port)
        yield NamedSink(ClickHouseSink(target, choices or ClickHouseOptions()), f"chdb:{Path(path).resolve()}", is_lost)


@contextmanager
def open_sink(address: str, chosen: UserSettings, state: Path, host: str) -> Iterator[NamedSink[Sink]]:
    """Any sink, with what was chosen for its kind; what was chosen for another kind is refused.

    `state` is the pipe's directory, `host` is where its tasks find this process.
    """
    if is_stdout(address):
        chosen.check_sections((KAFKA_SETTINGS, SINK, PRODUCER), "the sink is the standard output, which has none")
        # Its kernels are for those who need them.
        from headrace.sinks.stdout.sink import StdoutSink, handover, parse_stdout

        choices = parse_stdout(address, terminal=sys.stdout.isatty())
        with handover(state, host) as lines:
            yield NamedSink(StdoutSink(lines, choices), STDOUT)
        return
    if is_producer(address):
        chosen.check_sections((KAFKA_SETTINGS, SINK), "the sink is a producer of your own (see [producer])")
        with open_producer(address, chosen.producer) as (sink, name):
            yield NamedSink(sink, name)
        return
    chosen.check_sections((PRODUCER,), "this is about a producer of your own, and the sink is none")
    if not is_kafka(address):
        chosen.check_sections((KAFKA_SETTINGS,), "this is about messages in Kafka, and the sink is ClickHouse")
        with open_clickhouse_sink(address, choices=chosen.sink, creates=True) as named:
            yield named
        return
    chosen.check_sections((SINK,), "this is about tables in ClickHouse, and the sink is Kafka (see [kafka])")
    # Its kernels and librdkafka are for those who need them.
    from headrace.sinks.kafka.sink import KafkaSink

    target = parse_kafka_url(address)
    yield NamedSink(KafkaSink.from_url(address, chosen.kafka), str(target))


@contextmanager
def open_claims(address: str) -> Iterator[tuple[ClaimStore, str]]:
    """Where the sink of an address records which pipe writes to which target, and the address without its secrets."""
    if is_kafka(address):
        from headrace.sinks.kafka.messages.options import KafkaOptions
        from headrace.sinks.kafka.target_claims import KafkaClaims

        cluster = parse_kafka_url(address)
        yield KafkaClaims(cluster, KafkaOptions()), str(cluster)
    elif is_cql(address):
        from headrace.sinks.cql.target_claims import CqlClaims

        nodes = parse_cql_url(address)
        yield CqlClaims(nodes, creates=False), str(nodes)
    else:
        with open_clickhouse_sink(address) as named:
            yield named.sink.claims(), named.name


def sink_name(address: str) -> str:
    """The name of a sink that is no server, without its settings."""
    return address.partition("?")[0]


def same_sink(one: str, other: str) -> bool:
    """Whether two names of sinks mean the same targets, as far as the names tell."""
    if any(is_stdout(name) or is_producer(name) for name in (one, other)):
        return sink_name(one) == sink_name(other)
    if not (is_kafka(one) and is_kafka(other)):
        return same_clickhouse(one, other)
    first, second = parse_kafka_url(one), parse_kafka_url(other)
    # Any broker tells of all others: clusters that are named by different ones of them are the same if they share one.
    return first.topic == second.topic and bool(set(first.servers.split(",")) & set(second.servers.split(",")))


def embedded_connection(address: str) -> dict[str, str]:
    """Host, port, user, password and URL of the running server of `chdb:PATH`."""
    scheme, _, path = address.partition(":")
    if scheme != "chdb" or not path:
        raise DefiniteError("this is not the address of an embedded ClickHouse", place=address, hint="write chdb:PATH")
    holder = read_serving_process(Path(path).resolve())
    if holder is None or not holder.port:
        raise DefiniteError(
            "no embedded server runs on the directory",
            place=str(Path(path).resolve()),
            hint=f"start one: headrace serve {path}; or start the pipe that fills it",
        )
    account = read_account(Path(path).resolve())
    # A client cannot connect to "any address".
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(holder.host, holder.host)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{holder.port}/"
    return {"host": host, "port": str(holder.port), "user": account.user, "password": account.password, "url": url}


def _is_other(path: Path, port: int) -> bool:
    """Whether a directory is no longer served at a port."""
    holder = read_serving_process(path)
    return holder is None or holder.port != port
