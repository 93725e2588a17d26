"""The results of a run as a terminal table (rich), as plain text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cascade_cost import CascadeCost
from bench.chart import draw_chart
from bench.contender_run import Result
from bench.contenders import LOG_READERS, TABLE_COPIERS
from bench.corpus import Manifest
from bench.final_cost import FinalCost
from bench.idle_pipes import Idle
from bench.kafka_topics import Topics
from bench.live_pipe import LiveResult
from bench.low_rate import LowRate
from bench.machine import Machine
from bench.scylla_log import CellCost
from bench.startup import StartUp
from bench.target import Target
from bench.transform_cost import TransformCost
from bench.verdicts import Verdict, judge
from bench.verify_cost import VerifyCost

TEXT_WIDTH = 150


@dataclass(frozen=True, slots=True)
class ContenderComparison:
    """The results of several contenders on one workload."""

    target: Target
    manifest: Manifest
    results: Mapping[str, Result]

    def pick(self, names: Iterable[str]) -> dict[str, Result]:
        return {name: self.results[name] for name in names if name in self.results}

    def megabytes_per_cpu_s(self, result: Result) -> float:
        """Megabytes of the log per CPU second, in proportion to the changes that the contender read."""
        return self.target.log_bytes / 1e6 * result.cpu_rate / self.target.changes

    def headline(self) -> str:
        target = self.target
        return f"{target.changes:,} changes, {target.log_bytes / 1e6:.1f} MB of {target.flavour} {target.version} log"

    def to_json(self) -> dict[str, Any]:
        return {
            "server": {"flavour": self.target.flavour, "version": self.target.version, "log_bytes": self.target.log_bytes},
            "workload": {"changes": self.target.changes, "rows_left": self.manifest.rows, "generated_in_s": self.manifest.seconds},
            **{
                name: {**_result_json(result), "megabytes_per_cpu_s": self.megabytes_per_cpu_s(result)}
                for name, result in self.results.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run."""

    machine: Machine
    reference: ContenderComparison | None = None
    live: LiveResult | None = None
    shapes: Mapping[str, ContenderComparison] = field(default_factory=dict)
    crowd: ContenderComparison | None = None
    topics: Topics | None = None
    cells: CellCost | None = None
    final: FinalCost | None = None
    verified: VerifyCost | None = None
    idle: Idle | None = None
    transformed: TransformCost | None = None
    cascaded: CascadeCost | None = None
    low_rate: LowRate | None = None
    started: StartUp | None = None

    def print_to(self, console: Console) -> None:
        machine = self.machine
        console.print(f"{machine.cores} cores ({machine.cpu}), {machine.memory_gb:.0f} GB, load before {machine.load_before:.1f}")
        for table in self._tables():
            if table.row_count:
                console.print(table)
        for name, result in (self.reference.results if self.reference else {}).items():
            console.print(f"  {name}: {result.note}", highlight=False)
        if self.live is not None:
            console.print(_latency_line(self.live), highlight=False)
        for verdict in self.verdicts():
            console.print(f"{verdict.word:>6}: {verdict.text}", style="green" if verdict.met else "red", highlight=False)

    def verdicts(self) -> list[Verdict]:
        found = judge(self.reference.results if self.reference else {}, self.live)
        return [
            *found,
            *(
                one
                for part in (self.topics, self.cells, self.cascaded, self.final, self.low_rate, self.started)
                if part is not None
                for one in part.verdicts()
            ),
        ]

    def save(self, path: Path) -> None:
        """Write JSON to `path`, and plain text and the chart to files with the same name and the suffixes .txt and .svg."""
        figures = self.to_json()
        path.write_text(json.dumps(figures, indent=2) + "\n")
        if chart := draw_chart(figures):
            path.with_suffix(".svg").write_text(chart)
        with path.with_suffix(".txt").open("w") as file:
            self.print_to(Console(file=file, width=TEXT_WIDTH, no_color=True))

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": asdict(self.machine),
            "reference": self.reference.to_json() if self.reference else None,
            "latency": asdict(self.live) if self.live is not None else None,
            "shapes": {shape: comparison.to_json() for shape, comparison in self.shapes.items()},
            "tables": self.crowd.to_json() if self.crowd else None,
            "kafka": asdict(self.topics) if self.topics is not None else None,
            "scylla": asdict(self.cells) if self.cells is not None else None,
            "final": asdict(self.final) if self.final is not None else None,
            "verify": asdict(self.verified) if self.verified is not None else None,
            "transforms": asdict(self.transformed) if self.transformed is not None else None,
            "cascades": asdict(self.cascaded) if self.cascaded is not None else None,
            "idle": asdict(self.idle) if self.idle is not None else None,
            "lowrate": asdict(self.low_rate) if self.low_rate is not None else None,
            "startup": asdict(self.started) if self.started is not None else None,
            "verdicts": [asdict(verdict) for verdict in self.verdicts()],
        }

    def _tables(self) -> Iterator[Table]:
        if self.reference is not None:
            yield _readers_table("Reading the log", self.reference)
            yield _copiers_table(self.reference.pick(TABLE_COPIERS))
        if self.shapes:
            yield _other_tables_table(self.shapes)
        if self.crowd is not None:
            yield _readers_table(f"{len(self.crowd.manifest.rows)} tables of mixed traffic", self.crowd)
        if self.topics is not None:
            yield self.topics.table()
        if self.cells is not None:
            yield self.cells.table()
            yield self.cells.view_table()
        if self.transformed is not None:
            yield self.transformed.table()
        if self.cascaded is not None:
            yield self.cascaded.table()
        if self.final is not None:
            yield self.final.table()
        if self.verified is not None:
            yield self.verified.table()
        if self.idle is not None:
            yield self.idle.table()
            yield self.idle.kinds_table()
        if self.low_rate is not None:
            yield self.low_rate.table()
        if self.started is not None:
            yield self.started.table()
            yield self.started.commands_table()


def _readers_table(title: str, comparison: ContenderComparison) -> Table:
    table = Table(title=f"{title}: {comparison.headline()}")
    results, changes = comparison.pick(LOG_READERS), comparison.target.changes
    table.add_column("reader")
    for heading in ("wall s", "changes/s", "CPU s", "changes/CPU s", "peak MB", "of floor", "x Debezium", "start-up s", "server CPU s"):
        table.add_column(heading, justify="right")
    for result in results.values():
        scaled = "~" if result.window.total_changes < changes else ""
        table.add_row(
            result.title,
            f"{scaled}{changes / result.rate:.2f}",
            f"{result.rate:,.0f}",
            f"{scaled}{changes / result.cpu_rate:.2f}",
            f"{result.cpu_rate:,.0f}",
            f"{result.usage.peak_bytes / 1e6:,.0f}",
            _ratio(result, results.get("floor"), "{:.1%}"),
            _ratio(result, results.get("debezium"), "{:.2f}"),
            f"{max(result.start_up_s, 0):.1f}",
            "-" if scaled else f"{result.server_cpu_s:.2f}",
        )
        if result.window.cold_wall_s:
            table.add_row(
                *_cold_cells(result),
                "",
                _cold_ratio(result, results.get("floor"), "{:.1%}"),
                _cold_ratio(result, results.get("debezium"), "{:.2f}"),
            )
    return table


def _copiers_table(results: Mapping[str, Result]) -> Table:
    table = Table(title="Snapshot of the tables")
    table.add_column("how")
    for heading in ("wall s", "rows/s", "CPU s", "rows/CPU s", "peak MB", "x mysql()", "start-up s", "server CPU s"):
        table.add_column(heading, justify="right")
    for result in results.values():
        table.add_row(
            result.title,
            f"{result.window.wall_s:.2f}",
            f"{result.rate:,.0f}",
            f"{result.window.cpu_s:.2f}",
            f"{result.cpu_rate:,.0f}",
            f"{result.usage.peak_bytes / 1e6:,.0f}",
            _ratio(result, results.get("clickhouse-own"), "{:.2f}"),
            f"{result.start_up_s:.1f}",
            f"{result.server_cpu_s:.2f}",
        )
        if result.window.cold_wall_s:
            table.add_row(*_cold_cells(result), "", _cold_ratio(result, results.get("clickhouse-own"), "{:.2f}"))
    return table


def _other_tables_table(comparisons: Mapping[str, ContenderComparison]) -> Table:
    table = Table(title="Other tables")
    for heading in ("table", "reader"):
        table.add_column(heading)
    for heading in ("bytes/change", "changes/CPU s", "log MB/CPU s", "of floor", "x mysql-replication"):
        table.add_column(heading, justify="right")
    for kind, found in comparisons.items():
        for result in found.results.values():
            table.add_row(
                kind,
                result.title,
                f"{found.target.log_bytes / found.target.changes:,.0f}",
                f"{result.cpu_rate:,.0f}",
                f"{found.megabytes_per_cpu_s(result):,.0f}",
                f"{result.cpu_rate / found.results['floor'].cpu_rate:.1%}",
                f"{result.cpu_rate / found.results['mysql-replication'].cpu_rate:.1f}",
            )
    return table


def _ratio(result: Result, other: Result | None, form: str) -> str:
    return form.format(result.rate / other.rate) if other else "-"


def _cold_cells(result: Result) -> tuple[str, ...]:
    """The same run including the start of the workers: name, wall time, rate, CPU, rate per CPU second."""
    window = result.window
    total, wall_s, cpu_s = window.total_changes, window.cold_wall_s, window.cold_cpu_s
    return "  with its workers' start", f"{wall_s:.2f}", f"{total / wall_s:,.0f}", f"{cpu_s:.2f}", f"{total / cpu_s:,.0f}"


def _cold_ratio(result: Result, other: Result | None, form: str) -> str:
    return form.format(result.window.total_changes / result.window.cold_wall_s / other.rate) if other else "-"


def _latency_line(live: LiveResult) -> str:
    seen = live.latency
    return (
        f"commit to visible at {seen.done_changes_per_s:,.0f} changes/s ({seen.transactions:,} transactions after {live.warm_up_s:.0f} s "
        f"of warm-up): p50 {seen.p50_s:.3f} s, p90 {seen.p90_s:.3f} s, p99 {seen.p99_s:.3f} s, longest {seen.longest_s:.3f} s; asked every "
        f"{seen.poll_pause_s * 1000:.0f} ms plus {seen.question_s * 1000:.0f} ms for the answer; the pipe used {live.cpu_per_s:.2f} CPU s "
        f"per s and {live.memory_bytes / 1e6:,.0f} MB; first row visible {live.first_row_s:.1f} s after the command"
    )


def _result_json(result: Result) -> dict[str, Any]:
    derived = {"per_s": result.rate, "per_cpu_s": result.cpu_rate, "start_up_s": result.start_up_s}
    return {**asdict(result), **derived}
