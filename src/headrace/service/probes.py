"""Probes: periodic queries to sources and sinks for status values that pipes do not know, such as the end of a log, row counts and dead
letters.

Invariant: probes are cheap and shared. One probe per server serves all pipes that read it, one per sink all pipes that write to it. If a
peer does not answer, the values stay as they were; the pipes themselves report that it is away.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.err import MySQLError

from headrace.errors import DefiniteError, HeadraceError
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.source_registry import DEBEZIUM, MYSQL, source_connector
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.runtime.checkpoint import committed_offset
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.pipe_runner import PipeRunner
from headrace.service.status import PipeStage, SchemaChangeStatus
from headrace.sinks.clickhouse.bookkeeping.dead_letters import ERRORS, UNREADABLE, WAITING
from headrace.sinks.clickhouse.bookkeeping.own_tables import LEDGER, OwnTables
from headrace.sinks.clickhouse.server.identifiers import places_condition, quote_name, quote_text
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.registry import has_table_store
from headrace.sources.mysql.binlog.commit_times import log_place
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url, query
from headrace.sources.mysql.server.position import file_number
from headrace.sources.mysql.snapshot.log_watermark import log_end

log = logging.getLogger("headrace")

_IDLE_SERVER_S: Final = 0.5
"""How often a server is queried for the end of its log while a pipe that reads it does not run."""
_IDLE_TOPICS_S: Final = 5.0
_SERVER_S, _TOPICS_S, _SINK_S, _RELAY_S = 5.0, 30.0, 20.0, 10.0
_RECOUNT_S: Final = 60.0
_MAX_EXACT_COUNT: Final = 2_000_000
"""Tables up to this size are counted exactly, with FINAL; for larger ones the number of stored rows is reported."""
_MAX_TABLES_PER_RUN: Final = 100
_SCHEMA_CHANGES: Final = 5
_BLOCK: Final = 512


class Probe(ABC):
    """A check that runs every `every_s` seconds."""

    every_s: float

    @abstractmethod
    def run(self) -> None:
        """Query the peer and pass the values to the runners; raises if the query fails."""

    def close(self) -> None:  # noqa: B027  (most probes keep nothing open)
        """Close what the probe keeps open."""


class BinlogEndProbe(Probe):
    """Measures the lag to the end of a MySQL or MariaDB binary log."""

    every_s = _IDLE_SERVER_S

    def __init__(self, address: MySQLAddress, runners: Sequence[PipeRunner]) -> None:
        self._address, self._runners, self._looked = address, runners, -math.inf
        self._connection: Connection[Any] | None = None

    def run(self) -> None:
        # Running pipes know their lag in seconds; only the lag in bytes is queried, less often.
        due = time.monotonic() - self._looked >= _SERVER_S
        runners = [runner for runner in self._runners if _is_observed(runner) and (due or not runner.view.knows_lag())]
        asking = [(runner, place) for runner in runners if (place := _binlog_position(runner)) is not None]
        if not asking:
            return
        if due:
            self._looked = time.monotonic()
        try:
            if self._connection is None:
                self._connection = connect(self._address)
            end = log_end(self._connection, self._address, 0)
            old = any(file != end.file for _, (file, _) in asking)
            sizes = _file_sizes(self._connection, self._address) if old else {}
        except (HeadraceError, MySQLError):
            self.close()
            raise
        for runner, (file, offset) in asking:
            behind = _bytes_between(file, offset, end.file, end.offset, sizes)
            runner.view.set_log_end(log_place(file, offset), log_place(end.file, end.offset), behind)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MySQLError):
                connection.close()


class TopicEndProbe(Probe):
    """Measures the lag to the end of a pipe's topics, in records."""

    every_s = _IDLE_TOPICS_S

    def __init__(self, runner: PipeRunner) -> None:
        self._runner, self._looked = runner, -math.inf

    def run(self) -> None:
        # A running pipe knows its lag itself.
        if self._runner.view.knows_lag() and time.monotonic() - self._looked < _TOPICS_S:
            return
        self._looked = time.monotonic()
        from headrace.kafka.address import parse_kafka_url
        from headrace.pipes.debezium.kafka_cluster import query_topics
        from headrace.pipes.debezium.position import KafkaPosition
        from headrace.pipes.debezium.topic_settings import topic_pattern

        spec = self._runner.spec
        raw = committed_offset(StateDirectory(spec.settings.state, make=False).checkpoint) if _is_observed(self._runner) else None
        if raw is None:
            return
        address, reached = parse_kafka_url(spec.source), KafkaPosition.from_json(raw)
        now = query_topics(address, topic_pattern(spec.topics.topics, spec.topics.topic_pattern, address.topic))
        ends = {(topic, number): end for topic, inner in now.high.offsets.items() for number, end in inner.items()}
        first = {(topic, number): low for topic, inner in now.low.offsets.items() for number, low in inner.items()}
        read = {key: reached.offsets.get(key[0], {}).get(key[1], first.get(key, 0)) for key in ends}
        behind = sum(max(ends[key] - read[key], 0) for key in ends)
        end = sum(ends.values())
        self._runner.view.set_log_end(end - behind, end, behind)


class RelaySizeProbe(Probe):
    """Measures the size of the relay log on local disk."""

    every_s = _RELAY_S

    def __init__(self, runners: Sequence[PipeRunner]) -> None:
        self._runners = runners

    def run(self) -> None:
        for runner in self._runners:
            directory = StateDirectory(runner.spec.settings.state, make=False)
            place = runner.spec.settings.relay
            state = directory.load() if place else None
            runner.relay_bytes = _disk_usage(directory.relay if state is None else directory.mirror(place, state.id))


class SinkProbe(Probe):
    """Counts rows and dead letters in a ClickHouse sink; loads, once, the schema changes from before this process."""

    every_s = _SINK_S

    def __init__(self, sink: str, runners: Sequence[PipeRunner], embedded_servers: EmbeddedServers) -> None:
        self._sink, self._runners, self._embedded_servers = sink, runners, embedded_servers
        self._loaded_past = False
        self._counted: dict[str, tuple[int, float]] = {}
        """By target: the table's number of changes at the last count, and the time of that count."""

    def run(self) -> None:
        if self._embedded_servers.is_down(self._sink):
            # The pipe that writes to it starts it.
            return
        with open_clickhouse_sink(self._sink) as named:
            sink: ClickHouseSink = named.sink
            own = sink.own_tables()
            if not self._loaded_past:
                self._load_past_schema_changes(own)
                self._loaded_past = True
            self._count_dead_letters(sink, own)
            self._count_rows(sink)

    def _load_past_schema_changes(self, own: OwnTables) -> None:
        if not own.exists(LEDGER):
            return
        for runner in self._runners:
            condition = f"pipe = {quote_text(runner.name)}"
            rows = own.select(
                LEDGER, ("time", "source_table", "statement", "outcome", "detail"), condition, f"time DESC LIMIT {_SCHEMA_CHANGES}"
            )
            runner.view.add_past_schema_changes(
                [
                    SchemaChangeStatus(
                        datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp(),
                        table,
                        statement,
                        f"{outcome}: {detail}" if detail else outcome,
                    )
                    for at, table, statement, outcome, detail in rows
                ]
            )

    def _count_dead_letters(self, sink: ClickHouseSink, own: OwnTables) -> None:
        """Count waiting rows by table, and unreadable records."""
        waiting: dict[str, dict[str, int]] = defaultdict(dict)
        unreadable: Counter[str] = Counter()
        if own.exists(ERRORS):
            states = f"{quote_text(WAITING)}, {quote_text(UNREADABLE)}"
            rows = f"FROM {ERRORS.qualified} FINAL WHERE state IN ({states})"
            counted = f"SELECT pipe, table, state, count() {rows} GROUP BY pipe, table, state"
            for pipe, table, state, count in sink.reader().query(counted)[1]:
                if state == WAITING:
                    waiting[pipe][table] = int(count)
                else:
                    unreadable[pipe] += int(count)
        for runner in self._runners:
            counts = waiting[runner.name]
            runner.dead_letters, runner.unreadable = sum(counts.values()), unreadable[runner.name]
            runner.view.set_dead_letters(counts)

    def _count_rows(self, sink: ClickHouseSink) -> None:
        due = [one for runner in self._runners for one in self._due(runner)][:_MAX_TABLES_PER_RUN]
        if not due:
            return
        here = places_condition(place for _, _, place, _ in due)
        stored = {
            (database, table): (engine, rows)
            for database, table, engine, rows in sink.reader().query(
                f"SELECT database, name, engine, total_rows FROM system.tables WHERE {here}"
            )[1]
        }
        for runner, name, place, changes in due:
            engine, rows = stored.get(place, ("", None))
            if rows is None:
                continue
            if int(rows) <= _MAX_EXACT_COUNT and "MergeTree" in engine and engine not in ("MergeTree", "ReplicatedMergeTree"):
                shown = f"{quote_name(place[0])}.{quote_name(place[1])} FINAL"
                rows = sink.reader().query(f"SELECT count() FROM {shown}")[1][0][0]
            runner.view.rows({name: int(rows)})
            self._counted[".".join(place)] = changes, time.monotonic()

    def _due(self, runner: PipeRunner) -> Iterable[tuple[PipeRunner, str, tuple[str, str], int]]:
        """Yield tables that were never counted, or that changed since their last count a while ago."""
        for table in runner.view.progress().tables:
            changes, at = self._counted.get(table.target, (-1, 0.0))
            moved = table.changes + (table.copied or 0)
            if table.target and moved != changes and time.monotonic() - at >= _RECOUNT_S:
                database, _, name = table.target.partition(".")
                yield runner, table.name, (database, name), moved


class ProbeScheduler:
    """Runs all probes of a process in a few threads: a slow probe delays few others and no pipe."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="headrace-looks")
        self._due: dict[int, float] = {}
        self._running: dict[int, Future[None]] = {}

    def poll(self) -> None:
        """Start the probes that are due; called about once a second."""
        now = time.monotonic()
        for number, probe in enumerate(self._probes):
            running = self._running.get(number)
            if now >= self._due.get(number, 0.0) and (running is None or running.done()):
                self._due[number] = now + probe.every_s
                self._running[number] = self._pool.submit(_run_probe, probe)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for probe in self._probes:
            probe.close()


def create_probes(runners: Sequence[PipeRunner], embedded_servers: EmbeddedServers) -> list[Probe]:
    servers = [runner for runner in runners if source_connector(runner.spec.source) is MYSQL]
    tables = [runner for runner in runners if has_table_store(runner.spec.sink)]
    found: list[Probe] = [
        BinlogEndProbe(parse_mysql_url(url), of) for url, of in _group_by(servers, lambda runner: runner.spec.source).items()
    ]
    found += [TopicEndProbe(runner) for runner in runners if source_connector(runner.spec.source) is DEBEZIUM]
    found += [SinkProbe(url, of, embedded_servers) for url, of in _group_by(tables, lambda runner: runner.spec.sink).items()]
    return [*found, RelaySizeProbe(servers)] if servers else found


def _run_probe(probe: Probe) -> None:
    try:
        probe.run()
    except (HeadraceError, OSError, ValueError, KeyError, MySQLError) as error:
        # The values stay as they were; a pipe that needs the peer reports the error.
        log.debug("probe %s: %s", type(probe).__name__, error)


def _group_by(runners: Sequence[PipeRunner], key: Callable[[PipeRunner], str]) -> dict[str, list[PipeRunner]]:
    found: dict[str, list[PipeRunner]] = {}
    for runner in runners:
        found.setdefault(key(runner), []).append(runner)
    return found


def _is_observed(runner: PipeRunner) -> bool:
    return runner.stage not in (PipeStage.DISABLED, PipeStage.STOPPED)


def _binlog_position(runner: PipeRunner) -> tuple[str, int] | None:
    """Return how far a pipe has read its server's log, from its progress or else from its state."""
    position = runner.view.progress().position
    if position:
        file, _, offset = position.rpartition(":")
        return file, int(offset)
    directory = StateDirectory(runner.spec.settings.state, make=False)
    raw = committed_offset(directory.checkpoint)
    if raw is None:
        state = directory.load()
        raw = state.start if state is not None else None
    return (str(raw["file"]), int(raw["pos"])) if raw is not None else None


def _bytes_between(file: str, offset: int, end_file: str, end: int, sizes: dict[str, int]) -> int | None:
    """Return the bytes between two positions of a log."""
    if file == end_file:
        return max(end - offset, 0)
    if not sizes:
        return None
    first, last = file_number(file), file_number(end_file)
    passed = sum(size for name, size in sizes.items() if first < file_number(name) < last)
    return max(sizes.get(file, offset) - offset, 0) + passed + end


def _file_sizes(connection: Connection[Any], address: MySQLAddress) -> dict[str, int]:
    try:
        return {str(row[0]): int(row[1]) for row in query(connection, address, "SHOW BINARY LOGS")}
    except DefiniteError as error:
        log.debug("cannot read the sizes of log files: %s", error)
        return {}


def _disk_usage(directory: Path) -> int:
    """Return a directory's size on disk; relay files have holes where they were read."""
    total = 0
    for path in directory.rglob("*"):
        # Files may disappear meanwhile.
        with suppress(OSError):
            found = path.lstat()
            total += min(found.st_size, found.st_blocks * _BLOCK) if path.is_file() else 0
    return total
