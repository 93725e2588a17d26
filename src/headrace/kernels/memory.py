"""Loads and copies in raw memory for the row kernels: whole words instead of byte loops.

Invariant: a load or copy may touch a few bytes next to its value, but never a byte at or past the given limit. Near the limit it goes byte
by byte. The caller guarantees that the value itself lies before the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.kernels.pointers import Pointer, as_signed, byte_at, compiled, load_word

Slots = npt.NDArray[np.int64]
"""`CPointer(int64)` in kernels."""

_BYTES = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]
_SLOTS = types.CPointer(types.int64)  # type: ignore[no-untyped-call]
_CHUNK = 32
_LONG_RUN = 512
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def _at(builder: Any, base: Any, offset: Any, target: Any) -> Any:
    return builder.bitcast(builder.gep(base, [offset]), target.as_pointer())


def _type_slots_of(typingctx: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return _SLOTS(array), generate


def _type_byteswap(typingctx: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), generate


def _narrow_store(bits: int) -> Callable[[Any, Any, Any, Any], Any]:
    def type_store(typingctx: Any, out: Any, at: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            narrow = ir.IntType(bits)
            value = builder.trunc(args[2], narrow) if bits < 64 else args[2]
            builder.store(value, _at(builder, args[0], args[1], narrow), align=1)
            return context.get_dummy_value()

        return types.void(_BYTES, types.int64, types.int64), generate

    return type_store


def _type_load_offset(typingctx: Any, buf: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_at(builder, args[0], args[1], ir.IntType(32)), align=1)
        return builder.sext(loaded, ir.IntType(64))

    return types.int64(_BYTES, types.int64), generate


def _type_copy_chunk(typingctx: Any, buf: Any, at: Any, out: Any, to: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        chunk = ir.VectorType(ir.IntType(8), _CHUNK)
        loaded = builder.load(_at(builder, args[0], args[1], chunk), align=1)
        builder.store(loaded, _at(builder, args[2], args[3], chunk), align=1)
        return context.get_dummy_value()

    return types.void(_BYTES, types.int64, _BYTES, types.int64), generate


def _type_copy_bytes(typingctx: Any, buf: Any, at: Any, out: Any, to: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, target = builder.gep(args[0], [args[1]]), builder.gep(args[2], [args[3]])
        cgutils.raw_memcpy(builder, target, source, args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(_BYTES, types.int64, _BYTES, types.int64, types.int64), generate


slots_of = cast(Callable[[npt.NDArray[np.int64]], Slots], intrinsic(_type_slots_of))
"""The first number of a contiguous int64 array, which the caller keeps alive."""
byteswap = cast(Callable[[np.uint64], np.uint64], intrinsic(_type_byteswap))
store_int64 = cast(Callable[[Pointer, int, int], None], intrinsic(_narrow_store(64)))
store_int32 = cast(Callable[[Pointer, int, int], None], intrinsic(_narrow_store(32)))
store_int16 = cast(Callable[[Pointer, int, int], None], intrinsic(_narrow_store(16)))
store_int8 = cast(Callable[[Pointer, int, int], None], intrinsic(_narrow_store(8)))
load_int32 = cast(Callable[[Pointer, int], int], intrinsic(_type_load_offset))
_copy_chunk = cast(Callable[[Pointer, int, Pointer, int], None], intrinsic(_type_copy_chunk))
copy_bytes = cast(Callable[[Pointer, int, Pointer, int, int], None], intrinsic(_type_copy_bytes))


@compiled("uint64(CPointer(uint8), int64, int64, int64)", inlined=True)
def load_word_within(buf: Pointer, at: int, size: int, limit: int) -> np.uint64:
    """Load buf[at:at+size), up to eight bytes, into the low bytes of a word. The others are the bytes that follow, or zero."""
    if at + 8 <= limit:
        return load_word(buf, at)
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(buf[at + i]) << np.uint64(8 * i)
    return word


@compiled("int64(CPointer(uint8), int64, int64, int64)", inlined=True)
def load_le(buf: Pointer, at: int, size: int, limit: int) -> int:
    """Load an unsigned little-endian number of 1 to 8 bytes (as the 64 bits of an int64)."""
    return as_signed(load_word_within(buf, at, size, limit) & _ALL >> np.uint64(64 - 8 * size))


@compiled("uint64(CPointer(uint8), int64, int64, int64)", inlined=True)
def load_be_high(buf: Pointer, at: int, size: int, limit: int) -> np.uint64:
    """Load buf[at:at+size), up to eight bytes, into the high bytes of a word. The low bytes are undefined."""
    return byteswap(load_word_within(buf, at, size, limit))


@compiled("int64(CPointer(uint8), int64, int64, int64)", inlined=True)
def load_be(buf: Pointer, at: int, size: int, limit: int) -> int:
    """Load an unsigned big-endian number of 1 to 8 bytes (as the 64 bits of an int64)."""
    return as_signed(load_be_high(buf, at, size, limit) >> np.uint64(64 - 8 * size))


@compiled("void(CPointer(uint8), int64, int64, CPointer(uint8), int64, int64, int64)", inlined=True)
def copy_run(buf: Pointer, at: int, limit: int, out: Pointer, to: int, out_limit: int, size: int) -> None:
    """Copy buf[at:at+size) to out[to:); bytes after it and before `out_limit` are scratch. Inlined, because a call costs more than a short
    string.
    """
    if size <= _LONG_RUN and at + size + _CHUNK <= limit and to + size + _CHUNK <= out_limit:
        done = 0
        while done < size:
            _copy_chunk(buf, at + done, out, to + done)
            done += _CHUNK
    else:
        copy_bytes(buf, at, out, to, size)


@compiled("boolean(CPointer(uint8), int64, int64, int64, int64)", inlined=True)
def same_bytes(buf: Pointer, one: int, other: int, size: int, limit: int) -> bool:
    """Whether two runs of the same buffer are equal."""
    done = 0
    while done + 8 <= size:
        if load_word(buf, one + done) != load_word(buf, other + done):
            return False
        done += 8
    rest = size - done
    if rest == 0:
        return True
    differing = load_word_within(buf, one + done, rest, limit) ^ load_word_within(buf, other + done, rest, limit)
    return bool(differing << np.uint64(64 - 8 * rest) == np.uint64(0))


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def load_2(buf: Pointer, at: int) -> int:
    return byte_at(buf, at) | byte_at(buf, at + 1) << 8


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def load_3(buf: Pointer, at: int) -> int:
    return load_2(buf, at) | byte_at(buf, at + 2) << 16


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def load_4(buf: Pointer, at: int) -> int:
    return load_int32(buf, at) & 0xFFFFFFFF
