"""Latency of a running pipe: a fresh private server, a `headrace replicate` in its own process tree, and the writer and observer of
`bench.latency`.

The server is not that of the workload, because writes must not lengthen the log that the contenders read. The pipe warms up on the same
traffic that is measured afterwards. Its start (session, first batch) is over before the first counted transaction.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
from clickhouse_connect.driver.client import Client

from bench.contender_run import python_environment
from bench.latency import DATABASE, SCHEMA, TABLE, Latency, Plan, measure_latency, whole_transactions_sql
from bench.process_accounting import descendants, proportional_bytes, tree_cpu_s
from bench.target import PASSWORD, USER
from headrace.demo.private_server import PrivateServer
from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import DefiniteError, TransientError
from headrace.sinks.clickhouse.server.client import connect as connect_sink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget
from headrace.sources.mysql.server.connection import PASSWORD_VARIABLE
from testkit.servers.servers import build

WARM_UP_S = 15.0
TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
POLL_S = 0.1
SHOWN_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class LiveResult:
    """The latency, and the resources that the pipe used."""

    latency: Latency
    warm_up_s: float
    first_row_s: float
    """Seconds from the start of the command until a row that existed before is visible in the sink."""
    cpu_per_s: float
    """CPU seconds per second of the pipe's processes, with the warm-up."""
    memory_bytes: int
    """Sum of the proportional set sizes of the pipe's processes after the writer ended."""


def measure_live_pipe(flavour: str, *, seconds: float) -> LiveResult:
    plan = Plan(warm_up_s=WARM_UP_S, seconds=seconds)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, build(flavour, Path(directory) / "server") as server:
        _prepare(server)
        scratch = Path(directory) / "pipe"
        scratch.mkdir()
        started = time.perf_counter()
        with running_pipe(server, scratch, DATABASE) as pipe:
            ask = _TransactionQuery(scratch / "clickhouse")
            ask.await_rows(pipe, 1)
            first_row_s = time.perf_counter() - started
            # The snapshot copied the first row. A row from the stream proves that the pipe streams.
            _insert_probe(server, 2)
            ask.await_rows(pipe, 2)
            cpu_before, since = tree_cpu_s(pipe.pid), time.perf_counter()
            with pymysql.connect(host="127.0.0.1", port=server.port, user=USER, password=PASSWORD) as writer:
                latency = measure_latency(plan, writer, ask)
            cpu_per_s = (tree_cpu_s(pipe.pid) - cpu_before) / (time.perf_counter() - since)
            memory = sum(proportional_bytes(pid) for pid in (pipe.pid, *descendants(pipe.pid)))
    return LiveResult(latency, WARM_UP_S, first_row_s, cpu_per_s, memory)


def _prepare(server: PrivateServer) -> None:
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in (
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON *.* TO '{USER}'@'%'",
            *SCHEMA,
        ):
            cursor.execute(statement)
    _insert_probe(server, 1)


def _insert_probe(server: PrivateServer, number: int) -> None:
    """Insert a row with a key that the writer never uses."""
    with server.root_connection(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {DATABASE}.{TABLE} VALUES ({-number}, {-number}, 0, 'probe', NOW(6))")


@contextmanager
def running_pipe(server: PrivateServer, scratch: Path, database: str, flags: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Replicate a database into an embedded ClickHouse in `scratch / "clickhouse"`."""
    log = scratch / "replicate.log"
    command = [sys.executable, "-m", "headrace", "replicate", f"mysql://{USER}@127.0.0.1:{server.port}/{database}", "chdb:clickhouse"]
    with log.open("wb") as errors:
        pipe = subprocess.Popen(
            [*command, "--state", "state", *flags],
            cwd=scratch,
            env={**os.environ, **python_environment(), PASSWORD_VARIABLE: PASSWORD},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield pipe
    finally:
        pipe.send_signal(signal.SIGTERM)
        try:
            code = pipe.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pipe.kill()
            code = pipe.wait()
    if code != 128 + signal.SIGTERM:
        raise DefiniteError(f"`headrace replicate` ended with {code}:\n{log.read_text()[-SHOWN_BYTES:]}", place=f"port {server.port}")


class _TransactionQuery:
    """Queries the pipe's embedded server for the transactions that are completely visible."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._client: Client | None = None

    def __call__(self, first_tx: int) -> Iterable[int]:
        rows = self._connected().query(whole_transactions_sql(first_tx)).result_columns
        return [int(tx) for tx in rows[0]] if rows else []

    def await_rows(self, pipe: subprocess.Popen[bytes], rows: int) -> None:
        """Wait until this many rows are visible."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline and pipe.poll() is None:
            if self._count() >= rows:
                return
            time.sleep(POLL_S)
        raise TransientError(
            f"fewer than {rows} rows were visible after {TIMEOUT_S:.0f} s of `headrace replicate`", place=f"{DATABASE}.{TABLE}"
        )

    def _count(self) -> int:
        holder = read_serving_process(self._directory) if self._directory.exists() else None
        if holder is None or not holder.port:
            return 0
        client = self._connected()
        if not int(str(client.command(f"EXISTS TABLE {DATABASE}.{TABLE}"))):
            return 0
        return int(str(client.command(f"SELECT count() FROM {DATABASE}.{TABLE}")))

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect_embedded(self._directory)
        return self._client


def connect_embedded(directory: Path) -> Client:
    """Connect to the running server of an embedded ClickHouse."""
    holder = read_serving_process(directory)
    assert holder is not None
    account = read_account(directory)
    return connect_sink(ClickHouseTarget(holder.host, holder.port, account.user, account.password)).client
