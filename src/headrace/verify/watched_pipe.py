"""Finds the pipe that a comparison watches: the named one, or the only one that the sink knows for this source."""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import ZeroDates
from headrace.model.table_selection import Selection
from headrace.pipes.debezium.connector import DEBEZIUM
from headrace.pipes.state.pipe_registry import pipe_from
from headrace.pipes.state.pipe_state import PipeState, StateDirectory
from headrace.pipes.state.stored_settings import settings_in
from headrace.sinks.base import Progress
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import POSITIONS, ClickHouseProgressStore
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.transforms.options import Transforms
from headrace.verify.watermark import P, PipePosition, Watermark, pipe_position_of


@dataclass(frozen=True, slots=True)
class KnownPipe:
    """What is known about a pipe from its state directory or the sink."""

    directory: StateDirectory | None = None
    selection: Selection | None = None
    projection: Projection | None = None
    zero_dates: ZeroDates = ZeroDates.HALT
    choices: ClickHouseOptions = field(default_factory=ClickHouseOptions)
    name: str = ""
    """Its name in the sink; empty if unknown."""
    transforms: Transforms = field(default_factory=Transforms)

    def carried(self, given: Projection) -> Projection:
        """Return the columns to compare: the requested ones or else the pipe's, without columns that the pipe ignores."""
        if self.projection is None:
            return given
        return self.projection if given == Projection() else replace(given, hidden=self.projection.hidden)


def known_pipe(path: str) -> KnownPipe:
    """Return the pipe of a state directory; without one, nothing is known."""
    if not path:
        return KnownPipe()
    directory = StateDirectory(Path(path), make=False)
    state = directory.load()
    if state is None:
        raise DefiniteError("there is no pipe here", place=str(directory.path), hint="give the --state of a pipe that was started before")
    return _told_by(directory, state)


def pipe_in_sink(own: OwnTables, address: object, name: str) -> KnownPipe:
    """Return the pipe that the sink knows by name or for this source; its state is used if it is on this machine."""
    entry = pipe_from(own, str(address), name)
    if entry is None:
        return KnownPipe()
    directory = StateDirectory(Path(entry.state), make=False)
    if entry.is_here and (state := directory.load()) is not None:
        return replace(_told_by(directory, state), name=entry.name)
    zero_dates = ZeroDates(entry.options.get("zero_dates", ZeroDates.HALT))
    return KnownPipe(
        None,
        entry.tables if entry.selection else None,
        entry.projection,
        zero_dates,
        entry.chosen.sink,
        entry.name,
        entry.chosen.transforms,
    )


def _told_by(directory: StateDirectory, state: PipeState) -> KnownPipe:
    columns = state.options.get("columns", {})
    chosen, settings = Selection.from_json(state.selection), settings_in(state, str(directory.path / "pipe.json"))
    return KnownPipe(
        directory,
        replace(chosen, exclude=(*chosen.exclude, *(glob.escape(str(name)) for name in sorted(state.ignored)))),
        state.projection(Projection(tuple(columns.get("include", ())), tuple(columns.get("exclude", ())))),
        ZeroDates(state.options.get("zero_dates", ZeroDates.HALT)),
        settings.sink,
        transforms=settings.transforms,
    )


def find_watermark(
    sink: ClickHouseSink, address: MySQLAddress, pipe: str, known: KnownPipe, wait_s: float
) -> Watermark[BinlogPosition] | None:
    """Return the pipe to watch, by its name in the sink or its state, else the only one that reads this source; None if unknown."""
    return watch(sink.own_tables(), str(address), pipe, known, wait_s, pipe_position_of)


def watch(
    own: OwnTables, source: str, pipe: str, known: KnownPipe, wait_s: float, pipe_position: Callable[[Progress], PipePosition[P]]
) -> Watermark[P] | None:
    """Return the watched pipe for any kind of source position."""
    pipes = _pipes(own)
    if pipe and pipe not in pipes:
        known_ones = ", ".join(sorted(pipes)) or "none"
        raise DefiniteError(f"the sink knows no pipe {pipe!r}", place="headrace.positions", hint=f"pipes that it knows: {known_ones}")
    likely = known.name or (known.directory.path.name if known.directory is not None else "")
    if not pipe and likely in pipes:
        pipe = likely
    if not pipe:
        same = [name for name, other in pipes.items() if _server(other) == _server(source)]
        if len(same) != 1:
            return None
        [pipe] = same
    if DEBEZIUM.is_address(pipes[pipe]):
        # Its position consists of topic offsets, which do not relate to the source's log.
        return None

    def ask() -> PipePosition[P]:
        progress: Progress | None = ClickHouseProgressStore(own).progress(pipe)
        if progress is None:
            raise DefiniteError(f"the sink no longer knows the pipe {pipe!r}", place="headrace.positions")
        found = pipe_position(progress)
        # A lock tells at once that a pipe has stopped; its last heartbeat only after a while.
        return found if known.directory is None else replace(found, is_running=known.directory.is_owned)

    return Watermark(pipe, ask, wait_s)


def _pipes(own: OwnTables) -> dict[str, str]:
    return {str(name): str(source) for name, source in own.select(POSITIONS, ["pipe", "source"])} if own.exists(POSITIONS) else {}


def _server(source: str) -> str:
    parts = urlsplit(source)
    return f"{parts.netloc.rpartition('@')[2]}?{parts.query}"
