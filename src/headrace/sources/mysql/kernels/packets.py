"""Extracts the log's events from the packets of the replication stream, compiled.

A packet is a 3-byte length, a sequence number and a payload; a payload of 2^24-1 bytes continues in the next packet. The first byte of an
event's first packet is a status (0 for an event, 255 for an error, 254 for the end). `deframe` copies events verbatim, drops what is not
part of the log file (heartbeats, artificial rotations, the format description repeated at a reconnect) and stops at whatever Python must
see.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.kernels.memory import copy_bytes, load_2, load_3, load_4
from headrace.kernels.pointers import Bytes, byte_at, compiled, pointer_to

IN, OUT, PENDING, SEQUENCE = range(4)
"""Cells of deframe's state: bytes consumed, bytes produced, whether a split event continues, the next packet's number."""

MORE, SERVER_STATUS, ARTIFICIAL, OUT_FULL, BAD_SEQUENCE = range(5)


@compiled("int64(uint8[::1], int64, uint8[::1], int64[::1])")
def deframe(raw: Bytes, end: int, out: Bytes, state: npt.NDArray[np.int64]) -> int:
    """Copy events from packets raw[state[IN]:end) to out[state[OUT]:); return why it stopped.

    MORE: the next packet is not all here. OUT_FULL: `out` has no room for it. SERVER_STATUS, ARTIFICIAL: the packet at state[IN] is not an
    event of the file and is left for the caller, who steps over it.
    """
    pos = state[IN]
    at = state[OUT]
    source, target = pointer_to(raw), pointer_to(out)
    while True:
        if pos + 4 > end:
            break
        size = load_3(source, pos)
        if pos + 4 + size > end:
            break
        if byte_at(source, pos + 3) != state[SEQUENCE] & 255:
            state[IN], state[OUT] = pos, at
            return BAD_SEQUENCE
        start = pos + 4
        if not state[PENDING]:
            if size < 1 or raw[start] != 0 or size < 20:
                state[IN], state[OUT] = pos, at
                return SERVER_STATUS
            kind = raw[start + 5]
            flags = load_2(source, start + 18)
            log_pos = load_4(source, start + 14)
            if kind == 27 or kind == 41 or flags & 0x20 or (kind == 15 and log_pos == 0):
                state[IN], state[OUT] = pos, at
                return ARTIFICIAL
            start += 1
        length = pos + 4 + size - start
        if at + length > out.shape[0]:
            state[IN], state[OUT] = pos, at
            return OUT_FULL
        copy_bytes(source, start, target, at, length)
        at += length
        state[PENDING] = 1 if size == 0xFFFFFF else 0
        state[SEQUENCE] += 1
        pos += 4 + size
    state[IN], state[OUT] = pos, at
    return MORE
