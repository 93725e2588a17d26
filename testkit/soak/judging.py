"""The criteria of a soak. Each is a sentence with figures; all are printed, whether met or not.

Memory: in the calm part, in which Headrace's long-lived processes are not killed, none of them may grow. A line is fitted through each
one's memory after its first minutes; over an hour it must rise by less than `GROWTH` of its size, or by less than `GROWTH_BYTES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from testkit.soak.chaos import Event
from testkit.soak.checking import Comparison
from testkit.soak.operator import DRIVER, EMBEDDED, FORKER, JAVA
from testkit.soak.sampling import ProcessSample, Sample

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
    comparisons: Sequence[Comparison]
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
