"""librdkafka's batch interface through ctypes: a consumer that returns messages as they are in memory.

confluent-kafka makes a Python object per message, which costs more than all later processing. The functions and the message struct used
here are librdkafka's public interface. The library is found through confluent-kafka's module, so the process has only one librdkafka.
Invariant: messages that were taken are always released.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, cimpl

from headrace.errors import DefiniteError
from headrace.kafka.message_kernels import (
    DESTROY,
    ERROR,
    ERRORS,
    FUNCTIONS,
    HEADER_AT,
    HEADER_BYTES,
    HEADERS,
    KEY_BYTES,
    LAST,
    MESSAGE_HEADERS,
    NAME_BYTES,
    OFFSET,
    ROWS,
    TIMESTAMP,
    TOTALS,
    VALUE_BYTES,
    Numbers,
    gather,
    gather_headers,
    measure,
    release,
)
from headrace.kernels.pointers import Bytes

_CONSUMER: Final = 1
_OK: Final = 0
_TEXT_BYTES: Final = 512
_ASKING_MS: Final = 1000
_OLDEST, _NEWEST = 0x01060000, 0x03000000
"""Versions of librdkafka with the functions used here."""
_HEAR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_P, _S, _I, _L = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
_CALLED: Final[dict[str, tuple[Any, ...]]] = {
    "rd_kafka_version": (_I,),
    "rd_kafka_conf_new": (_P,),
    "rd_kafka_conf_set": (_I, _P, _S, _S, _P, _L),
    "rd_kafka_conf_set_error_cb": (None, _P, _HEAR),
    "rd_kafka_conf_destroy": (None, _P),
    "rd_kafka_new": (_P, _I, _P, _P, _L),
    "rd_kafka_poll_set_consumer": (_I, _P),
    "rd_kafka_queue_get_consumer": (_P, _P),
    "rd_kafka_queue_destroy": (None, _P),
    "rd_kafka_consumer_close": (_I, _P),
    "rd_kafka_destroy": (None, _P),
    "rd_kafka_topic_new": (_P, _P, _S, _P),
    "rd_kafka_topic_destroy": (None, _P),
    "rd_kafka_metadata": (_I, _P, _I, _P, ctypes.POINTER(_P), _I),
    "rd_kafka_metadata_destroy": (None, _P),
    "rd_kafka_topic_partition_list_new": (_P, _I),
    "rd_kafka_topic_partition_list_add": (_P, _P, _S, ctypes.c_int32),
    "rd_kafka_topic_partition_list_set_offset": (_I, _P, _S, ctypes.c_int32, ctypes.c_int64),
    "rd_kafka_topic_partition_list_destroy": (None, _P),
    "rd_kafka_assign": (_I, _P, _P),
    "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, _P, _I, _P, _L),
    "rd_kafka_message_errstr": (_S, _P),
    "rd_kafka_last_error": (_I,),
}
"""Result and argument types of each function."""
_ADDRESSED: Final = {
    TIMESTAMP: "rd_kafka_message_timestamp",
    MESSAGE_HEADERS: "rd_kafka_message_headers",
    HEADER_AT: "rd_kafka_header_get_all",
    DESTROY: "rd_kafka_message_destroy",
}
"""The functions that kernels call."""
_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


@dataclass(frozen=True, slots=True)
class Library:
    """The functions, by their names without the prefix, and the addresses of those that kernels call."""

    call: Mapping[str, Any]
    addresses: Numbers


@functools.cache
def library() -> Library:
    """Return the librdkafka that this process has loaded. Raise `DefiniteError` if its version is unknown."""
    hint = "install confluent-kafka from PyPI: pip install --force-reinstall confluent-kafka"
    try:
        loaded = ctypes.CDLL(cimpl.__file__)
        found = {name.removeprefix("rd_kafka_"): _declared(loaded, name, kinds) for name, kinds in _CALLED.items()}
        addresses = np.zeros(FUNCTIONS, np.int64)
        for place, name in _ADDRESSED.items():
            addresses[place] = ctypes.cast(getattr(loaded, name), _P).value or 0
    except (OSError, AttributeError) as error:
        raise DefiniteError(f"librdkafka cannot be called: {error}", place=str(cimpl.__file__), hint=hint) from error
    version = found["version"]()
    if not _OLDEST <= version < _NEWEST or ctypes.sizeof(_P) != 8:
        raise DefiniteError(f"librdkafka's version {version:#010x} is not one that is known", place=str(cimpl.__file__), hint=hint)
    return Library(found, addresses)


def _declared(loaded: ctypes.CDLL, name: str, kinds: tuple[Any, ...]) -> Any:
    function = getattr(loaded, name)
    function.restype, function.argtypes = kinds[0], kinds[1:]
    return function


class BatchConsumer:
    """A consumer of one partition at a time. Belongs to one thread."""

    def __init__(self, settings: Mapping[str, str], hear: Callable[[KafkaError], None], most: int) -> None:
        """`hear` is called with the errors that the client reports while it waits for messages; `most`: maximum messages per read."""
        self._called = library().call
        self._heard = _HEAR(lambda _client, code, reason, _: hear(KafkaError(code, (reason or b"").decode(errors="replace"))))
        self._messages = np.zeros(most, np.int64)
        self._client = self._made(settings)
        self._called["poll_set_consumer"](self._client)
        self._queue = self._called["queue_get_consumer"](self._client)
        self._topics: dict[str, int] = {}

    def _made(self, settings: Mapping[str, str]) -> int:
        wanted = self._called["conf_new"]()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        for name, value in settings.items():
            if self._called["conf_set"](wanted, name.encode(), value.encode(), text, _TEXT_BYTES) != _OK:
                self._called["conf_destroy"](wanted)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
        self._called["conf_set_error_cb"](wanted, self._heard)
        client: int | None = self._called["new"](_CONSUMER, wanted, text, _TEXT_BYTES)
        if client is None:
            # The client owns the configuration only if it was created.
            self._called["conf_destroy"](wanted)
            raise KafkaException(KafkaError(self._called["last_error"](), text.value.decode(errors="replace")))
        return client

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from this offset, and no other."""
        self._request_metadata(topic)
        places = self._called["topic_partition_list_new"](1)
        try:
            self._called["topic_partition_list_add"](places, topic.encode(), partition)
            code = self._called["topic_partition_list_set_offset"](places, topic.encode(), partition, offset)
            code = code or self._called["assign"](self._client, places)
        finally:
            self._called["topic_partition_list_destroy"](places)
        if code != _OK:
            raise KafkaException(KafkaError(code))

    def _request_metadata(self, topic: str) -> None:
        """Make the client request a topic's metadata now; by itself it asks about new topics once a second."""
        if topic in self._topics:
            return
        handle = self._called["topic_new"](self._client, topic.encode(), None)
        if handle is None:
            raise KafkaException(KafkaError(self._called["last_error"]()))
        self._topics[topic] = handle
        answer = _P()
        # An error here occurs again when messages are awaited, and is reported then.
        if self._called["metadata"](self._client, 0, handle, ctypes.byref(answer), _ASKING_MS) == _OK:
            self._called["metadata_destroy"](answer)

    @contextmanager
    def taken(self, most: int, timeout_s: float) -> Iterator[Numbers]:
        """Yield messages until there are `most` or the time is over. They are valid only inside the context."""
        room = min(most, len(self._messages))
        count = self._called["consume_batch_queue"](self._queue, int(timeout_s * 1000), self._messages.ctypes.data, room)
        if count < 0:
            raise KafkaException(KafkaError(self._called["last_error"]()))
        try:
            yield self._messages[:count]
        finally:
            release(self._messages, count, library().addresses)

    def errors(self, messages: Numbers) -> list[tuple[KafkaError, int]]:
        """An error among messages, with its offset."""
        found = []
        for address in messages.tolist():
            code = ctypes.c_int32.from_address(address + ERROR).value
            if code != _OK:
                text = self._called["message_errstr"](address) or b""
                offset = ctypes.c_int64.from_address(address + OFFSET).value
                found.append((KafkaError(code, text.decode(errors="replace")), offset))
        return found

    def close(self) -> None:
        for handle in self._topics.values():
            self._called["topic_destroy"](handle)
        self._called["queue_destroy"](self._queue)
        self._called["consumer_close"](self._client)
        self._called["destroy"](self._client)


@dataclass(frozen=True, slots=True)
class GatheredCounts:
    records: int
    """Records before the end."""
    last: int | None
    """The offset of the last record, even if it is after the end."""
    has_errors: bool


class MessageGatherer:
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

    def columns(self) -> tuple[pa.Int64Array, pa.BinaryArray, pa.BinaryArray, pa.Int64Array, pa.ListArray | None]:
        """Return and remove all records: offsets, keys, values, timestamps in microseconds, and headers.

        Headers are lists of structs of `key` and `value`, without Debezium's descriptions of itself; None if no record has any.
        """
        rows = self.rows
        found = (
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
