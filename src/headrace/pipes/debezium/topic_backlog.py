"""Measures since when records have been pending in a pipe's topics, which is the pipe's lag.

A thread queries the end offsets of all partitions every second and records when each was first seen. For records from before the first
query, the timestamp of the oldest unread record counts. For a pipe from topics, a change is committed when its record is in the topic.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.kafka.address import KafkaAddress
from headrace.pipes.debezium.kafka_cluster import quiet_settings
from headrace.pipes.debezium.position import KafkaPosition
from headrace.pipes.lifecycle.lag import Pending
from headrace.retry import bind_context

log = logging.getLogger("headrace")

_LOOK_S: Final = 1.0
_TOPICS_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_SILENCE_S: Final = 5.0
_MOST: Final = 1000
Partition = tuple[str, int]


class TopicBacklog:
    """The backlog of one pipe; safe for threads."""

    def __init__(self, address: KafkaAddress, pattern: str, reached: Callable[[], KafkaPosition]) -> None:
        self._address, self._pattern, self._reached = address, re.compile(pattern), reached
        self._lock = threading.Lock()
        self._ends: dict[Partition, deque[tuple[int, float]]] = {}
        """End offsets that are not reached, with the time at which each was first seen."""
        self._looked_at = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Query the topics during the block."""
        ended = threading.Event()
        thread = threading.Thread(target=bind_context(self._watch), args=(ended,), name="headrace-lag", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_TIMEOUT_S)

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
        topics = admin.list_topics(timeout=_TIMEOUT_S).topics
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
    answers = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S)
    return {(partition.topic, partition.partition): answer.result().offset for partition, answer in answers.items()}


def _record_times(address: KafkaAddress, offsets: dict[Partition, int]) -> dict[Partition, float]:
    """Return the timestamps of records at some offsets, as far as Kafka answers in time."""
    small = {"fetch.max.bytes": 1 << 20, "max.partition.fetch.bytes": 1024, "queued.min.messages": 1, "isolation.level": "read_committed"}
    consumer = Consumer({**quiet_settings(address), **small, "group.id": "headrace-lag", "enable.auto.commit": False})
    found: dict[Partition, float] = {}
    deadline = time.monotonic() + _TIMEOUT_S
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
