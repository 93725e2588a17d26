"""The compiled conversion of JSON values whose places were noted: numbers to int64, texts and raw tokens to Arrow's string buffers.

A value of a kind that its column does not take is not converted and is marked in `bad`; the caller refuses its record. Places were checked
by the scan: nothing here looks beyond them.
"""

from __future__ import annotations

import numpy as np

from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, pointer_to
from headrace.kernels.words import copy_run
from headrace.sources.debezium.json_grammar import ABSENT, ESCAPED, NULL, WHOLE, unescape
from headrace.sources.debezium.json_scan import READ, Kinds, Places, Table

FINE, WRONG_KIND, TOO_BIG = range(3)
"""What `bad` holds."""

_U64 = np.uint64
_LEAST = -(1 << 63)


@compiled("boolean(CPointer(uint8), int64, int64, int64[::1], int64)", inlined=True)
def _whole(buf: Pointer, at: int, end: int, out: Table, i: int) -> bool:
    """The number at a place, to out[i]; False if it does not fit."""
    negative = byte_at(buf, at) == 45
    if negative:
        at += 1
    if end - at > 19:
        return False
    value = _U64(0)
    while at < end:
        value = value * _U64(10) + _U64(byte_at(buf, at) - 48)
        at += 1
    if value >> _U64(63) != _U64(0):
        out[i] = _LEAST
        return bool(negative and value == _U64(1) << _U64(63))
    out[i] = -as_signed(value) if negative else as_signed(value)
    return True


@compiled(f"int64({READ}, int32[::1], int32[::1], uint8[::1], int64[::1], uint8[::1], uint8[::1])")
def read_whole(data: Bytes, begins: Places, ends: Places, kinds: Kinds, out: Table, valid: Kinds, bad: Kinds) -> int:
    """Whole numbers to `out`; which of them there are to `valid`; how many are bad."""
    buf = pointer_to(data)
    count = 0
    for i in range(len(kinds)):
        kind = kinds[i]
        valid[i] = kind == WHOLE
        if kind == WHOLE:
            if not _whole(buf, begins[i], ends[i], out, i):
                bad[i] = TOO_BIG
                count += 1
        else:
            out[i] = 0
            if kind not in (NULL, ABSENT):
                bad[i] = WRONG_KIND
                count += 1
    return count


@compiled(f"int64({READ}, int32[::1], int32[::1], uint8[::1], int64, int32[::1], uint8[::1], uint8[::1], uint8[::1])")
def copy_tokens(
    data: Bytes, begins: Places, ends: Places, kinds: Kinds, taken: int, offsets: Places, out_data: Bytes, valid: Kinds, bad: Kinds
) -> int:
    """Values of the kinds in the bit set `taken`, one after the other, to `out_data`: texts without their escapes, all else as it is
    written. How many are bad."""
    buf, out = pointer_to(data), pointer_to(out_data)
    limit, out_limit = len(data), len(out_data)
    count, to = 0, 0
    offsets[0] = 0
    for i in range(len(kinds)):
        kind = int(kinds[i])
        valid[i] = taken >> kind & 1
        if valid[i]:
            if kind == ESCAPED:
                to = unescape(buf, begins[i], ends[i], out, to)
            else:
                size = ends[i] - begins[i]
                copy_run(buf, begins[i], limit, out, to, out_limit, size)
                to += size
        elif kind not in (NULL, ABSENT):
            bad[i] = WRONG_KIND
            count += 1
        offsets[i + 1] = to
    return count
