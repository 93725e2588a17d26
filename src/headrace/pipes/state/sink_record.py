"""The sink's own record of a pipe (`headrace.positions`) as a witness of the state: neither must know more than the other can.

A batch is told to the sink after its rows are there and before Spark commits it. So what the sink was told last is at least what Spark has
committed, and at most what Spark has planned. If the sink was told less, rows that the state counts are not there: an error. If it was told
more, the state is an old copy: the log is read again from there, and `Told.is_ahead` says so to pipes whose tables count rows.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError
from headrace.jsonl import START_OVER
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import pause, retrying
from headrace.sinks.base import Progress, ProgressStore

log = logging.getLogger("headrace")

_REPLICAS_S: Final = 10.0
"""How long a replica of the sink may lag behind the one that was told."""
_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Told:
    """What the sink was told of a state."""

    position: str = ""
    version: int = -1
    """-1: nothing, or a state of another id told it last."""

    def is_ahead(self, planned: int) -> bool:
        """Whether the sink holds rows from behind the last batch that the state knows."""
        return self.version > planned


def ask_witness(books: ProgressStore, directory: StateDirectory, pipe: str, committed: int, can_resync: bool) -> Told:
    """What the sink was told of the pipe of a state directory. Raises if that is less than Spark has committed (a version, or -1).

    `can_resync`: whether all tables of the pipe can be read again.
    """
    seal = directory.seal
    if seal is None:
        return Told()
    if not books.is_in_sink:
        _check_local(books.progress(pipe), directory, seal.state, committed)
        return Told()
    name, deadline = seal.told_as or pipe, time.monotonic() + _REPLICAS_S
    while True:
        known = retrying(lambda: books.progress(name))
        if known is not None and known.state != seal.state:
            # Another pipe has the same name, or Headrace 0.9 told it: the record says nothing of this state.
            return Told()
        if known is not None and known.version >= committed:
            return Told(known.position, known.version)
        if not seal.told_as:
            return Told()
        if time.monotonic() > deadline:
            raise _behind(known, directory, name, can_resync)
        pause(_POLL_S)


def _check_local(known: Progress | None, directory: StateDirectory, state: str, committed: int) -> None:
    """The same where the directory itself keeps the record: it must not be behind Spark's checkpoint."""
    if known is not None and known.state == state and known.version < committed:
        raise DefiniteError(
            f"Spark's checkpoint is ahead of progress.json, which says that changes up to {known.position} were written",
            place=str(directory.path),
            hint=f"{START_OVER}; if only progress.json was replaced, remove it",
        )


def warn_of_old_state(told: Told, directory: StateDirectory, reached: object) -> None:
    """Say that the log is read again."""
    log.warning(
        "the state in %s is older than the sink, which holds changes up to %s: the log is read again from %s",
        directory.path,
        told.position,
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
