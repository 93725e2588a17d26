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
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.kafka.mypipe.wire_format import COMMITTED_HEADER, POSITION_HEADER, position_bytes
from headrace.sinks.kafka.options import KafkaOptions, Timestamps

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
_ALLOW: Final = "allow it for this user (Write, Describe and Create on topics; IdempotentWrite on brokers before 3.0)"
_SIGN_IN: Final = "see the user, the password and the security properties of the address"
_TRUST: Final = (
    "name the authority that signed the brokers' certificates in the address (?ssl.ca.location=FILE), and check security.protocol; brokers "
    "that ask for a certificate need ssl.certificate.location and ssl.key.location, too"
)
_DEFINITE: Final[dict[int, str]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic (and message.max.bytes with kafka.properties)",
    KafkaError.INVALID_MSG_SIZE: "raise max.message.bytes of the topic (and message.max.bytes with kafka.properties)",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise max.message.bytes of the topic, or lower batch.size with kafka.properties",
    KafkaError.INVALID_RECORD: "the topic may be compacted, which takes no messages without a key: choose another for tables without a key",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _ALLOW,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _ALLOW,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "make the topic, or let it be made: kafka.create_topics = true",
    KafkaError._UNKNOWN_TOPIC: "make the topic, or let it be made: kafka.create_topics = true",
    KafkaError.TOPIC_EXCEPTION: "choose another pattern with kafka.topic",
    KafkaError.INVALID_PARTITIONS: "see kafka.partitions",
    KafkaError.INVALID_REPLICATION_FACTOR: "see kafka.replication: there must be as many brokers",
    KafkaError.INVALID_CONFIG: "see kafka.cleanup and the broker's settings",
    KafkaError.POLICY_VIOLATION: "see the broker's policy for new topics, kafka.partitions and kafka.replication",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "the topic's message format is too old for headers: raise it",
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: "choose another with kafka.compression",
    KafkaError._AUTHENTICATION: _SIGN_IN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _SIGN_IN,
    KafkaError._SSL: _TRUST,
    KafkaError._INVALID_ARG: "see kafka.properties, and the properties in the address",
}
B_contra = TypeVar("B_contra", contravariant=True)
B = TypeVar("B")


def producer_settings(address: KafkaAddress, choices: KafkaOptions) -> dict[str, str]:
    """Return librdkafka's properties; refuse one that would break the guarantee."""
    own = {**address.client_settings(), **dict(choices.properties)}
    for name, value in _FIXED.items():
        if own.get(name, value).lower() not in (value, "-1" if name == "acks" else value):
            raise DefiniteError(f"the property {name}={own[name]} would break the order or the safety of changes", hint=f"leave out {name}")
    timeout = {"message.timeout.ms": str(choices.delivery_timeout_s * 1000)}
    return {**_USUAL, **timeout, "compression.type": choices.compression.value, **own, **_FIXED}


class ProducerDelivery:
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
        self._idle: dict[Any, list[ProducerDelivery]] = {}
        self._lock = threading.Lock()

    def take(self, settings: dict[str, str]) -> ProducerDelivery:
        with self._lock:
            idle = self._idle.get(_key(settings))
            found = idle.pop() if idle else None
        if found is None:
            return ProducerDelivery(settings)
        found.resume()
        return found

    def give_back(self, settings: dict[str, str], delivery: ProducerDelivery) -> None:
        if delivery.is_sound:
            with self._lock:
                self._idle.setdefault(_key(settings), []).append(delivery)


def _key(settings: dict[str, str]) -> tuple[Any, ...]:
    # A forked process has none of its parent's threads and therefore none of its producers.
    return os.getpid(), *sorted(settings.items())


pool: Final = _ProducerPool()


def failure(error: KafkaError | KafkaException, doing: str, place: str = "") -> HeadraceError:
    cause = error.args[0] if isinstance(error, KafkaException) else error
    hint = _DEFINITE.get(cause.code())
    message = f"{doing} failed: {cause.str()}"
    if hint is not None:
        return DefiniteError(message, place=place, hint=hint)
    return TransientError(message, place=place, hint="see whether the brokers are up and can be reached from here")


class Refusals:
    """Errors that concern the client as a whole, such as a wrong password.

    A single one may be chance: a broker that goes down also cuts logins off.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None
        self._count = 0

    def note(self, error: KafkaError) -> None:
        """Librdkafka's `error_cb`."""
        if error.code() in _DEFINITE:
            self._last = error
            self._count += 1

    def forget(self) -> None:
        """Forget earlier errors: brokers have answered since."""
        self._last, self._count = None, 0

    @property
    def repeated_error(self) -> KafkaError | None:
        """Return an error that came more than once."""
        return self._last if self._count > 1 else None


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of one topic, in the order in which they are sent."""

    topic: str
    key: pa.BinaryArray
    """Determines the partition, and what compaction keeps; NULL for tables without a key."""
    value: pa.BinaryArray
    """NULL for tombstones."""
    version: pa.UInt64Array
    """The position of each change in the source's log: a header of each message, equal when it is sent again."""
    timestamp_ms: pa.Int64Array
    headers: tuple[tuple[tuple[str, bytes], ...], ...] = ()
    """Further headers of each message; empty if no message has any."""
    row: pa.UInt64Array | None = None
    """In a snapshot, whose rows share one version: the number of the row. It follows the version in the header."""
    commit_us: pa.Int64Array | None = None
    """When each change was committed, as a header; for formats whose value does not contain it."""
    position: tuple[bytes | None, ...] = ()
    """Replaces the version if a position in the source's log is not a number; None: the message is not from the log."""


class MessageEncoder(Protocol[B_contra]):
    """Encodes blocks as messages. Belongs to one task."""

    def encode(self, block: B_contra) -> list[Messages]:
        """Return the block's messages; every update in it has its before image."""


class KafkaWriter(Generic[B]):
    """Writes the blocks of one task.

    Invariant: when `write` returns, every message of the block is acknowledged by all replicas in sync, in the block's order within each
    partition. If it raises, some messages may be in the topic: the retry sends all messages of the block again, with the same positions,
    keys and bytes.
    """

    def __init__(self, address: KafkaAddress, choices: KafkaOptions, encoder: MessageEncoder[B]) -> None:
        self._settings, self._timestamps = producer_settings(address, choices), choices.timestamps
        self._encoder = encoder
        self._delivery: ProducerDelivery | None = None

    def write(self, block: B) -> None:
        self.send(self._encoder.encode(block))

    def send(self, messages: Iterable[Messages]) -> None:
        delivery = self._delivery = self._delivery or pool.take(self._settings)
        try:
            for one in messages:
                delivery.send(one, self._timestamps)
            delivery.finish()
        except BaseException:
            # Messages in flight must not be acknowledged after the same messages of a retry.
            delivery.give_up()
            self._delivery = None
            raise

    def close(self) -> None:
        """End the task's writing. The producer stays with the process for the next task."""
        if self._delivery is not None:
            pool.give_back(self._settings, self._delivery)
            self._delivery = None
