"""Damage to binary logs, drawn from a seed: the same recording and seed give the same bytes, everywhere.

Two kinds. *Blind* damage changes bytes of the file only, as a bad disk or a broken copy does. *Believed* damage changes one event and then
corrects sizes, positions and checksums: what arrives from a log without checksums, or from an attacker. It works on a *unit* of a log: the
head of the file and one transaction, or everything where transactions depend on each other.
"""

from __future__ import annotations

import functools
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MAGIC = b"\xfebin"
HEADER = 19
_IN_USE_AT = len(MAGIC) + 17
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xF7, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
_KINDS = (
    2,
    3,
    4,
    13,
    15,
    16,
    19,
    23,
    24,
    25,
    26,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    38,
    39,
    40,
    42,
    160,
    161,
    162,
    163,
    165,
    166,
    167,
    168,
    0,
    255,
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Events, without checksums, that make a log file by themselves."""

    events: tuple[bytes, ...]
    first: int
    """The index of the first event after the head that every file has."""
    checksum: bool

    @property
    def log(self) -> bytes:
        return assemble(self.events, self.checksum)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A log after damage."""

    log: bytes
    at: int
    """Where the first damaged event starts."""
    what: str
    body: tuple[int, int] | None = None
    """The offsets of the damaged event, if only its body was damaged and no other event moved."""


def split_events(log: bytes, checksum: bool) -> list[bytes]:
    """The events of a log file, without checksums (the format description always has one)."""
    found, at = [], len(MAGIC)
    while at < len(log):
        size = struct.unpack_from("<I", log, at + 9)[0]
        tail = 4 if checksum or log[at + 4] == 15 else 0
        found.append(log[at : at + size - tail])
        at += size
    return found


def event_starts(log: bytes) -> Iterator[int]:
    at = len(MAGIC)
    while at < len(log):
        yield at
        at += struct.unpack_from("<I", log, at + 9)[0]


def assemble(events: Sequence[bytes], checksum: bool, kept_size: int = -1) -> bytes:
    """A log file of events, with right sizes (except the one of event `kept_size`), positions and checksums."""
    out = bytearray(MAGIC)
    for number, event in enumerate(events):
        tail = 4 if checksum or event[4] == 15 else 0
        whole = bytearray(event)
        if number != kept_size:
            struct.pack_into("<I", whole, 9, len(event) + tail)
        struct.pack_into("<I", whole, 13, (len(out) + len(event) + tail) & 0xFFFFFFFF)
        out += whole
        if tail:
            out += struct.pack("<I", zlib.crc32(whole))
    return bytes(out)


@functools.lru_cache(maxsize=64)
def _starts(log: bytes) -> list[int]:
    return list(event_starts(log))


def damage_blindly(log: bytes, seed: int) -> Damaged:
    """Change bytes in one to four places after the magic number."""
    draw = random.Random(seed)
    starts = _starts(log)
    data, what = _wounded_blindly(log, starts, draw)
    length = min(len(log), len(data))
    differences = np.frombuffer(log, np.uint8, length) ^ np.frombuffer(data, np.uint8, length)
    # Servers change this bit themselves (the file is being written) without renewing the checksum: it is no damage.
    differences[_IN_USE_AT : _IN_USE_AT + 1] &= 0xFE
    differing = np.flatnonzero(differences)
    first = int(differing[0]) if len(differing) else length
    bounds = [*starts, len(log)]
    return Damaged(data, max((bound for bound in bounds if bound <= first), default=len(MAGIC)), what)


def _wounded_blindly(log: bytes, starts: list[int], draw: random.Random) -> tuple[bytes, str]:
    kind = draw.randrange(10)
    if kind == 0:
        return log[: draw.randrange(len(MAGIC), len(log))], "cut"
    if kind == 1:
        return _shuffled(log, starts, draw)
    data = bytearray(log)
    if kind == 2:
        size = draw.randint(1, 64)
        source, target = (draw.randrange(len(MAGIC), len(log) - size) for _ in range(2))
        data[target : target + size] = log[source : source + size]
        return bytes(data), "a piece over another"
    if kind == 3:
        at, size = draw.randrange(len(MAGIC), len(log)), draw.randint(1, 40)
        if draw.random() < 0.5:
            del data[at : at + size]
        else:
            data[at:at] = draw.randbytes(size)
        return bytes(data), "bytes lost or put in"
    for _ in range(draw.randint(1, 4) if kind > 6 else 1):
        at = draw.randrange(len(MAGIC), len(log))
        data[at] = data[at] ^ 1 << draw.randrange(8) if kind < 8 else draw.choice(_BYTES)
    return bytes(data), "bytes"


def _shuffled(log: bytes, starts: list[int], draw: random.Random) -> tuple[bytes, str]:
    """Repeat an event elsewhere, leave it out, or replace another one by it."""
    first, second = sorted(draw.randrange(len(starts)) for _ in range(2))
    ends = [*starts[1:], len(log)]
    one, two = log[starts[first] : ends[first]], log[starts[second] : ends[second]]
    match draw.randrange(3):
        case 0:
            return log[: starts[second]] + one + log[starts[second] :], "event repeated"
        case 1:
            return log[: starts[first]] + log[ends[first] :], "event gone"
        case _ if first == second:
            return log[: starts[first]] + one + log[starts[first] :], "event doubled"
        case _:
            return log[: starts[first]] + two + log[ends[first] : starts[second]] + one + log[ends[second] :], "events swapped"


def damage_and_repair(unit: Unit, seed: int) -> Damaged:
    """Damage one event, or the order of events, and correct sizes, positions and checksums."""
    draw = random.Random(seed)
    events = [bytearray(event) for event in unit.events]
    # The head of the file is the same in every unit: not every time.
    low = 0 if draw.random() < 0.03 else unit.first
    chosen = draw.randrange(low, len(events)) if low < len(events) else len(events) - 1
    event = events[chosen]
    start = len(MAGIC) + sum(len(one) + (4 if unit.checksum or one[4] == 15 else 0) for one in unit.events[:chosen])
    kind = draw.randrange(16)
    kept_size = -1
    same_place = False
    if kind == 0:
        what = _reorder(events, chosen, unit.first, draw)
    elif kind == 1 and len(event) > HEADER:
        del event[draw.randrange(HEADER, len(event)) :]
        what = "cut short"
    elif kind == 2:
        event += draw.randbytes(draw.randint(1, 24)) if draw.random() < 0.5 else bytes(draw.randint(1, 24))
        what = "grown"
    elif kind == 3:
        at = draw.randrange(HEADER, len(event) + 1)
        if draw.random() < 0.5:
            del event[at : at + draw.randint(1, 12)]
        else:
            event[at:at] = draw.randbytes(draw.randint(1, 12))
        what = "bytes lost or put in"
    elif kind == 4:
        event[4] = draw.choice(_KINDS)
        what = f"kind {event[4]}"
    elif kind == 5:
        kept_size = chosen
        struct.pack_into("<I", event, 9, draw.choice((0, 1, 18, 19, 22, 23, 27, len(event), len(event) + 5, 1 << 31, 0xFFFFFFFF)))
        what = "size"
    elif kind == 6:
        struct.pack_into("<H", event, 17, draw.choice((1, 8, 0x20, 0x80, 0xFFFF)))
        what = "flags"
    else:
        same_place = len(event) > HEADER
        what = _wound(event, draw)
    # If the damaged format description declares another checksum, write that one.
    log = assemble(events, unit.checksum, kept_size)
    return Damaged(log, start, f"event {chosen} ({unit.events[chosen][4]}): {what}", (start, start + len(event)) if same_place else None)


def _reorder(events: list[bytearray], chosen: int, first: int, draw: random.Random) -> str:
    other = draw.randrange(min(first, len(events) - 1), len(events))
    match draw.randrange(3):
        case 0:
            events.insert(other, bytearray(events[chosen]))
            return f"repeated at {other}"
        case 1:
            del events[chosen]
            return "gone"
        case _:
            events[chosen], events[other] = events[other], events[chosen]
            return f"swapped with {other}"


def _wound(event: bytearray, draw: random.Random) -> str:
    """Change bytes of the body without changing its length."""
    if len(event) <= HEADER:
        return "nothing"
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        # The start of a body holds lengths and counts: damage it as often as the rest.
        at = draw.randrange(HEADER, min(len(event), HEADER + 60) if draw.random() < 0.5 else len(event))
        match draw.randrange(5):
            case 0 | 1:
                event[at] ^= 1 << draw.randrange(8)
            case 2:
                event[at] = draw.choice(_BYTES) if draw.random() < 0.7 else draw.randrange(256)
            case 3:
                width = min(draw.choice((1, 2, 3, 4, 8)), len(event) - at)
                event[at : at + width] = draw.choice(_NUMBERS).to_bytes(8, "little")[:width]
            case _:
                size = min(draw.randint(1, 16), len(event) - at)
                source = draw.randrange(HEADER, len(event) - size + 1)
                event[at : at + size] = event[source : source + size]
    return "bytes"
