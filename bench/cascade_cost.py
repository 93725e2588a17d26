"""The cost of foreign-key cascades: one log in which cascades delete 10 % of the child rows, replicated with and without applying them.

Both pipes run in this process, one at a time, each into its own embedded engine. The best of several rounds counts. The pipe that ignores
cascades writes the same changes and retains the child rows, so the ratio is the cost of the cascades alone. The server is MariaDB, because
MySQL logs cascaded deletes itself.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.verdicts import Verdict
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.model.setting_values import CascadeMode
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.driven_pipe import DrivenPipe
from testkit.pipelines.embedded_access import url_of
from testkit.servers.servers import build

DATABASE, ROUNDS, CHILDREN_PER_PARENT, STATEMENT_ROWS = "bench", 3, 10, 1_000
MOST = 1.3


@dataclass(frozen=True, slots=True)
class CascadeCost:
    """The best time of each mode."""

    changes: int
    deleted: int
    """Child rows that cascades delete in each round."""
    ignored_s: float
    applied_s: float

    @property
    def ratio(self) -> float:
        return self.applied_s / self.ignored_s

    def table(self) -> Table:
        found = Table(title=f"Foreign-key cascades: {self.changes:,} logged changes, {self.deleted:,} child rows deleted by cascades")
        for heading in ("ignored, s", "applied, s", "times"):
            found.add_column(heading, justify="right")
        found.add_row(f"{self.ignored_s:.2f}", f"{self.applied_s:.2f}", f"{self.ratio:.2f}")
        return found

    def verdicts(self) -> list[Verdict]:
        return [Verdict(self.ratio <= MOST, f"10 % cascading deletes, times the run without: {self.ratio:.2f}, wanted at most {MOST}")]


def measure_cascades(changes: int, console: Console) -> CascadeCost:
    """Replicate the same changes in both modes."""
    console.print(f"cascades: {changes:,} changes on mariadb", highlight=False)
    times: dict[CascadeMode, list[float]] = {CascadeMode.IGNORE: [], CascadeMode.APPLY: []}
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
        engines = {mode: stack.enter_context(EmbeddedServer(Path(directory) / mode.value)) for mode in times}
        pipes = {mode: _pipe(book, engine, Path(directory) / f"state-{mode}", mode) for mode, engine in engines.items()}
        deleted = written = 0
        for number in range(ROUNDS):
            written, deleted = _change(book, number, changes)
            for mode, pipe in pipes.items():
                begun = time.perf_counter()
                pipe.catch_up()
                times[mode].append(time.perf_counter() - begun)
        [[left]] = book.fetch("SELECT count(*) FROM c")
        with sink_client(engines[CascadeMode.APPLY].url, engines[CascadeMode.APPLY].password) as client:
            shown = client.query(f"SELECT count() FROM {DATABASE}.c FINAL").result_rows[0][0]
        if int(left) != shown:
            raise DefiniteError(f"the sink has {shown} child rows, and the source {left}", hint="please report it")
    return CascadeCost(written, deleted, min(times[CascadeMode.IGNORE]), min(times[CascadeMode.APPLY]))


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
