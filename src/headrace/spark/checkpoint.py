"""Reading Spark's checkpoint: how far a stream got, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.sources.base import Offset


def committed_offset(checkpoint: Path) -> Offset | None:
    """Where the last committed batch ended; None if none was."""
    batch = _newest(checkpoint / "commits")
    return None if batch is None else offset_of(checkpoint, batch)


def is_committed(checkpoint: Path, batch: int) -> bool:
    """Whether a batch counts."""
    return (checkpoint / "commits" / str(batch)).exists()


def planned_offset(checkpoint: Path) -> Offset | None:
    """Where the last planned batch ends, committed or not; None if none was planned."""
    batch = _newest(checkpoint / "offsets")
    return None if batch is None else offset_of(checkpoint, batch)


def _newest(directory: Path) -> int | None:
    return max((int(file.name) for file in directory.glob("*") if file.name.isdigit()), default=None)


def offset_of(checkpoint: Path, batch: int) -> Offset:
    """Where a batch that was planned ends."""
    file = checkpoint / "offsets" / str(batch)
    try:
        # Three lines: the format, the batch's metadata, the only source's offset.
        offset: Offset = json.loads(file.read_text().splitlines()[2])
    except (OSError, IndexError, ValueError) as error:
        raise DefiniteError(f"Spark's checkpoint cannot be read: {error}", place=str(file), hint="restore the state directory") from error
    return offset


def initial_offset(checkpoint: Path) -> Offset | None:
    """Where Spark's Kafka source began; None if it has not begun."""
    file = checkpoint / "sources" / "0" / "0"
    if not file.exists():
        return None
    text = file.read_text(errors="replace")
    try:
        # A mark that old versions read, then the format's version, then the offsets.
        offset: Offset = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise DefiniteError(f"Spark's checkpoint cannot be read: {error}", place=str(file), hint="restore the state directory") from error
    return offset
