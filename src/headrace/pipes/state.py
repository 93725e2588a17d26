"""A pipe's state directory: what it replicates, and how far its snapshot got. (How far the stream got is Spark's checkpoint beside it.)

Everything here is written before what depends on it happens, and each write is atomic or appended as a whole line: after a crash at
any point the files say something true, at worst a little old, and doing work again is harmless.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TextIO

from headrace.errors import DefiniteError
from headrace.model.schema import TableName, TableSchema

_FORMAT = 1
_START_OVER = "restore the file, or start over: remove the state directory and the target tables"


@dataclass(slots=True)
class TableState:
    """A replicated table: its schema and the position from which on the schema holds."""

    schema: TableSchema
    captured_at: dict[str, Any]
    rows_from: dict[str, Any] | None = None
    """Changes before this position are in the table's snapshot, and rows that were gone by then are in the log only: leave them out."""


@dataclass(slots=True)
class PipeState:
    """What a pipe was started with."""

    source: str
    identity: str
    sink: str
    patterns: tuple[str, ...]
    start: dict[str, Any]
    epoch: int
    options: dict[str, Any]
    tables: dict[TableName, TableState] = field(default_factory=dict)
    gone: set[TableName] = field(default_factory=set)
    """Tables that were made and dropped again before they could be looked at: their changes in the log belong to nothing."""
    seen: str = ""
    """GTIDs of transactions whose rows may be in the sink beyond Spark's checkpoint (see `takeover`)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "source": self.source,
            "identity": self.identity,
            "sink": self.sink,
            "patterns": list(self.patterns),
            "start": self.start,
            "epoch": self.epoch,
            "options": self.options,
            "tables": [
                {"schema": table.schema.to_json(), "captured_at": table.captured_at, "rows_from": table.rows_from}
                for table in self.tables.values()
            ],
            "gone": [[name.database, name.table] for name in sorted(self.gone)],
            "seen": self.seen,
        }

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> PipeState:
        tables = [
            TableState(TableSchema.from_json(table["schema"]), table["captured_at"], table.get("rows_from")) for table in raw["tables"]
        ]
        return cls(
            raw["source"],
            raw["identity"],
            raw["sink"],
            tuple(raw["patterns"]),
            raw["start"],
            raw["epoch"],
            raw["options"],
            {table.schema.name: table for table in tables},
            {TableName(*name) for name in raw.get("gone", [])},
            raw.get("seen", ""),
        )


class StateDirectory:
    """Owned by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        try:
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
    def relay(self) -> Path:
        return self.path / "relay"

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

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def note_helper(self, pid: int) -> None:
        """Remember the process that works for us and may outlive us by a moment (Spark's Java part)."""
        _replace(self.path / "helper.json", {"pid": pid, "started": _started(pid)})

    def clear_scratch(self) -> None:
        """Remove what an earlier run left and no run needs: a killed one cannot tidy up, and its mirror of the log may be large."""
        for scratch in (self.relay, self.path / "spark"):
            shutil.rmtree(scratch, ignore_errors=True)

    def load(self) -> PipeState | None:
        file = self.path / "pipe.json"
        if not file.exists():
            return None
        raw = _read_json(file)
        if raw.get("format") != _FORMAT:
            raise DefiniteError("the state directory was written by another version of Headrace", place=str(file), hint=_START_OVER)
        return PipeState.from_json(raw)

    def save(self, state: PipeState) -> None:
        _replace(self.path / "pipe.json", state.to_json())

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
        helper = _read_json(file)
        while _started(helper["pid"]) == helper["started"] != "":
            if time.monotonic() > deadline:
                raise DefiniteError(
                    f"process {helper['pid']} of an earlier run still works on this state directory",
                    place=str(self.path),
                    hint=f"end it: kill {helper['pid']}",
                )
            time.sleep(0.05)


class SnapshotLog:
    """Which chunks a snapshot consists of and which are done: one JSON object a line, only ever appended to."""

    def __init__(self, directory: StateDirectory) -> None:
        self._path = directory.path / "snapshot.jsonl"
        self.planned: dict[str, list[dict[str, Any]]] = {}
        self.done: set[tuple[str, int]] = set()
        if self._path.exists():
            self._read()

    def plan(self, table: TableName, chunks: list[dict[str, Any]]) -> None:
        self.planned[str(table)] = chunks
        self._append({"table": str(table), "chunks": chunks})

    def finish(self, table: TableName, number: int, rows: int) -> None:
        self.done.add((str(table), number))
        self._append({"table": str(table), "done": number, "rows": rows})

    def pending(self) -> list[dict[str, Any]]:
        return [chunk for table, chunks in self.planned.items() for chunk in chunks if (table, chunk["number"]) not in self.done]

    def _append(self, entry: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        whole, _, torn = self._path.read_text().rpartition("\n")
        if torn:
            # A crash cut the last line short: what it said did not happen. Cut it off, so that the next line starts clean.
            os.truncate(self._path, len(whole.encode()) + (1 if whole else 0))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError as error:
                place = f"{self._path}, line {number}"
                raise DefiniteError(f"a file of the state directory is damaged: {error}", place=place, hint=_START_OVER) from error
            if "chunks" in entry:
                self.planned[entry["table"]] = entry["chunks"]
            else:
                self.done.add((entry["table"], entry["done"]))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise DefiniteError(f"a file of the state directory is damaged: {error}", place=str(file), hint=_START_OVER) from error
    return raw


def _replace(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o600)
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _started(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it is gone or a zombie. Tells a process from a later one with its number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]
