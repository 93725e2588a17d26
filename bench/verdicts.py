"""Judges the targets: whether this run met them. A target whose measurement did not run is not judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.contender_run import Result
from bench.live_pipe import LiveResult

DECODE_PER_CPU_S = 1_000_000
TIMES_DEBEZIUM = 10
LATENCY_P50_S, LATENCY_P99_S = 0.5, 1.5
PEAK_BYTES = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: met or missed, and by how much."""

    met: bool
    text: str

    @property
    def word(self) -> str:
        return "met" if self.met else "MISSED"


def judge(results: Mapping[str, Result], live: LiveResult | None) -> list[Verdict]:
    return [*_speed(results), *_latency(live), *_memory(results, live)]


def _speed(results: Mapping[str, Result]) -> Iterator[Verdict]:
    decode, whole, debezium = (results.get(name) for name in ("headrace-decode", "headrace", "debezium"))
    if decode is not None:
        yield at_least("decode, changes per CPU second", decode.cpu_rate, DECODE_PER_CPU_S)
    if whole is not None and debezium is not None:
        yield at_least("end to end, changes per second, 10 x Debezium", whole.rate, TIMES_DEBEZIUM * debezium.rate)
    copy, own = results.get("headrace-snapshot"), results.get("clickhouse-own")
    if copy is not None and own is not None:
        yield at_least("snapshot, rows per second, ClickHouse's mysql()", copy.rate, own.rate)


def _latency(live: LiveResult | None) -> Iterator[Verdict]:
    if live is not None:
        yield below("commit to visible, p50 in s", live.latency.p50_s, LATENCY_P50_S)
        yield below("commit to visible, p99 in s", live.latency.p99_s, LATENCY_P99_S)


def _memory(results: Mapping[str, Result], live: LiveResult | None) -> Iterator[Verdict]:
    peaks = [results[name].usage.peak_bytes for name in ("headrace", "headrace-snapshot") if name in results]
    peaks += [live.memory_bytes] if live is not None else []
    if peaks:
        yield below("memory of all processes, largest of the runs, in MB", max(peaks) / 1e6, PEAK_BYTES / 1e6)


def at_least(what: str, seen: float, wanted: float) -> Verdict:
    return Verdict(seen >= wanted, f"{what}: {seen:,.0f}, wanted at least {wanted:,.0f} ({seen / wanted:.2f} of it)")


def below(what: str, seen: float, wanted: float) -> Verdict:
    return Verdict(seen < wanted, f"{what}: {seen:,.3g}, wanted below {wanted:,.3g} ({seen / wanted:.2f} of it)")
