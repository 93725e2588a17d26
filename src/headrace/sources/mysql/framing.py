"""The replication stream's packets to the log's events, compiled, and their checksums.

A packet is a 3-byte length, a sequence number and a payload; a payload of 2^24-1 bytes goes on in the next packet. The first byte of an
event's first packet is a status (0 for an event, 255 for an error, 254 for the end). `deframe` copies events verbatim, drops what is not part
of the log file (heartbeats, artificial rotations, the format description repeated at a reconnect) and stops at whatever Python must see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.sources.mysql.values import read_le

IN, OUT, PENDING, SEQUENCE = range(4)
"""Cells of deframe's state: bytes consumed, bytes produced, whether a split event goes on, the next packet's number."""

MORE, SERVER_STATUS, ARTIFICIAL, OUT_FULL, BAD_SEQUENCE = range(5)


def _crc_tables() -> npt.NDArray[np.uint32]:
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for byte in range(256):
        for step in range(1, 8):
            previous = int(tables[step - 1, byte])
            tables[step, byte] = previous >> 8 ^ int(tables[0, previous & 255])
    return tables


_CRC = _crc_tables()


@njit("u4(u1[::1], i8, i8)", cache=True)
def crc32(buf, start, end):  # type: ignore[no-untyped-def]
    """CRC-32 of buf[start:end), eight bytes at a step."""
    crc = np.uint32(0xFFFFFFFF)
    pos = start
    while pos + 8 <= end:
        low = crc ^ np.uint32(read_le(buf, pos, 4))
        crc = (
            _CRC[7, low & 255]
            ^ _CRC[6, (low >> 8) & 255]
            ^ _CRC[5, (low >> 16) & 255]
            ^ _CRC[4, (low >> 24) & 255]
            ^ _CRC[3, buf[pos + 4]]
            ^ _CRC[2, buf[pos + 5]]
            ^ _CRC[1, buf[pos + 6]]
            ^ _CRC[0, buf[pos + 7]]
        )
        pos += 8
    while pos < end:
        crc = _CRC[0, (crc ^ buf[pos]) & 255] ^ (crc >> np.uint32(8))
        pos += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit("i8(u1[::1], i8, u1[::1], i8[::1])", cache=True)
def deframe(raw, end, out, state):  # type: ignore[no-untyped-def]
    """Copy events from packets raw[state[IN]:end) to out[state[OUT]:); why it stopped.

    MORE: the next packet is not all here. OUT_FULL: `out` has no room for it. SERVER_STATUS, ARTIFICIAL: the packet at state[IN] is not an
    event of the file and is left for the caller, who steps over it.
    """
    pos = state[IN]
    at = state[OUT]
    while True:
        if pos + 4 > end:
            break
        size = read_le(raw, pos, 3)
        if pos + 4 + size > end:
            break
        if np.int64(raw[pos + 3]) != state[SEQUENCE] & 255:
            state[IN], state[OUT] = pos, at
            return BAD_SEQUENCE
        start = pos + 4
        if not state[PENDING]:
            if size < 1 or raw[start] != 0 or size < 20:
                state[IN], state[OUT] = pos, at
                return SERVER_STATUS
            kind = raw[start + 5]
            flags = read_le(raw, start + 18, 2)
            log_pos = read_le(raw, start + 14, 4)
            if kind == 27 or kind == 41 or flags & 0x20 or (kind == 15 and log_pos == 0):
                state[IN], state[OUT] = pos, at
                return ARTIFICIAL
            start += 1
        length = pos + 4 + size - start
        if at + length > out.shape[0]:
            state[IN], state[OUT] = pos, at
            return OUT_FULL
        out[at : at + length] = raw[start : start + length]
        at += length
        state[PENDING] = 1 if size == 0xFFFFFF else 0
        state[SEQUENCE] += 1
        pos += 4 + size
    state[IN], state[OUT] = pos, at
    return MORE
