"""Packs a row image's log address into its version.

A row image's version is its address in the source's log: epoch (incremented when the source server changes), log file number, and byte
position of the event plus the index of the image in it. Every image occupies at least one byte of its event, so the sum is unique and rises
strictly along the log. Versions need no clock, counter or state: replaying a range gives the same versions, and tasks number their rows
independently.
"""

from __future__ import annotations

from headrace.errors import DefiniteError

EPOCH_BITS, FILE_BITS, OFFSET_BITS = 6, 22, 36


def pack_version(epoch: int, file_number: int, offset: int) -> int:
    """Return the version of the image at `offset` of log file `file_number`."""
    if not 0 <= epoch < 1 << EPOCH_BITS:
        raise DefiniteError(f"epoch {epoch} does not fit a version", hint="start over with a new state directory and new target tables")
    if not 0 <= file_number < 1 << FILE_BITS:
        raise DefiniteError(f"log file number {file_number} does not fit a version", hint="RESET the binary logs of the source")
    if not 0 <= offset < 1 << OFFSET_BITS:
        raise DefiniteError(f"log offset {offset} does not fit a version", hint="lower max_binlog_cache_size on the source")
    return epoch << (FILE_BITS + OFFSET_BITS) | file_number << OFFSET_BITS | offset


def unpack_version(version: int) -> tuple[int, int, int]:
    """Return the epoch, log file number and offset of a version."""
    return (version >> (FILE_BITS + OFFSET_BITS), version >> OFFSET_BITS & (1 << FILE_BITS) - 1, version & (1 << OFFSET_BITS) - 1)


def row_place(version: int) -> str:
    """Return the place of the image with this version, in the form that `headrace skip` accepts."""
    return f"row {version}"
