"""The cost of a pipe at low rates: CPU time of its processes, and the latency of single rows.

A writer commits small transactions at fixed times, distributed over ten tables of a private server. `headrace replicate` copies them into
an embedded ClickHouse with its default settings. CPU time is measured while no client queries the sink. Afterwards, during the same
traffic, marker rows are inserted at random times, and the sink is queried until it shows each. A marker's latency runs from just before
its INSERT is sent to the result that shows it.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
from clickhouse_connect.driver.client import Client
from rich.console import Console
from rich.table import Table

from bench.live_pipe import connect_embedded, running_pipe
from bench.process_accounting import tree_cpu_s
from bench.process_groups import cpu_shares, cpu_times
from bench.target import PASSWORD, USER
from bench.verdicts import Verdict, below
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError, TransientError
from testkit.servers.servers import build

DATABASE, TABLES = "bench_lowrate", 10
WARM_UP_S, CPU_S, MARKERS = 30.0, 60.0, 150
MARKER_PAUSES_S = (0.1, 0.7)
POLL_S, TIMEOUT_S, START_TIMEOUT_S = 0.01, 60.0, 180.0
CORES = {2_000: 0.35, 20: 0.08}
"""Targets: changes per second, and the most cores for them."""
CHANGES_PER_TX = {2_000: 10, 20: 1}
P50_S, P99_S = 0.5, 1.0
SEED = 15


@dataclass(frozen=True, slots=True)
class RateCost:
    """The cost of a pipe at one rate of changes."""

    changes_per_s: int
    done_per_s: float
    """Changes per second that the writer committed."""
    cores_by_kind: Mapping[str, float]
    server_cores: float
    """Cores that the source server uses during the measurement, without the writer."""
    inserts_per_s: float
    """Inserts of the pipe into ClickHouse per second, including those of its progress."""
    p50_s: float
    p99_s: float
    longest_s: float
    markers: int

    @property
    def cores(self) -> float:
        return sum(self.cores_by_kind.values())


@dataclass(frozen=True, slots=True)
class LowRate:
    costs: tuple[RateCost, ...]

    def table(self) -> Table:
        table = Table(title=f"A pipe of {TABLES} tables at low rates, in cores")
        kinds = sorted({kind for cost in self.costs for kind in cost.cores_by_kind})
        for heading in ("changes/s", "cores", *kinds, "inserts/s", "source server", "p50 s", "p99 s", "longest s"):
            table.add_column(heading, justify="right")
        for cost in self.costs:
            table.add_row(
                f"{cost.done_per_s:,.0f}",
                f"{cost.cores:.3f}",
                *(f"{cost.cores_by_kind.get(kind, 0.0):.3f}" for kind in kinds),
                f"{cost.inserts_per_s:.1f}",
                f"{cost.server_cores:.3f}",
                f"{cost.p50_s:.2f}",
                f"{cost.p99_s:.2f}",
                f"{cost.longest_s:.2f}",
            )
        return table

    def verdicts(self) -> Iterator[Verdict]:
        for cost in self.costs:
            rate = f"at {cost.changes_per_s:,} changes per second"
            yield below(f"{rate}, cores", cost.cores, CORES[cost.changes_per_s])
            yield below(f"{rate}, commit to visible, p50 in s", cost.p50_s, P50_S)
            yield below(f"{rate}, commit to visible, p99 in s", cost.p99_s, P99_S)


def measure_low_rates(flavour: str, console: Console, flags: Sequence[str] = (), rates: Sequence[int] = tuple(CORES)) -> LowRate:
    """Measure each rate with its own server and pipe."""
    console.print(f"lowrate: {TABLES} tables on {flavour}", highlight=False)
    costs = []
    for rate in rates:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, build(flavour, Path(directory) / "server") as server:
            scratch = Path(directory) / "pipe"
            scratch.mkdir()
            costs.append(_measure(server, scratch, rate, flags))
        cost = costs[-1]
        parts = ", ".join(f"{kind} {share:.3f}" for kind, share in sorted(cost.cores_by_kind.items(), key=lambda one: -one[1]))
        console.print(
            f"  {rate:,}/s: {cost.cores:.3f} cores ({parts}), {cost.inserts_per_s:.1f} inserts/s, p50 {cost.p50_s:.2f} s, "
            f"p99 {cost.p99_s:.2f} s",
            highlight=False,
        )
    return LowRate(tuple(costs))


def _measure(server: PrivateServer, scratch: Path, rate: int, flags: Sequence[str]) -> RateCost:
    _prepare(server)
    with (
        running_pipe(server, scratch, DATABASE, flags) as pipe,
        pymysql.connect(host="127.0.0.1", port=server.port, user=USER, password=PASSWORD, autocommit=True) as connection,
    ):
        client = _await_streaming(scratch / "clickhouse", connection)
        with _writing(server, rate) as writer:
            time.sleep(WARM_UP_S)
            parts, written = _inserts(client), writer.changes
            before, server_before, since = cpu_times(pipe.pid), tree_cpu_s(server.pid), time.perf_counter()
            time.sleep(CPU_S)
            wall_s = time.perf_counter() - since
            cores, server_cores = cpu_shares(before, cpu_times(pipe.pid), wall_s), (tree_cpu_s(server.pid) - server_before) / wall_s
            done, inserts = (writer.changes - written) / wall_s, (_inserts(client) - parts) / wall_s
            latencies = sorted(_marker_latencies(client, connection))
    return RateCost(
        rate,
        done,
        cores,
        server_cores,
        inserts,
        latencies[len(latencies) // 2],
        latencies[-len(latencies) // 100],
        latencies[-1],
        len(latencies),
    )


def _prepare(server: PrivateServer) -> None:
    columns = "id BIGINT PRIMARY KEY, customer INT, status VARCHAR(20), price DECIMAL(12,2), note VARCHAR(100), at DATETIME(6)"
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT ALL ON *.* TO '{USER}'@'%'")
        cursor.execute(f"CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4")
        for number in range(TABLES):
            cursor.execute(f"CREATE TABLE {DATABASE}.t{number} ({columns})")


def _await_streaming(directory: Path, connection: pymysql.Connection) -> Client:
    """Wait until two rows that were inserted after the pipe's start are visible. The second one cannot come from the snapshot."""
    deadline, client = time.monotonic() + START_TIMEOUT_S, None
    for number in (1, 2):
        _insert_marker(connection, -number)
        while time.monotonic() < deadline:
            try:
                client = client or connect_embedded(directory)
                if _table_exists(client) and _is_visible(client, -number):
                    break
            except (AssertionError, DefiniteError, TransientError, FileNotFoundError):
                pass
            time.sleep(0.2)
        else:
            raise TransientError(f"the pipe did not stream within {START_TIMEOUT_S:.0f} s", place=str(directory))
    assert client is not None
    return client


def _inserts(client: Client) -> int:
    return int(str(client.command("SELECT value FROM system.events WHERE event = 'InsertQuery'")))


def _marker_latencies(client: Client, connection: pymysql.Connection) -> Iterator[float]:
    draw = random.Random(SEED)
    for number in range(1_000, 1_000 + MARKERS):
        time.sleep(draw.uniform(*MARKER_PAUSES_S))
        since = time.perf_counter()
        _insert_marker(connection, -number)
        while not _is_visible(client, -number):
            if time.perf_counter() - since > TIMEOUT_S:
                raise TransientError(f"a row was not visible after {TIMEOUT_S:.0f} s", place=f"{DATABASE}.t0")
            time.sleep(POLL_S)
        yield time.perf_counter() - since


def _insert_marker(connection: pymysql.Connection, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {DATABASE}.t0 VALUES ({key}, 0, 'marker', 0, 'a marker', NOW(6))")


def _table_exists(client: Client) -> bool:
    return bool(int(str(client.command(f"SELECT count() FROM system.tables WHERE database = '{DATABASE}' AND name = 't0'"))))


def _is_visible(client: Client, key: int) -> bool:
    return bool(int(str(client.command(f"SELECT count() FROM {DATABASE}.t0 WHERE id = {key}"))))


class _Writer(threading.Thread):
    """Commits transactions at fixed times, each on a random table: 60 % inserts, 30 % updates, 10 % deletes."""

    def __init__(self, server: PrivateServer, rate: int) -> None:
        super().__init__(daemon=True)
        self.changes = 0
        self.failure: pymysql.MySQLError | None = None
        self.ended = threading.Event()
        self._size, self._rate, self._port = CHANGES_PER_TX[rate], rate, server.port
        self._next_ids, self._draw = [0] * TABLES, random.Random(SEED)

    def run(self) -> None:
        start, number = time.perf_counter(), 0
        try:
            with pymysql.connect(host="127.0.0.1", port=self._port, user=USER, password=PASSWORD) as connection:
                while not self.ended.wait(max(0.0, start + number * self._size / self._rate - time.perf_counter())):
                    with connection.cursor() as cursor:
                        for statement in self._statements():
                            cursor.execute(statement)
                    connection.commit()
                    self.changes += self._size
                    number += 1
        except pymysql.MySQLError as error:
            self.failure = error

    def _statements(self) -> Iterator[str]:
        at = self._draw.randrange(TABLES)
        table, first = f"{DATABASE}.t{at}", self._next_ids[at]
        updates, deletes = self._size * 3 // 10, self._size // 10
        inserts = self._size - updates - deletes
        rows = (f"({n}, {n % 977}, 'open', {n % 100}.5, 'what is known of order {n}', NOW(6))" for n in range(first, first + inserts))
        yield f"INSERT INTO {table} VALUES {', '.join(rows)}"
        if updates:
            yield f"UPDATE {table} SET status = 'paid' WHERE id >= {first} AND id < {first + updates}"
        if deletes:
            yield f"DELETE FROM {table} WHERE id >= {first + updates} AND id < {first + updates + deletes}"
        self._next_ids[at] += inserts


@contextmanager
def _writing(server: PrivateServer, rate: int) -> Iterator[_Writer]:
    writer = _Writer(server, rate)
    writer.start()
    try:
        yield writer
    finally:
        writer.ended.set()
        writer.join()
    if writer.failure is not None:
        raise TransientError("the writer failed", place=DATABASE) from writer.failure
