"""Compiled loops from librdkafka's messages to columns: batches are measured, copied and given back, without Python per message.

A message is the public struct `rd_kafka_message_t`, which is the same in all versions of librdkafka with this ABI. What is not a field of
it is read by calling librdkafka's functions by address. Invariant: a message is read only before it is given back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from headrace.kernels.memory import Slots, copy_bytes, load_int32
from headrace.kernels.pointers import Bytes, Pointer, as_signed, byte_at, compiled, load_word, pointer_at, pointer_to, stack_slots

ERROR, PAYLOAD, SIZE, KEY, KEY_SIZE, OFFSET = 0, 24, 32, 40, 48, 56
"""Where the fields of a message are, in bytes (of 64-bit machines)."""
ROWS, VALUE_BYTES, KEY_BYTES, HEADERS, NAME_BYTES, HEADER_BYTES, ERRORS, LAST, TOTALS = range(9)
"""Output of `measure`: count and sizes of the records before the end, and of all messages the number of errors and the last record's
offset."""
TIMESTAMP, MESSAGE_HEADERS, HEADER_AT, DESTROY, FUNCTIONS = range(5)
"""Indexes of function addresses."""
CONTEXT = b"__debezium.context."
"""Prefix of the headers with which Debezium describes itself in every record. They are not copied: no reader uses them."""

Numbers = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]

_CONTEXT_SIZE = len(CONTEXT)
_PREFIX = tuple(CONTEXT)


def _type_call(typingctx: Any, address: Any, a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(word, [word] * 5).as_pointer())
        return builder.call(function, args[1:])

    return types.int64(*[types.int64] * 6), generate


def _type_address_of(typingctx: Any, slots: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(types.CPointer(types.int64)), generate  # type: ignore[no-untyped-call]


call = cast(Callable[[int, int, int, int, int, int], int], intrinsic(_type_call))
"""Call a C function at an address with up to five words; surplus arguments are ignored."""
address_of = cast(Callable[[Slots], int], intrinsic(_type_address_of))


@compiled("int64(CPointer(uint8), int64)", inlined=True)
def _field(message: Pointer, at: int) -> int:
    return as_signed(load_word(message, at))


@compiled("int64(int64)", inlined=True)
def _low(word: int) -> int:
    """Return the part of a register that holds a C int."""
    return word & 0xFFFFFFFF


@compiled("boolean(CPointer(uint8))", inlined=True)
def _is_context(name: Pointer) -> bool:
    """Names end with a zero, so a comparison stops at the end of the shorter one."""
    for i in range(_CONTEXT_SIZE):
        if byte_at(name, i) != _PREFIX[i]:
            return False
    return True


@compiled("int64(CPointer(uint8))", inlined=True)
def _name_size(name: Pointer) -> int:
    size = 0
    while byte_at(name, size) != 0:
        size += 1
    return size


@compiled("void(int64[::1], int64, int64, int64[::1], int64[::1])")
def measure(messages: Numbers, count: int, end: int, functions: Numbers, totals: Numbers) -> None:
    """Measure the room that `gather` needs for the records with an offset before `end`; add to `totals`, which starts as zeros."""
    answer = stack_slots(4)
    answer_at = address_of(answer)
    for i in range(count):
        address = messages[i]
        message = pointer_at(address)
        if load_int32(message, ERROR) != 0:
            totals[ERRORS] += 1
            continue
        offset = _field(message, OFFSET)
        totals[LAST] = offset
        if offset >= end:
            continue
        totals[ROWS] += 1
        totals[VALUE_BYTES] += _field(message, SIZE)
        totals[KEY_BYTES] += _field(message, KEY_SIZE)
        if _low(call(functions[MESSAGE_HEADERS], address, answer_at, 0, 0, 0)) != 0:
            continue
        at = 0
        while _low(call(functions[HEADER_AT], answer[0], at, answer_at + 8, answer_at + 16, answer_at + 24)) == 0:
            text = pointer_at(answer[1])
            if not _is_context(text):
                totals[HEADERS] += 1
                totals[NAME_BYTES] += _name_size(text)
                totals[HEADER_BYTES] += answer[3]
            at += 1


@compiled(
    "int64(int64[::1], int64, int64, int64[::1], int64, int64[::1], int64[::1],"
    " uint8[::1], int32[::1], uint8[::1], uint8[::1], int32[::1], uint8[::1])"
)
def gather(
    messages: Numbers,
    count: int,
    end: int,
    functions: Numbers,
    row: int,
    offsets: Numbers,
    stamps: Numbers,
    value_data: Bytes,
    value_ends: Small,
    has_value: Bytes,
    key_data: Bytes,
    key_ends: Small,
    has_key: Bytes,
) -> int:
    """Append the records that `measure` counted after the first `row` rows; return the new number of rows."""
    values, keys = pointer_to(value_data), pointer_to(key_data)
    value_to, key_to = value_ends[row], key_ends[row]
    for i in range(count):
        address = messages[i]
        message = pointer_at(address)
        if load_int32(message, ERROR) != 0 or _field(message, OFFSET) >= end:
            continue
        offsets[row] = _field(message, OFFSET)
        stamps[row] = call(functions[TIMESTAMP], address, 0, 0, 0, 0)
        payload, size = _field(message, PAYLOAD), _field(message, SIZE)
        has_value[row] = payload != 0
        if payload != 0:
            copy_bytes(pointer_at(payload), 0, values, value_to, size)
            value_to += size
        key, size = _field(message, KEY), _field(message, KEY_SIZE)
        has_key[row] = key != 0
        if key != 0:
            copy_bytes(pointer_at(key), 0, keys, key_to, size)
            key_to += size
        row += 1
        value_ends[row], key_ends[row] = value_to, key_to
    return row


@compiled("void(int64[::1], int64, int64, int64[::1], int32[::1], uint8[::1], int32[::1], uint8[::1], int32[::1], uint8[::1])")
def gather_headers(
    messages: Numbers,
    count: int,
    end: int,
    functions: Numbers,
    list_ends: Small,
    name_data: Bytes,
    name_ends: Small,
    value_data: Bytes,
    value_ends: Small,
    has_value: Bytes,
) -> None:
    """Copy the headers that `measure` counted, of each record those up to its end in `list_ends`."""
    names, values = pointer_to(name_data), pointer_to(value_data)
    answer = stack_slots(4)
    answer_at = address_of(answer)
    row, header, name_to, value_to = 0, 0, 0, 0
    list_ends[0], name_ends[0], value_ends[0] = 0, 0, 0
    for i in range(count):
        address = messages[i]
        message = pointer_at(address)
        if load_int32(message, ERROR) != 0 or _field(message, OFFSET) >= end:
            continue
        if _low(call(functions[MESSAGE_HEADERS], address, answer_at, 0, 0, 0)) == 0:
            at = 0
            while _low(call(functions[HEADER_AT], answer[0], at, answer_at + 8, answer_at + 16, answer_at + 24)) == 0:
                at += 1
                text = pointer_at(answer[1])
                if _is_context(text):
                    continue
                length = _name_size(text)
                copy_bytes(text, 0, names, name_to, length)
                name_to += length
                has_value[header] = answer[2] != 0
                if answer[2] != 0:
                    copy_bytes(pointer_at(answer[2]), 0, values, value_to, answer[3])
                    value_to += answer[3]
                header += 1
                name_ends[header], value_ends[header] = name_to, value_to
        row += 1
        list_ends[row] = header


@compiled("void(int64[::1], int64, int64[::1])")
def release(messages: Numbers, count: int, functions: Numbers) -> None:
    """Give messages back."""
    for i in range(count):
        call(functions[DESTROY], messages[i], 0, 0, 0, 0)
