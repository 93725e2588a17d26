"""The cost of FINAL: queries on a replicated table, compared with the same queries on the same rows in a plain MergeTree of the same
engine.

The sink's writer fills the table with every insert, update and delete. The plain table then holds exactly the remaining rows. Every query
must return the same rows from both. The queries run on a copy of the table's parts as loaded (hard links; merges stopped), on the table
itself one minute after the load, with its default settings, and after OPTIMIZE FINAL. A client on loopback takes the times. The shortest
of several runs counts, because other load on the machine only lengthens them. The shortest times are mostly those of the protocol.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from clickhouse_connect.driver.client import Client
from rich.console import Console
from rich.table import Table

from bench.changes import SCHEMA, Growth
from bench.verdicts import Verdict
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from testkit.pipelines.embedded_access import target_of

NAME, PLAIN, VIEW, LOADED = "bench.orders", "bench.plain", "bench.orders_current", "bench.loaded"
COLUMNS = ", ".join(column.name for column in SCHEMA.columns)
RANGE_ROWS = 100_000
KEYED_REPEATS, REPEATS, REPEAT_S = 25, 3, 2.0
"""Repetitions of a query with a key and of any other query. The latter runs at least `REPEATS` times, then until `REPEAT_S` have passed or
it ran `KEYED_REPEATS` times.
"""
QUIET_S, TIMEOUT_S = 3.0, 300.0
MINUTE_S = 60.0
AS_LOADED, LATER = "as loaded", "one minute later"
MOST = {AS_LOADED: 3.0, LATER: 1.5}
"""Targets: the most times of the plain table's time."""
COUNT = "count()"
"""A plain table answers it without reading rows, so it has no target."""
QUERIES = {
    "one row by key": f"SELECT {COLUMNS} FROM {{table}} WHERE id = {{key}}",
    "100,000 rows by key": f"SELECT count(), sum(amount) FROM {{table}} WHERE id BETWEEN {{key}} AND {{key}} + {RANGE_ROWS - 1}",
    COUNT: "SELECT count() FROM {table}",
    "sums over all": "SELECT sum(amount), sum(quantity) FROM {table}",
    "filter, no key": "SELECT count(), max(amount) FROM {table} WHERE status = 'returned' AND quantity > 90",
    "group by status": "SELECT status, count(), sum(amount) FROM {table} GROUP BY status ORDER BY status",
    "top customers": "SELECT customer_id, sum(amount) AS total FROM {table} GROUP BY customer_id ORDER BY total DESC, customer_id LIMIT 10",
}


@dataclass(frozen=True, slots=True)
class State:
    """The replicated table at one moment."""

    parts: int
    rows_stored: int
    seconds: Mapping[str, float]
    """The time of each query with FINAL."""
    plain_s: Mapping[str, float]
    """The time of the same query on the plain table, run in turn with the other."""

    def times_plain(self, query: str) -> float:
        return self.seconds[query] / self.plain_s[query]


@dataclass(frozen=True, slots=True)
class FinalCost:
    """The result of the measurement."""

    rows: int
    changes: int
    load_s: float
    optimize_s: float
    plain_parts: int
    states: Mapping[str, State]

    def table(self) -> Table:
        size = f"{self.rows:,} rows left by {self.changes:,} changes, loaded in {self.load_s:.0f} s"
        found = Table(title=f"FINAL in ms, and x the same in a plain MergeTree of {self.plain_parts} parts: {size}")
        found.add_column("query")
        for name, state in self.states.items():
            found.add_column(f"{name}: {state.parts} parts, {state.rows_stored / 1e6:.1f} M rows", justify="right")
        for query in QUERIES:
            cells = (f"{state.seconds[query] * 1000:.1f} ({state.times_plain(query):.1f} x)" for state in self.states.values())
            found.add_row(query, *cells)
        return found

    def verdicts(self) -> Iterator[Verdict]:
        """Judge the slowest query of those that read rows of both tables."""
        for name, most in MOST.items():
            times = {query: self.states[name].times_plain(query) for query in QUERIES if query != COUNT}
            slowest = max(times, key=times.__getitem__)
            found = f"{times[slowest]:.2f} ({slowest}; the median query {median(times.values()):.2f})"
            yield Verdict(times[slowest] <= most, f"FINAL {name}, times a plain table: {found}, wanted at most {most}")


def measure_final(rows: int, console: Console) -> FinalCost:
    console.print(f"final: {rows:,} rows through the sink's writer", highlight=False)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, EmbeddedServer(Path(directory) / "clickhouse") as server:
        target = target_of(server)
        sink = ClickHouseSink(target, ClickHouseOptions(all_tables=(("view", True),)))
        sink.prepare([SCHEMA])
        growth = Growth(rows)
        began = time.perf_counter()
        writer = sink.writer()
        for block in growth.run():
            writer.write(block)
        load_s = time.perf_counter() - began
        console.print(f"  {growth.changes:,} changes loaded in {load_s:.0f} s", highlight=False)
        return _QueryTimer(connect(target).client, growth, console).measure(load_s)


class _QueryTimer:
    """Runs the same queries on both tables."""

    def __init__(self, client: Client, growth: Growth, console: Console) -> None:
        self._client, self._growth, self._console = client, growth, console
        keys = growth.keys
        self._keys = [int(keys[len(keys) * n // (KEYED_REPEATS + 1)]) for n in range(1, KEYED_REPEATS + 1)]

    def measure(self, load_s: float) -> FinalCost:
        """Measure all states. Call this right after the load. The minute includes the creation of the plain table, which competes with the
        merges."""
        loaded = time.monotonic()
        self._copy_parts()
        self._check_rows()
        self._make_plain()
        time.sleep(max(loaded + MINUTE_S - time.monotonic(), 0))
        later = self._run_queries(NAME)
        states = {AS_LOADED: self._run_queries(LOADED), LATER: later}
        began = time.perf_counter()
        self._client.command(f"OPTIMIZE TABLE {NAME} FINAL")
        optimize_s = time.perf_counter() - began
        states["OPTIMIZE FINAL"] = self._run_queries(NAME)
        states["its view t_current"] = self._run_queries(NAME, shown=VIEW)
        growth = self._growth
        return FinalCost(growth.rows, growth.changes, load_s, optimize_s, self._parts(PLAIN)[0], states)

    def _copy_parts(self) -> None:
        """Attach the parts, as they are now, to another table."""
        for statement in (
            f"CREATE TABLE {LOADED} AS {NAME}",
            f"SYSTEM STOP MERGES {LOADED}",
            f"ALTER TABLE {LOADED} ATTACH PARTITION tuple() FROM {NAME}",
        ):
            self._client.command(statement)

    def _check_rows(self) -> None:
        """Check that the sink shows exactly the rows that the changes leave, by their number and the sum of their keys."""
        keys = self._growth.keys
        found = self._client.query(f"SELECT count(), sum(id) FROM {NAME} FINAL").result_rows[0]
        if found != (len(keys), int(keys.sum())):
            raise DefiniteError(
                f"the table shows (rows, sum of keys) {found}, the changes leave {(len(keys), int(keys.sum()))}", place=NAME
            )

    def _make_plain(self) -> None:
        self._client.command(f"CREATE TABLE {PLAIN} ENGINE = MergeTree ORDER BY id AS SELECT {COLUMNS} FROM {LOADED} FINAL")
        self._await_merges(PLAIN)

    def _run_queries(self, table: str, shown: str = "") -> State:
        """Run every query on both tables in turn, so that a disturbance affects both. Both must return the same rows. `shown` replaces the
        table with FINAL in the queries."""
        parts = self._parts(table)
        shown = shown or f"{table} FINAL"
        best: dict[str, list[float]] = {}
        for name, form in QUERIES.items():
            times: tuple[list[float], list[float]] = ([], [])
            keyed, started_at = "{key}" in form, time.monotonic()
            for number, key in enumerate(self._keys):
                if number >= REPEATS and not keyed and time.monotonic() - started_at > REPEAT_S:
                    break
                answers = []
                for place, asked in enumerate((shown, PLAIN)):
                    began = time.perf_counter()
                    answers.append(self._client.raw_query(form.format(table=asked, key=key)))
                    times[place].append(time.perf_counter() - began)
                if answers[0] != answers[1]:
                    raise DefiniteError(f"the answers to {name!r} differ between {shown} and the plain table", place=f"id {key}")
            best[name] = [min(found) for found in times]
        figures = ", ".join(f"{name} {seconds * 1000:.1f} : {plain_s * 1000:.1f}" for name, (seconds, plain_s) in best.items())
        self._console.print(f"  {shown}: {figures} ms", highlight=False)
        seconds, plain_s = ({name: found[place] for name, found in best.items()} for place in (0, 1))
        return State(*parts, seconds, plain_s)

    def _parts(self, table: str) -> tuple[int, int]:
        where = f"active AND database || '.' || table = '{table}'"
        parts, rows = self._client.query(f"SELECT count(), sum(rows) FROM system.parts WHERE {where}").result_rows[0]
        return int(parts), int(rows)

    def _await_merges(self, table: str) -> None:
        """Wait until ClickHouse has no more parts to merge."""
        seen, since, deadline = self._parts(table), time.monotonic(), time.monotonic() + TIMEOUT_S
        while time.monotonic() - since < QUIET_S and time.monotonic() < deadline:
            time.sleep(0.2)
            running = self._client.query(f"SELECT count() FROM system.merges WHERE database || '.' || table = '{table}'").result_rows[0][0]
            now = self._parts(table)
            if running or now != seen:
                seen, since = now, time.monotonic()
