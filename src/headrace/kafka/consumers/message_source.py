"""Messages of topics, from the group's committed offsets or from given ones.

Invariant: an offset is committed only after the caller has confirmed the message, so a crash repeats some messages and loses none. Each
commit also stores marks: the last position of each table, so that duplicates are recognized after a restart.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace import retry
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.kafka.address import UNPACKED, KafkaAddress

log = logging.getLogger("headrace")
client_log = logging.getLogger("headrace.kafka.consumer")
# librdkafka's errors are raised; its own log lines would repeat them for every broker and attempt.
client_log.setLevel(logging.CRITICAL)

EARLIEST, LATEST = "earliest", "latest"
_ASK_S, _TRY_S = 15.0, 2.0
_MOST_METADATA: Final = 3500
"""Brokers store 4096 bytes of metadata with an offset, by default."""
_MARKS_FORM: Final = 2
_READ: Final = "allow this user to read the topic and to use the group (Read and Describe)"
_SIGN_IN: Final = "see the user, the password and the security properties of the address"
_DEFINITE: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _READ,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _READ,
    KafkaError.UNKNOWN_TOPIC_OR_PART: "see the topic's name; `headrace replicate` makes the topics of its tables when it starts",
    KafkaError._UNKNOWN_TOPIC: "see the topic's name",
    KafkaError.TOPIC_EXCEPTION: "see the topic's name",
    KafkaError._AUTHENTICATION: _SIGN_IN,
    KafkaError.SASL_AUTHENTICATION_FAILED: _SIGN_IN,
    KafkaError._SSL: _SIGN_IN,
    KafkaError._BAD_COMPRESSION: UNPACKED,
    KafkaError._INVALID_ARG: "see the properties of the address",
    KafkaError.OFFSET_OUT_OF_RANGE: "the topic no longer has (or does not have yet) messages of this offset",
    KafkaError._AUTO_OFFSET_RESET: "messages were dropped by the topic's retention before they were read: "
    "choose where to go on by resetting the group's offsets with Kafka's tools, or take another group",
}
_CUT_OFF: Final = frozenset((KafkaError._AUTHENTICATION, KafkaError._SSL))
"""The error text of a login that the broker cut off."""
_COORDINATOR_AWAY: Final = frozenset(
    (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR, KafkaError._WAIT_COORD)
)
_COORDINATOR_S: Final = 60.0
"""A broker that starts reads the offsets of all groups before it accepts commits."""
_PASSED_S: Final = 60.0
"""A client that is denied access gets errors more often than this."""

Marks = dict[str, tuple[int, int]]
"""Per table of a partition: the last position, and the commit time of its newest change in microseconds (-1: unknown)."""


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one partition, in their order."""

    topic: str
    partition: int
    messages: Sequence[Message]
    marks: Marks = field(default_factory=dict)
    """State before these messages; a consumer that drops duplicates updates it."""

    def place(self, row: int) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset(row)}"

    def offset(self, row: int) -> int:
        return _offset(self.messages[row])


class TopicConsumer:
    """Reads messages of topics. With a group: its share, from the group's offsets; without one: all partitions, without commits.

    `start`: where reading starts without committed offsets: earliest, latest, an offset, or -N (the last N messages of each partition).
    """

    def __init__(
        self,
        address: KafkaAddress,
        topics: Sequence[str],
        *,
        group: str = "",
        start: str = EARLIEST,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._address, self._topics, self._group, self._start = address, list(topics), group, start
        self._refused: list[KafkaError] = []
        self._refused_at = 0.0
        self._away_since: float | None = None
        self._unfinished: set[tuple[str, int]] | None = None
        self._marks: dict[tuple[str, int], Marks] = {}
        given = {**address.client_settings(), **(properties or {})}
        self._is_cooperative = "cooperative" in given.get("partition.assignment.strategy", "")
        if group and self._start not in (EARLIEST, LATEST):
            raise DefiniteError(f"a group begins at {EARLIEST} or {LATEST}, not at {self._start!r}", hint="leave out the group")
        settings: dict[str, Any] = {
            "client.id": "headrace",
            "group.id": group or "headrace-without-a-group",
            # Messages that were removed before they were read are an error; never skip them.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **given,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "error_cb": self._handle_client_error,
        }
        try:
            self._consumer = Consumer(settings, logger=client_log)
        except KafkaException as error:
            raise DefiniteError(f"the consumer cannot be made: {error.args[0].str()}", hint="see the properties of the address") from error
        try:
            self._begin()
        except BaseException:
            self._consumer.close()
            raise

    def poll(self, most: int, timeout_s: float) -> list[MessageBatch]:
        """Return new messages by partition; empty after the timeout."""
        self._check()
        try:
            found = self._consumer.consume(most, timeout_s)
        except KafkaException as error:
            raise self._failure(error.args[0], "reading") from error
        by_partition: dict[tuple[str, int], list[Message]] = {}
        for message in found:
            problem = message.error()
            if problem is None:
                by_partition.setdefault(_partition_location(message), []).append(message)
            elif problem.code() != KafkaError._PARTITION_EOF:
                raise self._failure(problem, "reading")
            elif self._unfinished is not None:
                self._unfinished.discard(_partition_location(message))
        if found:
            self._away_since = None
            # A broker that delivers messages has accepted the login.
            self._refused.clear()
        self._check()
        return [MessageBatch(*place, messages, self._marks.setdefault(place, {})) for place, messages in by_partition.items()]

    @property
    def is_at_end(self) -> bool:
        """Whether every assigned partition was read to its end once."""
        return self._unfinished is not None and not self._unfinished

    def commit(self, batches: Sequence[MessageBatch]) -> None:
        """Commit these messages: the next consumer of the group starts behind them."""
        if not self._group or not batches:
            return
        done = [TopicPartition(one.topic, one.partition, _offset(one.messages[-1]) + 1, metadata=_written(one.marks)) for one in batches]
        failure = retry.retrying(lambda: self._try_commit(done), deadline_s=_COORDINATOR_S)
        if failure is not None:
            raise failure

    def _try_commit(self, offsets: list[TopicPartition]) -> HeadraceError | None:
        """Return the error of a commit. Raise it if it ends by itself, because the group's coordinator moves or starts."""
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            problems = [(error.args[0], "committing offsets")]
        else:
            problems = [(one.error, f"committing the offset of {one.topic}[{one.partition}]") for one in answers if one.error is not None]
        for problem, doing in problems:
            failure = self._failure(problem, doing)
            if problem.code() in _COORDINATOR_AWAY:
                raise failure
            return failure
        return None

    def close(self) -> None:
        """Leave the group; uncommitted messages are delivered again."""
        self._consumer.close()

    def _begin(self) -> None:
        partitions = self._partitions()
        if self._group:
            self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)
            return
        self._unfinished = set(partitions)
        self._consumer.assign([TopicPartition(topic, partition, self._first(topic, partition)) for topic, partition in partitions])

    def _first(self, topic: str, partition: int) -> int:
        low, high = 0, 0
        if self._start not in (EARLIEST, LATEST):
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_ASK_S)
            except KafkaException as error:
                raise self._failure(error.args[0], f"asking for the offsets of {topic}") from error
        found = _start_offset(self._start, low, high)
        if found > high:
            raise DefiniteError(
                f"{topic}[{partition}] has no message {found}: its next one is {high}", place=str(self._address), hint="see --offset"
            )
        return found

    def _partitions(self) -> list[tuple[str, int]]:
        """Return the topics' partitions; raise for a missing topic, unless it is a pattern."""
        found: list[tuple[str, int]] = []
        for topic in self._topics:
            described = self._metadata("" if topic.startswith("^") else topic)
            if not topic.startswith("^"):
                problem = described[topic].error
                if problem is not None:
                    raise self._failure(problem, f"asking for the topic {topic}")
            names = [topic] if topic in described else sorted(name for name in described if re.match(topic, name))
            found += [(name, partition) for name in names for partition in sorted(described[name].partitions)]
        return found

    def _metadata(self, topic: str) -> dict[str, Any]:
        # With a group, wait: it may have read before. Without one, the address may be wrong.
        until = time.monotonic() + (_ASK_S if self._group else min(_ASK_S, retry.FIRST_CONTACT_S))
        while True:
            try:
                return dict(self._consumer.list_topics(topic or None, timeout=_TRY_S).topics)
            except KafkaException as error:
                # Authentication errors are reported only by polling.
                self._consumer.poll(0.1)
                self._check()
                if time.monotonic() > until:
                    raise self._failure(error.args[0], "asking for the topics") from error

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._unfinished = {(one.topic, one.partition) for one in partitions} | (self._unfinished or set())
        committed = consumer.committed(partitions, timeout=_ASK_S) if partitions else []
        for one in committed:
            self._marks[one.topic, one.partition] = _read(one.metadata)
            if one.offset < 0:
                one.offset = _start_offset(self._start, 0, 0)
        (consumer.incremental_assign if self._is_cooperative else consumer.assign)(committed)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._marks.pop((one.topic, one.partition), None)
            if self._unfinished is not None:
                self._unfinished.discard((one.topic, one.partition))

    def _handle_client_error(self, error: KafkaError) -> None:
        if error.code() in _DEFINITE:
            if time.monotonic() - self._refused_at > _PASSED_S:
                self._refused.clear()
            self._refused.append(error)
            self._refused_at = time.monotonic()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and self._away_since is None:
            self._away_since = time.monotonic()
            log.warning("waiting: no broker can be reached (%s)", self._address)

    def _check(self) -> None:
        # A single error may be accidental: a broker that shuts down also cuts off logins.
        if len(self._refused) > 1 or any(error.code() not in _CUT_OFF for error in self._refused):
            raise self._failure(self._refused[-1], "reading")

    def _failure(self, error: KafkaError, doing: str) -> HeadraceError:
        hint = _DEFINITE.get(error.code())
        message, place = f"{doing} failed: {error.str()}", str(self._address)
        if hint is not None:
            return DefiniteError(message, place=place, hint=hint)
        return TransientError(message, place=place, hint="see whether the brokers are up and can be reached from here")


def _start_offset(start: str, low: int, high: int) -> int:
    if start == EARLIEST:
        return OFFSET_BEGINNING
    if start == LATEST:
        return OFFSET_END
    try:
        number = int(start)
    except ValueError:
        raise DefiniteError(f"{start!r} is no place to start", hint="earliest, latest, an offset, or -N for the last N") from None
    return max(low, high + number) if number < 0 else number


def _partition_location(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _written(marks: Marks) -> str:
    """Encode marks as text: those of the most recent tables, as many as a broker stores."""
    kept = list(marks.items())
    while kept:
        text = json.dumps({"headrace": _MARKS_FORM, "marks": dict(kept)}, separators=(",", ":"))
        if len(text.encode()) <= _MOST_METADATA:
            return text
        kept = kept[1:]
    return ""


def _read(text: str | None) -> Marks:
    try:
        described = json.loads(text or "null")
    except ValueError:
        return {}
    if not isinstance(described, dict) or described.get("headrace") != _MARKS_FORM:
        return {}
    return {str(table): (int(position), int(committed)) for table, (position, committed) in described["marks"].items()}
