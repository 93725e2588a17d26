"""`headrace tail scylla://…`: prints the rows of ScyllaDB's log.

It uses a pipe's planner and reader in one process without Spark, and prints the documents of Kafka messages. Rows that are printed together
are sorted by time over all streams.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import orjson

from headrace.cql.address import CqlAddress
from headrace.cql.blocks import LogBlock
from headrace.cql.schema_reader import schema_version
from headrace.cql.session import CqlSession, shared_session
from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.scylla.start_position import NOW, OLDEST, StartPosition
from headrace.retry import WaitState, retrying, use_wait_state
from headrace.settings.settings_file import UserSettings, parse_set_flag
from headrace.shutdown import temporary_directory
from headrace.sinks.kafka.scylla.log_documents import log_documents
from headrace.sources.scylla.generations import ServerCatalog
from headrace.sources.scylla.log_tables import check_tables_readable, no_log, select_tables
from headrace.sources.scylla.position import LogPosition, moment
from headrace.sources.scylla.read_times import ReadTimeRecord, places_of, read_ages
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.sources.scylla.window_planner import WindowPlanner, WindowSplit, write_feedback
from headrace.sources.scylla.window_reader import LogReader, TableLog, WindowsRead

log = logging.getLogger("headrace")

CONFIDENCE_S: Final = 5.0
"""A tail should print soon, so rows that arrive later than this are not shown."""
_PATIENCE_S: Final = 30.0
_MOST_ROUNDS: Final = 3


def tail_choices(settings: Iterable[str]) -> ScyllaOptions:
    """Return the options for a tail: those of the settings (`scylla.confidence=1`), with a short delay by default."""
    chosen = UserSettings({})
    for text in settings:
        chosen = parse_set_flag(text).over(chosen)
    found = chosen.scylla
    # An audit is for operators of a pipe; a tail shows the rows themselves.
    found = replace(found, audit=0)
    return found if "confidence" in chosen.plain.get("scylla", {}) else replace(found, confidence=CONFIDENCE_S)


@dataclass(slots=True)
class Tail:
    """Tails the logs of some tables."""

    address: CqlAddress
    choices: ScyllaOptions
    selection: Selection
    oldest: bool = False
    """Whether to start at the oldest row; otherwise at the current time."""
    once: bool = False
    """Whether to stop at the current time."""
    _version: UUID | None = None
    """The cluster's schema version when the schemas were read."""

    def documents(self, stop: threading.Event) -> Iterator[bytes]:
        """Return a JSON document for each row of the log."""
        self.choices.check()
        with use_wait_state(WaitState(first_contact=True)):
            session = retrying(lambda: shared_session(self.address), deadline_s=_PATIENCE_S)
        catalog = ServerCatalog(session, self.choices)
        logs = self._logs(session)
        beginning = StartPosition(catalog, self.choices, OLDEST if self.oldest or self.once else NOW)
        found = retrying(lambda: check_tables_readable(session, logs, self.choices), deadline_s=_PATIENCE_S)
        starts = {name: beginning.of(one) for name, one in found.items()}
        ends = {name: catalog.now() for name in logs}
        read_times = {name: ReadTimeRecord() for name in logs}
        with temporary_directory("headrace-tail-") as scratch:
            pace = Path(scratch) / "pace.json"
            planner = WindowPlanner(catalog, starts, self.choices, 1, pace, wait=lambda seconds: _wait(stop, seconds))
            reached = planner.initial()
            while not stop.is_set() and not (self.once and LogPosition.from_json(reached).covers(ends)):
                end = planner.plan(reached)
                before, after = LogPosition.from_json(reached), LogPosition.from_json(end)
                now = catalog.now()
                for name, start in starts.items():
                    # No row is shown twice.
                    ages = read_ages(self.choices, start.ttl)
                    read_times[name].record_reads(ages, *places_of(name, start, self.choices, before, after), now)
                    read_times[name].drop_expired(start.ttl, now)
                    logs[name] = replace(logs[name], read_times=read_times[name].to_read_times(ages, start.place.time))
                rows: dict[str, int] = {}
                borderline: dict[tuple[TableName, int], Mapping[str, int]] = {}
                for split in planner.splits(reached, end) if end != reached else ():
                    result = yield from self._read(session, split, logs)
                    rows.update(result.rows)
                    borderline.update(result.borderline)
                for (name, read_number), places in borderline.items():
                    read_times[name].remember(read_number, places, *places_of(name, starts[name], self.choices, before, after))
                write_feedback(pace, after, rows)
                reached = end

    def _logs(self, session: CqlSession) -> dict[TableName, TableLog]:
        chosen = retrying(lambda: select_tables(session, self.selection), deadline_s=_PATIENCE_S)
        if not chosen.logged:
            if chosen.unlogged:
                raise no_log(chosen.unlogged[0], str(self.address))
            raise DefiniteError(f"no table matches {self.selection}", place=str(self.address), hint="check --tables and the keyspace")
        return self._known(session, chosen.logged)

    def _known(self, session: CqlSession, names: Iterable[TableName]) -> dict[TableName, TableLog]:
        wanted = tuple(names)
        self._version = retrying(lambda: schema_version(session), deadline_s=_PATIENCE_S)
        found = retrying(lambda: check_tables_readable(session, wanted, self.choices), deadline_s=_PATIENCE_S)
        return {name: TableLog(one.table, one.ttl) for name, one in found.items()}

    def _read(self, session: CqlSession, split: WindowSplit, logs: dict[TableName, TableLog]) -> Generator[bytes, None, WindowsRead]:
        """Yield a split's documents, read with the current schemas."""
        shown: set[bytes] = set()
        for _ in range(_MOST_ROUNDS):
            if retrying(lambda: schema_version(session)) != self._version:
                known = self._known(session, logs)
                logs.update({name: replace(one, read_times=logs[name].read_times) for name, one in known.items()})
            try:
                return (yield from self._once(split, logs, shown))
            except DefiniteError:
                # A dropped column or table makes a query fail; then the schema was outdated.
                if {name: one.table for name, one in self._known(session, logs).items()} == {name: one.table for name, one in logs.items()}:
                    raise
        return (yield from self._once(split, logs, shown))

    def _once(self, split: WindowSplit, logs: Mapping[TableName, TableLog], shown: set[bytes]) -> Generator[bytes, None, WindowsRead]:
        blocks = LogReader(self.address, logs, self.choices).read(split)
        while True:
            try:
                block = next(blocks)
            except StopIteration as end:
                result: WindowsRead = end.value
                return result
            assert isinstance(block, LogBlock)  # (no table was begun with a copy)
            made = log_documents(block).in_order()
            for place, document in zip(made.position.to_pylist(), made.value.to_pylist(), strict=True):
                if place not in shown:
                    shown.add(place)
                    yield document.encode()


def text_line(document: bytes) -> str:
    change: dict[str, Any] = orjson.loads(document)
    parts = [moment(change["timestamp"]), change["table"], change["operation"].upper().replace("_", " "), _json(change["key"])]
    parts += [
        f"{side}{' ' if change[side]['inclusive'] else ' but not '}{_json(change[side]['bound'])}"
        for side in ("from", "to")
        if side in change
    ]
    if "set" in change:
        parts.append(f"set {_json(change['set'])}")
    if "deleted" in change:
        parts.append(f"deleted {', '.join(change['deleted'])}")
    for column, done in change.get("elements", {}).items():
        words = ["cleared"] if "cleared" in done else []
        words += [f"{word} {_json(done[word])}" for word in ("added", "removed") if word in done]
        parts.append(f"{column}: {', '.join(words)}")
    if "row" in change:
        parts.append(_json(change["row"]))
    if "ttl" in change:
        parts.append(f"ttl {change['ttl']}")
    return " ".join(parts)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _wait(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)
