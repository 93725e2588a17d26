"""The compiled conversion of JSON values at recorded positions: numbers to int64, texts and raw tokens to Arrow's string buffers.

A value of a type that its column does not accept is not converted and is marked in `bad`; the caller rejects its record. The scan has
checked the positions: nothing outside of them is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.kernels.memory import copy_run
from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, pointer_to
from headrace.sources.debezium.kernels.json_grammar import ABSENT, ESCAPED, NULL, WHOLE, unescape
from headrace.sources.debezium.kernels.json_scan import READ, Kinds, Places, Table

FINE, WRONG_KIND, TOO_BIG = range(3)
"""What `bad` holds."""

_U64 = np.uint64
_LEAST = -(1 << 63)
_AHEAD = 16
"""Prefetch distance in values: values of one column are as far apart as their texts."""


def _type_prefetch(typingctx: Any, buf: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        # To be read, into all caches.
        builder.call(function, [builder.gep(args[0], [args[1]]), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.CPointer(types.uint8), types.int64), generate  # type: ignore[no-untyped-call]


_prefetch = cast(Callable[[Pointer, int], None], intrinsic(_type_prefetch))


@compiled("boolean(CPointer(uint8), int64, int64, int64[::1], int64)", inlined=True)
def _whole(buf: Pointer, at: int, end: int, out: Table, i: int) -> bool:
    """Parse the integer at a position into out[i]; return False if it does not fit."""
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
        if i + _AHEAD < len(kinds) and kinds[i + _AHEAD] == WHOLE:
            _prefetch(buf, begins[i + _AHEAD])
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


@compiled("int64(int32[::1], int32[::1], uint8[::1], int64)")
def tokens_size(begins: Places, ends: Places, kinds: Kinds, taken: int) -> int:
    """How long the values are, as they are written, that `copy_tokens` copies."""
    size = 0
    for i in range(len(kinds)):
        if taken >> int(kinds[i]) & 1:
            size += ends[i] - begins[i]
    return size


@compiled("void(uint8[::1], int32[::1], int32[::1], uint8[::1], int32[::1], int32[::1], uint8[::1], int32[::1], int32[::1], uint8[::1])")
def pick(
    mask: Kinds,
    begins: Places,
    ends: Places,
    kinds: Kinds,
    other_begins: Places,
    other_ends: Places,
    other_kinds: Kinds,
    out_begins: Places,
    out_ends: Places,
    out_kinds: Kinds,
) -> None:
    """Take positions of the first where the mask is not 0, of the other elsewhere."""
    for i in range(len(mask)):
        first = mask[i] != 0
        out_begins[i] = begins[i] if first else other_begins[i]
        out_ends[i] = ends[i] if first else other_ends[i]
        out_kinds[i] = kinds[i] if first else other_kinds[i]


@compiled(f"int64({READ}, int32[::1], int32[::1], uint8[::1], int64, int32[::1], uint8[::1], uint8[::1], uint8[::1])")
def copy_tokens(
    data: Bytes, begins: Places, ends: Places, kinds: Kinds, taken: int, offsets: Places, out_data: Bytes, valid: Kinds, bad: Kinds
) -> int:
    """Write values of the types in the bit set `taken` one after the other to `out_data`: texts unescaped, others as written. Return the
    number of bad ones."""
    buf, out = pointer_to(data), pointer_to(out_data)
    limit, out_limit = len(data), len(out_data)
    count, to = 0, 0
    offsets[0] = 0
    for i in range(len(kinds)):
        if i + _AHEAD < len(kinds) and taken >> int(kinds[i + _AHEAD]) & 1:
            _prefetch(buf, begins[i + _AHEAD])
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
