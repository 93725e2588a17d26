"""From what a user asked for to a pipe that can run: one place for the command line, for a file of pipes, and for tests.

Invariant: nothing that was asked for is left out. A setting that the pipe's source or sink has no use for is an error before anything is
opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.cql.address import is_cql, parse_cql_url
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.settings_file import DEBEZIUM, REPLAY, SCYLLA, TRANSFORMS, UserSettings
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.producer_sink import is_producer, parse_producer
from headrace.sinks.url_schemes import CLICKHOUSE, is_kafka, is_stdout
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.transforms.salts import read_salts

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.base import Pipe
    from headrace.pipes.lifecycle.progress_view import ProgressView

OFFLINE = "binlog:"
LOCALHOST = "127.0.0.1"
_NEAR = re.compile(r"chdb:|[a-z]+://([^@/]*@)?(127\.[0-9.]+|localhost|\[::1\])([:/?]|$)")
"""Addresses that mean something on this machine only."""


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Of a source in Kafka: which topics, from where, and how fast."""

    globs: tuple[str, ...] = ()
    pattern: str = ""
    start: str = "earliest"
    max_offsets: int = 500_000
    min_partitions: int = 0
    jars: str = ""


@dataclass(frozen=True, slots=True)
class PipeSpec:
    """One source, one sink, and all that was chosen for the pipe between them. Addresses hold their secrets: never print one."""

    source: str = field(repr=False)
    sink: str = field(repr=False)
    settings: PipeSettings
    chosen: UserSettings = field(default_factory=UserSettings)
    topics: TopicChoice = field(default_factory=TopicChoice)

    @property
    def name(self) -> str:
        return self.settings.pipe_name


@dataclass(frozen=True, slots=True)
class BuiltPipe:
    """A pipe that is ready to run, with its sink open."""

    pipe: Pipe
    is_lost: Callable[[], bool]
    """Whether its sink is gone for good: an embedded server that has ended."""


@contextmanager
def open_pipe(spec: PipeSpec, view: ProgressView) -> Iterator[BuiltPipe]:
    """The pipe of a spec; its sink is open inside."""
    check_sections(spec)
    check_reach(spec)
    # What runs a pipe is imported by those who run one, what a source needs by those who have such a source.
    from headrace.kernels.compile import ensure_compiled
    from headrace.pipes.lifecycle.sink_factory import open_sink

    ensure_compiled()
    if is_cql(spec.source):
        from headrace.pipes.scylla.pipe import ScyllaPipe
        from headrace.pipes.scylla.settings_check import check_chosen
        from headrace.pipes.scylla.sink_factory import open_log_target

        check_chosen(spec.settings, spec.chosen)
        with open_log_target(spec.sink, spec.chosen, spec.settings.state, _host(spec)) as target:
            yield BuiltPipe(ScyllaPipe(parse_cql_url(spec.source), spec.chosen.scylla, target, spec.settings, view), target.is_lost)
        return
    with open_sink(spec.sink, spec.chosen, spec.settings.state, _host(spec)) as named:
        parts = (named.sink, named.name, spec.settings, view)
        pipe: Pipe
        if is_kafka(spec.source):
            from headrace.kafka.address import parse_kafka_url
            from headrace.pipes.debezium.pipe import DebeziumPipe
            from headrace.pipes.debezium.topic_settings import TopicSettings, parse_start, topic_pattern
            from headrace.sinks.clickhouse.sink import ClickHouseSink

            if not isinstance(named.sink, ClickHouseSink):
                raise DefiniteError("topics of Debezium's are read into ClickHouse only", place=named.name, hint="give a ClickHouse sink")
            address, asked = parse_kafka_url(spec.source), spec.topics
            topics = TopicSettings(
                topic_pattern(asked.globs, asked.pattern, address.topic),
                parse_start(asked.start),
                asked.max_offsets,
                asked.min_partitions,
                asked.jars,
                spec.chosen.debezium,
            )
            pipe = DebeziumPipe(address, topics, named.sink, named.name, spec.settings, view)
        elif spec.source.startswith(OFFLINE):
            from headrace.pipes.mysql.binlog_files_pipe import BinlogFilesPipe
            from headrace.sources.mysql.offline_source import parse_directory

            pipe = BinlogFilesPipe(parse_directory(spec.source), *parts)
        else:
            from headrace.pipes.mysql.pipe import MySQLPipe

            pipe = MySQLPipe(parse_mysql_url(spec.source), *parts)
        yield BuiltPipe(pipe, named.is_lost)


def workers_import(spec: PipeSpec) -> tuple[str, ...]:
    """What the pipe's tasks need: modules that are at hand in workers from their start, where several pipes share them."""
    if is_cql(spec.source):
        source: tuple[str, ...] = ("headrace.sources.scylla.window_reader", "headrace.sources.scylla.snapshot.reader")
    elif is_kafka(spec.source):
        source = ("headrace.sources.debezium.reader", "headrace.sources.debezium.offset_range_reader", "headrace.spark.kafka.record_stream")
    else:
        source = ("headrace.sources.mysql.split_reader",)
    return (*source, "headrace.sinks.kafka.sink") if is_kafka(spec.sink) else (*source, "headrace.sinks.clickhouse.sink")


def spark_needs(spec: PipeSpec) -> dict[str, str]:
    """Settings that Spark must be started with for the pipe."""
    if not is_kafka(spec.source):
        return {}
    from headrace.spark.connector import kafka_settings

    return kafka_settings(spec.topics.jars)


def shown_source(source: str) -> str:
    """A source's address without its secrets."""
    if source.startswith(OFFLINE):
        return source
    if is_kafka(source):
        from headrace.kafka.address import parse_kafka_url

        return str(parse_kafka_url(source))
    return str(parse_cql_url(source) if is_cql(source) else parse_mysql_url(source))


def shown_sink(sink: str) -> str:
    """A sink's address without its secrets."""
    if is_kafka(sink):
        from headrace.kafka.address import parse_kafka_url

        return str(parse_kafka_url(sink))
    if is_cql(sink):
        return str(parse_cql_url(sink))
    if sink.startswith(CLICKHOUSE):
        return str(parse_target(sink))
    # Settings of a producer of one's own may be anything.
    return sink if sink.startswith("chdb:") else sink.partition("?")[0]


def _host(spec: PipeSpec) -> str:
    """Where tasks find this process, for sinks to which they hand something over."""
    if not is_stdout(spec.sink):
        return LOCALHOST
    from headrace.spark.runtime.cluster import driver_host

    return driver_host(spec.settings.master, spec.settings.spark)


def database_of(source: str) -> str:
    """The database or keyspace that a source's address names, if it does."""
    if is_kafka(source) or source.startswith(OFFLINE):
        return ""
    return parse_cql_url(source).keyspace if is_cql(source) else parse_mysql_url(source).database


def selected(source: str, tables: Sequence[str], exclude: Sequence[str]) -> Selection:
    """The tables that are asked for of a source: all of its database (of topics: all), unless some are named."""
    if is_kafka(source):
        return Selection.of_globs(tables or ["*.*"], exclude)
    return Selection.of_globs(tables, exclude, database_of(source))


def check_reach(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if tasks run on other machines and an address means this one."""
    master = spec.settings.master
    near = next((address for address in (spec.source, spec.sink) if _NEAR.match(address)), None)
    if near is None or master.startswith("local"):
        return
    # Spark is imported where there is a cluster to speak of.
    from headrace.spark.runtime.cluster import is_remote_master

    if is_remote_master(master):
        what = "an embedded ClickHouse" if near.startswith("chdb:") else "127.0.0.1"
        raise DefiniteError(
            f"tasks run on the machines of {master}, and {what} is reached on this one only",
            place=f"the {'source' if near == spec.source else 'sink'} of pipe {spec.name}",
            hint="give an address that those machines understand, or run here: --master local[N]",
        )


def check_here(spec: PipeSpec) -> None:
    """Raise `DefiniteError` for what a run on this machine would find: an address out of reach, a class or a secret that is not there."""
    check_reach(spec)
    read_salts(spec.settings.transforms)
    if is_producer(spec.sink):
        parse_producer(spec.sink, spec.chosen.producer).load()


def check_sections(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if something was chosen for another kind of source."""
    if not is_kafka(spec.source):
        spec.chosen.check_sections((DEBEZIUM,), "this is about Debezium's topics, and the source is a server's log")
    if is_cql(spec.source):
        why = "ScyllaDB's log holds single cells, not rows: no expression can be reckoned from them"
        spec.chosen.check_sections((TRANSFORMS,), f"{why}; use a view in the sink")
    else:
        spec.chosen.check_sections((SCYLLA, REPLAY), "this is about ScyllaDB's log, and the source is another one")
