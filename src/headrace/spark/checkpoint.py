"""Reading Spark's checkpoint: how far a stream got, without starting it."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.sources.base import Offset


def committed_offset(checkpoint: Path) -> Offset | None:
    """Where the last committed batch ended; None if none was."""
    batches = [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()]
    if not batches:
        return None
    file = checkpoint / "offsets" / str(max(batches))
    try:
        # Three lines: the format, the batch's metadata, the only source's offset.
        offset: Offset = json.loads(file.read_text().splitlines()[2])
    except (OSError, IndexError, ValueError) as error:
        raise DefiniteError(f"Spark's checkpoint cannot be read: {error}", place=str(file), hint="restore the state directory") from error
    return offset
