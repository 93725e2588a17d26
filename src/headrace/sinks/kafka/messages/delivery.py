"""Sends messages to the brokers.

Invariant: when `finish` returns, every message since the last one is acknowledged by all replicas in sync; if one is not, it raises,
and nothing of what was sent since counts as written. Messages of one partition arrive in the order in which they were sent, without gaps
and, within one producer, once (`enable.idempotence`). After a failure the producer is discarded: a retry creates a new one and
sends all messages again, with the same positions.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.kafka.mypipe.wire_format import COMMITTED_HEADER, POSITION_HEADER, position_bytes
from headrace.sinks.kafka.messages.errors import Refusals, failure
from headrace.sinks.kafka.messages.messages import Messages
from headrace.sinks.kafka.messages.options import KafkaOptions, Timestamps

client_log = logging.getLogger("headrace.kafka.client")
# Errors of messages contain librdkafka's reasons; its log lines would repeat them for every broker and attempt.
client_log.setLevel(logging.CRITICAL)

_FIXED: Final = {"enable.idempotence": "true", "acks": "all", "partitioner": "murmur2"}
"""Settings that the delivery guarantee needs; the partitioner is that of Java's clients."""
_USUAL: Final = {
    "client.id": "headrace",
    "linger.ms": "5",
    "batch.num.messages": "50000",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "262144",
    # The broker limits the size of a message.
    "message.max.bytes": "100000000",
}
_POLL_S: Final = 0.2
Headers = list[tuple[str, str | bytes | None]]


def producer_settings(address: KafkaAddress, choices: KafkaOptions) -> dict[str, str]:
    """Return librdkafka's properties; refuse one that would break the guarantee."""
    own = {**address.client_settings(), **dict(choices.properties)}
    for name, value in _FIXED.items():
        if own.get(name, value).lower() not in (value, "-1" if name == "acks" else value):
            raise DefiniteError(f"the property {name}={own[name]} would break the order or the safety of changes", hint=f"leave out {name}")
    timeout = {"message.timeout.ms": str(choices.delivery_timeout_s * 1000)}
    return {**_USUAL, **timeout, "compression.type": choices.compression.value, **own, **_FIXED}


class Delivery:
    """A producer and the state of its messages. Belongs to one writer at a time."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._failed: tuple[KafkaError, Message] | None = None
        self._refusals = Refusals()
        self.is_sound = True
        try:
            heard: dict[str, Any] = {"delivery.report.only.error": True, "on_delivery": self._hear, "error_cb": self._refusals.note}
            self._producer = Producer({**settings, **heard}, logger=client_log)
        except KafkaException as error:
            raise DefiniteError(
                f"the producer cannot be made: {error.args[0].str()}", hint="see kafka.properties and the address"
            ) from error

    def send(self, messages: Messages, timestamps: Timestamps) -> None:
        """Queue messages; wait while too many are in flight."""
        topic, produce = messages.topic, self._producer.produce
        times = messages.timestamp_ms.to_pylist() if timestamps is Timestamps.COMMIT else [0] * len(messages.value)
        keys, values = messages.key.to_pylist(), messages.value.to_pylist()
        # A call a message: librdkafka's way of sending many at once takes no headers (decision 27 has the figures).
        for key, value, headers, time in zip(keys, values, _headers(messages), times, strict=True):
            try:
                produce(topic, value, key, headers=headers, timestamp=time)
            except BufferError:
                self._wait_for_room(topic, key, value, headers, time)
            except KafkaException as error:
                raise self._give_up(error.args[0], topic, key) from error

    def finish(self) -> None:
        """Wait until all messages are acknowledged."""
        while self._producer.flush(_POLL_S):
            self._check()
        self._check_messages()
        # The brokers acknowledged everything, so a failed login meanwhile came from a broker that went down.
        self._refusals.forget()

    def resume(self) -> None:
        """Drop broker errors queued while the producer was idle; they are stale."""
        self._producer.poll(0)
        self._refusals.forget()

    def give_up(self) -> None:
        """Drop messages in flight: they count as not written."""
        self.is_sound = False
        self._producer.purge()
        self._producer.flush(0)

    def _wait_for_room(self, topic: str, key: bytes | None, value: bytes | None, headers: Any, time: int) -> None:
        while True:
            self._producer.poll(_POLL_S)
            self._check()
            is_empty = not len(self._producer)
            try:
                self._producer.produce(topic, value, key, headers=headers, timestamp=time)
            except BufferError:
                if is_empty:
                    raise self._too_large(topic, key, len(value or b"") + len(key or b"")) from None
                continue
            except KafkaException as error:
                raise self._give_up(error.args[0], topic, key) from error
            return

    def _too_large(self, topic: str, key: bytes | None, size: int) -> Exception:
        self.give_up()
        return DefiniteError(
            f"a message of {size} bytes is larger than all that may be under way to Kafka at once",
            place=_place(topic, key),
            hint="raise queue.buffering.max.kbytes (and message.max.bytes) with kafka.properties, and max.message.bytes of the topic",
        )

    def _check_messages(self) -> None:
        if self._failed is not None:
            error, message = self._failed
            raise self._give_up(error, message.topic() or "", message.key())

    def _check(self) -> None:
        self._check_messages()
        if self._refusals.repeated_error is not None:
            raise self._give_up(self._refusals.repeated_error, "", None)

    def _give_up(self, error: KafkaError, topic: str, key: Any) -> Exception:
        # A broker's own error explains more than a timeout of a message.
        repeated_error = self._refusals.repeated_error
        cause = repeated_error if repeated_error is not None and error.code() == KafkaError._MSG_TIMED_OUT else error
        self.give_up()
        return failure(cause, "sending to Kafka", _place(topic, key))

    def _hear(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error, message


def _place(topic: str, key: Any) -> str:
    of_key = f", key {bytes(key[:200]).decode(errors='replace')}" if key else ""
    return f"topic {topic}{of_key}" if topic else ""


def _headers(messages: Messages) -> Iterable[Headers]:
    """Return the headers of each message. Building the lists is the most expensive part of sending."""
    if messages.position:
        return ([(POSITION_HEADER, position)] if position is not None else [] for position in messages.position)
    positions, more = position_bytes(messages.version, messages.row), messages.headers
    if messages.commit_us is None:
        if not more:
            return ([(POSITION_HEADER, position)] for position in positions)
        return ([(POSITION_HEADER, position), *extra] for position, extra in zip(positions, more, strict=True))
    times = position_bytes(messages.commit_us)
    if not more:
        return ([(POSITION_HEADER, position), (COMMITTED_HEADER, time)] for position, time in zip(positions, times, strict=True))
    triples = zip(positions, times, more, strict=True)
    return ([(POSITION_HEADER, position), (COMMITTED_HEADER, time), *extra] for position, time, extra in triples)


class _ProducerPool:
    """Idle producers: creating one costs a connection to each broker."""

    def __init__(self) -> None:
        self._idle: dict[Any, list[Delivery]] = {}
        self._lock = threading.Lock()

    def take(self, settings: dict[str, str]) -> Delivery:
        with self._lock:
            idle = self._idle.get(_key(settings))
            found = idle.pop() if idle else None
        if found is None:
            return Delivery(settings)
        found.resume()
        return found

    def give_back(self, settings: dict[str, str], delivery: Delivery) -> None:
        if delivery.is_sound:
            with self._lock:
                self._idle.setdefault(_key(settings), []).append(delivery)


def _key(settings: dict[str, str]) -> tuple[Any, ...]:
    # A forked process has none of its parent's threads, hence none of its producers.
    return os.getpid(), *sorted(settings.items())


pool: Final = _ProducerPool()
