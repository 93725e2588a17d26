"""GTID sets of both server families, advanced in bulk by the groups of a scan.

A MySQL set is intervals of transaction numbers per server UUID and tag; a MariaDB position is the last sequence number per domain. Both are
immutable: adding returns a new set. Groups are rows of numbers. A tag appears there as a number from `tag_number`, which is valid only in
this process.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.errors import DefiniteError

_Intervals = tuple[tuple[int, int], ...]

_SPAN: Final = r"[0-9]+(?:\s*-\s*[0-9]+)?"
_TAG: Final = r"[a-z_][a-z0-9_]{0,31}"
_PIECE: Final = rf"(?:{_SPAN}|{_TAG}\s*:\s*{_SPAN})"
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_MYSQL_PART: Final = re.compile(rf"(?P<source>{_UUID})\s*:\s*(?P<pieces>{_PIECE}(?:\s*:\s*{_PIECE})*)", re.IGNORECASE)
_MARIADB_PART: Final = re.compile(r"[0-9]+-[0-9]+-[0-9]+")


@dataclass(frozen=True, slots=True)
class MySQLGtidSet:
    """Per source (a UUID, or `UUID:tag`), disjoint half-open intervals in order."""

    intervals: tuple[tuple[str, _Intervals], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MySQLGtidSet:
        found: dict[str, list[tuple[int, int]]] = {}
        for part in text.replace("\n", "").split(","):
            if not part.strip():
                continue
            match = _MYSQL_PART.fullmatch(part.strip())
            if match is None:
                raise DefiniteError(f"GTID set {part.strip()!r} cannot be read", hint="write UUID:1-5 or UUID:tag:1-5, as gtid_executed")
            source = match["source"].lower()
            for piece in re.sub(r"\s", "", match["pieces"]).lower().split(":"):
                if not piece[0].isdigit():
                    # Intervals after a tag belong to that tag, up to the next tag.
                    source = f"{match['source'].lower()}:{piece}"
                    continue
                first, _, last = piece.partition("-")
                span = int(first), int(last or first) + 1
                if not 0 < span[0] < span[1]:
                    raise DefiniteError(f"GTID set {part.strip()!r} has an interval that ends before it starts")
                found.setdefault(source, []).append(span)
        return cls(tuple(sorted((source, _merged(spans)) for source, spans in found.items())))

    def add_groups(self, groups: npt.NDArray[np.int64]) -> MySQLGtidSet:
        """Return the set with the transactions of these groups: rows of (UUID high, UUID low, number[, tag]), zeros for none."""
        present = _with_tags(groups[groups[:, 2] != 0])
        if not len(present):
            return self
        found = {source: list(spans) for source, spans in self.intervals}
        for high, low, tag in np.unique(present[:, [0, 1, 3]], axis=0).tolist():
            ours = (present[:, 0] == high) & (present[:, 1] == low) & (present[:, 3] == tag)
            numbers = np.unique(present[ours, 2])
            breaks = np.flatnonzero(np.diff(numbers) != 1)
            starts = numbers[np.concatenate(([0], breaks + 1))]
            ends = numbers[np.concatenate((breaks, [len(numbers) - 1]))] + 1
            found.setdefault(source_name(high, low, tag), []).extend(zip(starts.tolist(), ends.tolist(), strict=True))
        return MySQLGtidSet(tuple(sorted((source, _merged(spans)) for source, spans in found.items())))

    def holds(self, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these groups' transactions are in the set: rows as in `add_groups`."""
        held = np.zeros(len(groups), dtype=np.bool_)
        lines = _with_tags(groups)
        for source, spans in self.intervals:
            name, _, tag = source.partition(":")
            number = uuid.UUID(name).int
            high, low = _signed(number >> 64), _signed(number & (1 << 64) - 1)
            same = (lines[:, 0] == high) & (lines[:, 1] == low) & (lines[:, 3] == tag_number(tag)) & (lines[:, 2] != 0)
            ours = np.flatnonzero(same)
            starts, ends = np.array(spans, dtype=np.int64).T
            at = np.searchsorted(starts, groups[ours, 2], side="right") - 1
            held[ours] = (at >= 0) & (groups[ours, 2] < ends[at])
        return held

    def minus(self, other: MySQLGtidSet) -> MySQLGtidSet:
        theirs = dict(other.intervals)
        left = ((source, _without(spans, theirs.get(source, ()))) for source, spans in self.intervals)
        return MySQLGtidSet(tuple((source, spans) for source, spans in left if spans))

    def __str__(self) -> str:
        parts: list[str] = []
        for source, spans in self.intervals:
            name, _, tag = source.partition(":")
            text = ":".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in spans)
            if tag and parts and parts[-1].startswith(name):
                parts[-1] += f":{tag}:{text}"
            else:
                parts.append(f"{source}:{text}")
        return ",".join(parts)


@dataclass(frozen=True, slots=True)
class MariaDBGtidPosition:
    """Per replication domain, the server and sequence number of the last transaction."""

    domains: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MariaDBGtidPosition:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        for part in parts:
            if _MARIADB_PART.fullmatch(part) is None:
                raise DefiniteError(f"GTID position {part!r} cannot be read", hint="write domain-server-sequence, as gtid_binlog_pos")
        triples = [tuple(int(number) for number in part.split("-")) for part in parts]
        return cls(tuple(sorted((domain, server, sequence) for domain, server, sequence in triples)))

    def add_groups(self, groups: npt.NDArray[np.int64]) -> MariaDBGtidPosition:
        """Return the position after these groups: rows of (domain, server, sequence), zeros for none."""
        present = groups[groups[:, 2] != 0]
        last = {domain: (server, sequence) for domain, server, sequence in self.domains}
        for domain in np.unique(present[:, 0]).tolist():
            server, sequence = present[present[:, 0] == domain][-1, 1:3].tolist()
            last[domain] = (server, sequence)
        return MariaDBGtidPosition(tuple(sorted((domain, *rest) for domain, rest in last.items())))

    def holds(self, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these groups are not after the position in their domain: rows as in `add_groups`."""
        held = np.zeros(len(groups), dtype=np.bool_)
        for domain, _, sequence in self.domains:
            held |= (groups[:, 0] == domain) & (groups[:, 2] != 0) & (groups[:, 2] <= sequence)
        return held

    def minus(self, other: MariaDBGtidPosition) -> MariaDBGtidPosition:
        theirs: dict[int, int] = {}
        for domain, _, sequence in other.domains:
            theirs[domain] = max(sequence, theirs.get(domain, 0))
        return MariaDBGtidPosition(tuple(gtid for gtid in self.domains if gtid[2] > theirs.get(gtid[0], 0)))

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, server, sequence in self.domains)


GtidSet = MySQLGtidSet | MariaDBGtidPosition


def parse_gtid_set(text: str, *, mariadb: bool) -> GtidSet:
    return MariaDBGtidPosition.parse(text) if mariadb else MySQLGtidSet.parse(text)


_TAGS: Final[list[str]] = [""]


def tag_number(tag: str) -> int:
    """Return the number that stands for a tag in rows of groups; 0 for none."""
    if tag not in _TAGS:
        _TAGS.append(tag)
    return _TAGS.index(tag)


def source_name(high: int, low: int, tag: int) -> str:
    """Return the source of a group: its UUID in two signed halves, with the tag if there is one."""
    name = str(uuid.UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1))
    return f"{name}:{_TAGS[tag]}" if tag else name


def _with_tags(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return rows of four numbers, with or without tags in the input."""
    return groups if groups.shape[1] == 4 else np.column_stack((groups, np.zeros(len(groups), dtype=np.int64)))


def read_gtid_set(text: str) -> GtidSet:
    """Parse a set that Headrace wrote: only MySQL's sets have colons."""
    return parse_gtid_set(text, mariadb=":" not in text)


def missing_from(text: str, known: str, *, mariadb: bool) -> str:
    """Return the transactions of one set that are not in another, as text; empty if there are none."""
    if mariadb:
        return str(MariaDBGtidPosition.parse(text).minus(MariaDBGtidPosition.parse(known)))
    return str(MySQLGtidSet.parse(text).minus(MySQLGtidSet.parse(known)))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _without(spans: _Intervals, others: _Intervals) -> _Intervals:
    """Return disjoint ordered intervals with others cut out of them."""
    left: list[tuple[int, int]] = []
    for start, end in spans:
        at = start
        for low, high in others:
            if high <= at or low >= end:
                continue
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return tuple(left)


def _merged(spans: list[tuple[int, int]]) -> _Intervals:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)
