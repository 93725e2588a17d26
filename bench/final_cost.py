"""What FINAL costs: queries on a replicated table beside the same queries on the same rows in a plain MergeTree, in the same engine.

The table is filled by the sink's writer with every insert, update and deletion of its life; the plain one then holds the rows that are
left and nothing else. Every answer must be the same in both. The queries run on a copy of the table's parts as the load left them (hard
links; merges stopped), on the table itself one minute after the load, with its default settings, and after OPTIMIZE FINAL. Times are those
of a client on loopback, the shortest of several askings (neighbours on the machine only lengthen them); the smallest are mostly the
protocol's.
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
KEYED_ASKINGS, ASKINGS, ASKED_S = 25, 3, 2.0
"""How often a query with a key is asked, and any other: at least this often, and further for this time, up to the former number."""
QUIET_S, PATIENCE_S = 3.0, 300.0
MINUTE_S = 60.0
AS_LOADED, LATER = "as loaded", "one minute later"
MOST = {AS_LOADED: 3.0, LATER: 1.5}
"""The targets: times the plain table."""
COUNT = "count()"
"""A plain table answers it without reading, so it is not judged."""
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
    """Each query under FINAL."""
    plain_s: Mapping[str, float]
    """The same query on the plain table, asked by turns with the other."""

    def times_plain(self, query: str) -> float:
        return self.seconds[query] / self.plain_s[query]


@dataclass(frozen=True, slots=True)
class FinalCost:
    """What was found."""

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
        """Judge the slowest of the queries that read rows of both tables."""
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
        return _Asker(connect(target).client, growth, console).measure(load_s)


class _Asker:
    """Asks both tables the same questions."""

    def __init__(self, client: Client, growth: Growth, console: Console) -> None:
        self._client, self._growth, self._console = client, growth, console
        keys = growth.keys
        self._keys = [int(keys[len(keys) * n // (KEYED_ASKINGS + 1)]) for n in range(1, KEYED_ASKINGS + 1)]

    def measure(self, load_s: float) -> FinalCost:
        """Call it right after the load. The minute includes the making of the plain table, which competes with the merges."""
        loaded = time.monotonic()
        self._copy_parts()
        self._check_rows()
        self._make_plain()
        time.sleep(max(loaded + MINUTE_S - time.monotonic(), 0))
        later = self._ask(NAME)
        states = {AS_LOADED: self._ask(LOADED), LATER: later}
        began = time.perf_counter()
        self._client.command(f"OPTIMIZE TABLE {NAME} FINAL")
        optimize_s = time.perf_counter() - began
        states["OPTIMIZE FINAL"] = self._ask(NAME)
        states["its view t_current"] = self._ask(NAME, shown=VIEW)
        growth = self._growth
        return FinalCost(growth.rows, growth.changes, load_s, optimize_s, self._parts(PLAIN)[0], states)

    def _copy_parts(self) -> None:
        """Let another table have the parts as they are now."""
        for statement in (
            f"CREATE TABLE {LOADED} AS {NAME}",
            f"SYSTEM STOP MERGES {LOADED}",
            f"ALTER TABLE {LOADED} ATTACH PARTITION tuple() FROM {NAME}",
        ):
            self._client.command(statement)

    def _check_rows(self) -> None:
        """The sink shows exactly the rows that the changes leave, by number and by sum of keys."""
        keys = self._growth.keys
        found = self._client.query(f"SELECT count(), sum(id) FROM {NAME} FINAL").result_rows[0]
        if found != (len(keys), int(keys.sum())):
            raise DefiniteError(
                f"the table shows (rows, sum of keys) {found}, the changes leave {(len(keys), int(keys.sum()))}", place=NAME
            )

    def _make_plain(self) -> None:
        self._client.command(f"CREATE TABLE {PLAIN} ENGINE = MergeTree ORDER BY id AS SELECT {COLUMNS} FROM {LOADED} FINAL")
        self._settle(PLAIN)

    def _ask(self, table: str, shown: str = "") -> State:
        """Every query, of both tables by turns: what disturbs one disturbs the other, and both must answer the same. `shown`: what to ask
        instead of the table with FINAL."""
        parts = self._parts(table)
        shown = shown or f"{table} FINAL"
        best: dict[str, list[float]] = {}
        for name, form in QUERIES.items():
            times: tuple[list[float], list[float]] = ([], [])
            keyed, asked_at = "{key}" in form, time.monotonic()
            for number, key in enumerate(self._keys):
                if number >= ASKINGS and not keyed and time.monotonic() - asked_at > ASKED_S:
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

    def _settle(self, table: str) -> None:
        """Wait until ClickHouse has nothing to merge any more."""
        seen, since, deadline = self._parts(table), time.monotonic(), time.monotonic() + PATIENCE_S
        while time.monotonic() - since < QUIET_S and time.monotonic() < deadline:
            time.sleep(0.2)
            running = self._client.query(f"SELECT count() FROM system.merges WHERE database || '.' || table = '{table}'").result_rows[0][0]
            now = self._parts(table)
            if running or now != seen:
                seen, since = now, time.monotonic()
