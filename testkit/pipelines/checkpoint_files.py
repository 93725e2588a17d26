"""Files of a checkpoint as Spark writes them in a session of Headrace: without Hadoop's checksums."""

from __future__ import annotations

import json
import uuid
from pathlib import Path


def write_batch_file(path: Path, text: str) -> None:
    """Write a file of `offsets` or `commits` whose name is a batch's number."""
    path.write_text(text)


def make_checkpoint(checkpoint: Path) -> None:
    """Make the directory of a stream, if there is none."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    if not (checkpoint / "metadata").exists():
        write_batch_file(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))


def next_batch(checkpoint: Path) -> int:
    """The number of the first batch that is not committed."""
    return max((int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), default=-1) + 1
