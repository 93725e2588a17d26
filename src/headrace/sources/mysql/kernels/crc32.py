"""CRC-32 as the binary log uses it (zlib's polynomial), compiled.

The tables process sixteen bytes at a step. If the processor has carry-less multiplication, runs of 64 bytes are first folded into sixteen:
a message may be replaced by a shorter one with the same remainder, so four 128-bit accumulators are each multiplied by a power of x and
added to the data 64 bytes further on. All constants are computed here from the polynomial.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from headrace.kernels.memory import Slots
from headrace.kernels.pointers import Bytes, Pointer, byte_at, compiled, load_word, pointer_to, stack_slots

_POLYNOMIAL: Final = 0x104C11DB7
_U64 = np.uint64
_BYTES = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]
_SLOTS = types.CPointer(types.int64)  # type: ignore[no-untyped-call]


def _tables() -> npt.NDArray[np.uint64]:
    """tables[n * 256 + b]: the remainder of byte b followed by n zero bytes."""
    tables = np.zeros((16, 256), dtype=np.uint64)
    reflected = int(f"{_POLYNOMIAL & 0xFFFFFFFF:032b}"[::-1], 2)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (reflected if crc & 1 else 0)
        tables[0, byte] = crc
    for step in range(1, 16):
        previous = tables[step - 1]
        tables[step] = previous >> 8 ^ tables[0, previous & 255]
    return tables.reshape(-1)


def _power_of_x(degree: int) -> np.uint64:
    """x^degree modulo the polynomial, reflected, as a factor for a carry-less product of reflected words."""
    remainder = 1
    for _ in range(degree):
        remainder <<= 1
        if remainder >> 32:
            remainder ^= _POLYNOMIAL
    return _U64(int(f"{remainder:032b}"[::-1], 2) << 1)


_TABLE = _tables()
_BY_64_LOW, _BY_64_HIGH = _power_of_x(512 + 32), _power_of_x(512 - 32)
_BY_16_LOW, _BY_16_HIGH = _power_of_x(128 + 32), _power_of_x(128 - 32)


def _type_set_fold(typingctx: Any, fold: Any, buf: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(_load_pair(builder, builder.gep(args[1], [args[2]])), _as_pair(builder, args[0]), align=8)
        return context.get_dummy_value()

    return types.void(_SLOTS, _BYTES, types.int64), generate


def _type_step_fold(typingctx: Any, fold: Any, low: Any, high: Any, buf: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        following = _load_pair(builder, builder.gep(args[3], [args[4]]))
        _fold(builder, args[0], args[1], args[2], following)
        return context.get_dummy_value()

    return types.void(_SLOTS, types.uint64, types.uint64, _BYTES, types.int64), generate


def _type_join_folds(typingctx: Any, fold: Any, low: Any, high: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _fold(builder, args[0], args[1], args[2], _load_pair(builder, args[3]))
        return context.get_dummy_value()

    return types.void(_SLOTS, types.uint64, types.uint64, _SLOTS), generate


_PAIR = ir.VectorType(ir.IntType(64), 2)


def _as_pair(builder: Any, pointer: Any) -> Any:
    return builder.bitcast(pointer, _PAIR.as_pointer())


def _load_pair(builder: Any, pointer: Any) -> Any:
    return builder.load(_as_pair(builder, pointer), align=1)


def _fold(builder: Any, fold: Any, low: Any, high: Any, following: Any) -> None:
    """fold = fold's low word x low + its high word x high + following, without carries."""
    word, byte = ir.IntType(32), ir.IntType(8)
    multiply = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", (), ir.FunctionType(_PAIR, [_PAIR, _PAIR, byte]))
    factors = builder.insert_element(ir.Constant(_PAIR, ir.Undefined), low, ir.Constant(word, 0))
    factors = builder.insert_element(factors, high, ir.Constant(word, 1))
    current = builder.load(_as_pair(builder, fold), align=8)
    lower = builder.call(multiply, [current, factors, ir.Constant(byte, 0x00)])
    upper = builder.call(multiply, [current, factors, ir.Constant(byte, 0x11)])
    builder.store(builder.xor(builder.xor(lower, upper), following), _as_pair(builder, fold), align=8)


_set_fold = cast(Callable[[Slots, Pointer, int], None], intrinsic(_type_set_fold))
_step_fold = cast(Callable[[Slots, np.uint64, np.uint64, Pointer, int], None], intrinsic(_type_step_fold))
_join_folds = cast(Callable[[Slots, np.uint64, np.uint64, Slots], None], intrinsic(_type_join_folds))


def _multiplies_without_carry() -> bool:
    """Whether kernels are compiled for a processor with the instruction. The kernel cache is separate per processor."""
    if os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"):
        return False
    return bool(binding.get_host_cpu_features().get("pclmul", False))


@compiled("uint64(uint64, uint64)", inlined=True)
def _through_tables(low: np.uint64, high: np.uint64) -> np.uint64:
    """The remainder of sixteen bytes."""
    crc = _U64(0)
    for i in range(8):
        shift = _U64(8 * i)
        crc ^= _TABLE[_U64((15 - i) * 256) + (low >> shift & _U64(255))] ^ _TABLE[_U64((7 - i) * 256) + (high >> shift & _U64(255))]
    return crc


@compiled("uint64(CPointer(uint8), int64, int64, uint64)", inlined=True)
def _finish(buf: Pointer, pos: int, end: int, crc: np.uint64) -> np.uint64:
    """Continue from a remainder, through the tables."""
    while pos + 16 <= end:
        crc = _through_tables(load_word(buf, pos) ^ crc, load_word(buf, pos + 8))
        pos += 16
    if pos + 8 <= end:
        crc = _through_tables(_U64(0), load_word(buf, pos) ^ crc)
        pos += 8
    while pos < end:
        crc = _TABLE[(crc ^ _U64(byte_at(buf, pos))) & _U64(255)] ^ crc >> _U64(8)
        pos += 1
    return crc ^ _U64(0xFFFFFFFF)


@compiled("uint64(CPointer(uint8), int64, int64)")
def crc32_by_tables(buf: Pointer, start: int, end: int) -> np.uint64:
    """CRC-32 of buf[start:end)."""
    return _finish(buf, start, end, _U64(0xFFFFFFFF))


if _multiplies_without_carry():

    @compiled("uint64(CPointer(uint8), int64, int64)")
    def crc32_at(buf: Pointer, start: int, end: int) -> np.uint64:
        """CRC-32 of buf[start:end)."""
        if end - start < 64:
            return _finish(buf, start, end, _U64(0xFFFFFFFF))
        a, b, c, d = stack_slots(2), stack_slots(2), stack_slots(2), stack_slots(2)
        _set_fold(a, buf, start)
        _set_fold(b, buf, start + 16)
        _set_fold(c, buf, start + 32)
        _set_fold(d, buf, start + 48)
        a[0] ^= 0xFFFFFFFF
        pos = start + 64
        while pos + 64 <= end:
            _step_fold(a, _BY_64_LOW, _BY_64_HIGH, buf, pos)
            _step_fold(b, _BY_64_LOW, _BY_64_HIGH, buf, pos + 16)
            _step_fold(c, _BY_64_LOW, _BY_64_HIGH, buf, pos + 32)
            _step_fold(d, _BY_64_LOW, _BY_64_HIGH, buf, pos + 48)
            pos += 64
        _join_folds(a, _BY_16_LOW, _BY_16_HIGH, b)
        _join_folds(a, _BY_16_LOW, _BY_16_HIGH, c)
        _join_folds(a, _BY_16_LOW, _BY_16_HIGH, d)
        while pos + 16 <= end:
            _step_fold(a, _BY_16_LOW, _BY_16_HIGH, buf, pos)
            pos += 16
        return _finish(buf, pos, end, _through_tables(_U64(a[0]), _U64(a[1])))

else:
    crc32_at = crc32_by_tables


@compiled("uint32(uint8[::1], int64, int64)")
def crc32(buf: Bytes, start: int, end: int) -> int:
    """Return the CRC-32 of buf[start:end). The caller has checked that the range lies in `buf`."""
    return int(crc32_at(pointer_to(buf), start, end))
