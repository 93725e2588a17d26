"""Files of a checkpoint as Spark writes them: each with Hadoop's checksums beside it."""

from __future__ import annotations

import json
import uuid
import zlib
from pathlib import Path

_PIECE = 512


def write_batch_file(path: Path, text: str) -> None:
    """Write a file of `offsets` or `commits` whose name is a batch's number."""
    content = text.encode()
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]
    sums = b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + _PIECE.to_bytes(4, "big") + sums)
    path.write_bytes(content)


def make_checkpoint(checkpoint: Path) -> None:
    """Make the directory of a stream, if there is none."""
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    if not (checkpoint / "metadata").exists():
        write_batch_file(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))


def next_batch(checkpoint: Path) -> int:
    """The number of the first batch that is not committed."""
    return max((int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), default=-1) + 1
