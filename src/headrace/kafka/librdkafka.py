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
from confluent_kafka import KafkaError, KafkaException, cimpl

from headrace.errors import DefiniteError
from headrace.kafka.message_kernels import DESTROY, ERROR, FUNCTIONS, HEADER_AT, MESSAGE_HEADERS, OFFSET, TIMESTAMP, Numbers, release

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
