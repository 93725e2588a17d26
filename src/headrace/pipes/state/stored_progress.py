"""The stored progress of a pipe: in its state directory (`progress.json`), for sinks that cannot store it, or in the sink.

Invariant: progress is stored after a batch's rows are in the sink and before Spark commits the batch. So the sink's record
(`headrace.positions`) is at least what Spark has committed and at most what it has planned. If it is less, rows are missing in the sink: an
error. If it is more, the state is an old copy: the log is read again from there, and `SinkRecord.is_ahead` tells pipes whose tables count
rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final

from headrace.entry_stamp import stamped, unstamped
from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN, START_OVER
from headrace.pipes.state.json_file import read_json, replace_json
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import pause, retrying
from headrace.sinks.base import Progress, ProgressStore

_FILE = "progress.json"

log = logging.getLogger("headrace")
_REPLICAS_S: Final = 10.0
"""How long a replica of the sink may lag behind."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class FileProgressStore:
    """The store of one state directory; a no-op without a directory."""

    is_in_sink: ClassVar[bool] = False
    directory: Path | None = None

    def begin(self) -> None:
        """Do nothing: the directory exists."""

    def progress(self, pipe: str) -> Progress | None:
        if self.directory is None or not (self.directory / _FILE).exists():
            return None
        path = self.directory / _FILE
        try:
            raw, stamp = unstamped(read_json(path))
            if stamp is None and "state" in raw:
                raise ValueError("it has no checksum")
            stored = Progress(**{**raw, "incomplete": tuple(raw["incomplete"])})
        except (DefiniteError, *MISSHAPEN) as error:
            why = error.message if isinstance(error, DefiniteError) else repr(error)
            hint = "remove the file: it is written again, and counts rows from 0"
            raise DefiniteError(f"the file that tells how far the pipe is cannot be read: {why}", place=str(path), hint=hint) from error
        return stored if stored.pipe == pipe else None

    def report(self, progress: Progress) -> None:
        if self.directory is not None:
            replace_json(self.directory / _FILE, stamped(asdict(progress), progress.state, 1, 1)[0])

    def register(self, pipe: Mapping[str, str]) -> None:
        """Do nothing: `pipe.json` holds the pipe's settings."""


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The progress of a state that the sink has stored."""

    position: str = ""
    version: int = -1
    """-1: none, or a state with another id stored it last."""

    def is_ahead(self, planned: int) -> bool:
        """Whether the sink holds rows after the last batch of the state."""
        return self.version > planned


def read_sink_record(store: ProgressStore, directory: StateDirectory, pipe: str, committed: int, can_resync: bool) -> SinkRecord:
    """Return the sink's record of a state directory's pipe. Raise if it is below the version that Spark has committed (or -1).

    `can_resync`: whether all tables of the pipe can be read again.
    """
    seal = directory.seal
    if seal is None:
        return SinkRecord()
    if not store.is_in_sink:
        _check_local(store.progress(pipe), directory, seal.state, committed)
        return SinkRecord()
    name, deadline = seal.progress_name or pipe, time.monotonic() + _REPLICAS_S
    while True:
        known = retrying(lambda: store.progress(name))
        if known is not None and known.state != seal.state:
            # Another pipe has the same name, or Headrace 0.9 stored it: the record tells nothing about this state.
            return SinkRecord()
        if known is not None and known.version >= committed:
            return SinkRecord(known.position, known.version)
        if not seal.progress_name:
            return SinkRecord()
        if time.monotonic() > deadline:
            raise _behind(known, directory, name, can_resync)
        pause(_POLL_S)


def _check_local(known: Progress | None, directory: StateDirectory, state: str, committed: int) -> None:
    """Check the record in the directory itself: it must not be behind Spark's checkpoint."""
    if known is not None and known.state == state and known.version < committed:
        raise DefiniteError(
            f"Spark's checkpoint is ahead of progress.json, which says that changes up to {known.position} were written",
            place=str(directory.path),
            hint=f"{START_OVER}; if only progress.json was replaced, remove it",
        )


def warn_of_old_state(record: SinkRecord, directory: StateDirectory, reached: object) -> None:
    log.warning(
        "the state in %s is older than the sink, which holds changes up to %s: the log is read again from %s",
        directory.path,
        record.position,
        reached,
    )


def _behind(known: Progress | None, directory: StateDirectory, name: str, can_resync: bool) -> DefiniteError:
    found = f"changes up to {known.position}" if known is not None else "no record of this pipe"
    again = f"have all tables read again: headrace resync '*.*' --state {directory.path}, then start again; " if can_resync else ""
    return DefiniteError(
        f"the sink is older than the state: it holds {found}, and the state has counted later changes",
        place=f"{directory.path}, pipe {name}",
        hint=f"{again}or restore a state directory that is as old as the sink; or {START_OVER.partition(', or ')[2]}",
    )
