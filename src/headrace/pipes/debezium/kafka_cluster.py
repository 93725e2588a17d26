"""Queries a Kafka cluster: its identity, its topics, their offsets, and the backlog in them.

Queries use librdkafka, separately from Spark's consumers. Invariant: nothing is read or committed here.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.lifecycle.progress_view import Pending
from headrace.retry import bind_context, effective_deadline
from headrace.sources.debezium.offset_range_reader import is_denied, reading_error

log = logging.getLogger("headrace")

_TIMEOUT_S: Final = 10.0
_TRY_S: Final = 2.0
_HEARING_S: Final = 0.2
_LOOK_S: Final = 1.0
_TOPICS_S: Final = 10.0
_BACKLOG_TIMEOUT_S: Final = 5.0
_SILENCE_S: Final = 5.0
_MOST: Final = 1000
Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    cluster: str
    low: KafkaPosition
    """The first available offsets."""
    high: KafkaPosition
    """The end offsets."""
    ids: tuple[tuple[str, str], ...]
    """The id of each topic; a recreated topic has another one."""


def query_topics(address: KafkaAddress, pattern: str) -> ClusterTopics:
    """Return the matching topics and their offsets. Raise `TransientError` while the cluster is unavailable."""
    settings, heard, wanted = quiet_settings(address), list[KafkaError](), re.compile(pattern)
    reading = {"group.id": "headrace-looking", "enable.auto.commit": False, "isolation.level": "read_committed"}
    low: dict[str, dict[int, int]] = {}
    high: dict[str, dict[int, int]] = {}
    with kafka_errors(address):
        consumer = Consumer({**settings, **reading, "error_cb": heard.append})
        try:
            listed = _list(consumer, heard)
            topics = sorted(name for name in listed.topics if wanted.fullmatch(name) and not name.startswith("__consumer"))
            for topic in topics:
                for partition in listed.topics[topic].partitions:
                    first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
                    low.setdefault(topic, {})[partition], high.setdefault(topic, {})[partition] = first, end
        finally:
            consumer.close()
    ids = tuple(topic_ids(address, topics).items())
    return ClusterTopics(str(listed.cluster_id or ""), KafkaPosition(low), KafkaPosition(high), ids)


def _list(consumer: Consumer, heard: list[KafkaError]) -> Any:
    """List topics. A refused login looks like an unavailable broker, except in the errors that the client logs meanwhile."""
    deadline = time.monotonic() + effective_deadline(_TIMEOUT_S)
    while True:
        try:
            return consumer.list_topics(timeout=_TRY_S)
        except KafkaException:
            consumer.poll(_HEARING_S)
            refused = [error for error in heard if is_denied(error)]
            # One refusal may be chance: a broker that shuts down also cuts off logins.
            if len(refused) > 1:
                raise KafkaException(refused[-1]) from None
            if time.monotonic() > deadline:
                raise


def topic_ids(address: KafkaAddress, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics. Raise `TransientError` while the cluster is unavailable."""
    names = list(topics)
    if not names:
        return {}
    with kafka_errors(address):
        admin = AdminClient(quiet_settings(address))  # (kept: what a client promised goes with it)
        described = admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
        return {name: str(future.result().topic_id) for name, future in described.items()}


def compacted_topics(address: KafkaAddress, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics from which Kafka removes older records of a key. Raise `TransientError` while the cluster is unavailable."""
    wanted = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    with kafka_errors(address):
        try:
            admin = AdminClient(quiet_settings(address))  # (kept: what a client promised goes with it)
            described = admin.describe_configs(wanted, request_timeout=_TIMEOUT_S) if wanted else {}
            policies = {resource.name: str(future.result()["cleanup.policy"].value) for resource, future in described.items()}
        except KafkaException as error:
            if not isinstance(error.args[0], KafkaError) or not is_denied(error.args[0]):
                raise
            raise DefiniteError(
                f"Kafka does not show whether topics are compacted, and a target counts rows: {error.args[0].str()}",
                place=str(address),
                hint="grant the user the operation DescribeConfigs on the topics",
            ) from error
    return frozenset(name for name, policy in policies.items() if "compact" in policy)


def quiet_settings(address: KafkaAddress) -> dict[str, Any]:
    """Return librdkafka's settings for queries, without its own logging."""
    # Headrace reports an unavailable broker itself.
    return {**address.client_settings(), "log_level": 0, "error_cb": lambda _: None}


@contextmanager
def kafka_errors(address: KafkaAddress) -> Iterator[None]:
    """Raise librdkafka's errors as Headrace's."""
    try:
        yield
    except KafkaException as error:
        inside = error.args[0] if isinstance(error.args[0], KafkaError) else KafkaError(KafkaError._FAIL, str(error))
        raise reading_error(inside, str(address)) from error


def check_offsets(reached: KafkaPosition, now: ClusterTopics, known_ids: dict[str, str], address: KafkaAddress) -> None:
    check_ids({topic: identity for topic, identity in known_ids.items() if topic in reached.offsets}, dict(now.ids), address)
    for topic, inner in reached.offsets.items():
        if topic not in now.high.offsets:
            raise _gone(f"the topic {topic} is there no more", address)
        for partition, offset in inner.items():
            low, high = now.low.offsets[topic].get(partition, 0), now.high.offsets[topic].get(partition, 0)
            if offset < low:
                raise _gone(f"records of {topic}[{partition}] from {offset} to {low} were removed before they were read", address)
            if offset > high:
                raise _gone(f"{topic}[{partition}] ends at {high}, and was read up to {offset}: it was recreated", address)


def check_ids(known: Mapping[str, str], now: Mapping[str, str], address: KafkaAddress) -> None:
    """Raise `DefiniteError` if a topic was deleted and created again since it was read."""
    for topic, identity in known.items():
        if now.get(topic, identity) != identity:
            raise _gone(f"the topic {topic} was deleted and recreated", address)


def _gone(message: str, address: KafkaAddress) -> DefiniteError:
    return DefiniteError(
        message,
        place=str(address),
        hint="have Debezium take a new snapshot (an incremental one, say) and start over with another --state; lengthen the topic's "
        "retention.ms if records are removed too soon",
    )


class TopicBacklog:
    """Measures since when records have been pending in a pipe's topics, which is the pipe's lag; safe for threads.

    A thread queries the end offsets of all partitions every second and records when each was first seen. For records from before the first
    query, the timestamp of the oldest unread record counts. For a pipe from topics, a change is committed when its record is in the topic.
    """

    def __init__(self, address: KafkaAddress, pattern: str, reached: Callable[[], KafkaPosition]) -> None:
        self._address, self._pattern, self._reached = address, re.compile(pattern), reached
        self._lock = threading.Lock()
        self._ends: dict[Partition, deque[tuple[int, float]]] = {}
        """End offsets that are not reached, with the time at which each was first seen."""
        self._looked_at = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=bind_context(self._watch), args=(ended,), name="headrace-lag", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_BACKLOG_TIMEOUT_S)

    def pending(self) -> Pending | None:
        """Return the unread records; None until the topics were queried."""
        now, reached = time.time(), self._reached()
        with self._lock:
            if not self._looked_at:
                return None
            since = [at for partition, ends in self._ends.items() if (at := _first_behind(ends, _offset(reached, partition))) is not None]
            silent = now - self._looked_at > _SILENCE_S
            return Pending(min(since) if since else self._looked_at if silent else None)

    def _watch(self, ended: threading.Event) -> None:
        admin = AdminClient(quiet_settings(self._address))
        partitions: list[TopicPartition] = []
        listed_at = 0.0
        while not ended.is_set():
            try:
                if time.monotonic() - listed_at > _TOPICS_S or not partitions:
                    partitions, listed_at = self._list(admin), time.monotonic()
                self._note(_ends(admin, partitions), time.time())
            except KafkaException as error:
                # The pipe itself reports an unavailable cluster.
                log.debug("the ends of topics are not known: %s", error)
            ended.wait(_LOOK_S)

    def _list(self, admin: AdminClient) -> list[TopicPartition]:
        topics = admin.list_topics(timeout=_BACKLOG_TIMEOUT_S).topics
        return [TopicPartition(name, number) for name in topics if self._pattern.fullmatch(name) for number in topics[name].partitions]

    def _note(self, ends: dict[Partition, int], now: float) -> None:
        reached, before = self._reached(), self._looked_at
        old = {key: _offset(reached, key) for key, end in ends.items() if key not in self._ends and _offset(reached, key) < end}
        times = _record_times(self._address, old) if old else {}
        with self._lock:
            for key, end in ends.items():
                known = self._ends.setdefault(key, deque())
                while known and known[0][0] <= _offset(reached, key):
                    known.popleft()
                if end > _offset(reached, key) and (not known or known[-1][0] < end):
                    if len(known) == _MOST:
                        del known[_MOST // 2]
                    # The record arrived between two queries.
                    known.append((end, times.get(key, (before + now) / 2 if before else now)))
            self._looked_at = now


def _first_behind(ends: deque[tuple[int, float]], offset: int) -> float | None:
    at = bisect_right(ends, offset, key=lambda one: one[0])
    return ends[at][1] if at < len(ends) else None


def _offset(reached: KafkaPosition, partition: Partition) -> int:
    """Return the next offset of a partition. A later partition is read from its start."""
    return reached.offsets.get(partition[0], {}).get(partition[1], 0)


def _ends(admin: AdminClient, partitions: Iterable[TopicPartition]) -> dict[Partition, int]:
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    specs = dict.fromkeys(partitions, latest)
    if not specs:
        return {}
    answers = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_BACKLOG_TIMEOUT_S)
    return {(partition.topic, partition.partition): answer.result().offset for partition, answer in answers.items()}


def _record_times(address: KafkaAddress, offsets: dict[Partition, int]) -> dict[Partition, float]:
    """Return the timestamps of records at some offsets, as far as Kafka answers in time."""
    small = {"fetch.max.bytes": 1 << 20, "max.partition.fetch.bytes": 1024, "queued.min.messages": 1, "isolation.level": "read_committed"}
    consumer = Consumer({**quiet_settings(address), **small, "group.id": "headrace-lag", "enable.auto.commit": False})
    found: dict[Partition, float] = {}
    deadline = time.monotonic() + _BACKLOG_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()])
        while len(found) < len(offsets) and (left := deadline - time.monotonic()) > 0:
            message = consumer.poll(left)
            if message is None or message.error() is not None:
                continue
            key = str(message.topic()), int(message.partition() or 0)
            _, made_ms = message.timestamp()
            if key not in found and made_ms > 0:
                found[key] = made_ms / 1000
    finally:
        consumer.close()
    return found
