"""A pipe's state directory: what it replicates, and how far its snapshot got. (How far the stream got is Spark's checkpoint beside it.)

Everything here is written before what depends on it happens, and each write is atomic or appended as a whole line: after a crash at
any point the files say something true, at worst a little old, and doing work again is harmless.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TextIO

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import TableName, TableSchema
from headrace.sources.mysql.journal import MISSHAPEN

_FORMAT = 2
_START_OVER = "restore the file, or start over: remove the state directory and the target tables"


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
    """Whether its rows are read again beside its changes, of which none is left out (`Sink.appends`)."""

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

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def history(self) -> Path:
        return self.path / "schemas.jsonl"

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

    def note_helper(self, pid: int, *, shared: bool = False) -> None:
        """Remember the process that works for us and may outlive us by a moment (Spark's Java part).

        `shared`: it works for other pipes of this process, too, and goes on when this one ends.
        """
        owner = {"owner": os.getpid(), "owner_started": _started(os.getpid())} if shared else {}
        replace_json(self.path / "helper.json", {"pid": pid, "started": _started(pid), **owner})

    def clear_scratch(self) -> None:
        """Remove what an earlier run left and no run needs: a killed one cannot tidy up, and its mirror of the log may be large."""
        for scratch in (self.relay, self.path / "spark"):
            shutil.rmtree(scratch, ignore_errors=True)

    def load(self) -> PipeState | None:
        file = self.path / "pipe.json"
        if not file.exists():
            return None
        raw = read_json(file)
        if raw.get("format") != _FORMAT:
            raise DefiniteError("the state directory was written by another version of Headrace", place=str(file), hint=_START_OVER)
        try:
            return PipeState.from_json(raw)
        except MISSHAPEN as error:
            raise _damaged(error, str(file)) from error

    def save(self, state: PipeState) -> None:
        replace_json(self.path / "pipe.json", state.to_json())

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
        helper = read_json(file)
        if helper.get("owner") == os.getpid() and helper.get("owner_started") == _started(os.getpid()):
            # It is ours still, and what it did for the pipe was waited for when the pipe ended.
            return
        while _started(helper["pid"]) == helper["started"] != "":
            if time.monotonic() > deadline:
                raise DefiniteError(
                    f"process {helper['pid']} of an earlier run still works on this state directory",
                    place=str(self.path),
                    hint=f"end it: kill {helper['pid']}",
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
    """Where the log stood when chunks that are done were read."""
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
        self._path = directory.path / "snapshot.jsonl"
        self.tables: dict[str, TableSnapshot] = {}
        self.rows = 0
        """How many rows all chunks that are done had."""
        if self._path.exists():
            self._read()

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
        """A chunk's rows are in the sink; `read_at`: the position that they were read at."""
        self._append({"table": str(table), "done": chunk, "rows": rows, "at": read_at})

    def sweep_from(self, table: TableName, position: dict[str, Any]) -> None:
        """The table's snapshot turned out to begin at this position."""
        self._append({"table": str(table), "sweep": position})

    def swept(self, table: TableName) -> None:
        self._append({"table": str(table), "sweep": None})

    def _append(self, entry: dict[str, Any]) -> None:
        self._apply(entry)
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        whole, newline, torn = self._path.read_bytes().rpartition(b"\n")
        if torn:
            # A crash cut the last line short: what it said did not happen. Cut it off, so that the next line starts clean.
            os.truncate(self._path, len(whole) + len(newline))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._apply(json.loads(line))
            except MISSHAPEN as error:
                raise _damaged(error, f"{self._path}, line {number}") from error

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


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file of a state directory holds."""
    try:
        raw = json.loads(file.read_bytes())
    except ValueError as error:
        raise _damaged(error, str(file)) from error
    if not isinstance(raw, dict):
        raise _damaged(TypeError("no object"), str(file))
    return raw


def _damaged(error: Exception, place: str) -> DefiniteError:
    return DefiniteError(f"a file of the state directory is damaged: {error!r}", place=place, hint=_START_OVER)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a state directory, all of it or nothing."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o600)
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make sure that a new name in a directory outlives the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it is gone or a zombie. Tells a process from a later one with its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
