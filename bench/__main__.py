"""`python -m bench`: generates the reference workload, runs the contenders on it, and prints one table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.cascade_cost import measure_cascades
from bench.contender_run import run_contender
from bench.contenders import LOG_READERS, TABLE_COPIERS, load_contender
from bench.corpus import default_cache, open_corpus
from bench.final_cost import measure_final
from bench.idle_pipes import measure_idle
from bench.kafka_topics import measure_topics
from bench.live_pipe import measure_live_pipe
from bench.low_rate import measure_low_rates
from bench.machine import describe_machine
from bench.report import TEXT_WIDTH, ContenderComparison, Report
from bench.scylla_log import measure_cells
from bench.startup import measure_startup
from bench.transform_cost import measure_transforms
from bench.verify_cost import measure_verify
from bench.workload import CROWD, SHAPES, SMALLEST, Workload
from headrace.errors import HeadraceError

FULL_CHANGES, QUICK_CHANGES = 1_000_000, 100_000
LATENCY, LATENCY_SECONDS = "latency", 30.0
SHAPE_READERS = ("floor", "mysql-replication", "headrace-decode")
CROWD_READERS = ("floor", "debezium", "headrace-decode", "headrace")
CONTENDERS = (*LOG_READERS, *TABLE_COPIERS)
FINAL, VERIFY, KAFKA, SCYLLA, IDLE, TRANSFORMS, CASCADES = "final", "verify", "kafka", "scylla", "idle", "transforms", "cascades"
LOW_RATE, STARTUP = "lowrate", "startup"
ROWS_PER_CHANGE = 10
"""Measurements of the sink alone use ten million rows where the log has a million changes."""
ALL_PARTS = (*CONTENDERS, LATENCY, *SHAPES, CROWD, KAFKA, SCYLLA, TRANSFORMS, CASCADES, FINAL, VERIFY, IDLE, LOW_RATE, STARTUP)
LAST_RUN = Path(__file__).with_name("last.json")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Headrace and its peers on the reference workload.")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--changes", type=int, default=FULL_CHANGES, help="row changes in the workload (default: %(default)s)")
    scale.add_argument("--quick", dest="changes", action="store_const", const=QUICK_CHANGES, help=f"the same as --changes {QUICK_CHANGES}")
    parser.add_argument(
        "--server", choices=("mysql", "mariadb"), default="mysql", help="the server that writes the log (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=ALL_PARTS, metavar="NAME", help=f"some of: {', '.join(ALL_PARTS)}")
    parser.add_argument(
        "--output",
        type=Path,
        default=LAST_RUN,
        help="file for the figures as JSON; their text goes to the same name with .txt (default: bench/last.json)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    # Output into a pipe has no width, and 80 columns would fold the table.
    console = Console() if sys.stdout.isatty() else Console(width=TEXT_WIDTH)
    try:
        run(options, console)
    except HeadraceError as error:
        console.print(f"bench: {error}", style="red", highlight=False, markup=False)
        return 2
    return 0


def run(options: argparse.Namespace, console: Console) -> None:
    machine = describe_machine()
    chosen = options.only or ALL_PARTS
    contenders = [name for name in chosen if name in CONTENDERS]
    reference = run_contenders(Workload(options.changes), contenders, options.server, console) if contenders else None
    # Each part stops its server before the next part starts: two servers would share the cores.
    live = measure_live_pipe(options.server, seconds=LATENCY_SECONDS) if LATENCY in chosen else None
    # The other tables get a tenth of the changes, and only log readers that do not need minutes read them.
    fewer = max(options.changes // 10, SMALLEST)
    shapes = {
        shape: run_contenders(Workload(fewer, shape=shape), SHAPE_READERS, options.server, console) for shape in SHAPES if shape in chosen
    }
    crowd = run_contenders(Workload(options.changes, shape=CROWD), CROWD_READERS, options.server, console) if CROWD in chosen else None
    topics = measure_topics(options.server, options.changes, console) if KAFKA in chosen else None
    cells = measure_cells(options.changes, console) if SCYLLA in chosen else None
    transformed = measure_transforms(options.server, options.changes, console) if TRANSFORMS in chosen else None
    cascaded = measure_cascades(options.changes, console) if CASCADES in chosen else None
    final = measure_final(options.changes * ROWS_PER_CHANGE, console) if FINAL in chosen else None
    rows = options.changes * ROWS_PER_CHANGE
    verified = measure_verify(options.server, rows, default_cache(), console) if VERIFY in chosen else None
    idle = measure_idle(console) if IDLE in chosen else None
    low = measure_low_rates(options.server, console) if LOW_RATE in chosen else None
    started = measure_startup(console) if STARTUP in chosen else None
    report = Report(machine, reference, live, shapes, crowd, topics, cells, final, verified, idle, transformed, cascaded, low, started)
    report.print_to(console)
    report.save(options.output)
    console.print(f"saved: {options.output} and {options.output.with_suffix('.txt').name}")


def run_contenders(workload: Workload, names: Sequence[str], flavour: str, console: Console) -> ContenderComparison:
    """Run each contender on the workload's log, one at a time."""
    kept = f"generated on the first run, then kept in {default_cache()}"
    console.print(f"{workload.shape}: {workload.changes:,} changes on {flavour} ({kept})", highlight=False)
    with open_corpus(flavour, workload, default_cache()) as corpus:
        results = {}
        for name in names:
            results[name] = run_contender(load_contender(name), corpus)
            console.print(f"  {name}: {results[name].rate:,.0f}/s, {results[name].cpu_rate:,.0f} per CPU second", highlight=False)
        return ContenderComparison(corpus.target(), corpus.manifest, results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
