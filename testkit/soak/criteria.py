"""The criteria of a soak. Each is a sentence with figures; all are printed, whether met or not.

Both ends are compared by `headrace verify`, and by sums that each server computes without Headrace: MySQL's and ClickHouse's SELECT count
rows, count values that are not NULL, add up numbers and add up CRC-32s of texts, column by column; equal sums for equal rows.

Memory: in the calm part, in which Headrace's long-lived processes are not killed, none of them may grow. A line is fitted through each
one's memory after its first minutes; over an hour it must rise by less than `GROWTH` of its size, or by less than `GROWTH_BYTES`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from headrace.demo.private_server import PrivateServer
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.pipeline import run_command
from testkit.soak.chaos import Event
from testkit.soak.monitors import ProcessSample, Sample
from testkit.soak.operator import DRIVER, EMBEDDED, FORKER, JAVA
from testkit.soak.routes import Route

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
_FLOATS = ("float", "double")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


@dataclass(slots=True)
class SoakComparison:
    """The comparison of one route."""

    route: str
    verdict: str
    """The last line of `headrace verify`."""
    verify_code: int
    tables: int = 0
    rows: int = 0
    columns: int = 0
    different: list[str] = field(default_factory=list)
    """The differences of the independent check."""

    @property
    def is_equal(self) -> bool:
        return self.verify_code == 0 and not self.different and self.verdict.partition(";")[0].endswith(" 0 differences")


def compare(route: Route, patience_s: float = 900.0) -> SoakComparison:
    """Do both checks of a route whose source does not change."""
    asked = ("verify", route.url, route.sink, *route.verify_options)
    verified = run_command(*asked, timeout_s=patience_s)
    lines = verified.output.strip().splitlines()
    found = SoakComparison(route.name, lines[-1] if lines else "nothing was said", verified.code)
    if verified.code:
        found.different.append("verify said: " + " / ".join(lines[-12:])[:1500])
    _look_for_ourselves(route, found)
    return found


def _look_for_ourselves(route: Route, found: SoakComparison) -> None:
    server, database = route.traffic.server, route.traffic.database
    address = route.address()
    if not address:
        found.different.append("the copy cannot be asked")
        return
    # A separate client: the watch keeps using its own.
    client = sink_client(address)
    shown = {str(row[0]) for row in client.query(f"SELECT name FROM system.tables WHERE database = '{database}'").result_rows}
    for table, columns in _tables(server, database).items():
        if table not in shown:
            found.different.append(f"{table}: not there")
            continue
        from_view = f"{table}_current" in shown
        ours, theirs = _sums(columns)
        with closing(server.root_connection(database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00', sql_mode = ''")
            cursor.execute(f"SELECT COUNT(*), {', '.join(ours)} FROM `{table}`")
            left = [_plain(value) for value in cursor.fetchone()]
        origin = f"`{database}`.`{table}_current`" if from_view else f"`{database}`.`{table}` FINAL"
        right = [_plain(value) for value in client.query(f"SELECT count(), {', '.join(theirs)} FROM {origin}").result_rows[0]]
        names = ["rows", *(f"{kind} of {name}" for name, _ in columns for kind in ("values", "sum"))]
        found.different += [
            f"{table}: {name}: {one} at the source, {other} in the copy"
            for name, one, other in zip(names, left, right, strict=True)
            if one != other
        ]
        found.tables, found.rows, found.columns = found.tables + 1, found.rows + int(left[0]), found.columns + len(columns)


def _tables(server: PrivateServer, database: str) -> dict[str, list[tuple[str, str]]]:
    """Columns and their types, by table."""
    asked = (
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY table_name, ordinal_position"
    )
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(asked, (database,))
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind in cursor.fetchall():
            found.setdefault(str(table), []).append((str(column), str(kind).lower()))
    return found


def _sums(columns: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return two expressions per column, for MySQL and for ClickHouse: the number of values, and their sum."""
    ours, theirs = [], []
    for name, kind in columns:
        left, right = _sum_of(kind)
        quoted = f"`{name}`"
        ours += [f"COUNT({quoted})", f"COALESCE(SUM({left(quoted)}), 0)"]
        # An array is never NULL: a missing one is empty.
        count = f"countIf(notEmpty({quoted}))" if kind == "vector" else f"count({quoted})"
        theirs += [count, f"COALESCE(sum({right(quoted)}), 0)"]
    return ours, theirs


def _sum_of(kind: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    if kind in _INTEGERS:
        return lambda name: f"CAST({name} AS DECIMAL(30,0))", lambda name: f"toInt256({name})"
    if kind == "bit":
        return lambda name: f"CAST({name} + 0 AS DECIMAL(30,0))", lambda name: f"toInt256({name})"
    if kind == "decimal":
        return lambda name: name, lambda name: f"toDecimal256({name}, 10)"
    if kind in _FLOATS:
        # Sums of fractions depend on their order; whole numbers of 1024ths do not.
        return lambda name: f"CAST(FLOOR({name} * 1024) AS DECIMAL(30,0))", lambda name: f"toInt256(floor(toFloat64({name}) * 1024))"
    if kind == "time":
        # The printed hours have different widths, and TIME_TO_SEC of MySQL drops the fraction.
        return _seconds, (lambda name: f"toDecimal64({name}, 3)")
    if kind == "vector":
        # As hexadecimal digits: joining would drop bytes that are all zero.
        return lambda name: f"CRC32({name})", lambda name: f"CRC32(unhex(arrayStringConcat(arrayMap(v -> hex(v), {name}))))"
    if kind in _TEXTS:
        return lambda name: f"CRC32(CONVERT({name} USING utf8mb4))", lambda name: f"CRC32(toString({name}))"
    if kind == "json":
        return lambda name: f"CRC32(CAST({name} AS CHAR))", lambda name: f"CRC32({name})"
    if kind in _BYTES or kind == "point":
        return lambda name: f"CRC32({name})", lambda name: f"CRC32({name})"
    # Dates, addresses and similar types: both servers print the same text.
    return lambda name: f"CRC32(CAST({name} AS CHAR))", lambda name: f"CRC32(toString({name}))"


def _seconds(name: str) -> str:
    parts = f"HOUR({name}) * 3600 + MINUTE({name}) * 60 + SECOND({name}) + MICROSECOND({name}) * 0.000001"
    return f"IF({name} < '00:00:00', -1, 1) * ({parts})"


def _plain(value: Any) -> Any:
    """Numbers in one form."""
    if isinstance(value, bool | int | float):
        return Decimal(value).normalize()
    if isinstance(value, Decimal):
        return value.normalize()
    return re.sub(r"\s+", " ", str(value))


LONG_LIVED = (DRIVER, JAVA, EMBEDDED, FORKER)
STUCK_S = 300.0
GROWTH, GROWTH_BYTES = 0.10, 96 << 20
SPARE_DESCRIPTORS, SPARE_THREADS = 40, 40
WARM_S = 300.0
RELAY_BYTES, STATE_BYTES = 1 << 30, 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One criterion."""

    what: str
    met: bool
    figures: str


@dataclass(frozen=True, slots=True)
class Growth:
    """One process over the calm part."""

    kind: str
    pid: int
    minutes: float
    first: float
    last: float
    """Megabytes of private memory at both ends of the fitted line."""
    per_hour: float
    """Megabytes."""
    descriptors: tuple[int, int]
    """Median of the first and of the last fifth."""
    threads: tuple[int, int]

    @property
    def is_flat(self) -> bool:
        grown = self.per_hour * 1e6
        return grown <= max(GROWTH_BYTES, GROWTH * self.first * 1e6)

    @property
    def leaks(self) -> bool:
        more, threads = self.descriptors[1] - self.descriptors[0], self.threads[1] - self.threads[0]
        return more > SPARE_DESCRIPTORS or threads > SPARE_THREADS


def growths(samples: Sequence[Sample], warm_s: float = WARM_S) -> list[Growth]:
    """Return the growth of each process that ran through the calm part, after its first minutes."""
    series: dict[tuple[str, int], list[tuple[float, ProcessSample]]] = defaultdict(list)
    for sample in samples:
        for process in sample.processes:
            if sample.calm and process.kind in LONG_LIVED and process.age_s > warm_s:
                series[process.kind, process.pid].append((sample.at, process))
    found = []
    for (kind, pid), points in sorted(series.items()):
        if len(points) < 20:
            continue
        begun, ended = points[0][0], points[-1][0]
        slope, start = fitted([(at, process.uss) for at, process in points])
        fifth = max(len(points) // 5, 1)
        ends = (points[:fifth], points[-fifth:])
        descriptors = [median([process.descriptors for _, process in part]) for part in ends]
        threads = [median([process.threads for _, process in part]) for part in ends]
        last = start + slope * (ended - begun)
        found.append(
            Growth(
                kind,
                pid,
                (ended - begun) / 60,
                start / 1e6,
                last / 1e6,
                slope * 3600 / 1e6,
                (descriptors[0], descriptors[1]),
                (threads[0], threads[1]),
            )
        )
    return found


def fitted(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope, and the value at the first point, of the line with the least squares."""
    count, begun = len(points), points[0][0]
    middle_x, middle_y = sum(x - begun for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - begun - middle_x) ** 2 for x, _ in points)
    slope = sum((x - begun - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0
    return slope, middle_y - slope * middle_x


def median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is judged."""

    events: Sequence[Event]
    samples: Sequence[Sample]
    comparisons: Sequence[SoakComparison]
    stuck: Sequence[str]
    """Routes that did not recover from a fault in time."""
    ended_badly: Sequence[str]
    traffic_failures: Sequence[str]
    resumed: Sequence[str]
    """Pipes that a person had to resume."""
    patience_s: float = STUCK_S


def judge(outcome: Outcome) -> list[Finding]:
    grown = growths(outcome.samples)
    rows = sum(one.rows for one in outcome.comparisons)
    tables = sum(one.tables for one in outcome.comparisons)
    different = [line for one in outcome.comparisons for line in one.different]
    slowest = max((seconds for event in outcome.events for seconds in event.recovery_s.values()), default=0.0)
    relay = max((sample.relay_bytes for sample in outcome.samples), default=0)
    state = max((sample.state_bytes for sample in outcome.samples), default=0)
    verdicts = "; ".join(f"{one.route}: {one.verdict}" for one in outcome.comparisons)
    return [
        Finding("`headrace verify` finds 0 differences on every route", all(one.is_equal for one in outcome.comparisons), verdicts),
        Finding("each server's own sums over its rows agree", not different, f"{tables} tables, {rows:,} rows" + _list(different)),
        Finding(
            f"every pipe shows new changes within {outcome.patience_s:.0f} s of each fault's end",
            not outcome.stuck,
            f"slowest {slowest:.0f} s" + _list(outcome.stuck),
        ),
        Finding("no pipe needs a person", not outcome.resumed, f"{len(outcome.resumed)} resumed by hand" + _list(outcome.resumed)),
        Finding(
            f"memory is flat: no long-lived process grows by more than {GROWTH:.0%} or {GROWTH_BYTES >> 20} MB an hour",
            all(one.is_flat for one in grown),
            "; ".join(f"{one.kind} {one.first:,.0f} → {one.last:,.0f} MB in {one.minutes:.0f} min" for one in grown)
            or "too short a run to say",
        ),
        Finding(
            "descriptors and threads do not leak",
            not any(one.leaks for one in grown),
            "; ".join(
                f"{one.kind} {one.descriptors[0]} → {one.descriptors[1]} descriptors, {one.threads[0]} → {one.threads[1]} threads"
                for one in grown
            )
            or "too short a run to say",
        ),
        Finding(
            "disk is bounded",
            relay <= RELAY_BYTES and state <= STATE_BYTES,
            f"relays at most {relay / 1e6:,.0f} MB, state {state / 1e6:,.0f} MB",
        ),
        Finding(
            "asked to end, everything ends in order and leaves no process behind",
            not outcome.ended_badly,
            "it did" if not outcome.ended_badly else _list(outcome.ended_badly),
        ),
        Finding(
            "the traffic itself ran to the end",
            not outcome.traffic_failures,
            "it did" if not outcome.traffic_failures else _list(outcome.traffic_failures),
        ),
    ]


def _list(lines: Sequence[str]) -> str:
    return "".join(f"; {line}" for line in list(lines)[:8]) + (f"; and {len(lines) - 8} more" if len(lines) > 8 else "")
