"""Splits a table by partition tokens.

Every partition has one token, so every row is in exactly one part for any cut of the ring; cuts only matter for balance and replica
locality. Progress is stored as ranges, not part numbers: the rest may be cut differently later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
RING: Final = 1 << 64
CHUNK_BYTES: Final = 64 << 20
_MOST_CHUNKS: Final = 4096


@dataclass(frozen=True, slots=True, order=True)
class TokenRange:
    """Tokens above `start` and up to `end`. No partition has the least token of all, so `WHOLE` is every partition."""

    start: int
    end: int

    @property
    def share(self) -> float:
        """The share of the ring; tokens are spread evenly, so about the same share of the partitions."""
        return (self.end - self.start) / RING

    def to_json(self) -> list[int]:
        return [self.start, self.end]

    @classmethod
    def from_json(cls, raw: Sequence[int]) -> TokenRange:
        return cls(raw[0], raw[1])


WHOLE: Final = TokenRange(LEAST, GREATEST)


@dataclass(frozen=True, slots=True)
class Ring:
    """The distribution of a table in its cluster."""

    tokens: tuple[int, ...]
    """The ends of the nodes' own ranges."""
    bytes: int = 0
    """Estimated size of the table; 0 if unknown."""
    partitions: int = 0


def left_over(done: Iterable[TokenRange], of: TokenRange = WHOLE) -> list[TokenRange]:
    """Return the parts of a range that are not done, in order."""
    found, start = [], of.start
    for one in sorted(done):
        if one.start > start:
            found.append(TokenRange(start, min(one.start, of.end)))
        start = max(start, one.end)
        if start >= of.end:
            break
    if start < of.end:
        found.append(TokenRange(start, of.end))
    return found


def covered(done: Iterable[TokenRange]) -> float:
    """Return the ranges' share of the ring; overlaps count once."""
    return 1.0 - sum(one.share for one in left_over(done))


def cut(ranges: Iterable[TokenRange], ring: Ring, least: int, chunk_bytes: int = CHUNK_BYTES) -> list[TokenRange]:
    """Split the ranges into parts of about `chunk_bytes`, at least `least` of the whole ring, at the ends of nodes' ranges if possible."""
    count = min(max(least, -(-ring.bytes // chunk_bytes), 1), _MOST_CHUNKS)
    widest = -(-RING // count)
    return [part for one in ranges for part in _parts(one, ring.tokens, widest)]


def _parts(whole: TokenRange, tokens: Iterable[int], widest: int) -> Iterator[TokenRange]:
    bounds = sorted({whole.start, *(token for token in tokens if whole.start < token < whole.end), whole.end})
    start = whole.start
    for before, after in pairwise(bounds):
        if after - start <= widest * 5 // 4:
            # Join small neighbours: a small table is not queried once per vnode.
            continue
        if before > start:
            yield TokenRange(start, before)
            start = before
        pieces = -(-(after - start) // widest)
        for i in range(1, pieces):
            end = before + (after - before) * i // pieces
            yield TokenRange(start, end)
            start = end
    if start < whole.end:
        yield TokenRange(start, whole.end)
