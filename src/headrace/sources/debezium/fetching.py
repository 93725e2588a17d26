"""Records, fetched by whoever reads them: a range of offsets of one partition, straight from the brokers.

Spark plans ranges and keeps them in its checkpoint; the records themselves do not go through Java. Invariant: a range that ends without an
error was fetched whole: every record of it that the topic holds, in order.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.sources.debezium.records import Records

AWAY: Final = "Kafka is away"
"""How errors begin that end by themselves when the brokers are back."""
BLOCK_ROWS, BLOCK_BYTES = 65_536, 64 << 20
"""How much of a partition is read at once."""
_MESSAGES: Final = 5000
_POLL_S, _QUIET_S = 0.1, 30.0
_SETTINGS: Final = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # Records that are gone are an error, never a jump.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # What is fetched ahead is in vain where the next range is of another partition: little, and asked for again at once.
    "queued.max.messages.kbytes": 8 << 10,
    "fetch.queue.backoff.ms": 5,
    "log_level": 0,
}
_CONTEXT: Final = frozenset(f"__debezium.context.{name}" for name in ("connectorLogicalName", "taskId", "connectorName", "runId"))
_DENIED: Final = ("AUTHENTICATION", "AUTHORIZATION", "_SSL")
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition, from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.start}"

    def to_json(self) -> list[Any]:
        return [self.topic, self.partition, self.start, self.end]


def fetch(address: KafkaAddress, wanted: OffsetRange) -> Iterator[Records]:
    """The records of a range, in pieces."""
    fetcher = _fetchers.get(address)
    if fetcher is None:
        fetcher = _fetchers[address] = _Fetcher(address)
    try:
        yield from fetcher.fetch(wanted)
    except HeadraceError:
        fetcher.close()
        _fetchers.pop(address, None)
        raise


class _Fetcher:
    """A consumer of this process. A range that begins where the last one ended is at hand already."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._heard: KafkaError | None = None
        settings = {**_SETTINGS, "group.id": "headrace-fetching", **address.client_settings(), "error_cb": self._hear}
        self._consumer = Consumer(settings)
        self._at: tuple[str, int, int] | None = None
        """The next record that the consumer will give."""

    def close(self) -> None:
        self._consumer.close()

    def fetch(self, wanted: OffsetRange) -> Iterator[Records]:
        if self._at != (wanted.topic, wanted.partition, wanted.start):
            self._turn_to(wanted)
        # Whoever stops in the middle leaves the consumer somewhere.
        self._at = None
        waiting: list[Message] = []
        size = 0
        for messages in self._messages(wanted):
            waiting += messages
            size += sum(map(len, messages))
            if len(waiting) >= BLOCK_ROWS or size >= BLOCK_BYTES:
                yield _records(wanted, waiting)
                waiting, size = [], 0
        if waiting:
            yield _records(wanted, waiting)

    def _turn_to(self, wanted: OffsetRange) -> None:
        try:
            self._consumer.assign([TopicPartition(wanted.topic, wanted.partition, wanted.start)])
        except KafkaException as error:
            raise self._failure(error.args[0], wanted) from error

    def _messages(self, wanted: OffsetRange) -> Iterator[list[Message]]:
        """Until the range is whole; topics may have holes, where records were compacted away or transactions given up."""
        place, heard, is_past = wanted.start, time.monotonic(), False
        while place < wanted.end:
            # No more than are wanted: what a consumer has given it does not give again.
            taken = self._consumer.consume(min(_MESSAGES, wanted.end - place), _POLL_S)
            good = [message for message in taken if message.error() is None]
            for message in taken:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    place = max(place, int(message.offset() or 0))
                elif error is not None:
                    raise self._failure(error, wanted)
            if good:
                last, heard = int(good[-1].offset() or 0), time.monotonic()
                place, is_past = max(place, last + 1), last >= wanted.end
                yield good if not is_past else [message for message in good if int(message.offset() or 0) < wanted.end]
            elif time.monotonic() - heard > _QUIET_S:
                # A login that is refused looks like a broker that is away, except in what the client heard meanwhile.
                raise self._failure(self._heard or KafkaError(KafkaError._TIMED_OUT), wanted)
        self._at = None if is_past else (wanted.topic, wanted.partition, wanted.end)

    def _hear(self, error: KafkaError) -> None:
        self._heard = error

    def _failure(self, error: KafkaError, wanted: OffsetRange) -> HeadraceError:
        if error.code() in _GONE:
            return DefiniteError(
                f"records that were not read yet are gone from Kafka: {error.str()}",
                place=wanted.place,
                hint="the topic was made anew, or keeps records for too short a time (retention.ms): have Debezium take a new snapshot, "
                "and begin anew with another --state",
            )
        return reading_error(error, str(self._address))


def is_denied(error: KafkaError) -> bool:
    """Whether brokers refuse us, rather than do not answer."""
    return any(word in str(error.name()) for word in _DENIED)


def reading_error(error: KafkaError, place: str) -> HeadraceError:
    """What librdkafka fails of when it reads, as an error of ours."""
    if is_denied(error):
        return DefiniteError(
            f"Kafka does not let us in: {error.str()}",
            place=place,
            hint="check user, password and security.protocol in the source's address, and the user's right to read the topics",
        )
    return TransientError(f"{AWAY}: {error.str()}", place=place, hint="check that the brokers run and can be reached")


_fetchers: dict[KafkaAddress, _Fetcher] = {}
"""A worker's process reads range after range."""


def _records(wanted: OffsetRange, messages: list[Message]) -> Records:
    """Messages as columns. The loops here are all of Python that runs for each record: the client gives them one by one."""
    stamps = np.fromiter((message.timestamp()[1] for message in messages), np.int64, len(messages))
    headers = [_telling(message.headers()) for message in messages]
    return Records(
        wanted.topic,
        wanted.partition,
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.array(stamps * 1000),
        _header_lists(headers) if any(headers) else None,
    )


def _telling(headers: Any) -> Any:
    """Without what Debezium says of itself with every record: it would cost more than all the rest."""
    return [pair for pair in headers if pair[0] not in _CONTEXT] if headers else None


def _header_lists(headers: Sequence[Any]) -> pa.ListArray:
    bounds = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(one) if one else 0 for one in headers], out=bounds[1:])
    flat = list(itertools.chain.from_iterable(filter(None, headers)))
    names, values = pa.array([name for name, _ in flat], pa.string()), pa.array([value for _, value in flat], pa.binary())
    missing = pa.array([not one for one in headers])
    return pa.ListArray.from_arrays(pa.array(bounds), pa.StructArray.from_arrays([names, values], ["key", "value"]), mask=missing)
