"""Tables that are created, dropped, renamed, emptied and altered at random while a pipe reads them, reads them again, and crashes.

One seed decides everything: the statements at the source, how far the stream reads in between, which tables are read again, where the
process ends. At the end both ends are compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from pymysql.err import MySQLError

from headrace.model.change_block import ChangeBlock
from headrace.pipes.lifecycle.schema_change_intents import IntentExecutor
from headrace.pipes.state.pipe_state import SnapshotLog, StateDirectory
from headrace.pipes.state.resync_requests import pending_requests, request_resync
from headrace.sinks.clickhouse.schema_changes.applier import ClickHouseSchemaApplier
from headrace.sources.mysql.limits import BatchLimits
from headrace.sources.mysql.snapshot.lock_free_snapshot import read_chunk_at
from headrace.sources.mysql.split_reader import BinlogPlanner
from testkit.oracles.binlogs import Logbook, Place
from testkit.oracles.planned import PlannedLog
from testkit.pipelines.driven_pipe import Crash, DrivenPipe, crash_at
from testkit.pipelines.local_runtime import SequentialSession

NAMES = ("a", "b", "c")
_SHAPES = (
    "(id INT PRIMARY KEY, v INT, s VARCHAR(9))",
    "(id INT PRIMARY KEY, v INT NOT NULL)",
    "(k INT, id INT, s VARCHAR(9), PRIMARY KEY (k, id))",
)
_CLAUSES = (
    "ADD COLUMN x{n} INT DEFAULT 7",
    "ADD COLUMN y{n} VARCHAR(9) FIRST",
    "DROP COLUMN {last}",
    "MODIFY {last} BIGINT",
    "MODIFY {last} VARCHAR(20)",
    "CHANGE {last} z{n} INT",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, {last})",
    "COMMENT 'other'",
)
_POINTS = (
    (ClickHouseSchemaApplier, "run_step"),
    (ClickHouseSchemaApplier, "record"),
    (StateDirectory, "save"),
    (IntentExecutor, "record_done"),
    (DrivenPipe, "_commit"),
    (SnapshotLog, "_append"),
)


class Explorer:
    """One pipe and its source, by one seed."""

    def __init__(self, book: Logbook, sink_url: str, state: Path, seed: int, policy: Sequence[str] = (), *, inside: bool = False) -> None:
        """`inside`: statements also run between the position of a chunk and its SELECT."""
        self.book, self.state = book, state
        self.actions: list[str] = []
        """What happened, in order."""
        self._calm = False
        self._random = random.Random(seed)
        self._make = lambda: SteeredPipe(
            book, sink_url, state, policy, chunk_rows=3, between=self._between, inside=self._inside if inside else lambda: None
        )

    def run(self, steps: int) -> None:
        for name in NAMES:
            self._do(f"CREATE TABLE {name} {self._random.choice(_SHAPES)}")
            self._do(*self._write([name]))
        self._open()
        for _ in range(steps):
            self._step()
        self._say("the end")
        self._calm = True
        self._pipe.catch_up()

    def _step(self) -> None:
        chosen = self._random.choices(
            (self._statement, self._some, self._ask, self._catch_up, self._open, self._crash), (10, 3, 1.5, 1.5, 0.5, 1.5)
        )[0]
        chosen()

    def _some(self) -> None:
        batches = self._random.randint(1, 3)
        self._say(f"stream {batches}")
        self._pipe.stream_some(batches)

    def _catch_up(self) -> None:
        self._say("catch up")
        self._pipe.catch_up()

    def _ask(self) -> None:
        name = self._random.choice((*NAMES, "*"))
        self._say(f"resync {name}")
        request_resync(self._pipe.directory, (f"{self.book.database}.{name}",))

    def _open(self) -> None:
        self._say("start")
        self._pipe = self._make()
        self._pipe.open(self._between)

    def _crash(self) -> None:
        nth, after = self._random.randint(0, 8), self._random.random() < 0.5
        self._say(f"crash {nth} {after}")
        try:
            with crash_at(_POINTS, nth, after=after):
                if self._random.random() < 0.5:
                    self._pipe = self._make()
                    self._pipe.open(self._between)
                self._pipe.catch_up()
        except Crash:
            self._say("crashed")
            self._open()

    def _between(self) -> None:
        """Run statements while a table is read."""
        if self._calm:
            return
        for _ in range(self._random.choice((0, 0, 1, 2))):
            self._statement()
        if self._random.random() < 0.2:
            self._ask()
        if self._random.random() < 0.4:
            batches = self._random.randint(1, 4)
            if self._pipe.is_paused:
                self._say(f"-- stream {batches} during the snapshot: the stream is paused")
            else:
                self._say(f"stream {batches} during the snapshot")
                self._pipe.stream_some(batches)

    def _inside(self) -> None:
        """Run statements after the position of a chunk is noted, and before its SELECT."""
        if self._random.random() < 0.3:
            self._say("inside a chunk:")
            self._between()

    def _say(self, what: str) -> None:
        self.actions.append(what)

    # -- the source

    def _statement(self) -> None:
        there = sorted(name for (name,) in self.book.fetch("SHOW TABLES"))
        made = self._random.choices(
            (self._create, self._drop, self._truncate, self._rename, self._swap, self._alter, self._write), (3, 1.5, 1, 1.5, 1.5, 2, 6)
        )[0](there)
        self._do(*made)

    def _do(self, *statements: str) -> None:
        for statement in statements:
            try:
                self.book.run(statement)
                self._say(statement)
            except MySQLError as error:
                self._say(f"-- {statement}: {error}")

    def _create(self, there: list[str]) -> list[str]:
        absent = [name for name in NAMES if name not in there]
        if not absent:
            return self._write(there)
        name = self._random.choice(absent)
        if there and self._random.random() < 0.3:
            like = self._random.choice(there)
            return [self._random.choice((f"CREATE TABLE {name} LIKE {like}", f"CREATE TABLE {name} AS SELECT * FROM {like}"))]
        return [f"CREATE TABLE {name} {self._random.choice(_SHAPES)}"]

    def _drop(self, there: list[str]) -> list[str]:
        if not there:
            return self._create(there)
        return [f"DROP TABLE {', '.join(self._random.sample(there, self._random.choice((1, 1, min(2, len(there))))))}"]

    def _truncate(self, there: list[str]) -> list[str]:
        return [f"TRUNCATE TABLE {self._random.choice(there)}"] if there else []

    def _rename(self, there: list[str]) -> list[str]:
        absent = [name for name in NAMES if name not in there]
        if not there or not absent:
            return self._swap(there)
        old, new = self._random.choice(there), self._random.choice(absent)
        others = [name for name in there if name != old]
        if others and self._random.random() < 0.4:
            return [f"RENAME TABLE {old} TO {new}, {self._random.choice(others)} TO {old}"]
        return [self._random.choice((f"RENAME TABLE {old} TO {new}", f"ALTER TABLE {old} RENAME TO {new}, ADD COLUMN r{self._n()} INT"))]

    def _swap(self, there: list[str]) -> list[str]:
        if len(there) < 2:
            return self._write(there)
        one, two = self._random.sample(there, 2)
        return [f"RENAME TABLE {one} TO tmp, {two} TO {one}, tmp TO {two}"]

    def _alter(self, there: list[str]) -> list[str]:
        if not there:
            return []
        name = self._random.choice(there)
        last = self.book.fetch(f"SHOW COLUMNS FROM {name}")[-1][0]
        return [f"ALTER TABLE {name} {self._random.choice(_CLAUSES).format(n=self._n(), last=last)}"]

    def _n(self) -> int:
        return self._random.randint(0, 99)

    def _write(self, there: list[str]) -> list[str]:
        if not there:
            return []
        name = self._random.choice(there)
        columns = [row[0] for row in self.book.fetch(f"SHOW COLUMNS FROM {name}")]
        last = columns[-1]
        rows = ", ".join(f"({', '.join(str(self._random.randint(0, 12)) for _ in columns)})" for _ in range(self._random.randint(1, 6)))
        return [
            self._random.choice(
                (
                    f"REPLACE INTO {name} VALUES {rows}",
                    f"REPLACE INTO {name} VALUES {rows}",
                    f"UPDATE IGNORE {name} SET {last} = {self._n()} WHERE id % 3 = {self._random.randint(0, 2)}",
                    f"DELETE FROM {name} WHERE id % 4 = {self._random.randint(0, 3)}",
                )
            )
        ]


class SteeredPipe(DrivenPipe):
    """A pipe that runs statements before each chunk, and between its position and its SELECT (`inside`)."""

    def __init__(self, *arguments: Any, between: Callable[[], object], inside: Callable[[], object] = lambda: None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._between, self._inside = between, inside
        self.is_paused = False
        """Whether the snapshot has paused the stream: it reads a table whose engine counts rows."""

    def stream_some(self, batches: int) -> None:
        start = self.parts.stream.reached
        log = PlannedLog(self.book, Place(start.file, start.offset), gtid=start.gtid)
        positions = log.positions()
        planner = BinlogPlanner(log.mirror, positions[0], BatchLimits(), lambda: None, mariadb=self.book.server.flavour == "mariadb")
        log.mirror.start = lambda _: None  # type: ignore[method-assign]
        for begin, end in islice(pairwise(positions), batches):
            self._batch(planner.splits(begin.to_json(), end.to_json()), end)

    def catch_up(self) -> None:
        super().catch_up()
        assert not any(pending_requests(self.directory))

    def _copy(self) -> None:
        def read_at(*arguments: Any) -> Iterator[ChangeBlock]:
            self._inside()
            yield from read_chunk_at(*arguments)

        with (
            mock.patch("headrace.sources.mysql.snapshot.lock_free_snapshot.read_chunk_at", read_at),
            mock.patch("headrace.sources.mysql.split_reader.read_chunk_at", read_at),
        ):
            self.parts.snapshots.run(SequentialSession(self._between), 1, self._pause)

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before


def before_chunk(number: int, act: Callable[[], object]) -> Callable[[], None]:
    """Return a `between` of a driven pipe that runs the action once, before the chunk of this number (from 1) is read."""
    left = [number]

    def between() -> None:
        left[0] -= 1
        if left[0] == 0:
            act()

    return between
