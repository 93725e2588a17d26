"""A pipe's state directory: what it replicates, and how far its snapshot got. (How far the stream got is Spark's checkpoint beside it.)

Everything here is written before what depends on it happens, and each write is atomic or appended as a whole line: after a crash at
any point the files say something true, at worst a little old, and doing work again is harmless.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TextIO

from headrace.entry_stamp import Stamp, stamped, unstamped
from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN, START_OVER, Journal
from headrace.model.projection import Projection
from headrace.model.schema import TableName, TableSchema
from headrace.model.table_selection import Selection
from headrace.pipes.state.json_file import damaged, read_json, replace_json
from headrace.pipes.state.seal import StateSeal, missing

log = logging.getLogger("headrace")

_FORMAT = 3
_PLAIN_FORMAT = 2
"""What Headrace 0.9 wrote: the same, without stamps."""
_FILE = "pipe.json"
JOURNALS = ("schemas.jsonl", "snapshot.jsonl", "copies.jsonl")
NOTES = ("scylla.json", "debezium.json")
_LATER = ("snapshot.jsonl", "copies.jsonl", *NOTES, "progress.json", "checkpoint")
"""What a pipe writes after `pipe.json`."""


@dataclass(slots=True)
class TableState:
    """A replicated table: its schema in the sink and the position from which on the schema holds."""

    schema: TableSchema
    captured_at: dict[str, Any]
    rows_from: dict[str, Any] | None = None
    """Changes before this position are in the table's snapshot, and rows that were gone by then are in the log only: leave them out."""
    snapshot: int = 0
    """Which of the table's snapshots counts; a resynchronisation takes the next."""
    hidden: tuple[str, ...] = ()
    """Columns that are not carried: they came when new ones were to be ignored."""
    beside: bool = False
    """Whether its rows are read again beside its changes, of which none is left out (`Sink.append_only`)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(),
            "captured_at": self.captured_at,
            "rows_from": self.rows_from,
            "snapshot": self.snapshot,
            "hidden": list(self.hidden),
            "beside": self.beside,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableState:
        hidden = tuple(raw.get("hidden", ()))
        schema, beside = TableSchema.from_json(raw["schema"]), raw.get("beside", False)
        return cls(schema, raw["captured_at"], raw["rows_from"], raw["snapshot"], hidden, beside)


@dataclass(slots=True)
class PipeState:
    """What a pipe was started with."""

    source: str
    identity: str
    sink: str
    selection: dict[str, Any]
    start: dict[str, Any]
    epoch: int
    options: dict[str, Any]
    tables: dict[TableName, TableState] = field(default_factory=dict)
    waiting: set[TableName] = field(default_factory=set)
    """Tables whose changes are left out until a new snapshot has their rows."""
    looked_at: dict[str, Any] | None = None
    """Where the log stood when the tables were looked at, if reading starts before that."""
    seen: str = ""
    """GTIDs of transactions whose rows may be in the sink beyond Spark's checkpoint (see `takeover`)."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells what this pipe writes from what any other does."""
    gone: dict[TableName, dict[str, Any]] = field(default_factory=dict)
    """Names that no table has since a statement at this position: changes of theirs before it, which a replay brings, are left out."""
    ignored: set[TableName] = field(default_factory=set)
    """Tables that came when new ones were to be ignored."""
    intent: dict[str, Any] | None = None
    """What is being done to the sink's tables (see `intents`)."""

    def current_selection(self, chosen: Selection) -> Selection:
        """Return the chosen selection together with the tables that were added while the pipe ran."""
        return replace(chosen, added=tuple(self.selection["added"]))

    def is_selected(self, chosen: Selection, name: TableName) -> bool:
        return self.current_selection(chosen)(name)

    def projection(self, chosen: Projection) -> Projection:
        """The columns that are carried: what was chosen, without those that are ignored."""
        hidden = frozenset((name, column) for name, table in self.tables.items() for column in table.hidden)
        return replace(chosen, hidden=hidden)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "source": self.source,
            "identity": self.identity,
            "sink": self.sink,
            "selection": self.selection,
            "start": self.start,
            "epoch": self.epoch,
            "options": self.options,
            "tables": [table.to_json() for table in self.tables.values()],
            "waiting": [[name.database, name.table] for name in sorted(self.waiting)],
            "looked_at": self.looked_at,
            "seen": self.seen,
            "id": self.id,
            "gone": [[name.database, name.table, position] for name, position in self.gone.items()],
            "ignored": [[name.database, name.table] for name in sorted(self.ignored)],
            "intent": self.intent,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PipeState:
        tables = [TableState.from_json(table) for table in raw["tables"]]
        return cls(
            raw["source"],
            raw["identity"],
            raw["sink"],
            raw["selection"],
            raw["start"],
            raw["epoch"],
            raw["options"],
            {table.schema.name: table for table in tables},
            {TableName(*name) for name in raw["waiting"]},
            raw["looked_at"],
            raw["seen"],
            raw.get("id") or secrets.token_hex(8),
            {TableName(database, table): position for database, table, position in raw.get("gone", ())},
            {TableName(*name) for name in raw.get("ignored", ())},
            raw.get("intent"),
        )


class StateDirectory:
    """Owned by one process at a time."""

    def __init__(self, path: Path, *, make: bool = True) -> None:
        self.path = path.resolve()
        try:
            if make:
                self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise DefiniteError(
                f"the state directory cannot be made: {error}", place=str(path), hint="choose another with --state"
            ) from error
        self._lock: TextIO | None = None
        self.seal: StateSeal | None = None
        """What the files are checked by; only the process that owns the directory has it."""

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def history(self) -> Journal:
        return self.journal("schemas.jsonl")

    @property
    def relay(self) -> Path:
        return self.path / "relay"

    def mirror(self, place: str, pipe: str) -> Path:
        """Where a pipe's log is mirrored: here, or at a place that several pipes may have named."""
        return Path(place).resolve() / f"headrace-{pipe}" if place else self.relay

    def acquire(self, wait_s: float = 15.0) -> Self:
        """Become the owner, after a predecessor that is still dying has gone."""
        self._lock = (self.path / "lock").open("a+")
        deadline = time.monotonic() + wait_s
        try:
            self._await_lock(deadline)
            self._await_helper(deadline)
        except DefiniteError:
            self.release()
            raise
        return self

    @property
    def is_owned(self) -> bool:
        """Whether a process owns it now."""
        if not (self.path / "lock").exists():
            return False
        with (self.path / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def close(self) -> None:
        """The run ends: note how far Spark's checkpoint is, then let the next owner have the directory."""
        try:
            if self.seal is not None and self.seal.knows(_FILE):
                self.seal.note_batches()
        except OSError as error:
            # The seal may be behind. What the run failed by, a full file system perhaps, is what the user has to see.
            log.warning("the seal of %s was not written: %s", self.path, error)
        finally:
            self.release()

    def note_helper(self, pid: int, *, shared: bool = False) -> None:
        """Remember the process that works for us and may outlive us by a moment (Spark's Java part).

        `shared`: it works for other pipes of this process, too, and goes on when this one ends.
        """
        owner = {"owner": os.getpid(), "owner_started": _started(os.getpid())} if shared else {}
        replace_json(self.path / "helper.json", stamped({"pid": pid, "started": _started(pid), **owner}, "", 1, 1)[0])

    def clear_scratch(self) -> None:
        """Remove what an earlier run left and no run needs: a killed one cannot tidy up, and its mirror of the log may be large."""
        for scratch in (self.relay, self.path / "spark"):
            shutil.rmtree(scratch, ignore_errors=True)

    def load(self) -> PipeState | None:
        """The state, checked; None if there is none. The owner of the directory gets its files upgraded to this version."""
        file, seal = self.path / _FILE, StateSeal.load(self.path) if self._is_owner else None
        if not file.exists():
            if self._is_owner:
                self._check_unused(seal)
            return None
        raw, stamp = self._stamped(file)
        is_plain = stamp is None and raw.get("format") == _PLAIN_FORMAT and not (seal is not None and seal.knows(_FILE))
        if not is_plain and raw.get("format") != _FORMAT:
            raise DefiniteError("the state directory was written by another version of Headrace", place=str(file), hint=START_OVER)
        if stamp is None and not is_plain:
            raise damaged(ValueError("it has no checksum"), str(file))
        try:
            state = PipeState.from_json(raw)
        except MISSHAPEN as error:
            raise damaged(error, str(file)) from error
        if self._is_owner:
            self._open_seal(seal, state, stamp)
        return state

    def begin(self, state: PipeState) -> None:
        """A new state begins: its files carry its id from now on. What a first start that crashed has left is removed."""
        (self.path / "schemas.jsonl").unlink(missing_ok=True)
        self.seal = StateSeal(self.path, state.id)

    def save(self, state: PipeState) -> None:
        if self.seal is None:
            self.seal = StateSeal(self.path, state.id)
        self.replace(_FILE, state.to_json())

    def journal(self, name: str) -> Journal:
        """A file of the state that is appended to."""
        return Journal(self.path / name, self.seal)

    def read(self, name: str) -> dict[str, Any] | None:
        """What a file of the state holds that is replaced as a whole; None if it was not written yet."""
        file = self.path / name
        if not file.exists():
            if self.seal is not None and self.seal.knows(name):
                raise missing(file)
            return None
        raw, stamp = self._stamped(file)
        if self.seal is not None:
            if stamp is None and (not self.seal.upgrading or self.seal.knows(name)):
                raise damaged(ValueError("it has no checksum"), str(file))
            self.seal.check(file, [stamp] if stamp is not None else [])
        return raw

    def replace(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the state, all of it or nothing."""
        file, seal = self.path / name, self.seal
        if seal is None:
            replace_json(file, content)
            return
        last = seal.last(file)
        entry, stamp = stamped(content, seal.state, last.generation + 1 if last is not None else 1, 1)
        replace_json(file, entry)
        seal.note(file, stamp)

    @property
    def _is_owner(self) -> bool:
        return self._lock is not None

    def _stamped(self, file: Path) -> tuple[dict[str, Any], Stamp | None]:
        try:
            return unstamped(read_json(file))
        except MISSHAPEN as error:
            raise damaged(error, str(file)) from error

    def _check_unused(self, seal: StateSeal | None) -> None:
        """A directory without a state must not hold files of one: they would be taken for the new state's."""
        found = [name for name in _LATER if (self.path / name).exists()]
        if found or (seal is not None and seal.knows(_FILE)):
            others = f", and other files of the state are there: {', '.join(found)}" if found else ""
            raise DefiniteError(f"a file of the state is missing{others}", place=str(self.path / _FILE), hint=START_OVER)

    def _open_seal(self, seal: StateSeal | None, state: PipeState, stamp: Stamp | None) -> None:
        """Check the files by the seal. One that is missing is written again: each file has its own checksum besides."""
        is_plain = stamp is None
        if seal is None and not is_plain:
            log.warning("%s has no seal.json: whether a file is an old copy cannot be told this time", self.path)
        seal = seal or StateSeal(self.path, state.id)
        if seal.state != state.id:
            raise DefiniteError("pipe.json and seal.json belong to different states", place=str(self.path), hint=START_OVER)
        seal.upgrading = is_plain
        seal.check(self.path / _FILE, [stamp] if stamp is not None else [])
        seal.check_batches()
        self.seal = seal
        if is_plain:
            self._upgrade(state)

    def _upgrade(self, state: PipeState) -> None:
        """Give stamps to all files of a state of Headrace 0.9. `pipe.json` is last: until then a crash leads here again."""
        if (self.path / _FILE).exists() and not read_json(self.path / _FILE).get("id"):
            replace_json(self.path / _FILE, {**state.to_json(), "format": _PLAIN_FORMAT})
        for name in JOURNALS:
            self.journal(name).read()
        for name in NOTES:
            content = self.read(name)
            if content is not None and not (self.seal is not None and self.seal.knows(name)):
                self.replace(name, content)
        self.save(state)

    def _await_lock(self, deadline: float) -> None:
        assert self._lock is not None
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    hint = "stop it, or choose another --state"
                    raise DefiniteError("another headrace process uses this state directory", place=str(self.path), hint=hint) from None
                time.sleep(0.1)

    def _await_helper(self, deadline: float) -> None:
        file = self.path / "helper.json"
        if not file.exists():
            return
        try:
            helper, stamp = unstamped(read_json(file))
            if stamp is None and not helper.keys() <= {"pid", "started", "owner", "owner_started"}:
                raise ValueError("it has no checksum")
            pid, started = int(helper["pid"]), helper["started"]
        except (DefiniteError, *MISSHAPEN) as error:
            hint = "make sure that no Java process of an earlier run is left, then remove the file"
            raise DefiniteError("a file of the state directory is damaged", place=str(file), hint=hint) from error
        if helper.get("owner") == os.getpid() and helper.get("owner_started") == _started(os.getpid()):
            # It is ours still, and what it did for the pipe was waited for when the pipe ended.
            return
        while _started(pid) == started != "":
            if time.monotonic() > deadline:
                raise DefiniteError(
                    f"process {pid} of an earlier run still works on this state directory",
                    place=str(self.path),
                    hint=f"end it: kill {pid}",
                )
            time.sleep(0.05)


@dataclass(slots=True)
class TableSnapshot:
    """One snapshot of a table: its chunks, which of them are done, and what is left to do after them."""

    number: int
    chunks: list[dict[str, Any]]
    sweep: dict[str, Any] | None
    """Rows that the sink had before, and this snapshot (taken from this position on) has not seen, must go."""
    done: set[int] = field(default_factory=set)
    read_at: list[dict[str, Any]] = field(default_factory=list)
    """Where the log ended after each chunk that is done was read."""
    restarts: int = 0
    """How often it was begun again, the first beginning of one that must be read whole among them."""

    @property
    def pending(self) -> list[dict[str, Any]]:
        return [chunk for chunk in self.chunks if chunk["number"] not in self.done]

    @property
    def complete(self) -> bool:
        return not self.pending and self.sweep is None


class SnapshotLog:
    """Which chunks the tables' snapshots consist of and which are done: one JSON object a line, only ever appended to."""

    def __init__(self, directory: StateDirectory) -> None:
        self._journal = directory.journal("snapshot.jsonl")
        self.tables: dict[str, TableSnapshot] = {}
        self.rows = 0
        """How many rows all chunks that are done had."""
        for number, entry in enumerate(self._journal.read(), 1):
            try:
                self._apply(entry)
            except MISSHAPEN as error:
                raise self._journal.damaged(number, repr(error)) from error

    def is_planned(self, table: TableName, number: int) -> bool:
        found = self.tables.get(str(table))
        return found is not None and found.number == number

    def next_number(self, table: TableName) -> int:
        """A number that no snapshot of the table had."""
        found = self.tables.get(str(table))
        return 0 if found is None else found.number + 1

    def plan(self, table: TableName, number: int, chunks: list[dict[str, Any]], sweep: dict[str, Any] | None = None) -> None:
        """Begin a table's snapshot; an earlier one counts no longer."""
        self._append({"table": str(table), "snapshot": number, "chunks": chunks, "sweep": sweep})

    def restart(self, table: TableName, chunks: list[dict[str, Any]]) -> None:
        """Begin the table's snapshot again, with these chunks: what was read of it so far is not of the same moment."""
        found = self.tables[str(table)]
        self.plan(table, found.number, chunks, found.sweep)

    def finish(self, table: TableName, chunk: int, rows: int, read_at: dict[str, Any] | None = None) -> None:
        """A chunk's rows are in the sink; `read_at`: the log's end after they were read."""
        self._append({"table": str(table), "done": chunk, "rows": rows, "at": read_at})

    def sweep_from(self, table: TableName, position: dict[str, Any]) -> None:
        """The table's snapshot turned out to begin at this position."""
        self._append({"table": str(table), "sweep": position})

    def swept(self, table: TableName) -> None:
        self._append({"table": str(table), "sweep": None})

    def _append(self, entry: dict[str, Any]) -> None:
        self._apply(entry)
        self._journal.append(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        table = entry["table"]
        if "chunks" in entry:
            before = self.tables.get(table)
            restarts = before.restarts + 1 if before is not None and before.number == entry["snapshot"] else 0
            self.tables[table] = TableSnapshot(entry["snapshot"], entry["chunks"], entry["sweep"], restarts=restarts)
        elif "done" in entry:
            self.tables[table].done.add(entry["done"])
            if entry.get("at") is not None:
                self.tables[table].read_at.append(entry["at"])
            self.rows += entry["rows"]
        else:
            self.tables[table].sweep = entry["sweep"]


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it is gone or a zombie. Tells a process from a later one with its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
