"""The cost of writing a ScyllaDB log into ClickHouse, and of queries compared with a plain table of the same rows.

The pages of the log are in memory. Queries are measured on rows that are merged when they are written, and on cells that each query
merges. The same run measures two references: the driver's decoder on the same pages, which every Python consumer needs, and an insert of
the view's rows, as typed columns, into a plain ReplacingMergeTree, which is ClickHouse's own limit. Two writers have a stream each, like
two tasks of a pipe. They merge rows after as many log rows as a task of a pipe that catches up (half of `scylla.batch_rows`). The server
has the rest of the two cores.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from rich.console import Console
from rich.table import Table

from bench.command_usage import read_cpu_s
from bench.scylla_pages import PAGE_ROWS, STREAMS, Pages
from bench.verdicts import Verdict, at_least
from headrace.cql.blocks import LogBlock
from headrace.cql.bounded_connection import RawPage
from headrace.cql.decode.pages import as_batch
from headrace.cql.tables import CqlTable
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from testkit.pipelines.embedded_access import target_of

ROWS_PER_S: Final = 100_000
PAGES_PER_BLOCK: Final = 10
BLOCKS_PER_SPLIT: Final = ScyllaOptions().batch_rows // STREAMS // (PAGES_PER_BLOCK * PAGE_ROWS)
"""Approximately."""
DECODED_PAGES: Final = 10
"""The number of pages for the driver's decoder. Its rate does not change with more."""
REPEATS: Final = 4
VIEW, LIVE, PLAIN, COPY = "shop.orders", "shop.orders__live", "shop.plain", "shop.copy"
MERGED, AT_QUERY = "merged rows", "cells, merged at each query"
LEAST_SHARE, MOST_TIMES = 0.5, 2.0
"""Targets: the least share of the rate without merged rows; the most times of a plain table's time for each query."""
JUDGED: Final = ("one row by key", "sums over all")
_ORDER: Final = "ORDER BY (customer, id) SETTINGS allow_nullable_key = 1"
QUERIES: Final = {
    "one row by key": "SELECT * FROM {table} WHERE customer = {key} AND id = 7",
    "one partition": "SELECT count(), round(sum(amount)) FROM {table} WHERE customer = {key}",
    "count()": "SELECT count() FROM {table}",
    "sums over all": "SELECT round(sum(amount)), sum(quantity) FROM {table}",
    "filter, no key": "SELECT count(), max(amount) FROM {table} WHERE status = 'returned' AND quantity > 90",
    "group by status": "SELECT status, count(), round(sum(amount)) FROM {table} GROUP BY status ORDER BY status",
    "elements": "SELECT attributes['attribute1'] AS v, countIf(has(tags, 'toys')) FROM {table} GROUP BY v ORDER BY v LIMIT 5",
}


@dataclass(frozen=True, slots=True)
class CellCost:
    """The result of the measurement."""

    log_rows: int
    bytes_per_row: float
    wall_s: float
    cpu_s: float
    """CPU seconds of the writers' process."""
    server_cpu_s: float
    driver_per_s: float
    """Rows that the driver's decoder reads per second of one core."""
    plain_per_s: float
    """Rows per second that ClickHouse inserts from typed columns into a plain table."""
    unmerged_s: float
    """The time for the same log without merged rows."""
    rows_shown: int
    view_s: Mapping[str, Mapping[str, tuple[float, float]]]
    """By form, state and query: seconds on the view and on the plain table."""

    @property
    def rate(self) -> float:
        return self.log_rows / self.wall_s

    @property
    def share(self) -> float:
        """The rate as a share of the rate without merged rows."""
        return self.unmerged_s / self.wall_s

    def table(self) -> Table:
        found = Table(title=f"ScyllaDB's log into ClickHouse: {self.log_rows:,} log rows of {self.bytes_per_row:.0f} bytes, from memory")
        for heading in ("log rows/s", "of unmerged", "CPU s per M", "server CPU s per M", "x driver's decoder", "of plain inserts"):
            found.add_column(heading, justify="right")
        found.add_row(
            f"{self.rate:,.0f}",
            f"{self.share:.0%}",
            f"{self.cpu_s / self.log_rows * 1e6:.2f}",
            f"{self.server_cpu_s / self.log_rows * 1e6:.2f}",
            f"{self.rate / self.driver_per_s:.1f}",
            f"{self.rate / self.plain_per_s:.1%}",
        )
        return found

    def view_table(self) -> Table:
        found = Table(title=f"Queries of {self.rows_shown:,} rows in ms, and x the same in a plain MergeTree")
        found.add_column("query")
        for state in self.view_s:
            found.add_column(state, justify="right")
        for query in QUERIES:
            pairs = (state[query] for state in self.view_s.values())
            found.add_row(query, *(f"{view * 1000:.1f} ({view / plain:.1f} x)" for view, plain in pairs))
        return found

    def verdicts(self) -> list[Verdict]:
        found = [
            at_least("ScyllaDB's log into ClickHouse, log rows per second", self.rate, ROWS_PER_S),
            at_least("ScyllaDB's log with merged rows, % of the rate without", 100 * self.share, 100 * LEAST_SHARE),
        ]
        for state in (one for one in self.view_s if one.startswith(MERGED)):
            for query in JUDGED:
                view, plain = self.view_s[state][query]
                times = view / plain
                text = f"{state}, {query}: {times:.1f} x a plain MergeTree, wanted at most {MOST_TIMES:.0f}"
                found.append(Verdict(times <= MOST_TIMES, text))
        return found


def measure_cells(rows: int, console: Console) -> CellCost:
    console.print(f"cells: making {rows:,} log rows", highlight=False)
    made = Pages(rows)
    streams = made.make()
    pages = [page for stream in streams for page in stream]
    total = sum(page.count for page in pages)
    driver_per_s = _driver_rate(pages[:DECODED_PAGES])
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, EmbeddedServer(Path(directory) / "clickhouse") as server:
        target = target_of(server)
        unmerged_s = _unmerged(CellSink(ClickHouseSink(target), merges=False), made.table, streams)
        sink = CellSink(ClickHouseSink(target), merges=True)
        sink.prepare([made.table])
        _load(sink, made.table, [streams[0][:PAGES_PER_BLOCK]])
        server_before, own_before = read_cpu_s(server.pid), time.process_time()
        began = time.perf_counter()
        _load(sink, made.table, streams)
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - own_before
        server_cpu_s = read_cpu_s(server.pid) - server_before
        console.print(f"  {total / wall_s:,.0f} log rows/s, the driver's decoder {driver_per_s:,.0f}/s", highlight=False)
        console.print(f"  without merged rows {total / unmerged_s:,.0f} log rows/s", highlight=False)
        client = connect(target).client
        plain_per_s = _plain_rate(client)
        shown = int(client.query(f"SELECT count() FROM {VIEW}").result_rows[0][0])
        view_s = _view_costs(client, sink, made.table, console)
    size = sum(len(page.body) for page in pages) / total
    return CellCost(total, size, wall_s, cpu_s, server_cpu_s, driver_per_s, plain_per_s, unmerged_s, shown, view_s)


def _unmerged(sink: CellSink, table: CqlTable, streams: Sequence[Sequence[RawPage]]) -> float:
    """Return the time for the same log without merged rows. The tables are empty afterwards."""
    sink.prepare([table])
    _load(sink, table, [streams[0][:PAGES_PER_BLOCK]])
    taken_s = _timed(lambda: _load(sink, table, streams))
    sink.clear(table)
    return taken_s


def _load(sink: CellSink, table: CqlTable, streams: Sequence[Sequence[RawPage]]) -> None:
    failed: list[BaseException] = []

    def write(pages: Sequence[RawPage]) -> None:
        try:
            splits = max(1, round(len(pages) / (PAGES_PER_BLOCK * BLOCKS_PER_SPLIT)))
            for split in _cut(pages, -(-len(pages) // splits)):
                writer = sink.writer()
                for some in _cut(split, PAGES_PER_BLOCK):
                    batch = as_batch(some)
                    writer.write(LogBlock(table, batch, pa.nulls(batch.num_rows, pa.int64())))
                writer.complete()
                writer.close()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=write, args=(pages,)) for pages in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def _cut(pages: Sequence[RawPage], count: int) -> list[Sequence[RawPage]]:
    return [pages[first : first + count] for first in range(0, len(pages), count)]


def _driver_rate(pages: Sequence[RawPage]) -> float:
    began = time.process_time()
    rows = sum(len(page.decoded()) for page in pages)
    return rows / (time.process_time() - began)


def _plain_rate(client: Client) -> float:
    """Insert the view's rows as typed columns several times; return the best rate in rows per second."""
    client.command(f"CREATE TABLE {COPY} ENGINE = ReplacingMergeTree {_ORDER} AS SELECT * FROM {VIEW} LIMIT 0")
    body: Any = client.raw_query(f"SELECT * FROM {VIEW} WHERE id IS NOT NULL LIMIT 50000", fmt="ArrowStream")
    rows = min(50_000, int(client.query(f"SELECT count() FROM {VIEW} WHERE id IS NOT NULL").result_rows[0][0]))
    best = min(_timed(lambda: client.raw_insert(COPY, None, body, fmt="ArrowStream")) for _ in range(5))
    return rows / best


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _view_costs(client: Client, sink: CellSink, table: CqlTable, console: Console) -> dict[str, dict[str, tuple[float, float]]]:
    places = sink.locations(table)
    for name in (places.cells, places.rows):
        client.command(f"SYSTEM STOP MERGES {name}")
    client.command(f"CREATE TABLE {PLAIN} ENGINE = MergeTree {_ORDER} AS SELECT * FROM {VIEW}")
    client.command(f"OPTIMIZE TABLE {PLAIN} FINAL")
    forms = {MERGED: VIEW, AT_QUERY: LIVE}
    found = {f"{form}, as loaded": _run_queries(client, name) for form, name in forms.items()}
    for name in (places.cells, places.rows):
        client.command(f"SYSTEM START MERGES {name}")
    for name in (places.cells, places.partitions, places.rows):
        client.command(f"OPTIMIZE TABLE {name} FINAL")
    found |= {f"{form}, OPTIMIZE FINAL": _run_queries(client, name) for form, name in forms.items()}
    for state, times in found.items():
        listed = ", ".join(f"{name} {view * 1000:.1f} : {plain * 1000:.1f}" for name, (view, plain) in times.items())
        console.print(f"  {state}: {listed} ms", highlight=False)
    return found


def _run_queries(client: Client, view: str) -> dict[str, tuple[float, float]]:
    """Run every query on a view and on the plain table in turn. Both must return the same rows."""
    best: dict[str, tuple[float, float]] = {}
    for name, form in QUERIES.items():
        times: tuple[list[float], list[float]] = ([], [])
        for key in range(1, REPEATS + 1):
            answers = []
            for place, asked in enumerate((view, PLAIN)):
                began = time.perf_counter()
                answers.append(client.raw_query(form.format(table=asked, key=key)))
                times[place].append(time.perf_counter() - began)
            if answers[0] != answers[1]:
                raise DefiniteError(f"the answers to {name!r} differ between the view and the plain table", place=f"customer {key}")
        best[name] = (min(times[0]), min(times[1]))
    return best
