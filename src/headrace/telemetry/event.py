"""One event of a pipe, such as a start, an error or a schema change.

Invariant: texts are one line each, of bounded length, and hold no secret: `draft_event` escapes them, and its callers mask them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.model.json_record import JsonRecord
from headrace.terminal_text import escape_text

MAX_TEXT: Final = 800
"""Characters of one text; a statement may have megabytes."""


class EventKind(StrEnum):
    STARTED = "started"
    STOPPED = "stopped"
    PAUSED = "paused"
    SNAPSHOT_STARTED = "snapshot_started"
    SNAPSHOT_FINISHED = "snapshot_finished"
    SCHEMA_CHANGE = "schema_change"
    FAILED = "failed"
    """A definite error halted the pipe, or ended a verification."""
    ERROR = "error"
    """A transient error: the pipe retries."""
    WAITING = "waiting"
    """A peer is away; the running pipe retries."""
    RECOVERED = "recovered"
    """The pipe runs again after errors."""
    VERIFIED = "verified"
    """A comparison with the source ended, without differences."""
    DIFFERENCES = "differences"
    """A comparison with the source ended, and rows differ."""
    FAILOVER = "failover"
    """The pipe continues on another server of the source, or in a new log."""


@dataclass(frozen=True, slots=True)
class PipeEvent(JsonRecord):
    at: float
    pipe: str
    kind: EventKind
    text: str
    place: str = ""
    remedy: str = ""
    key: str = ""
    """Identifies what happened, if it can be seen again after a restart."""


_TEXTS: Final = ("pipe", "text", "place", "remedy", "key")


def draft_event(at: float, pipe: str, kind: EventKind, text: str, place: str = "", remedy: str = "", key: str = "") -> PipeEvent:
    return PipeEvent(at, pipe, kind, bounded_text(text), bounded_text(place), bounded_text(remedy), key)


def bounded_text(text: str) -> str:
    """Escape a text, and cut it if it is long."""
    escaped = escape_text(text[: MAX_TEXT + 1])
    return escaped if len(escaped) <= MAX_TEXT else escaped[: MAX_TEXT - 1] + "…"


def parse_event(raw: Mapping[str, Any]) -> PipeEvent:
    """Return a stored event; raise an exception of `jsonl.MISSHAPEN` if it is none."""
    if not all(isinstance(raw.get(name, ""), str) and len(raw.get(name, "")) <= MAX_TEXT for name in _TEXTS):
        raise TypeError("a text is no text, or is too long")
    if not isinstance(raw["at"], float) or not math.isfinite(raw["at"]):
        raise TypeError("its time is no number")
    return PipeEvent.from_json(raw)
