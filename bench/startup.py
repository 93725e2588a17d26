"""How long `headrace replicate` takes to start: a new pipe, after a stop, and after `kill -9`; and the CPU time of short commands.

A private MariaDB has the demo's shop; the sink is an embedded ClickHouse. A start is measured from the command to the first row that a
query sees. Before a restart one row is committed, and the start ends when a query sees that row. Each line of output gets the time of its
arrival: a user would take the longest silence for a hang.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from clickhouse_connect.driver.exceptions import Error as ClickHouseError
from rich.console import Console
from rich.table import Table

from bench.contender_run import python_environment
from bench.process_accounting import tree_cpu_s
from bench.verdicts import Verdict, below
from headrace.demo.private_process import find_free_port
from headrace.demo.private_server import PrivateServer, mariadb
from headrace.demo.shop import DATABASE, create_shop
from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.errors import HeadraceError, TransientError
from headrace.sinks.clickhouse.server.client import connect as connect_sink
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

CUSTOMERS, ORDERS = 200, 500
REPEATS = 3
PATIENCE_S, STOP_PATIENCE_S, POLL_S = 180.0, 60.0, 0.05
FIRST_ROW_S, RESTART_S, SILENCE_S = 4.0, 5.0, 2.0
COMMAND_CPU_S = {"sql": 0.5, "status": 0.3, "check": 0.7}
NEW, RESTART, KILLED = "new pipe", "after a stop", "after kill -9"
_SOURCE_PASSWORD = "HEADRACE_SOURCE_PASSWORD"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Start:
    """One start of `headrace replicate`."""

    visible_s: float
    """From the command to the first answer with the row."""
    cpu_s: float
    """Of all processes of the command until then."""
    silence_s: float
    """The longest time without a line of output until then."""
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class StartUp:
    """Median starts, and the CPU seconds of short commands."""

    starts: Mapping[str, Start]
    command_cpu_s: Mapping[str, float]

    def table(self) -> Table:
        table = Table(title=f"Start of `headrace replicate` (a shop of {CUSTOMERS} customers, {ORDERS} orders; median of {REPEATS})")
        for heading in ("start", "row visible s", "CPU s until then", "longest silence s"):
            table.add_column(heading, justify="right")
        for name, start in self.starts.items():
            table.add_row(name, f"{start.visible_s:.1f}", f"{start.cpu_s:.1f}", f"{start.silence_s:.1f}")
        return table

    def commands_table(self) -> Table:
        table = Table(title="CPU seconds of short commands")
        for command in self.command_cpu_s:
            table.add_column(f"headrace {command}", justify="right")
        table.add_row(*(f"{cpu_s:.2f}" for cpu_s in self.command_cpu_s.values()))
        return table

    def verdicts(self) -> Iterator[Verdict]:
        for name, wanted in ((NEW, FIRST_ROW_S), (RESTART, RESTART_S), (KILLED, RESTART_S)):
            yield below(f"start, {name}: row visible, in s", self.starts[name].visible_s, wanted)
        yield below("start: longest silence, in s", max(start.silence_s for start in self.starts.values()), SILENCE_S)
        for command, wanted in COMMAND_CPU_S.items():
            yield below(f"headrace {command}, in CPU s", self.command_cpu_s[command], wanted)


def measure_startup(console: Console) -> StartUp:
    """Start, restart and kill a pipe, each time on a new state and sink; then run the short commands."""
    console.print(f"startup: {REPEATS} x new pipe, restart, restart after kill -9; short commands", highlight=False)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, mariadb(Path(directory) / "mariadb") as server:
        with closing(server.root_connection()) as connection:
            create_shop(connection, CUSTOMERS, ORDERS)
        rounds = [_measure_round(server, Path(directory) / f"round-{number}") for number in range(REPEATS)]
        commands = _measure_commands(server, Path(directory) / "round-0")
    return StartUp({name: _median([found[name] for found in rounds]) for name in rounds[0]}, commands)


def _median(starts: Sequence[Start]) -> Start:
    return sorted(starts, key=lambda start: start.visible_s)[len(starts) // 2]


def _measure_round(server: PrivateServer, home: Path) -> dict[str, Start]:
    home.mkdir()
    found = {}
    with _pipe(server, home, signal.SIGTERM) as pipe:
        found[NEW] = pipe.await_rows("count() > 0")
        pipe.settle()
    for name, end in ((RESTART, signal.SIGKILL), (KILLED, signal.SIGTERM)):
        email = _commit_change(server)
        with _pipe(server, home, end) as pipe:
            found[name] = pipe.await_rows(f"countIf(email = '{email}') > 0")
            pipe.settle()
    return found


def _commit_change(server: PrivateServer) -> str:
    email = f"at {time.time_ns()}"
    with closing(server.root_connection()) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {DATABASE}.customers SET email = %s WHERE id = 1", (email,))
    return email


class _Pipe:
    """A running `headrace replicate`; each line of its output gets the time of its arrival."""

    def __init__(self, process: subprocess.Popen[bytes], begun: float, warehouse: Path) -> None:
        self.process, self._begun, self._warehouse = process, begun, warehouse
        assert process.stderr is not None
        self._output = process.stderr
        os.set_blocking(self._output.fileno(), False)
        self._lines: list[Line] = []
        self._rest = b""
        self._ask: Callable[[str], bool] | None = None

    def await_rows(self, condition: str) -> Start:
        """Read output until a query about the customers is true."""
        deadline = self._begun + PATIENCE_S
        while time.perf_counter() < deadline and self.process.poll() is None:
            self._read_output()
            if self._is_true(condition):
                visible_s = time.perf_counter() - self._begun
                self._read_output()
                moments = [0.0, *(line.at_s for line in self._lines if line.at_s < visible_s), visible_s]
                silence_s = max(later - earlier for earlier, later in pairwise(moments))
                return Start(visible_s, tree_cpu_s(self.process.pid), silence_s, tuple(self._lines))
        said = "\n".join(line.text for line in self._lines)
        raise TransientError(
            f"the row was not visible after {PATIENCE_S:.0f} s of `headrace replicate`:\n{said}", place=str(self._warehouse)
        )

    def settle(self, seconds: float = 3.0) -> None:
        """Let the pipe continue, so that it is stopped or killed while it streams."""
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            self._read_output()

    def _read_output(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.select(POLL_S)
        self._rest += self._output.read() or b""
        *whole, self._rest = self._rest.split(b"\n")
        now_s = time.perf_counter() - self._begun
        self._lines += [Line(now_s, line.decode(errors="replace")) for line in whole]

    def _is_true(self, condition: str) -> bool:
        if self._ask is None:
            holder = read_serving_process(self._warehouse) if self._warehouse.exists() else None
            if holder is None or not holder.port or not holder.pid or not Path(f"/proc/{holder.pid}").exists():
                return False
            account = read_account(self._warehouse)
            target = ClickHouseTarget(holder.host, holder.port, account.user, account.password)
            try:
                client = connect_sink(target).client
            except (HeadraceError, OSError, ClickHouseError):
                # The server is starting, or it is the stopping server of the previous run.
                return False

            def ask(condition: str) -> bool:
                table = f"{DATABASE}.customers"
                return bool(int(str(client.command(f"EXISTS TABLE {table}")))) and bool(
                    int(str(client.command(f"SELECT {condition} FROM {table} FINAL")))
                )

            self._ask = ask
        try:
            return self._ask(condition)
        except (HeadraceError, OSError, ClickHouseError):
            self._ask = None
            return False


@contextmanager
def _pipe(server: PrivateServer, home: Path, end: signal.Signals) -> Iterator[_Pipe]:
    """Run `headrace replicate`; at the end send it this signal and wait for its processes."""
    source = f"mysql://{server.user}@127.0.0.1:{server.port}/{DATABASE}"
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "replicate", source, f"chdb:{home / 'warehouse'}", "--state", str(home / "state")],
        env={**os.environ, **python_environment(), _SOURCE_PASSWORD: server.password},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield _Pipe(process, begun, home / "warehouse")
    finally:
        process.send_signal(end)
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _measure_commands(server: PrivateServer, home: Path) -> dict[str, float]:
    source = f"mysql://{server.user}@127.0.0.1:{server.port}/{DATABASE}"
    warehouse, file = f"chdb:{home / 'warehouse'}", home / "headrace.toml"
    file.write_text(
        f'[headrace]\nstate = "run-state"\nlisten = "127.0.0.1:{find_free_port()}"\n[sources.shop]\nurl = "{source}"\n'
        f'[sinks.lake]\nurl = "chdb:{home / "lake"}"\n[pipes.shop]\nsource = "shop"\nsink = "lake"\n'
    )
    with _served(server, home, ["serve", str(home / "warehouse"), "--port", "0"]), _served(server, home, ["run", str(file)]):
        deadline = time.monotonic() + PATIENCE_S
        status = ["status", str(file)]
        while _cpu_s(server, status)[0] or _cpu_s(server, ["sql", warehouse, "SELECT 1"])[0]:
            if time.monotonic() > deadline:
                raise TransientError("the servers of the short commands did not start", place=str(home))
            time.sleep(0.5)
        # Wait for the start of the pipe's Spark session.
        time.sleep(20)
        commands = {"sql": ["sql", warehouse, f"SELECT count() FROM {DATABASE}.orders FINAL"], "status": status, "check": ["check", source]}
        return {name: sorted(_cpu_s(server, argv)[1] for _ in range(5))[2] for name, argv in commands.items()}


@contextmanager
def _served(server: PrivateServer, home: Path, argv: Sequence[str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *argv],
        cwd=home,
        env={**os.environ, **python_environment(), _SOURCE_PASSWORD: server.password},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(STOP_PATIENCE_S)


def _cpu_s(server: PrivateServer, argv: Sequence[str]) -> tuple[int, float]:
    """Run a command; return its exit code and its CPU seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *argv],
        env={**os.environ, **python_environment(), _SOURCE_PASSWORD: server.password},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime
