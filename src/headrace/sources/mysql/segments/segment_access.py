"""How tasks get the bytes of a log segment. The pickled source holds it, so this module imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class SegmentAccess(StrEnum):
    """Where tasks read the relay's copy of the log."""

    LOCAL = "here"
    """From the relay's files: tasks run on the planner's machine."""
    LOCAL_OR_FETCH = "sought"
    """From the relay's files if the executor has them, otherwise from the source server (see `segment_fetch`)."""
    FETCH = "hidden"
    """Always from the source server."""
