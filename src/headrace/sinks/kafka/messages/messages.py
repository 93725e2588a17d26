"""Encoded messages as columns, and the encoder interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

B_contra = TypeVar("B_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one topic, in the order in which they are sent."""

    topic: str
    key: pa.BinaryArray
    """Determines the partition, and what compaction keeps; NULL for tables without a key."""
    value: pa.BinaryArray
    """NULL for tombstones."""
    version: pa.UInt64Array
    """The position of each change in the source's log: a header of each message, equal when it is sent again."""
    timestamp_ms: pa.Int64Array
    headers: tuple[tuple[tuple[str, bytes], ...], ...] = ()
    """Further headers of each message; empty if no message has any."""
    row: pa.UInt64Array | None = None
    """In a snapshot, whose rows share one version: the number of the row. It follows the version in the header."""
    commit_us: pa.Int64Array | None = None
    """When each change was committed, as a header; for formats whose value does not contain it."""
    position: tuple[bytes | None, ...] = ()
    """Replaces the version if a position in the source's log is not a number; None: the message is not from the log."""


class MessageEncoder(Protocol[B_contra]):
    """Encodes blocks as messages. Belongs to one task."""

    def encode(self, block: B_contra) -> list[Messages]:
        """Return the block's messages; every update in it has its before image."""
