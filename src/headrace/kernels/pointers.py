"""Raw memory for compiled kernels: pointers, unaligned words, and the decorator that compiles.

Inner kernels take pointers instead of arrays, because numba counts references to every array argument (an atomic operation that costs as
much as writing a short string). A pointer has no length: a kernel that takes a pointer also takes its end, and checks every index against
it before use. Words are little-endian, as on every supported machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.kernels.cache import kernel_cache_dir, package_of

Bytes = npt.NDArray[np.uint8]
Pointer = npt.NDArray[np.uint8]
"""`CPointer(uint8)` in kernels; to the type checker it is indexed like an array."""

NO_ROOM, MALFORMED = -1, -2
"""Returned by kernels instead of a position: `out` is too short; the input is not what the server writes."""

_Function = TypeVar("_Function", bound=Callable[..., Any])
_BYTES = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]


def compiled(signature: str, *, inlined: bool = False) -> Callable[[_Function], _Function]:
    """Return a cached nopython kernel of exactly this signature; the typed form of `numba.njit`.

    A kernel that Python calls is compiled, or loaded from the cache, at decoration. A kernel that only kernels call is compiled into them,
    so its compilation waits for the first of them: a process that finds them all in the cache never loads it, which saves half of the
    import time.
    """
    decorate = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=inlined)

    def declare(function: _Function) -> _Function:
        with _cache_of(function.__module__):
            kernel = decorate(function)
        if inlined or "CPointer" in signature:
            _compile_when_called(kernel, signature)
        else:
            kernel.compile(signature)
            kernel.disable_compile()
        return cast(_Function, kernel)

    return declare


@contextmanager
def _cache_of(module: str) -> Iterator[None]:
    """Point numba at the cache folder of the module's package, unless the user chose one. numba reads the setting when it decorates."""
    package = package_of(module)
    if package is None:
        raise RuntimeError(f"{module} has kernels: list it in headrace/kernels/cache.py")
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield
        return
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(kernel_cache_dir(package))
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _compile_when_called(kernel: Any, signature: str) -> None:
    """Make numba compile a kernel for its own signature, not for the caller's argument types, at the first call to it."""
    find_template = kernel.get_call_template

    def find_declared_template(args: Any, kws: Any) -> Any:
        if not kernel.signatures:
            kernel.compile(signature)
            kernel.disable_compile()
        return find_template(args, kws)

    kernel.get_call_template = find_declared_template


def _type_pointer_to(typingctx: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return _BYTES(array), generate


def _type_load_word(typingctx: Any, buf: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word_at(builder, args), align=1)

    return types.uint64(_BYTES, types.int64), generate


def _type_store_word(typingctx: Any, out: Any, at: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word_at(builder, args), align=1)
        return context.get_dummy_value()

    return types.void(_BYTES, types.int64, types.uint64), generate


def _word_at(builder: Any, args: Any) -> Any:
    return builder.bitcast(builder.gep(args[0], [args[1]]), ir.IntType(64).as_pointer())


def _type_mul_high(typingctx: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


def _type_leading_zeros(typingctx: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), generate


def _type_trailing_zeros(typingctx: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.true_bit)

    return types.int64(types.uint64), generate


def _type_stack_slots(typingctx: Any, count: Any) -> Any:
    if not isinstance(count, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once(builder, ir.IntType(64), size=count.literal_value)  # type: ignore[no-untyped-call]

    return types.CPointer(types.int64)(count), generate  # type: ignore[no-untyped-call]


def _type_pointer_at(typingctx: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return _BYTES(types.int64), generate


pointer_to = cast(Callable[[Bytes], Pointer], intrinsic(_type_pointer_to))
"""The first byte of a contiguous array, which the caller keeps alive."""
pointer_at = cast(Callable[[int], Pointer], intrinsic(_type_pointer_at))
"""The byte at an address, of a buffer that the caller keeps alive."""
load_word = cast(Callable[[Pointer, int], np.uint64], intrinsic(_type_load_word))
"""Load eight bytes from any address."""
store_word = cast(Callable[[Pointer, int, np.uint64], None], intrinsic(_type_store_word))
mul_high = cast(Callable[[np.uint64, np.uint64], np.uint64], intrinsic(_type_mul_high))
"""The upper 64 bits of a 64 x 64 bit product: one machine instruction that numba does not offer."""
leading_zeros = cast(Callable[[np.uint64], int], intrinsic(_type_leading_zeros))
"""Of a word that is not zero."""
trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_type_trailing_zeros))
"""Of a word that is not zero."""
stack_slots = cast(Callable[[int], npt.NDArray[np.int64]], intrinsic(prefer_literal=True)(_type_stack_slots))
"""Uninitialised int64 slots on the machine stack, freed when the kernel returns. A heap allocation would cost as much as a small document.
"""


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def byte_at(buf: Pointer, at: int) -> int:
    """Return a byte as a number that does not overflow when it is shifted."""
    return int(buf[at])


@compiled("int64(uint64)", inlined=True)
def as_signed(word: np.uint64) -> int:
    """Return the same 64 bits as a signed number."""
    return int(np.int64(word))
