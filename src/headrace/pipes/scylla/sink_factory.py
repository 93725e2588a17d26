"""Sinks of log rows by their address: ClickHouse, where cells are merged; another cluster, which gets them again; Kafka, as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.cql.address import parse_cql_url
from headrace.errors import DefiniteError
from headrace.kafka.address import parse_kafka_url
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink, same_sink
from headrace.pipes.state.file_progress_store import FileProgressStore
from headrace.settings.settings_file import KAFKA, PRODUCER, REPLAY, SINK, UserSettings
from headrace.sinks.base import ProgressStore
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.postimages.sink import PostimageSink
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.cql.sink import ReplaySink
from headrace.sinks.target_claims import ClaimStore
from headrace.sinks.url_schemes import CLICKHOUSE, STDOUT, is_kafka, is_stdout
from headrace.sources.scylla.snapshot.options import StoredForm

CQL: Final = "cql://"


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A sink of log rows, the name by which a state directory knows it, and where progress is told."""

    sink: LogSink
    name: str
    progress_store: ProgressStore
    is_lost: Callable[[], bool] = lambda: False
    """Whether it is gone for good: an embedded server that has ended."""
    place: Callable[[TableName], str] = lambda _: ""
    """What a table is called in the sink, where it has tables."""
    claims: ClaimStore | None = None
    """Where the sink records which pipe writes to which target."""
    target_of: Callable[[TableName], str] = str
    """What the target of a table is called in those records."""


@contextmanager
def open_log_target(address: str, chosen: UserSettings, state: Path, host: str) -> Iterator[LogTarget]:
    """The sink of an address, with what was chosen for its kind; what was chosen for another kind is refused.

    `state` is the pipe's directory, where progress is told that a sink has no place for; `host` is where its tasks find this process.
    """
    chosen.check_sections((PRODUCER,), "the log of ScyllaDB goes to no producer of one's own: they take changes of rows")
    if address.startswith(CQL):
        chosen.check_sections((SINK, KAFKA), "the sink is a CQL cluster (see [replay])")
        target = parse_cql_url(address)
        replay = ReplaySink(target, chosen.replay)
        yield LogTarget(replay, str(target), FileProgressStore(state), claims=replay.claims(), target_of=replay.target_of)
        return
    chosen.check_sections((REPLAY,), "this is about replay into another cluster, and the sink is none")
    if is_kafka(address):
        chosen.check_sections((SINK,), "this is about tables in ClickHouse, and the sink is Kafka (see [kafka])")
        # Its kernels and librdkafka are for those who need them.
        from headrace.sinks.kafka.scylla.log_sink import KafkaLogSink

        topics = KafkaLogSink.from_url(address, chosen.kafka)
        name = str(parse_kafka_url(address))
        yield LogTarget(topics, name, FileProgressStore(state), claims=topics.claims(), target_of=topics.choices.topic_of)
        return
    if is_stdout(address):
        chosen.check_sections((KAFKA, SINK), "the sink is the standard output, which has none")
        from headrace.sinks.stdout.sink import StdoutLogSink, handover, parse_stdout

        parse_stdout(address, terminal=False)
        with handover(state, host) as lines:
            yield LogTarget(StdoutLogSink(lines), STDOUT, FileProgressStore(state))
        return
    if not address.startswith((*CLICKHOUSE, "chdb:")):
        raise DefiniteError(
            "the log of ScyllaDB goes to ClickHouse, to another CQL cluster, to Kafka, or to the standard output",
            place=address.partition(":")[0],
            hint="give clickhouse://user:password@host:port/db, chdb:PATH, cql://user:password@host:port/keyspace, kafka://host:port/ or "
            "stdout:",
        )
    chosen.check_sections((KAFKA,), "this is about messages in Kafka, and the sink is ClickHouse")
    with open_clickhouse_sink(address, choices=chosen.sink, creates=True) as named:
        sink = named.sink
        yield LogTarget(
            _kept(chosen, sink), named.name, sink.progress_store(), named.is_lost, sink.target_of, sink.claims(), sink.target_of
        )


def same_log_sink(one: str, other: str) -> bool:
    """Whether two names of sinks mean the same tables, as far as the names tell."""
    if not (one.startswith(CQL) and other.startswith(CQL)):
        return same_sink(one, other)
    first, second = parse_cql_url(one), parse_cql_url(other)
    # Any node tells of all others: clusters that are named by different ones of them are the same if they share one.
    return first.keyspace == second.keyspace and bool(set(first.hosts) & set(second.hosts))


def _kept(chosen: UserSettings, sink: ClickHouseSink) -> LogSink:
    return PostimageSink(sink) if chosen.scylla.kept is StoredForm.IMAGES else CellSink(sink)
