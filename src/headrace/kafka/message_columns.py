"""Collects librdkafka's messages into Arrow columns, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.kafka.librdkafka import library
from headrace.kafka.message_kernels import (
    ERRORS,
    HEADER_BYTES,
    HEADERS,
    KEY_BYTES,
    LAST,
    NAME_BYTES,
    ROWS,
    TOTALS,
    VALUE_BYTES,
    Numbers,
    gather,
    gather_headers,
    measure,
)
from headrace.kernels.pointers import Bytes

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Records of a topic."""

    offset: pa.Int64Array
    key: pa.BinaryArray
    value: pa.BinaryArray
    timestamp: pa.Int64Array
    """In microseconds."""
    headers: pa.ListArray | None
    """Lists of structs of `key` and `value`, without Debezium's descriptions of itself; None if no record has any."""


@dataclass(frozen=True, slots=True)
class GatheredCounts:
    """The size of a batch."""

    records: int
    """Records before the end."""
    last: int | None
    """The offset of the last record, even if it is after the end."""
    has_errors: bool


class MessageGatherer:
    """Collects records."""

    def __init__(self, most: int) -> None:
        """`most`: maximum number of records."""
        self._most = most
        self._functions = library().addresses
        self._begin(1 << 20, 1 << 16)

    def _begin(self, value_bytes: int, key_bytes: int) -> None:
        rows = self._most
        self._offset, self._stamp = np.empty(rows, np.int64), np.empty(rows, np.int64)
        self._has_value, self._has_key = np.empty(rows, np.uint8), np.empty(rows, np.uint8)
        self._value_ends, self._key_ends = np.zeros(rows + 1, np.int32), np.zeros(rows + 1, np.int32)
        self._values, self._keys = np.empty(value_bytes, np.uint8), np.empty(key_bytes, np.uint8)
        self._headers: list[tuple[int, pa.ListArray | None]] = []
        self.rows = 0

    @property
    def bytes(self) -> int:
        """Bytes of values so far."""
        return int(self._value_ends[self.rows])

    def add(self, messages: Numbers, end: int) -> GatheredCounts:
        """Copy the records before the offset `end`; there must be room for all messages."""
        totals = np.zeros(TOTALS, np.int64)
        totals[LAST] = -1
        measure(messages, len(messages), end, self._functions, totals)
        rows = int(totals[ROWS])
        if rows:
            self._values = _with_room(self._values, self.bytes, int(totals[VALUE_BYTES]))
            self._keys = _with_room(self._keys, int(self._key_ends[self.rows]), int(totals[KEY_BYTES]))
            into = (self._offset, self._stamp, self._values, self._value_ends, self._has_value, self._keys, self._key_ends, self._has_key)
            self.rows = gather(messages, len(messages), end, self._functions, self.rows, *into)
            self._headers.append((rows, self._lists(messages, end, totals) if totals[HEADERS] else None))
        return GatheredCounts(rows, int(totals[LAST]) if totals[LAST] >= 0 else None, bool(totals[ERRORS]))

    def _lists(self, messages: Numbers, end: int, totals: Numbers) -> pa.ListArray:
        rows, count = int(totals[ROWS]), int(totals[HEADERS])
        list_ends, name_ends, value_ends = (np.zeros(size + 1, np.int32) for size in (rows, count, count))
        names, values = np.empty(totals[NAME_BYTES] + 1, np.uint8), np.empty(totals[HEADER_BYTES] + 1, np.uint8)
        has_value = np.empty(count, np.uint8)
        gather_headers(messages, len(messages), end, self._functions, list_ends, names, name_ends, values, value_ends, has_value)
        name = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)])
        value = pa.Array.from_buffers(pa.binary(), count, [_bitmap(has_value), pa.py_buffer(value_ends), pa.py_buffer(values)])
        missing = pa.array(list_ends[1:] == list_ends[:-1])
        pairs = pa.StructArray.from_arrays([name, value], fields=list(_HEADER))
        return pa.ListArray.from_arrays(pa.array(list_ends), pairs, mask=missing)

    def columns(self) -> MessageColumns:
        """Return and remove all records."""
        rows = self.rows
        found = MessageColumns(
            pa.array(self._offset[:rows]),
            _binary(rows, self._has_key, self._key_ends, self._keys),
            _binary(rows, self._has_value, self._value_ends, self._values),
            pa.array(self._stamp[:rows] * 1000),
            self._all_headers(),
        )
        # Expect about as many bytes next time.
        self._begin(len(self._values), len(self._keys))
        return found

    def _all_headers(self) -> pa.ListArray | None:
        if all(lists is None for _, lists in self._headers):
            return None
        return pa.concat_arrays([pa.nulls(rows, pa.list_(_HEADER)) if lists is None else lists for rows, lists in self._headers])


def _with_room(data: Bytes, used: int, more: int) -> Bytes:
    if used + more <= len(data):
        return data
    larger = np.empty(max(used + more, 2 * len(data)), np.uint8)
    larger[:used] = data[:used]
    return larger


def _binary(rows: int, valid: Bytes, ends: np.ndarray[tuple[int], np.dtype[np.int32]], data: Bytes) -> pa.BinaryArray:
    there = valid[:rows]
    return pa.Array.from_buffers(pa.binary(), rows, [None if there.all() else _bitmap(there), pa.py_buffer(ends), pa.py_buffer(data)])


def _bitmap(valid: Bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
