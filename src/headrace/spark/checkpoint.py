"""Reading Spark's checkpoint: how far a stream got, without starting it.

Spark writes a checksum beside each file (`.NAME.crc`); what is read here is checked by it. A file without one is taken as it is, as Spark
does. Invariant: Spark plans batch N (`offsets/N`) after it has committed batch N - 1 (`commits/N-1`), so at most one batch is open.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError
from headrace.sources.base import Offset

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_CRC_HEADER: Final = 8
_CRC_MAGIC: Final = b"crc\0"
_HINT: Final = (
    "restore the whole state directory from one backup, or start over: remove the state directory, and the target tables where they hold "
    "rows already"
)


def committed_offset(checkpoint: Path) -> Offset | None:
    """Where the last committed batch ended; None if none was."""
    batch = _newest(checkpoint / _COMMITS)
    return None if batch is None else offset_of(checkpoint, batch)


def is_committed(checkpoint: Path, batch: int) -> bool:
    """Whether a batch counts."""
    return (checkpoint / _COMMITS / str(batch)).exists()


def planned_offset(checkpoint: Path) -> Offset | None:
    """Where the last planned batch ends, committed or not; None if none was planned."""
    batch = _newest(checkpoint / _OFFSETS)
    return None if batch is None else offset_of(checkpoint, batch)


def newest_batch(checkpoint: Path) -> int:
    """The number of the last planned batch; -1 if none was planned."""
    batch = _newest(checkpoint / _OFFSETS)
    return -1 if batch is None else batch


def sync_batches(checkpoint: Path) -> None:
    """Make sure that the newest files outlive the machine."""
    for name in (_OFFSETS, _COMMITS):
        batch = _newest(checkpoint / name)
        if batch is not None:
            _sync(checkpoint / name / str(batch))
            _sync(checkpoint / name)
    _sync(checkpoint)


def check_checkpoint(checkpoint: Path) -> None:
    """Raise if a file that Spark needs to go on is missing or damaged: Spark would go on from another batch, or fail in its own words."""
    planned, committed = _newest(checkpoint / _OFFSETS), _newest(checkpoint / _COMMITS)
    stream_id(checkpoint)
    initial_offset(checkpoint)
    if planned is None and committed is None:
        return
    first, last = (-1 if batch is None else batch for batch in (committed, planned))
    if not first <= last <= first + 1:
        raise DefiniteError(
            f"Spark's checkpoint is not complete: the last planned batch is {last}, and the last committed batch is {first}",
            place=str(checkpoint),
            hint=_HINT,
        )
    for batch in range(max(first, 0), last + 1):
        offset_of(checkpoint, batch)
    if committed is not None and not _read(checkpoint / _COMMITS / str(committed)).startswith("v"):
        raise _unreadable("it is not a commit of Spark's", checkpoint / _COMMITS / str(committed))


def stream_id(checkpoint: Path) -> str:
    """The id that Spark gave the stream; empty if there is none yet. (Where its file is missing, Spark gives it another one.)"""
    file = checkpoint / "metadata"
    if not file.exists():
        return ""
    try:
        return str(json.loads(_read(file))["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(repr(error), file) from error


def _newest(directory: Path) -> int | None:
    return max((int(file.name) for file in directory.glob("*") if file.name.isdigit()), default=None)


def offset_of(checkpoint: Path, batch: int) -> Offset:
    """Where a batch that was planned ends."""
    file = checkpoint / _OFFSETS / str(batch)
    try:
        # Three lines: the format, the batch's metadata, the only source's offset.
        offset: Offset = json.loads(_read(file).splitlines()[2])
    except (IndexError, ValueError) as error:
        raise _unreadable(str(error), file) from error
    return offset


def initial_offset(checkpoint: Path) -> Offset | None:
    """Where Spark's Kafka source began; None if it has not begun."""
    file = checkpoint / "sources" / "0" / "0"
    if not file.exists():
        return None
    text = _read(file)
    try:
        # A mark that old versions read, then the format's version, then the offsets.
        offset: Offset = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise _unreadable(str(error), file) from error
    return offset


def _read(file: Path) -> str:
    """The text of a file, checked by its checksum."""
    try:
        content = file.read_bytes()
        sums = file.with_name(f".{file.name}.crc")
        stored = sums.read_bytes() if sums.exists() else None
    except OSError as error:
        raise _unreadable(str(error), file) from error
    if stored is not None and not _fits(content, stored):
        raise _unreadable("the file and its checksum do not match", file)
    return content.decode(errors="replace")


def _fits(content: bytes, stored: bytes) -> bool:
    """Whether content has the checksums that Hadoop stored: one for each piece of so many bytes."""
    size = int.from_bytes(stored[4:_CRC_HEADER], "big")
    if stored[:4] != _CRC_MAGIC or size <= 0:
        return False
    pieces = (content[start : start + size] for start in range(0, len(content), size))
    return stored[_CRC_HEADER:] == b"".join(zlib.crc32(piece).to_bytes(4, "big") for piece in pieces)


def _unreadable(why: str, file: Path) -> DefiniteError:
    return DefiniteError(f"Spark's checkpoint cannot be read: {why}", place=str(file), hint=_HINT)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # Spark removes the files of old batches.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
