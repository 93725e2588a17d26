"""Reads Spark's checkpoint: how far a stream has come, without starting it.

Spark writes each file once and, with the settings of `session`, without a checksum. `digests` computes one.
Invariant: Spark plans batch N (`offsets/N`) after it has committed batch N - 1 (`commits/N-1`), so at most one batch is open.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError
from headrace.jsonl import sync_directory
from headrace.sources.base import Offset

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_METADATA: Final = "metadata"
_START: Final = "sources/0/0"
_TEMPORARY: Final = ".*.tmp"
"""Spark writes a file under such a name and renames it."""
_SEALED: Final = 2
"""How many batches `digests` covers: the last one, and the one before it, from which Spark continues if the last one is open."""
_HINT: Final = (
    "restore the whole state directory from one backup, or start over: remove the state directory, and the target tables where they hold "
    "rows already"
)


def committed_offset(checkpoint: Path) -> Offset | None:
    """Return the end of the last committed batch; None if there is none."""
    batch = _newest(checkpoint / _COMMITS)
    return None if batch is None else offset_of(checkpoint, batch)


def is_committed(checkpoint: Path, batch: int) -> bool:
    return (checkpoint / _COMMITS / str(batch)).exists()


def planned_offset(checkpoint: Path) -> Offset | None:
    """Return the end of the last planned batch, committed or not; None if there is none."""
    batch = _newest(checkpoint / _OFFSETS)
    return None if batch is None else offset_of(checkpoint, batch)


def newest_batch(checkpoint: Path) -> int:
    """Return the number of the last planned batch; -1 if there is none."""
    batch = _newest(checkpoint / _OFFSETS)
    return -1 if batch is None else batch


def sync_batches(checkpoint: Path) -> None:
    """Sync the newest files to disk."""
    for name in (_OFFSETS, _COMMITS):
        batch = _newest(checkpoint / name)
        if batch is not None:
            _sync(checkpoint / name / str(batch))
            _sync(checkpoint / name)
    _sync(checkpoint)


def remove_temporary_files(checkpoint: Path) -> None:
    """Remove files that Spark had not written whole when it was stopped; Spark refuses to plan the first batch while there are any."""
    for directory in (checkpoint, *(checkpoint / name for name in (_OFFSETS, _COMMITS, Path(_START).parent))):
        for file in directory.glob(_TEMPORARY):
            file.unlink(missing_ok=True)


def check_checkpoint(checkpoint: Path) -> None:
    """Raise if a file that Spark continues from is missing or damaged: Spark would continue from another batch, or fail unclearly."""
    planned, committed = _newest(checkpoint / _OFFSETS), _newest(checkpoint / _COMMITS)
    _check_metadata(checkpoint / _METADATA)
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
    if committed is not None:
        file = checkpoint / _COMMITS / str(committed)
        try:
            # Two lines: the format, and metadata of the batch.
            json.loads(_line(file, 1))
        except ValueError as error:
            raise _unreadable(str(error), file) from error


def digests(checkpoint: Path) -> dict[str, str]:
    """Return digests of the files that Spark continues from, by their paths in the checkpoint."""
    names = [_METADATA, _START]
    for part in (_OFFSETS, _COMMITS):
        batch = _newest(checkpoint / part)
        names += [f"{part}/{number}" for number in range(max(batch - _SEALED + 1, 0), batch + 1)] if batch is not None else []
    return {name: digest for name in names if (digest := _digest(checkpoint / name))}


def check_digests(checkpoint: Path, known: Mapping[str, str]) -> None:
    """Raise if a file has changed. (Spark removes the files of old batches, and writes the id of a stream again if it is missing.)"""
    for name, digest in known.items():
        found = _digest(checkpoint / name)
        if not found and name == _START:
            # Spark would choose the start of the topics again, from what they contain now.
            raise _unreadable("the file is missing", checkpoint / name)
        if found and found != digest:
            raise _unreadable("it is not the file that Spark wrote for this pipe", checkpoint / name)


def _check_metadata(file: Path) -> None:
    """Raise if the id of the stream is unreadable. If the file is missing, Spark creates another id."""
    if file.exists():
        try:
            json.loads(_read(file))["id"]
        except (ValueError, TypeError, KeyError) as error:
            raise _unreadable(repr(error), file) from error


def _newest(directory: Path) -> int | None:
    return max((int(file.name) for file in directory.glob("*") if file.name.isdigit()), default=None)


def offset_of(checkpoint: Path, batch: int) -> Offset:
    """Return the end of a planned batch."""
    file = checkpoint / _OFFSETS / str(batch)
    try:
        # Three lines: the format, the batch's metadata, the only source's offset.
        json.loads(_line(file, 1))
        offset: Offset = json.loads(_line(file, 2))
        if not isinstance(offset, dict):
            raise TypeError("no object")
    except (TypeError, ValueError) as error:
        raise _unreadable(str(error), file) from error
    return offset


def initial_offset(checkpoint: Path) -> Offset | None:
    """Return the start of Spark's Kafka source; None if it has not started."""
    file = checkpoint / _START
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
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise _unreadable(str(error), file) from error


def _line(file: Path, number: int) -> str:
    lines = _read(file).split("\n")
    if len(lines) <= number:
        raise ValueError(f"it has {len(lines)} lines")
    return lines[number]


def _digest(file: Path) -> str:
    """Return the digest of a file; empty if it does not exist."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    except FileNotFoundError:
        return ""


def _unreadable(why: str, file: Path) -> DefiniteError:
    return DefiniteError(f"Spark's checkpoint cannot be read: {why}", place=str(file), hint=_HINT)


def _sync(path: Path) -> None:
    # Spark removes the files of old batches.
    with suppress(FileNotFoundError):
        sync_directory(path)
