"""A pipe that is driven batch by batch in the test's own process: all of the driver, the reader and the sink, without Spark.

A loop does what Spark does (plan, run tasks, commit), with the files of its checkpoint, so that a test can crash between any two steps of
the driver: an exception leaves the files as a killed process would, and another `DrivenPipe` continues from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import LogView
from headrace.pipes.mysql.pipe import MySQLPipe
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import pending_requests
from headrace.settings.pipe_settings import PipeSettings
from headrace.settings.schema_policy import SchemaPolicy
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.server.url import parse_target
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.base import Split
from headrace.sources.mysql.limits import CHUNK_ROWS, BatchLimits
from headrace.sources.mysql.preflight.required import check_server
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.split_reader import BinlogPlanner
from testkit.oracles.binlogs import Logbook, Place
from testkit.oracles.planned import PlannedLog
from testkit.pipelines.local_runtime import SequentialSession, run_each


class Crash(BaseException):
    """The process ends here; nothing catches it."""


class DrivenPipe:
    """One run of a pipe over a logbook's database."""

    def __init__(
        self,
        book: Logbook,
        sink_url: str,
        state: Path,
        policy: Sequence[str] = (),
        choices: ClickHouseOptions | None = None,
        exclude: tuple[str, ...] = (),
        sink_name: str = "sink",
        settings: dict[str, Any] | None = None,
        chunk_rows: int = CHUNK_ROWS,
        **others: Any,
    ) -> None:
        """`settings`: entries of a settings file. `others`: further fields of `PipeSettings`."""
        self.book = book
        selection = others.pop("selection", None) or Selection((f"{book.database}.*",), exclude)
        policies = SchemaPolicy.from_dict(dict(pair.split("=", 1) for pair in policy))
        more = settings or {}
        chosen = PipeSettings(selection, state, schema_changes=policies, name=book.database, choices=more, chunk_rows=chunk_rows, **others)
        sink = ClickHouseSink(parse_target(sink_url), choices or ClickHouseOptions())
        self.directory = StateDirectory(state)
        self._pipe = MySQLPipe(book.address, sink, sink_name, chosen, LogView())

    def open(self, meanwhile: Callable[[], object] = lambda: None) -> DrivenPipe:
        """Do what a run does before its stream begins, snapshots included. `meanwhile` runs after they are planned."""
        pipe = self._pipe
        resumed = pipe._resume(self.directory)
        with closing(connect(self.book.address)) as connection:
            opened = pipe._startup(self.directory, connection).open(check_server(connection, self.book.address), resumed)
            self.parts = pipe._assemble(self.directory, opened)
            self.parts.cascades.find({name: table.schema for name, table in opened.state.tables.items()}, self.parts.stream.reached)
            if opened.is_new:
                self.parts.snapshots.prepare()
            self.directory.save(opened.state)
            self.parts.resyncs.plan_pending(nullcontext)
            self.parts.snapshots.plan(connection)
        self.parts.stream.reporter.begin(self.parts.stream.reached, is_new=opened.is_new)
        meanwhile()
        self._copy()
        return self

    @property
    def state(self) -> Any:
        return self.parts.stream.context.state

    @property
    def sink(self) -> ClickHouseSink:
        return self.parts.stream.context.targets.sink

    def catch_up(self) -> None:
        """Read the log to its end, and all tables that must be read again."""
        self._stream()
        while any(pending_requests(self.directory)):
            self.parts.resyncs.plan_pending(nullcontext)
            self._copy()
            self._stream()

    def _stream(self) -> None:
        streaming = self.parts.stream
        start = streaming.reached
        log = PlannedLog(self.book, Place(start.file, start.offset), gtid=start.gtid)
        positions = log.positions()
        planner = BinlogPlanner(log.mirror, positions[0], BatchLimits(), lambda: None, mariadb=self.book.server.flavour == "mariadb")
        log.mirror.start = lambda _: None  # type: ignore[method-assign]
        for begin, end in pairwise(positions):
            self._batch(planner.splits(begin.to_json(), end.to_json()), end)

    def _batch(self, splits: list[Split], end: BinlogPosition) -> None:
        checkpoint = self.directory.checkpoint
        number = max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1) + 1
        _write(checkpoint / "offsets" / str(number), f"v1\n{{}}\n{json.dumps(end.to_json())}")
        task = self.parts.stream._task()
        reports = run_each(task, splits)
        self.parts.stream._on_batch(reports)
        self._commit(number)

    def _commit(self, number: int) -> None:
        _write(self.directory.checkpoint / "commits" / str(number), "v1\n{}")

    def _copy(self) -> None:
        self.parts.snapshots.run(SequentialSession(), 1)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@contextmanager
def crash_at(targets: Sequence[tuple[Any, str]], nth: int, *, after: bool) -> Iterator[list[int]]:
    """Crash before or after the `nth` call (from 0) of any of the methods (class, name); return the number of calls."""
    calls = [0]

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            mine, calls[0] = calls[0], calls[0] + 1
            if mine == nth and not after:
                raise Crash
            result = real(*arguments, **named)
            if mine == nth:
                raise Crash
            return result

        return call

    with ExitStack() as patches:
        for owner, name in targets:
            patches.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
        yield calls
