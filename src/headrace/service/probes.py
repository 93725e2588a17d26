"""What is asked of sources and sinks now and then, so that the status tells what the pipes themselves cannot: where a log ends, how many
rows a table has, which rows wait in the dead letters.

Invariant: asking is cheap and shared. Each server is asked once for all pipes that read it, by one connection; each sink once for all pipes
that fill it. A peer that does not answer leaves the figures as they were; the pipes themselves say that it is away.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from pymysql.connections import Connection
from pymysql.err import MySQLError

from headrace.cql.address import is_cql
from headrace.errors import DefiniteError, HeadraceError
from headrace.pipes.factory import OFFLINE
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.service.embedded_servers import SCHEME, Warehouses
from headrace.service.pipe_runner import Part
from headrace.service.status import PipeStage, SchemaChangeSeen
from headrace.sinks.clickhouse.bookkeeping.ledger import LEDGER
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.dead_letters.dead_letters import ERRORS, WAITING
from headrace.sinks.clickhouse.server.quoting import quote_name, quote_text
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.url_schemes import CLICKHOUSE, is_kafka
from headrace.sources.mysql.binlog.commit_times import log_place
from headrace.sources.mysql.server.connection import MySQLAddress, connect, parse_mysql_url, query
from headrace.sources.mysql.server.position import file_number
from headrace.sources.mysql.snapshot.log_watermark import log_end
from headrace.spark.runtime.checkpoint import committed_offset

log = logging.getLogger("headrace")

_STANDING_S: Final = 0.5
"""How often a server is asked for the end of its log while a pipe that reads it does not run."""
_STANDING_TOPICS_S: Final = 5.0
_SERVER_S, _TOPICS_S, _SINK_S, _RELAY_S = 5.0, 30.0, 20.0, 10.0
_COUNTED_S: Final = 60.0
_MOST_COUNTED: Final = 2_000_000
"""Tables up to this size are counted exactly, as FINAL shows them; of larger ones it is told how many rows are stored."""
_MOST_AT_ONCE: Final = 100
_CHANGES: Final = 5
_BLOCK: Final = 512


class Gauge(Protocol):
    """Something that is looked at every so many seconds."""

    every_s: float

    def look(self) -> None:
        """Tell parts what is found; raises if it cannot be found."""

    def close(self) -> None: ...


class ServerGauge:
    """Where the log of a MySQL or MariaDB server ends."""

    every_s = _STANDING_S

    def __init__(self, address: MySQLAddress, parts: Sequence[Part]) -> None:
        self._address, self._parts, self._looked = address, parts, -math.inf
        self._connection: Connection[Any] | None = None

    def look(self) -> None:
        # Running pipes know their lag themselves; only its size in bytes is asked for, less often.
        due = time.monotonic() - self._looked >= _SERVER_S
        parts = [part for part in self._parts if _is_of_interest(part) and (due or not part.view.knows_lag())]
        asking = [(part, place) for part in parts if (place := _log_place(part)) is not None]
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
        for part, (file, offset) in asking:
            behind = _between(file, offset, end.file, end.offset, sizes)
            part.view.looked(log_place(file, offset), log_place(end.file, end.offset), behind)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(MySQLError):
                connection.close()


class TopicGauge:
    """Where the topics of a pipe end, in records."""

    every_s = _STANDING_TOPICS_S

    def __init__(self, part: Part) -> None:
        self._part, self._looked = part, -math.inf

    def look(self) -> None:
        # As with servers: a running pipe knows its lag itself.
        if self._part.view.knows_lag() and time.monotonic() - self._looked < _TOPICS_S:
            return
        self._looked = time.monotonic()
        from headrace.kafka.address import parse_kafka_url
        from headrace.pipes.debezium.kafka_cluster import standing
        from headrace.pipes.debezium.position import KafkaPosition
        from headrace.pipes.debezium.topic_settings import topic_pattern

        spec = self._part.spec
        raw = committed_offset(StateDirectory(spec.settings.state, make=False).checkpoint) if _is_of_interest(self._part) else None
        if raw is None:
            return
        address, reached = parse_kafka_url(spec.source), KafkaPosition.from_json(raw)
        now = standing(address, topic_pattern(spec.topics.globs, spec.topics.pattern, address.topic))
        ends = {(topic, number): end for topic, inner in now.high.offsets.items() for number, end in inner.items()}
        first = {(topic, number): low for topic, inner in now.low.offsets.items() for number, low in inner.items()}
        read = {key: reached.offsets.get(key[0], {}).get(key[1], first.get(key, 0)) for key in ends}
        behind = sum(max(ends[key] - read[key], 0) for key in ends)
        end = sum(ends.values())
        self._part.view.looked(end - behind, end, behind)

    def close(self) -> None:
        """Nothing is kept."""


class RelayGauge:
    """How much log is mirrored on local disk."""

    every_s = _RELAY_S

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def look(self) -> None:
        for part in self._parts:
            directory = StateDirectory(part.spec.settings.state, make=False)
            place = part.spec.settings.relay
            state = directory.load() if place else None
            part.relay_bytes = _size_of(directory.relay if state is None else directory.mirror(place, state.id))

    def close(self) -> None:
        """Nothing is kept."""


class SinkGauge:
    """What a ClickHouse sink holds: rows of tables, dead letters; and, once, the schema changes from before this process."""

    every_s = _SINK_S

    def __init__(self, sink: str, parts: Sequence[Part], warehouses: Warehouses) -> None:
        self._sink, self._parts, self._warehouses = sink, parts, warehouses
        self._remembered = False
        self._counted: dict[str, tuple[int, float]] = {}
        """By target: how many changes its table had when it was counted, and when that was."""

    def look(self) -> None:
        if self._warehouses.is_lost(self._sink):
            # Whoever fills it starts it.
            return
        with open_clickhouse_sink(self._sink) as named:
            sink: ClickHouseSink = named.sink
            own = sink.own_tables()
            if not self._remembered:
                self._remember(own)
                self._remembered = True
            self._count_letters(sink, own)
            self._count_rows(sink)

    def close(self) -> None:
        """The connection is the process's own."""

    def _remember(self, own: OwnTables) -> None:
        if not own.exists(LEDGER):
            return
        for part in self._parts:
            condition = f"pipe = {quote_text(part.name)}"
            rows = own.select(LEDGER, ("time", "source_table", "statement", "outcome", "detail"), condition, f"time DESC LIMIT {_CHANGES}")
            part.view.remember(
                [
                    SchemaChangeSeen(_moment(at), table, statement, f"{outcome}: {detail}" if detail else outcome)
                    for at, table, statement, outcome, detail in rows
                ]
            )

    def _count_letters(self, sink: ClickHouseSink, own: OwnTables) -> None:
        found: dict[str, int] = {}
        if own.exists(ERRORS):
            final = " FINAL" if ERRORS.replacing else ""
            counted = f"SELECT pipe, count() FROM {ERRORS.qualified}{final} WHERE state = {quote_text(WAITING)} GROUP BY pipe"
            found = {pipe: int(count) for pipe, count in sink.reader().query(counted)[1]}
        for part in self._parts:
            part.dead_letters = found.get(part.name, 0)

    def _count_rows(self, sink: ClickHouseSink) -> None:
        due = [one for part in self._parts for one in self._due(part)][:_MOST_AT_ONCE]
        if not due:
            return
        listed = ", ".join(f"({quote_text(database)}, {quote_text(table)})" for _, _, (database, table), _ in due)
        stored = {
            (database, table): (engine, rows)
            for database, table, engine, rows in sink.reader().query(
                f"SELECT database, name, engine, total_rows FROM system.tables WHERE (database, name) IN ({listed})"
            )[1]
        }
        for part, name, place, changes in due:
            engine, rows = stored.get(place, ("", None))
            if rows is None:
                continue
            if int(rows) <= _MOST_COUNTED and "MergeTree" in engine and engine not in ("MergeTree", "ReplicatedMergeTree"):
                shown = f"{quote_name(place[0])}.{quote_name(place[1])} FINAL"
                rows = sink.reader().query(f"SELECT count() FROM {shown}")[1][0][0]
            part.view.rows({name: int(rows)})
            self._counted[".".join(place)] = changes, time.monotonic()

    def _due(self, part: Part) -> Iterable[tuple[Part, str, tuple[str, str], int]]:
        """Tables that were never counted, or that changed since, a while ago."""
        for table in part.view.figures().tables:
            changes, at = self._counted.get(table.target, (-1, 0.0))
            moved = table.changes + (table.copied or 0)
            if table.target and moved != changes and time.monotonic() - at >= _COUNTED_S:
                database, _, name = table.target.partition(".")
                yield part, table.name, (database, name), moved


class Looking:
    """All gauges of a process, looked at in a few threads: one that waits holds up few others, and no pipe."""

    def __init__(self, gauges: Sequence[Gauge]) -> None:
        self._gauges = gauges
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="headrace-looks")
        self._due: dict[int, float] = {}
        self._under_way: dict[int, Future[None]] = {}

    def poll(self) -> None:
        """Begin what is due; called every second or so."""
        now = time.monotonic()
        for number, gauge in enumerate(self._gauges):
            running = self._under_way.get(number)
            if now >= self._due.get(number, 0.0) and (running is None or running.done()):
                self._due[number] = now + gauge.every_s
                self._under_way[number] = self._pool.submit(_look, gauge)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for gauge in self._gauges:
            gauge.close()


def gauges_of(parts: Sequence[Part], warehouses: Warehouses) -> list[Gauge]:
    """What there is to look at."""
    servers = [part for part in parts if not (is_kafka(part.spec.source) or is_cql(part.spec.source) or _is_files(part))]
    tables = [part for part in parts if part.spec.sink.startswith((*CLICKHOUSE, SCHEME))]
    found: list[Gauge] = [ServerGauge(parse_mysql_url(url), of) for url, of in _by(servers, lambda part: part.spec.source).items()]
    found += [TopicGauge(part) for part in parts if is_kafka(part.spec.source)]
    found += [SinkGauge(url, of, warehouses) for url, of in _by(tables, lambda part: part.spec.sink).items()]
    return [*found, RelayGauge(servers)] if servers else found


def _look(gauge: Gauge) -> None:
    try:
        gauge.look()
    except (HeadraceError, OSError, ValueError, KeyError, MySQLError) as error:
        # The figures stay as they were; a pipe that needs the peer says what is wrong with it.
        log.debug("looking at %s: %s", type(gauge).__name__, error)


def _by(parts: Sequence[Part], key: Callable[[Part], str]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(key(part), []).append(part)
    return found


def _is_files(part: Part) -> bool:
    return part.spec.source.startswith(OFFLINE)


def _is_of_interest(part: Part) -> bool:
    return part.stage not in (PipeStage.DISABLED, PipeStage.STOPPED)


def _log_place(part: Part) -> tuple[str, int] | None:
    """How far a part is in its server's log: as it says, or as its state does."""
    told = part.view.figures().position
    if told:
        file, _, offset = told.rpartition(":")
        return file, int(offset)
    directory = StateDirectory(part.spec.settings.state, make=False)
    raw = committed_offset(directory.checkpoint)
    if raw is None:
        state = directory.load()
        raw = state.start if state is not None else None
    return (str(raw["file"]), int(raw["pos"])) if raw is not None else None


def _between(file: str, offset: int, end_file: str, end: int, sizes: dict[str, int]) -> int | None:
    """Bytes between two places of a log."""
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
        log.debug("sizes of log files cannot be had: %s", error)
        return {}


def _size_of(directory: Path) -> int:
    """What a directory takes on disk: a mirror of the log has holes where it was read."""
    total = 0
    for path in directory.rglob("*"):
        # Files come and go meanwhile.
        with suppress(OSError):
            found = path.lstat()
            total += min(found.st_size, found.st_blocks * _BLOCK) if path.is_file() else 0
    return total


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
