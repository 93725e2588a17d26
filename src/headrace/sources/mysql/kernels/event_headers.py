"""Reads event headers without decompressing the content: commit times, and the plain length of compressed content.

Compiled; every size is checked before use. The growth of an event is the number of bytes by which it becomes longer when it is
decompressed. The addresses of everything after it in the file move by as much (see `event_expander`).
"""

from __future__ import annotations

from headrace.kernels.memory import load_2, load_3, load_4
from headrace.kernels.pointers import Pointer, byte_at, compiled


@compiled("int64(CPointer(uint8), int64, int64)")
def commit_time(buf: Pointer, body: int, stop: int) -> int:
    """Return the commit time of a GTID event on this server, in microseconds; 0 if the event has none."""
    if body + 49 > stop:
        return 0
    # Flags, source, number, clock type, two logical times. If the top bit is set, the original server's time follows.
    return (load_4(buf, body + 42) | load_3(buf, body + 46) << 32) & (1 << 55) - 1


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def _record_growth(buf: Pointer, at: int, stop: int, tail: int) -> int:
    """Return the growth of the compressed record buf[at:stop); -1 if invalid. MariaDB: marker and size of the length, length, data."""
    if at >= stop:
        return -1
    head = byte_at(buf, at)
    width = head & 7
    if head & 0xF0 != 0x80 or width < 1 or width > 4 or at + 1 + width > stop:
        return -1
    size = 0
    for i in range(width):
        size = size << 8 | byte_at(buf, at + 1 + i)
    return max(size - (stop - at) - tail, 0)


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def record_of_rows(buf: Pointer, kind: int, body: int, stop: int) -> int:
    """Return the start of the compressed record of a MariaDB row event; -1 if the event is too short."""
    at = body + 8
    if kind >= 169:
        if at + 2 > stop:
            return -1
        at += load_2(buf, at)
    if at + 3 > stop:
        return -1
    width = byte_at(buf, at)
    at += 1
    if width == 252:
        width = load_2(buf, at)
        at += 2
    elif width > 250:
        return -1
    bitmap = (width + 7) >> 3
    return at + (2 * bitmap if kind == 167 or kind == 170 else bitmap)


@compiled("Tuple((int64, int64))(CPointer(uint8), int64, int64)")
def _read_packed(buf: Pointer, at: int, stop: int) -> tuple[int, int]:
    """Return an integer in the protocol's packed form and the position after it; a negative position if it is cut short."""
    if at >= stop:
        return 0, -1
    first = byte_at(buf, at)
    if first < 251:
        return first, at + 1
    width = 2 if first == 252 else 3 if first == 253 else 8 if first == 254 else 0
    if width == 0 or at + 1 + width > stop:
        return 0, -1
    value = 0
    for i in range(width):
        value |= byte_at(buf, at + 1 + i) << (8 * i)
    return value, at + 1 + width


@compiled("int64(CPointer(uint8), int64, int64, int64)")
def _payload_growth(buf: Pointer, body: int, stop: int, size: int) -> int:
    """Return the growth of a TRANSACTION_PAYLOAD event of `size` bytes; -1 if its header is damaged."""
    at = body
    while True:
        field, at = _read_packed(buf, at, stop)
        if at < 0:
            return -1
        if field == 0:
            return -1
        length, at = _read_packed(buf, at, stop)
        if at < 0 or length < 0 or length > stop - at:
            return -1
        if field == 3:
            whole, after = _read_packed(buf, at, stop)
            return max(whole - size, 0) if after >= 0 and 0 <= whole < 1 << 40 else -1
        at += length


@compiled("int64(CPointer(uint8), int64, int64, int64, int64)")
def growth_of(buf: Pointer, kind: int, pos: int, stop: int, tail: int) -> int:
    """Return the growth of an event with compressed content; -1 if it is damaged."""
    body = pos + 19
    if kind == 40:
        return _payload_growth(buf, body, stop, stop + tail - pos)
    if kind == 165:
        if body + 13 > stop:
            return -1
        return _record_growth(buf, body + 13 + load_2(buf, body + 11) + byte_at(buf, body + 8) + 1, stop, tail)
    if body + 8 > stop:
        return -1
    at = record_of_rows(buf, kind, body, stop)
    return _record_growth(buf, at, stop, tail) if at > 0 else -1
