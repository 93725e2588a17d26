"""Reads a range of offsets of one partition straight from the brokers, in the task that needs it.

Spark plans ranges and stores them in its checkpoint; the records do not pass through Java. Invariant: a range that ends without an error
was read completely: every record that the topic holds in it, in order.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.kafka.address import UNPACKED, KafkaAddress
from headrace.kafka.librdkafka import BatchConsumer, MessageGatherer
from headrace.model.json_record import JsonRecord
from headrace.sources.debezium.events.records import Records

UNREACHABLE: Final = "Kafka is unavailable"
"""Prefix of errors that end when the brokers are available again."""
BLOCK_ROWS, BLOCK_BYTES = 65_536, 64 << 20
"""A block of records ends when it has this many rows or bytes."""
WINDOW_ROWS: Final = 32_768
WINDOW_BYTES: Final = 32 << 20
"""Bounds of a window. A batch that is open while Headrace is replaced is cut by the new version: these numbers must not change."""
_MESSAGES: Final = 5000
"""Records per read."""
_UNKNOWN_BYTES: Final = 256 << 10
"""Assumed size of records until some were read: one read must fit into memory."""
_POLL_S, _QUIET_S = 0.1, 30.0
_SETTINGS: Final = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    # Missing records are an error; never skip them.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    # Prefetch little: it is wasted if the next range is of another partition, and requested again at once if not.
    "queued.max.messages.kbytes": str(8 << 10),
    "fetch.queue.backoff.ms": "5",
    "log_level": "0",
}
_DENIED: Final = ("AUTHENTICATION", "AUTHORIZATION", "_SSL")
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class KafkaUnavailable(TransientError):
    """The Kafka cluster does not answer. Committed batches count; the pipe reads the rest when the cluster is back."""


@dataclass(frozen=True, slots=True)
class Subscription:
    address: KafkaAddress
    pattern: str
    """A regular expression over whole names of topics. New topics are read from their beginning."""
    start: Mapping[str, str] = field(default_factory=lambda: {"startingOffsets": "earliest"})
    """Where the first batch begins, as options of Spark's Kafka source."""
    max_offsets: int = 0
    """The maximum number of records per batch; 0: no limit."""
    min_partitions: int = 0
    """The minimum number of tasks per batch: several tasks then share a partition."""
    latency_s: float = 0.0
    """How long after the beginning of a batch that takes all records the next one may begin: fewer and larger batches cost less."""


@dataclass(frozen=True, slots=True)
class OffsetRange(JsonRecord):
    """Records of one partition, from `start` up to but not including `end`."""

    split_kind: ClassVar[str] = "offset_range"
    once: ClassVar[bool] = False
    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.start}"


def read_offset_range(address: KafkaAddress, wanted: OffsetRange) -> Iterator[Records]:
    fetcher = _fetchers.get(address)
    if fetcher is None:
        fetcher = _fetchers[address] = _RangeConsumer(address)
    try:
        yield from fetcher.read_offset_range(wanted)
    except HeadraceError:
        fetcher.close()
        _fetchers.pop(address, None)
        raise


def classify_transient_error(error: TransientError) -> TransientError:
    """Return `KafkaUnavailable` if a task could not reach Kafka, which the driver waits for; else the error, which is about the sink."""
    return KafkaUnavailable(error.message, place=error.place) if error.message.startswith(UNREACHABLE) else error


class _RangeConsumer:
    """A consumer of this process. A range that starts where the last one ended needs no seek."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._heard: KafkaError | None = None
        settings = {**_SETTINGS, "group.id": "headrace-fetching", **address.client_settings()}
        try:
            self._consumer = BatchConsumer(settings, self._handle_errors, _MESSAGES)
        except KafkaException as error:
            raise reading_error(error.args[0], str(address)) from error
        self._at: tuple[str, int, int] | None = None
        """The offset of the next record."""
        self._usual_bytes = _UNKNOWN_BYTES

    def close(self) -> None:
        self._consumer.close()

    def read_offset_range(self, wanted: OffsetRange) -> Iterator[Records]:
        if self._at != (wanted.topic, wanted.partition, wanted.start):
            try:
                self._consumer.seek(wanted.topic, wanted.partition, wanted.start)
            except KafkaException as error:
                raise self._failure(error.args[0], wanted) from error
        # A caller that stops early leaves the consumer at an arbitrary offset.
        self._at = None
        gathering = MessageGatherer(min(BLOCK_ROWS, wanted.end - wanted.start))
        start = wanted.start
        for _ in self._gathered(wanted, gathering):
            records = Records(wanted.topic, wanted.partition, *gathering.columns(), start)
            start = int(records.offset[-1].as_py()) + 1
            yield records

    def _gathered(self, wanted: OffsetRange, gathering: MessageGatherer) -> Iterator[None]:
        """Stop when enough is gathered, or when the range is complete. Topics have holes, from compaction and aborted transactions."""
        place, heard, is_past = wanted.start, time.monotonic(), False
        while place < wanted.end:
            # Not more than requested: a consumer does not return a record twice.
            most = min(wanted.end - place, BLOCK_ROWS - gathering.rows, max(BLOCK_BYTES // self._usual_bytes, 1))
            before = gathering.bytes
            with self._consumer.taken(most, _POLL_S) as messages:
                seen = gathering.add(messages, wanted.end)
                if seen.has_errors:
                    place = self._check_gap(self._consumer.errors(messages), wanted, place)
            if seen.last is not None:
                place, heard, is_past = max(place, seen.last + 1), time.monotonic(), seen.last >= wanted.end
            elif time.monotonic() - heard > _QUIET_S:
                # A rejected login looks like an unreachable broker, except in the errors that the client reported meanwhile.
                raise self._failure(self._heard or KafkaError(KafkaError._TIMED_OUT), wanted)
            if seen.records:
                self._usual_bytes = max((gathering.bytes - before) // seen.records, 1)
            if gathering.rows >= BLOCK_ROWS or gathering.bytes >= BLOCK_BYTES:
                yield
        self._at = None if is_past else (wanted.topic, wanted.partition, wanted.end)
        if gathering.rows:
            yield

    def _check_gap(self, errors: Sequence[tuple[KafkaError, int]], wanted: OffsetRange, place: int) -> int:
        """Return the end offset of the partition if this is an end-of-partition event."""
        for error, offset in errors:
            if error.code() != KafkaError._PARTITION_EOF:
                raise self._failure(error, wanted)
            place = max(place, offset)
        return place

    def _handle_errors(self, error: KafkaError) -> None:
        self._heard = error

    def _failure(self, error: KafkaError, wanted: OffsetRange) -> HeadraceError:
        if error.code() in _GONE:
            return DefiniteError(
                f"Kafka no longer has records that were not read yet: {error.str()}",
                place=wanted.place,
                hint="the topic was recreated, or its retention (retention.ms) is too short: have Debezium take a new snapshot, "
                "and start over with another --state",
            )
        return reading_error(error, str(self._address))


def is_denied(error: KafkaError) -> bool:
    """Return whether brokers deny access (as opposed to being unavailable)."""
    return any(word in str(error.name()) for word in _DENIED)


def reading_error(error: KafkaError, place: str) -> HeadraceError:
    if error.code() == KafkaError._INVALID_ARG:
        return DefiniteError(
            f"the properties in the address of the Kafka cluster cannot be used: {error.str()}",
            place=place,
            hint="correct the properties after the question mark; they have librdkafka's names",
        )
    if error.code() == KafkaError._SSL:
        return DefiniteError(
            f"there is no secure connection to Kafka: {error.str()}",
            place=place,
            hint="name the authority that signed the brokers' certificates in the source's address (?ssl.ca.location=FILE), and check "
            "security.protocol; brokers that require a client certificate also need ssl.certificate.location and ssl.key.location",
        )
    if error.code() == KafkaError._BAD_COMPRESSION:
        return DefiniteError(f"a batch of records cannot be unpacked: {error.str()}", place=place, hint=UNPACKED)
    if is_denied(error):
        denied = DefiniteError(
            f"Kafka denies access: {error.str()}",
            place=place,
            hint="check user, password and security.protocol in the source's address, and the user's right to read the topics",
        )
        denied.wrong_password = "AUTHENTICATION" in str(error.name())
        return denied
    return TransientError(f"{UNREACHABLE}: {error.str()}", place=place, hint="check that the brokers run and can be reached")


_fetchers: dict[KafkaAddress, _RangeConsumer] = {}
"""The consumers of this process, by address."""


def cut_windows(pieces: Iterable[Records]) -> Iterator[Records]:
    """Yield the records of one range in windows whose bounds depend on the records alone.

    Brokers return records in pieces of any size, and a block of a target that counts rows must hold the same rows at each replay. A window
    ends after the record with which it has `WINDOW_ROWS` records or `WINDOW_BYTES` bytes of keys and values, or at the end of its range.
    """
    held: Records | None = None
    for piece in pieces:
        held = piece if held is None else _joined(held, piece)
        while (end := _end_of_window(held)) is not None:
            yield _sliced(held, 0, end)
            held = _sliced(held, end, held.rows)
    if held is not None and held.rows:
        yield held


def _end_of_window(records: Records) -> int | None:
    """Return how many records the first window has; None if it may have more than these."""
    sizes = [pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False) for column in (records.key, records.value)]
    total = np.cumsum(sizes[0].astype(np.int64) + sizes[1])
    full = int(np.searchsorted(total, WINDOW_BYTES)) + 1
    end = min(full, WINDOW_ROWS)
    return end if end <= records.rows else None


def _joined(one: Records, other: Records) -> Records:
    kinds = [each.headers.type for each in (one, other) if each.headers is not None]
    parts = [each.headers if each.headers is not None else pa.nulls(each.rows, kind) for kind in kinds[:1] for each in (one, other)]
    return Records(
        one.topic,
        one.partition,
        pa.concat_arrays([one.offset, other.offset]),
        pa.concat_arrays([one.key, other.key]),
        pa.concat_arrays([one.value, other.value]),
        pa.concat_arrays([one.timestamp, other.timestamp]),
        pa.concat_arrays(parts) if parts else None,
        one.start,
    )


def _sliced(records: Records, start: int, end: int) -> Records:
    rows = end - start
    return Records(
        records.topic,
        records.partition,
        records.offset.slice(start, rows),
        records.key.slice(start, rows),
        records.value.slice(start, rows),
        records.timestamp.slice(start, rows),
        None if records.headers is None else records.headers.slice(start, rows),
        records.start if start == 0 else int(records.offset[start - 1].as_py()) + 1,
    )
