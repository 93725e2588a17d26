"""The last comparison of each table, in the pipe's state directory (`verified.json`), for the status.

Invariant: a record holds what a finished comparison has measured, of the table as it is now. A table that is dropped, recreated or read
again gets another generation, and records of other generations count no more. Any process that compares tables writes the file, while the
pipe runs or not; so it is stamped with the state's id, but is not in `seal.json`, which only the pipe writes. Pipes never read it: if it is
missing or damaged, the status shows no comparison, and the next one writes it again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.entry_stamp import stamped, unstamped
from headrace.errors import DefiniteError, HeadraceError
from headrace.jsonl import MISSHAPEN
from headrace.model.json_record import JsonRecord
from headrace.pipes.state.json_file import read_json, replace_json
from headrace.pipes.state.pipe_state import PipeState, StateDirectory, TableState
from headrace.sinks.clickhouse.bookkeeping.own_tables import OwnTables
from headrace.sinks.clickhouse.bookkeeping.progress_store import POSITIONS
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.verify.result import TableResult, Verdict

log = logging.getLogger("headrace")

FILE: Final = "verified.json"
_LOCK: Final = "verified.lock"
_SCYLLA_NOTES: Final = "scylla.json"
_VERDICTS: Final = {Verdict.EQUAL: "equal", Verdict.DIFFERENT: "different"}


@dataclass(frozen=True, slots=True)
class VerifyRecord(JsonRecord):
    """The last comparison of one table. Names of the keys are a stable format."""

    at: float
    """When it ended."""
    verdict: str
    """`equal`, `different` or `undecided`."""
    rows: int = 0
    differences: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0
    undecided: int = 0
    """Rows that may only be behind, that changed at every read, or that were not looked at."""
    excluded: int = 0
    repaired: int = 0
    position: str = ""
    pipe_stopped: bool | None = None
    partial: str = ""
    """The part that was compared, such as `sample 1%`; empty: all rows and columns of the pipe."""
    generation: str = ""

    @classmethod
    def of_result(cls, result: TableResult, at: float, partial: str = "", generation: str = "") -> VerifyRecord:
        found = result.comparison
        return cls(
            at,
            _VERDICTS.get(result.verdict, "undecided"),
            found.rows,
            found.total,
            found.different,
            found.missing,
            found.extra,
            result.behind + result.changing + result.unread,
            result.excluded or 0,
            result.repaired,
            result.compared_at,
            result.pipe_stopped,
            partial,
            generation,
        )


@dataclass(frozen=True, slots=True)
class VerifyRecorder:
    """Records the results of one run of `verify`."""

    directory: StateDirectory | None
    """None: results are not recorded."""
    partial: str = ""
    _generations: Mapping[str, str] = field(default_factory=dict)
    """The tables' generations when the run began: a result of a table that was read again meanwhile does not count."""

    @classmethod
    def begin(cls, directory: StateDirectory | None, own: OwnTables, partial: str = "") -> VerifyRecorder:
        """Begin a run on a pipe's tables. It is not recorded if the sink is not the pipe's."""
        state = directory.load() if directory is not None else None
        if directory is None or state is None or not _writes_to(own, state):
            return cls(None)
        return cls(directory, partial, _generations(directory, state))

    def record(self, result: TableResult) -> VerifyRecord | None:
        """Record a table's result; return None if the table was not compared, is not the pipe's, or the file cannot be written."""
        generation = self._generations.get(str(result.schema.name))
        if self.directory is None or generation is None or result.is_behind:
            return None
        record = VerifyRecord.of_result(result, time.time(), self.partial, generation)
        try:
            _store(self.directory, str(result.schema.name), record)
        except (HeadraceError, OSError) as error:
            log.warning("the comparison of %s was not recorded in %s: %s", result.schema.name, self.directory.path / FILE, error)
            return None
        return record


def read_records(path: Path) -> dict[str, VerifyRecord]:
    """Return the last comparisons of a state directory's tables; raise `DefiniteError` if the file is damaged."""
    directory = StateDirectory(path, make=False)
    state = directory.load() if (path / FILE).exists() else None
    return {} if state is None else _current(directory, state, _read(directory, state)[0])


def record_files(path: Path) -> tuple[object, ...]:
    """Return what changes when `read_records` would return something else: it need not be called before."""
    return tuple(_identity(path / name) for name in (FILE, "pipe.json", _SCYLLA_NOTES)) if (path / FILE).exists() else ()


def _identity(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _store(directory: StateDirectory, table: str, record: VerifyRecord) -> None:
    state = directory.load()
    if state is None:
        return
    with _locked(directory.path):
        try:
            known, generation = _read(directory, state)
        except DefiniteError as error:
            log.warning("%s; it is written again", error)
            known, generation = {}, 0
        kept = _current(directory, state, {**known, table: record})
        content = {"tables": {name: one.to_json() for name, one in sorted(kept.items())}}
        replace_json(directory.path / FILE, stamped(content, state.id, generation + 1, 1)[0])


def _read(directory: StateDirectory, state: PipeState) -> tuple[dict[str, VerifyRecord], int]:
    """Return all records and the file's generation."""
    path = directory.path / FILE
    if not path.exists():
        return {}, 0
    try:
        raw, stamp = unstamped(read_json(path))
        if stamp is None:
            raise ValueError("it has no checksum")
        if stamp.state != state.id:
            raise ValueError("it belongs to the state of another pipe")
        return {name: VerifyRecord.from_json(one) for name, one in raw["tables"].items()}, stamp.generation
    except (DefiniteError, *MISSHAPEN) as error:
        why = error.message if isinstance(error, DefiniteError) else str(error)
        hint = "compare the tables again (headrace verify): it is written again; pipes do not need it"
        raise DefiniteError(f"the record of comparisons cannot be read: {why}", place=str(path), hint=hint) from error


def _current(directory: StateDirectory, state: PipeState, records: Mapping[str, VerifyRecord]) -> dict[str, VerifyRecord]:
    """Return the records of tables that were not dropped, recreated or read again since."""
    generations = _generations(directory, state)
    return {name: record for name, record in records.items() if record.generation == generations.get(name)}


def _generations(directory: StateDirectory, state: PipeState) -> Mapping[str, str]:
    """Return each table's generation, which changes when the table is recreated or read again."""
    if (directory.path / _SCYLLA_NOTES).exists():
        # Other pipes do not load the CQL driver.
        from headrace.pipes.scylla.pipe_notes import ScyllaPipeNotes

        return {str(name): f"{note.id}/{note.snapshot}" for name, note in ScyllaPipeNotes.load(directory).tables.items()}
    return {str(name): _generation(table) for name, table in state.tables.items() if name not in state.awaiting_resync}


def _generation(table: TableState) -> str:
    # A table that a statement created has no number of a snapshot, but the position of that statement.
    began = json.dumps(table.captured_at, sort_keys=True)
    return f"{table.snapshot}/{hashlib.sha256(began.encode()).hexdigest()[:16]}"


def _writes_to(own: OwnTables, state: PipeState) -> bool:
    """Whether the state's pipe writes to this sink, by the progress that it stores there."""
    # A table of release 0.9 has no states until a pipe of a later release has started.
    return "state" in own.columns(POSITIONS) and bool(own.select(POSITIONS, ["pipe"], f"state = {quote_text(state.id)}"))


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Several processes may compare tables at the same time."""
    file = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
