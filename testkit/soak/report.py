"""The report of a soak: Markdown between two markers of docs/reliability.md, with the figures of the last run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.soak.chaos import Event
from testkit.soak.criteria import Finding
from testkit.soak.monitors import ProcessSample, Sample

BEGIN, END = "<!-- the last soak: begin -->", "<!-- the last soak: end -->"
KILLS_BEGIN, KILLS_END = "<!-- the last kill rounds: begin -->", "<!-- the last kill rounds: end -->"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a run."""

    when: str
    commit: str
    seed: int
    seconds: float
    machine: str
    mode: str
    transactions: int
    schema_changes: int
    lost_connections: int
    changes: int
    restarts: int
    exits: dict[str, int]
    missed: Sequence[str]
    finish_s: float
    """From the end of the traffic until every copy showed the last change."""


def render(facts: Facts, findings: Sequence[Finding], events: Sequence[Event], samples: Sequence[Sample]) -> str:
    """The whole report."""
    passed = all(finding.met for finding in findings)
    lines = [
        f"**{'Passed' if passed else 'FAILED'}**: {facts.when}, commit `{facts.commit}`, {facts.seconds / 60:.0f} minutes, "
        f"seed {facts.seed}, {facts.mode}, on {facts.machine}.",
        "",
        f"{facts.transactions:,} transactions, {facts.changes:,} row changes and {facts.schema_changes:,} schema changes at the sources; "
        f"{len(events)} faults; {facts.restarts} starts of `headrace` after it had ended ({_exits(facts.exits)}); the traffic itself lost "
        f"{facts.lost_connections} connections to killed servers. All copies showed the last change {facts.finish_s:.0f} s after the "
        f"traffic had ended.",
        "",
        "| criterion | met | figures |",
        "|---|---|---|",
        *(f"| {one.what} | {'yes' if one.met else '**no**'} | {_cell(one.figures)} |" for one in findings),
        "",
        "Faults, and how long until changes made after they were over were visible (all routes; the start of what was killed is in it):",
        "",
        "| fault | times | recovery, median s | longest s |",
        "|---|---|---|---|",
        *_faults(events),
        "",
        "Processes over the whole run (memory of their own, sampled every few seconds; a kind's processes together):",
        "",
        "| processes | median MB | largest MB | descriptors, most | threads, most | CPU s per s |",
        "|---|---|---|---|---|---|",
        *_usage(samples),
        "",
        f"Lag over the run: {_lags(samples)}. Load average of the machine: median {_quantile([one.load for one in samples], 0.5):.1f}.",
    ]
    if facts.missed:
        lines += ["", f"Faults that found nothing to hit (no such process at that moment): {', '.join(sorted(facts.missed))}."]
    return "\n".join(lines) + "\n"


def update(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace the report in the page."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}{end}{after}")


def _exits(exits: dict[str, int]) -> str:
    return ", ".join(f"{name}: {times}" for name, times in sorted(exits.items())) or "never"


def _faults(events: Sequence[Event]) -> Iterable[str]:
    by_kind: dict[str, list[float]] = defaultdict(list)
    times: dict[str, int] = defaultdict(int)
    for event in events:
        times[event.what] += 1
        by_kind[event.what] += event.recovery_s.values()
    for what in sorted(times):
        seconds = by_kind[what]
        yield f"| {what} | {times[what]} | " + (
            f"{_quantile(seconds, 0.5):.1f} | {max(seconds):.1f} |" if seconds else "another fault came first | |"
        )


def _usage(samples: Sequence[Sample]) -> Iterable[str]:
    kinds = sorted({process.kind for sample in samples for process in sample.processes})
    for kind in (*kinds, "all together"):
        found = [[one for one in sample.processes if kind in (one.kind, "all together")] for sample in samples]
        found = [processes for processes in found if processes]
        memory = [sum(one.uss for one in processes) / 1e6 for processes in found]
        descriptors = max((one.descriptors for processes in found for one in processes), default=0)
        threads = max((one.threads for processes in found for one in processes), default=0)
        yield (
            f"| {kind} | {_quantile(memory, 0.5):,.0f} | {max(memory, default=0):,.0f} | {descriptors} | {threads} | "
            f"{_cpu_share([one for processes in found for one in processes], samples):.2f} |"
        )


def _cpu_share(processes: Sequence[ProcessSample], samples: Sequence[Sample]) -> float:
    """CPU seconds of all processes, from their last samples, per second of the run."""
    spent: dict[tuple[int, int], float] = {}
    for one in processes:
        spent[one.pid, 0] = max(one.cpu_s, spent.get((one.pid, 0), 0.0))
    length = samples[-1].at - samples[0].at if len(samples) > 1 else 0.0
    return sum(spent.values()) / length if length else 0.0


def _lags(samples: Sequence[Sample]) -> str:
    names = sorted({name for sample in samples for name in sample.lag_s})
    parts = []
    for name in names:
        seen = [lag for sample in samples if (lag := sample.lag_s.get(name)) is not None]
        if seen:
            parts.append(f"{name} median {_quantile(seen, 0.5):.1f} s, 90 % below {_quantile(seen, 0.9):.1f} s, longest {max(seen):.0f} s")
    return "; ".join(parts) or "not measured"


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
