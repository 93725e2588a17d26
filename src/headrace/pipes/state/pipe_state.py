"""A pipe's state directory: what it replicates and how far its snapshots are. (Spark's checkpoint in it holds the stream's position.)

Each file is written before the step that depends on it, atomically or as a whole appended line. After a crash at any point the files are
true, at worst a little old, and repeating the work is harmless.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import threading
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
"""Headrace 0.9's format: the same, without stamps."""
_FILE = "pipe.json"
JOURNALS = ("schemas.jsonl", "snapshot.jsonl", "copies.jsonl")
NOTES = ("scylla.json", "debezium.json")
_LATER = ("snapshot.jsonl", "copies.jsonl", *NOTES, "progress.json", "checkpoint")
"""Files that a pipe writes after `pipe.json`."""


@dataclass(slots=True)
class TableState:
    """A replicated table: its schema, and the position from which the schema is valid."""

    schema: TableSchema
    captured_at: dict[str, Any]
    rows_from: dict[str, Any] | None = None
    """Skip changes before this position: they are in the table's snapshot, and rows deleted by then are in the log only."""
    snapshot: int = 0
    """The number of the current snapshot; a resync takes the next."""
    hidden: tuple[str, ...] = ()
    """Columns that are not replicated: they were added while `add_column` was set to ignore."""
    concurrent_resync: bool = False
    """Whether its rows are read again alongside its changes, none of which is skipped (`Sink.append_only`)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(),
            "captured_at": self.captured_at,
            "rows_from": self.rows_from,
            "snapshot": self.snapshot,
            "hidden": list(self.hidden),
            "beside": self.concurrent_resync,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> TableState:
        hidden = tuple(raw.get("hidden", ()))
        schema, concurrent = TableSchema.from_json(raw["schema"]), raw.get("beside", False)
        return cls(schema, raw["captured_at"], raw["rows_from"], raw["snapshot"], hidden, concurrent)


@dataclass(slots=True)
class PipeState:
    """What a pipe replicates, with which settings, and from where."""

    source: str
    identity: str
    sink: str
    selection: dict[str, Any]
    start: dict[str, Any]
    epoch: int
    options: dict[str, Any]
    tables: dict[TableName, TableState] = field(default_factory=dict)
    awaiting_resync: set[TableName] = field(default_factory=set)
    """Tables whose changes are skipped until they are read again."""
    schemas_captured_at: dict[str, Any] | None = None
    """The end of the log when the schemas were captured, if reading starts before that."""
    uncheckpointed_gtids: str = ""
    """GTIDs of transactions whose rows may be in the sink beyond Spark's checkpoint (see `pipes.mysql.startup`)."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Distinguishes what this pipe writes from what others write."""
    dropped_tables: dict[TableName, dict[str, Any]] = field(default_factory=dict)
    """Dropped names with the position of the statement; a replay skips their changes before it."""
    ignored: set[TableName] = field(default_factory=set)
    """Tables that were created while `create_table` was set to ignore."""
    intent: dict[str, Any] | None = None
    """The intent that is being executed (see `schema_change_intents`)."""

    def current_selection(self, chosen: Selection) -> Selection:
        """Return the chosen selection together with the tables that were added while the pipe ran."""
        return replace(chosen, added=tuple(self.selection["added"]))

    def is_selected(self, chosen: Selection, name: TableName) -> bool:
        return self.current_selection(chosen)(name)

    def projection(self, chosen: Projection) -> Projection:
        """Return the replicated columns: the chosen ones without hidden ones."""
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
            "waiting": [[name.database, name.table] for name in sorted(self.awaiting_resync)],
            "looked_at": self.schemas_captured_at,
            "seen": self.uncheckpointed_gtids,
            "id": self.id,
            "gone": [[name.database, name.table, position] for name, position in self.dropped_tables.items()],
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
    """A state directory; one process owns it at a time."""

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
        """Checks the files; only the owning process has it."""

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
        """Where the relay stores the log: in this directory, or in one that several pipes may share."""
        return Path(place).resolve() / f"headrace-{pipe}" if place else self.relay

    def acquire(self, wait_s: float = 15.0) -> Self:
        """Become the owner; wait for a predecessor that is still exiting."""
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
        """Whether a process owns the directory now."""
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
        """End the run: record Spark's checkpoint in the seal, then release the directory."""
        try:
            if self.seal is not None and self.seal.knows(_FILE):
                self.seal.note_batches()
        except OSError as error:
            # The seal may be behind. Show the error that ended the run, perhaps a full file system, not this one.
            log.warning("the seal of %s was not written: %s", self.path, error)
        finally:
            self.release()

    def note_helper(self, pid: int, *, shared: bool = False) -> None:
        """Record a child process that may outlive this one for a moment (Spark's JVM).

        `shared`: other pipes of this process use it, too, so it continues when this pipe ends.
        """
        owner = {"owner": os.getpid(), "owner_started": _started(os.getpid())} if shared else {}
        replace_json(self.path / "helper.json", stamped({"pid": pid, "started": _started(pid), **owner}, "", 1, 1)[0])

    def clear_scratch(self) -> None:
        """Remove files that earlier runs left: a killed run cannot remove its relay files, which may be large."""
        for scratch in (self.relay, self.path / "spark"):
            shutil.rmtree(scratch, ignore_errors=True)

    def load(self) -> PipeState | None:
        """Load and check the state; None if there is none. The owner's files are upgraded to this version."""
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
        """Start a new state: its files carry its id from now on. Files of a first start that crashed are removed."""
        (self.path / "schemas.jsonl").unlink(missing_ok=True)
        self.seal = StateSeal(self.path, state.id)

    def save(self, state: PipeState) -> None:
        if self.seal is None:
            self.seal = StateSeal(self.path, state.id)
        self.replace(_FILE, state.to_json())

    def journal(self, name: str) -> Journal:
        """Return an append-only file of the state."""
        return Journal(self.path / name, self.seal)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the content of a file that is replaced as a whole; None if it does not exist yet."""
        file = self.path / name
        if not file.exists():
            if self.seal is not None and self.seal.knows(name):
                raise missing(file)
            return None
        raw, stamp = self._stamped(file)
        if self.seal is not None:
            if stamp is None and (not self.seal.accepts_plain or self.seal.knows(name)):
                raise damaged(ValueError("it has no checksum"), str(file))
            self.seal.check(file, [stamp] if stamp is not None else [])
        return raw

    def replace(self, name: str, content: dict[str, Any]) -> None:
        """Replace a file of the state atomically."""
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
        """Raise if a directory without a state holds state files: they would be mistaken for the new state's."""
        found = [name for name in _LATER if (self.path / name).exists()]
        if found or (seal is not None and seal.knows(_FILE)):
            others = f", and other files of the state are there: {', '.join(found)}" if found else ""
            raise DefiniteError(f"a file of the state is missing{others}", place=str(self.path / _FILE), hint=START_OVER)

    def _open_seal(self, seal: StateSeal | None, state: PipeState, stamp: Stamp | None) -> None:
        """Check the files by the seal. A missing seal is written again: each file also has its own checksum."""
        is_plain = stamp is None
        if seal is None and not is_plain:
            log.warning("%s has no seal.json: whether a file is an old copy is not known this time", self.path)
        seal = seal or StateSeal(self.path, state.id)
        if seal.state != state.id:
            raise DefiniteError("pipe.json and seal.json belong to different states", place=str(self.path), hint=START_OVER)
        seal.accepts_plain = is_plain
        seal.check(self.path / _FILE, [stamp] if stamp is not None else [])
        seal.check_batches()
        self.seal = seal
        if is_plain:
            self._upgrade(state)

    def _upgrade(self, state: PipeState) -> None:
        """Stamp all files of a Headrace 0.9 state. `pipe.json` is last, so a crash in between repeats the upgrade."""
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
            # The process is a child of this one, and its work was waited for when the pipe ended.
            return
        while _started(pid) == started != "":
            if time.monotonic() > deadline:
                raise DefiniteError(
                    f"process {pid} of an earlier run still works on this state directory", place=str(self.path), hint=f"end it: kill {pid}"
                )
            time.sleep(0.05)


@dataclass(slots=True)
class TableSnapshot:
    """One snapshot of a table: its chunks, and which of them are done."""

    number: int
    chunks: list[dict[str, Any]]
    stale_before: dict[str, Any] | None
    """The position from which older rows are stale and must be deleted after the snapshot."""
    begins_at: dict[str, Any] | None = None
    """The last `stale_before`, also after the deletion: every older row of the table is stale. None if no row ever was."""
    began_at: dict[str, Any] | None = None
    """`begins_at` of the last complete snapshot before this one, which replaces its rows."""
    done: set[int] = field(default_factory=set)
    read_at: list[dict[str, Any]] = field(default_factory=list)
    """The log's end after each finished chunk was read."""
    restarts: int = 0
    """How often the snapshot was started again; the first start of an exact snapshot counts."""
    attempted_from: int | None = None
    """The version at which the rows of an exact snapshot begin: the stream wrote lower ones before the first attempt."""
    is_abandoned: bool = False
    """Whether the process went on after the last attempt failed, so that the stream may have written later changes."""

    @property
    def pending(self) -> list[dict[str, Any]]:
        return [chunk for chunk in self.chunks if chunk["number"] not in self.done]

    @property
    def complete(self) -> bool:
        return not self.pending and self.stale_before is None


class SnapshotLog:
    """The chunks of the tables' snapshots and which are done: an append-only file, one JSON object per line, in order."""

    def __init__(self, directory: StateDirectory) -> None:
        self._journal, self._append_lock = directory.journal("snapshot.jsonl"), threading.Lock()
        self.tables: dict[str, TableSnapshot] = {}
        self.rows = 0
        """The number of rows in all finished chunks."""
        for number, entry in enumerate(self._journal.read(), 1):
            try:
                self._apply(entry)
            except MISSHAPEN as error:
                raise self._journal.damaged(number, repr(error)) from error

    def is_planned(self, table: TableName, number: int) -> bool:
        found = self.tables.get(str(table))
        return found is not None and found.number == number

    def next_number(self, table: TableName) -> int:
        """Return a number that no snapshot of the table had."""
        found = self.tables.get(str(table))
        return 0 if found is None else found.number + 1

    def plan(self, table: TableName, number: int, chunks: list[dict[str, Any]], stale_before: dict[str, Any] | None = None) -> None:
        """Start a table's snapshot; it replaces an earlier one."""
        self._append({"table": str(table), "snapshot": number, "chunks": chunks, "sweep": stale_before})

    def restart(self, table: TableName, chunks: list[dict[str, Any]], attempted_from: int) -> None:
        """Start the table's snapshot again with these chunks: rows read so far belong to another point in time."""
        found = self.tables[str(table)]
        entry = {"table": str(table), "snapshot": found.number, "chunks": chunks, "sweep": found.stale_before}
        self._append({**entry, "attempted_from": attempted_from})

    def abandon(self, table: TableName) -> None:
        """Record that the last attempt failed and that the stream may write before the next one."""
        # Versions that do not know the mark only read "sweep".
        self._append({"table": str(table), "abandoned": True, "sweep": self.tables[str(table)].stale_before})

    def finish(self, table: TableName, chunk: int, rows: int, read_at: dict[str, Any] | None = None) -> None:
        """Record that a chunk's rows are in the sink; `read_at`: the log's end after they were read."""
        self._append({"table": str(table), "done": chunk, "rows": rows, "at": read_at})

    def set_stale_before(self, table: TableName, position: dict[str, Any]) -> None:
        """Record the position at which the table's snapshot turned out to start."""
        self._append({"table": str(table), "sweep": position})

    def mark_stale_deleted(self, table: TableName) -> None:
        self._append({"table": str(table), "sweep": None})

    def _append(self, entry: dict[str, Any]) -> None:
        with self._append_lock:
            self._apply(entry)
            self._journal.append(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        table = entry["table"]
        if "chunks" in entry:
            before = self.tables.get(table)
            restarts = before.restarts + 1 if before is not None and before.number == entry["snapshot"] else 0
            attempted_from = entry.get("attempted_from")
            began_at = None
            # Rows that no snapshot replaces may be older than those of an earlier table of this name.
            if before is not None and entry["sweep"] is not None:
                began_at = before.began_at if before.pending or restarts else before.begins_at
            self.tables[table] = TableSnapshot(
                entry["snapshot"],
                entry["chunks"],
                entry["sweep"],
                entry["sweep"],
                began_at,
                restarts=restarts,
                attempted_from=attempted_from,
            )
        elif "done" in entry:
            self.tables[table].done.add(entry["done"])
            if entry.get("at") is not None:
                self.tables[table].read_at.append(entry["at"])
            self.rows += entry["rows"]
        elif "abandoned" in entry:
            self.tables[table].is_abandoned = entry["abandoned"]
        else:
            self.tables[table].stale_before = entry["sweep"]
            self.tables[table].begins_at = entry["sweep"] or self.tables[table].begins_at


def _started(pid: int) -> str:
    """Return a process's start time, which distinguishes it from a later one with the same pid; empty if it has exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
