"""Skips one poison event and records it: where a pipe halted, which skip was requested, and what happened.

Invariants: only the event that a pipe halts at can be skipped. The record (`skips.jsonl`) is append-only: the request with user, time and
reason; then the skipped event, or that it was not found. A requested event is skipped until a committed batch has passed it, in any run;
after that its position is dropped, so that no other event is mistaken for it.
"""

from __future__ import annotations

import getpass
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.entry_stamp import Stamp, stamped, unstamped
from headrace.errors import DefiniteError, HeadraceError
from headrace.jsonl import MISSHAPEN, Journal
from headrace.pipes.state.json_file import read_json, replace_json
from headrace.pipes.state.pipe_state import StateDirectory

log = logging.getLogger("headrace")

RECORD: Final = "skips.jsonl"
HALTED: Final = "halted.json"
ASKED, SKIPPED, PASSED, NOT_MET = "asked", "skipped", "passed", "not met"
"""The kinds of lines in the record."""
_REMEDY: Final = "restore the file, or remove it and ask again (headrace skip) where the pipe halts at the event again"
Found = Mapping[str, str]
"""A skipped event: `place`, `table`, `content` and more."""


def note_halt(directory: Path, error: HeadraceError | None) -> None:
    """Store the event that a pipe halted at, for `request_skip`; remove it if the error concerns no single event."""
    if error is None or not error.event:
        (directory / HALTED).unlink(missing_ok=True)
        return
    record = {"event": error.event, "message": error.message, "place": error.place, "at": time.time()}
    replace_json(directory / HALTED, stamped(record, "", 1, 1)[0])


def halted_at(directory: Path) -> dict[str, Any] | None:
    """Return the event that the pipe halted at last: `event`, `message`, `place`, `at`."""
    path = directory / HALTED
    if not path.exists():
        return None
    try:
        found, stamp = unstamped(read_json(path))
        if stamp is None and found.keys() != {"event", "message", "place", "at"}:
            raise ValueError("it has no checksum")
        return found
    except (DefiniteError, *MISSHAPEN) as error:
        hint = "run the pipe again: where it halts at an event, it writes the file again"
        raise DefiniteError("a file of the state directory is damaged", place=str(path), hint=hint) from error


def request_skip(directory: Path, place: str = "", who: str = "") -> str:
    """Request that the next run skips the event that the pipe halts at. `place`, if given, must be the error's."""
    halted = halted_at(directory)
    if halted is None:
        raise DefiniteError(
            "there is no event to skip: the pipe did not halt at one",
            place=str(directory),
            hint="see to what its error says; headrace resync reads tables again",
        )
    if place and place != halted["event"]:
        raise DefiniteError(
            f"the pipe does not halt at {place}", place=str(directory), hint=f"it halts at {halted['event']}: {halted['message']}"
        )
    event = str(halted["event"])
    _append(directory, {"place": event, "what": ASKED, "error": halted["message"], "where": halted["place"], "who": who or _user()})
    (directory / HALTED).unlink(missing_ok=True)
    return f"{event} is left out: {halted['message']}"


def skipped_by_table(directory: Path) -> Counter[str]:
    """Return the number of events skipped so far, by table (of a statement: its database; of a record: its topic)."""
    return Counter({line["place"]: str(line.get("table", "")) for line in _lines(directory) if line["what"] == SKIPPED}.values())


def skipped_events(directory: Path) -> int:
    return skipped_by_table(directory).total()


class EventSkips:
    """The skips of one run. Belongs to the driver."""

    def __init__(self, directory: Path, post: Callable[[Found], None] = lambda _: None) -> None:
        """`post` stores a skipped event in the sink, if the sink records them."""
        self._directory, self._post = directory, post
        self._requested: dict[str, str] = {}
        self._done: set[str] = set()
        state = StateDirectory(directory, make=False).load()
        for line in _lines(directory, state.id if state is not None else None):
            if line["what"] == ASKED:
                self._requested[line["place"]] = line["error"]
                self._done.discard(line["place"])
            elif line["what"] == SKIPPED:
                self._done.add(line["place"])
            else:
                self._requested.pop(line["place"], None)

    @property
    def pending(self) -> frozenset[str]:
        """Positions to skip."""
        return frozenset(self._requested)

    def why(self, place: str) -> str:
        """The error that led to the request."""
        return self._requested.get(place, "")

    def record_skipped(self, found: Iterable[Found]) -> None:
        """Record skipped events before their batch counts. A repetition after a crash records them once."""
        for one in found:
            place = one["place"]
            self._post({**one, "error": self.why(place)})
            if place not in self._done:
                self._done.add(place)
                _append(self._directory, {"what": SKIPPED, **one})
                log.warning("skipped by request: %s, table %s: %s", place, one.get("table", ""), self.why(place))

    def drop_passed(self, is_passed: Callable[[str], bool]) -> None:
        """Drop positions that a committed batch has passed; log those at which no event was found."""
        for place in [place for place in self._requested if is_passed(place)]:
            met = place in self._done
            _append(self._directory, {"place": place, "what": PASSED if met else NOT_MET})
            if not met:
                log.warning("nothing was skipped at %s: there is no such event of a table that is replicated", place)
            del self._requested[place]


@dataclass(frozen=True, slots=True)
class _StateCheck:
    """The record's seal: its lines must belong to this state. (An old copy requests less, and the pipe halts again.)"""

    state: str
    accepts_plain: bool = True
    _last: dict[Path, Stamp] = field(default_factory=dict)

    def last(self, path: Path) -> Stamp | None:
        return self._last.get(path)

    def check(self, path: Path, stamps: Sequence[Stamp]) -> None:
        if any(stamp.state != self.state for stamp in stamps):
            raise DefiniteError("the file belongs to the state of another pipe", place=str(path), hint=_REMEDY)
        if stamps:
            self.note(path, stamps[-1])

    def note(self, path: Path, stamp: Stamp) -> None:
        self._last[path] = stamp


def _append(directory: Path, line: dict[str, Any]) -> None:
    state = StateDirectory(directory, make=False).load()
    journal = Journal(directory / RECORD, _StateCheck(state.id if state is not None else ""), _REMEDY)
    journal.read()
    journal.append({**line, "at": time.time()})


def _lines(directory: Path, state: str | None = None) -> list[dict[str, Any]]:
    """Return the record's lines; `state`: the id of the state that they must belong to."""
    return Journal(directory / RECORD, _StateCheck(state) if state is not None else None, _REMEDY).read()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
