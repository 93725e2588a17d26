"""The cost of transforms: the work of a pipe's task, from the log's bytes to the sink's response, with and without transforms, in one run.

Each set of transforms reads the same log, transforms its blocks and writes them to an empty database of one embedded engine. All run in
this process, one at a time, in two rounds; the better round counts. Rates count the changes that were read, because a filter reduces those
that are written. CPU time is that of this process (decoding, transforming, encoding); the engine is another process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contenders.base import Stopwatch
from bench.contenders.headrace_decode import segments
from bench.corpus import default_cache, open_corpus
from bench.schemas import capture_tables
from bench.target import DATABASE, Target
from bench.workload import Workload
from headrace.embedded.process import EmbeddedServer
from headrace.settings.settings_file import parse_settings
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables, read_segment
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.options import Salts
from testkit.pipelines.embedded_access import target_of

NONE, ALL = "none", "filter, computed, hash"
ORDERS, SBTEST = f'transforms."{DATABASE}.orders"', f'transforms."{DATABASE}.sbtest"'
FILTER = f"""[{ORDERS}]
filter = "status <> 'returned' AND amount > 10"
[{SBTEST}]
filter = "k % 10 <> 0"
"""
COMPUTED = f"""[{ORDERS}.computed]
day = "CAST(created_at AS DATE)"
gross = "amount + coalesce(tax, 0)"
[{SBTEST}.computed]
head = "left(c, 10)"
"""
HASH = f"""[{ORDERS}.hash]
customer_id = "sha256"
[{SBTEST}.hash]
pad = "sha256"
"""
MASK = f"""[{ORDERS}.mask]
note = "last 4"
[{SBTEST}.mask]
pad = "last 4"
"""
WAYS = {NONE: "", "filter": FILTER, "computed": COMPUTED, "hash": HASH, "mask": MASK, ALL: FILTER + COMPUTED + HASH}
ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Passage:
    """The measurements of one set of transforms."""

    changes: int
    written: int
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class TransformCost:
    """The result of the measurement."""

    passages: Mapping[str, Passage]

    def table(self) -> Table:
        found = Table(title=f"Transforms in a task: {self.passages[NONE].changes:,} changes read")
        found.add_column("transforms")
        for heading in ("written", "changes/s", "changes/CPU s", "CPU s per M", "of none, by CPU", "of none, by time"):
            found.add_column(heading, justify="right")
        none = self.passages[NONE]
        for name, one in self.passages.items():
            found.add_row(
                name,
                f"{one.written:,}",
                f"{one.changes / one.wall_s:,.0f}",
                f"{one.changes / one.cpu_s:,.0f}",
                f"{one.cpu_s / one.changes * 1e6:.2f}",
                f"{none.cpu_s / one.cpu_s:.2f}",
                f"{none.wall_s / one.wall_s:.2f}",
            )
        return found


def measure_transforms(flavour: str, changes: int, console: Console) -> TransformCost:
    """Measure every set of transforms, one at a time."""
    console.print(f"transforms: {changes:,} changes on {flavour}", highlight=False)
    found: dict[str, Passage] = {}
    with (
        open_corpus(flavour, Workload(changes), default_cache()) as corpus,
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        EmbeddedServer(Path(directory) / "ch") as engine,
    ):
        _passage(corpus.target(), engine, "warm_up", WAYS[ALL])
        for number in range(ROUNDS):
            for place, (name, text) in enumerate(WAYS.items()):
                passage = _passage(corpus.target(), engine, f"way_{number}_{place}", text)
                if name not in found or passage.cpu_s < found[name].cpu_s:
                    found[name] = passage
                console.print(f"  {name}: {changes / passage.cpu_s:,.0f} changes per CPU second", highlight=False)
    return TransformCost(found)


def _passage(target: Target, engine: EmbeddedServer, database: str, text: str) -> Passage:
    transforms = parse_settings(text, "bench").transforms
    schemas = {schema.name: schema for schema in capture_tables(target)}
    transformer = BlockTransformer(transforms, Salts())
    plans = {name: transformer.plan(schema) for name, schema in schemas.items()}
    sink = ClickHouseSink(target_of(engine, database=database), ClickHouseOptions())
    shown = [plan.schema for plan in plans.values()]
    sink.prepare(shown)
    needs = sink.requirements(shown)
    transformer = BlockTransformer(transforms, Salts(), {name: need.key_columns for name, need in needs.items()})
    keys = {name: plan.moving(needs[name].key_columns) for name, plan in plans.items()}
    catalog = ReadCatalog(plan_tables(schemas, keys), lambda name: name in schemas)
    watch, read, written = Stopwatch(), 0, 0
    writer: Any = sink.writer()
    for segment in segments(target):
        for block in read_segment(segment, catalog):
            made = transformer(block)
            read, written = read + block.changes, written + made.changes
            if made.rows:
                writer.write(made)
    writer.close()
    wall_s, cpu_s = watch.read()
    return Passage(read, written, wall_s, cpu_s)
