"""The cost of foreign-key cascades: one log in which cascades delete 10 % of the child rows, replicated with and without applying them.

The pipe that ignores cascades writes the same changes and retains the child rows, so the ratio is the cost of the cascades alone. The
server is MariaDB, because MySQL logs cascaded deletes itself. Two measurements, of which the best of several rounds counts:

- End to end, as for the reference workload: all processes of `headrace replicate`, from the end of the first batch of the log.
- Without Spark: both pipes run in this process, each into its own embedded engine, and each round is one batch. Nothing else takes time
  there, so its ratio is an upper bound.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.contender_run import run_once
from bench.contenders import CASCADE_MODES, load_contender
from bench.target import DATABASE, LogFile, Target
from bench.verdicts import Verdict
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.setting_values import CascadeMode
from testkit.oracles.binlogs import Logbook, Place, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.servers.servers import build

ROUNDS, CHILDREN_PER_PARENT, STATEMENT_ROWS = 3, 10, 1_000
MOST = 1.3


@dataclass(frozen=True, slots=True)
class ModeTimes:
    """The best time of each mode."""

    ignored_s: float
    applied_s: float

    @property
    def ratio(self) -> float:
        return self.applied_s / self.ignored_s


@dataclass(frozen=True, slots=True)
class CascadeCost:
    changes: int
    deleted: int
    """Child rows that cascades delete, among this number of logged changes."""
    end_to_end: ModeTimes
    without_spark: ModeTimes

    def table(self) -> Table:
        found = Table(title=f"Foreign-key cascades: {self.changes:,} logged changes, {self.deleted:,} child rows deleted by cascades")
        found.add_column("measured")
        for heading in ("ignored, s", "applied, s", "times"):
            found.add_column(heading, justify="right")
        for name, one in (("end to end", self.end_to_end), ("without Spark", self.without_spark)):
            found.add_row(name, f"{one.ignored_s:.2f}", f"{one.applied_s:.2f}", f"{one.ratio:.2f}")
        return found

    def verdicts(self) -> list[Verdict]:
        ratio = self.end_to_end.ratio
        return [Verdict(ratio <= MOST, f"10 % cascading deletes, times the run without: {ratio:.2f}, wanted at most {MOST}")]


def measure_cascades(changes: int, console: Console) -> CascadeCost:
    """Replicate the same changes in both modes."""
    console.print(f"cascades: {ROUNDS} times {changes:,} changes on mariadb", highlight=False)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, ExitStack() as stack:
        server = build("mariadb", Path(directory) / "server")
        stack.callback(server.remove)
        server.start()
        with server.root_connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
        book = stack.enter_context(open_logbook(server, DATABASE))
        book.run(
            "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(20))",
            "CREATE TABLE c (id INT PRIMARY KEY, p INT, note VARCHAR(30), n INT, at DATETIME, "
            "FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        )
        start = book.place()
        without_spark, written, deleted = _run_here(book, changes, Path(directory))
        end_to_end = _run_processes(_target(server, book, start, written), console)
    return CascadeCost(written, deleted, end_to_end, without_spark)


def _run_here(book: Logbook, changes: int, directory: Path) -> tuple[ModeTimes, int, int]:
    """Make the changes of each round, and run both pipes over them. Return the best times, and the logged changes and deleted rows of all
    rounds."""
    times: dict[CascadeMode, list[float]] = {CascadeMode.IGNORE: [], CascadeMode.APPLY: []}
    written = deleted = 0
    with ExitStack() as stack:
        engines = {mode: stack.enter_context(EmbeddedServer(directory / mode.value)) for mode in times}
        pipes = {mode: _pipe(book, engine, directory / f"state-{mode}", mode) for mode, engine in engines.items()}
        for number in range(ROUNDS):
            logged, gone = _change(book, number, changes)
            written, deleted = written + logged, deleted + gone
            for mode, pipe in pipes.items():
                begun = time.perf_counter()
                pipe.catch_up()
                times[mode].append(time.perf_counter() - begun)
        [[left]] = book.fetch("SELECT count(*) FROM c")
        with sink_client(engines[CascadeMode.APPLY].url, engines[CascadeMode.APPLY].password) as client:
            shown = client.query(f"SELECT count() FROM {DATABASE}.c FINAL").result_rows[0][0]
        if int(left) != shown:
            raise DefiniteError(f"the sink has {shown} child rows, and the source {left}", hint="please report it")
    return _best(times), written, deleted


def _run_processes(target: Target, console: Console) -> ModeTimes:
    """Run both modes as processes of their own over the whole log."""
    times: dict[CascadeMode, list[float]] = {CascadeMode.IGNORE: [], CascadeMode.APPLY: []}
    for _ in range(ROUNDS):
        for mode, name in zip(times, CASCADE_MODES, strict=True):
            window = run_once(load_contender(name), target).window
            times[mode].append(window.wall_s)
            console.print(f"  {name}: {window.changes / window.wall_s:,.0f}/s", highlight=False)
    return _best(times)


def _best(times: Mapping[CascadeMode, list[float]]) -> ModeTimes:
    return ModeTimes(min(times[CascadeMode.IGNORE]), min(times[CascadeMode.APPLY]))


def _target(server: PrivateServer, book: Logbook, start: Place, changes: int) -> Target:
    assert server.pid is not None
    files = tuple(LogFile(row[0], int(row[1])) for row in book.fetch("SHOW BINARY LOGS"))
    rows = sum(int(book.fetch(f"SELECT count(*) FROM {table}")[0][0]) for table in ("p", "c"))
    return Target(
        flavour=server.flavour,
        version=server.program.version,
        port=server.port,
        pid=server.pid,
        changes=changes,
        rows=rows,
        files=files,
        start_file=start.file,
        start_position=start.offset,
        start_gtids="",
        middle_file=start.file,
        middle_position=start.offset,
        binlog_directory=str(server.binlog_dir),
        mysqlbinlog=server.program.mysqlbinlog,
        user=server.user,
        password=server.password,
    )


def _pipe(book: Logbook, engine: EmbeddedServer, state: Path, mode: CascadeMode) -> DrivenPipe:
    url = url_of(engine).replace(f"{engine.user}@", f"{engine.user}:{engine.password}@")
    return DrivenPipe(book, url, state, cascades=mode).open()


def _change(book: Logbook, number: int, changes: int) -> tuple[int, int]:
    """Insert parents and children, and delete every tenth parent. Return the logged changes, and the rows that cascades deleted."""
    parents = changes // (CHILDREN_PER_PARENT + 1)
    first, children = number * parents, parents * CHILDREN_PER_PARENT
    _insert(book, "p", [f"({first + n}, 'name {n}')" for n in range(parents)])
    child = [
        f"({first * CHILDREN_PER_PARENT + n}, {first + n % parents}, 'note of row {n}', {n}, '2024-01-02 03:04:05')"
        for n in range(children)
    ]
    _insert(book, "c", child)
    gone = parents // 10
    for start in range(first, first + gone, 10):
        book.run(f"DELETE FROM p WHERE id BETWEEN {start} AND {min(start + 9, first + gone - 1)}")
    return parents + children + gone, gone * CHILDREN_PER_PARENT


def _insert(book: Logbook, table: str, rows: list[str]) -> None:
    for start in range(0, len(rows), STATEMENT_ROWS):
        book.run(f"INSERT INTO {table} VALUES {', '.join(rows[start : start + STATEMENT_ROWS])}")
