"""The cost of idle pipes: many of them in one `headrace run`, and one alone as the floor, on the same server.

A private MariaDB has a database of ten tables for each pipe. All pipes write into one embedded ClickHouse. No rows change while the cost
is measured. Afterwards rows are inserted, one at a time, into a table of one of the many pipes; the time until the sink shows each is the
latency.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.contender_run import python_environment
from bench.process_accounting import descendants, proportional_bytes, tree_cpu_s
from bench.process_groups import cpu_shares, cpu_times, process_kind
from bench.target import PASSWORD, USER
from headrace.demo.private_process import find_free_port
from headrace.demo.private_server import PrivateServer
from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import DefiniteError, TransientError
from headrace.sinks.clickhouse.server.client import connect as connect_sink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from testkit.servers.servers import build

PIPES, TABLES = 50, 10
SETTLE_S, MEASURE_S, PROBES = 30.0, 120.0, 10
START_TIMEOUT_S, PROBE_TIMEOUT_S, STOP_TIMEOUT_S = 900.0, 60.0, 120.0


@dataclass(frozen=True, slots=True)
class IdleCost:
    """The cost of a number of idle pipes."""

    pipes: int
    tables: int
    start_s: float
    """Seconds from the command until every pipe streams; includes the snapshots."""
    cpu_share: float
    """Share of one core, over all processes that ran during the whole measurement."""
    memory_bytes: int
    """Sum of the proportional set sizes of all processes."""
    processes: int
    memory_by_kind: Mapping[str, int]
    cpu_by_kind: Mapping[str, float]
    server_cpu_share: float
    """Share of a core that the source server uses during the measurement."""
    probe_p50_s: float
    """Commit to visible of single changes in one of the pipes."""
    probe_longest_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """The cost of one pipe and of many."""

    costs: tuple[IdleCost, ...]

    def table(self) -> Table:
        table = Table(title="Idle pipes in one `headrace run`")
        for heading in (
            "pipes",
            "tables",
            "start s",
            "CPU of a core",
            "per pipe",
            "memory MB",
            "per pipe",
            "processes",
            "server CPU",
            "one change: p50 s",
            "longest s",
        ):
            table.add_column(heading, justify="right")
        for cost in self.costs:
            table.add_row(
                str(cost.pipes),
                str(cost.tables),
                f"{cost.start_s:.0f}",
                f"{cost.cpu_share:.1%}",
                f"{cost.cpu_share / cost.pipes:.2%}",
                f"{cost.memory_bytes / 1e6:,.0f}",
                f"{cost.memory_bytes / cost.pipes / 1e6:,.0f}",
                str(cost.processes),
                f"{cost.server_cpu_share:.1%}",
                f"{cost.probe_p50_s:.2f}",
                f"{cost.probe_longest_s:.2f}",
            )
        return table

    def kinds_table(self) -> Table:
        table = Table(title="Cost by process")
        table.add_column("processes")
        for cost in self.costs:
            table.add_column(f"MB with {cost.pipes}", justify="right")
            table.add_column(f"CPU with {cost.pipes}", justify="right")
        for kind in sorted({kind for cost in self.costs for kind in cost.memory_by_kind}):
            cells = [(cost.memory_by_kind.get(kind, 0) / 1e6, cost.cpu_by_kind.get(kind, 0.0)) for cost in self.costs]
            table.add_row(kind, *(word for memory, cpu in cells for word in (f"{memory:,.0f}", f"{cpu:.1%}")))
        return table


def measure_idle(console: Console, pipes: int = PIPES, seconds: float = MEASURE_S) -> Idle:
    """Measure one pipe, then many."""
    console.print(f"idle: 1 and {pipes} pipes of {TABLES} tables, {seconds:.0f} s each", highlight=False)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, build("mariadb", Path(directory) / "server") as server:
        _prepare(server, pipes)
        costs = []
        for count in (1, pipes):
            scratch = Path(directory) / f"pipes-{count}"
            scratch.mkdir()
            costs.append(_measure(server, scratch, count, seconds))
            last = costs[-1]
            console.print(
                f"  {count}: {last.cpu_share:.1%} of a core, {last.memory_bytes / 1e6:,.0f} MB, start {last.start_s:.0f} s", highlight=False
            )
        return Idle(tuple(costs))


def _prepare(server: PrivateServer, pipes: int) -> None:
    columns = "id BIGINT PRIMARY KEY, name VARCHAR(60), price DECIMAL(12,2), note TEXT, at DATETIME(6)"
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'")
        cursor.execute(f"GRANT ALL ON *.* TO '{USER}'@'%'")
        for pipe in range(pipes):
            cursor.execute(f"CREATE DATABASE idle_{pipe:02}")
            for table in range(TABLES):
                cursor.execute(f"CREATE TABLE idle_{pipe:02}.t{table} ({columns})")
                cursor.execute(
                    f"INSERT INTO idle_{pipe:02}.t{table} VALUES (1, 'one', 1.5, 'first', NOW(6)), (2, 'two', 2.5, NULL, NOW(6))"
                )


def _measure(server: PrivateServer, scratch: Path, pipes: int, seconds: float) -> IdleCost:
    started = time.perf_counter()
    with _running(server, scratch, pipes) as process:
        _await_streaming(process, scratch, pipes)
        start_s = time.perf_counter() - started
        time.sleep(SETTLE_S)
        before, since, server_before = cpu_times(process.pid), time.perf_counter(), tree_cpu_s(server.pid)
        time.sleep(seconds)
        wall_s = time.perf_counter() - since
        server_share = (tree_cpu_s(server.pid) - server_before) / wall_s
        cpu_by_kind = cpu_shares(before, cpu_times(process.pid), wall_s)
        memory: dict[str, int] = {}
        tree = (process.pid, *descendants(process.pid))
        for pid in tree:
            kind = process_kind(pid, process.pid)
            memory[kind] = memory.get(kind, 0) + proportional_bytes(pid)
        probes = sorted(_probes(server, scratch / "warehouse", pipes // 2))
    return IdleCost(
        pipes,
        pipes * TABLES,
        start_s,
        sum(cpu_by_kind.values()),
        sum(memory.values()),
        len(tree),
        memory,
        cpu_by_kind,
        server_share,
        probes[len(probes) // 2],
        probes[-1],
    )


@contextmanager
def _running(server: PrivateServer, scratch: Path, pipes: int) -> Iterator[subprocess.Popen[bytes]]:
    file, log = scratch / "headrace.toml", scratch / "run.log"
    parts = [f'[headrace]\nstate = "state"\nlisten = "127.0.0.1:{find_free_port()}"\n', '[sinks.warehouse]\nurl = "chdb:warehouse"\n']
    for pipe in range(pipes):
        parts.append(f'[sources.s{pipe:02}]\nurl = "mysql://{USER}:${{BENCH_PASSWORD}}@127.0.0.1:{server.port}/idle_{pipe:02}"\n')
        parts.append(f'[pipes.p{pipe:02}]\nsource = "s{pipe:02}"\nsink = "warehouse"\n')
    file.write_text("\n".join(parts))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", str(file)],
            cwd=scratch,
            env={**os.environ, **python_environment(), "BENCH_PASSWORD": PASSWORD},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code != 128 + signal.SIGTERM:
        raise DefiniteError(f"`headrace run` ended with {code}:\n{log.read_text()[-2000:]}", place=str(file))


def _await_streaming(process: subprocess.Popen[bytes], scratch: Path, pipes: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    stages: list[str] = []
    while time.monotonic() < deadline and process.poll() is None:
        stages = [str(pipe["stage"]) for pipe in _status(scratch)]
        if len(stages) == pipes and all(stage == "streaming" for stage in stages):
            return
        time.sleep(0.5)
    log = (scratch / "run.log").read_text(errors="replace")[-2000:]
    raise TransientError(f"not all of {pipes} pipes streamed within {START_TIMEOUT_S:.0f} s: {sorted(stages)}\n{log}", place=str(scratch))


def _status(scratch: Path) -> list[dict[str, Any]]:
    """Return the status of the pipes, or nothing while the process does not respond."""
    try:
        known = json.loads((scratch / "state" / "control.json").read_text())
        with urllib.request.urlopen(f"{known['url'].rstrip('/')}/api/status", timeout=10) as answer:
            return list(json.load(answer)["pipes"])
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return []


def _probes(server: PrivateServer, warehouse: Path, pipe: int) -> Iterator[float]:
    """Yield the latencies, commit to visible, of single rows."""
    holder = read_serving_process(warehouse)
    assert holder is not None
    client = connect_sink(ClickHouseTarget(holder.host, holder.port, password=read_account(warehouse).password)).client
    table = f"idle_{pipe:02}.t3"
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        for number in range(1000, 1000 + PROBES):
            since = time.perf_counter()
            cursor.execute(f"INSERT INTO {table} VALUES ({number}, 'probe', 0, NULL, NOW(6))")
            while not int(str(client.command(f"SELECT count() FROM {table} WHERE id = {number}"))):
                if time.perf_counter() - since > PROBE_TIMEOUT_S:
                    raise TransientError(f"a row was not visible after {PROBE_TIMEOUT_S:.0f} s", place=table)
                time.sleep(0.01)
            yield time.perf_counter() - since
            time.sleep(1.0)
