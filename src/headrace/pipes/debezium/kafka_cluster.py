"""Queries a Kafka cluster: its identity, its topics, and their offsets.

Queries use librdkafka, separately from Spark's consumers. Invariant: nothing is read or committed here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from headrace.errors import DefiniteError, HeadraceError
from headrace.kafka.address import KafkaAddress
from headrace.pipes.debezium.position import KafkaPosition
from headrace.retry import effective_deadline
from headrace.sources.debezium.offset_range_reader import is_denied, reading_error

_TIMEOUT_S: Final = 10.0
_TRY_S: Final = 2.0
_HEARING_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """The selected topics at one time."""

    cluster: str
    low: KafkaPosition
    """The first available offsets."""
    high: KafkaPosition
    """The end offsets."""
    ids: tuple[tuple[str, str], ...]
    """The id of each topic; a recreated topic has another one."""


def query_topics(address: KafkaAddress, pattern: str) -> ClusterTopics:
    """Return the matching topics and their offsets. Raise `TransientError` while the cluster is unavailable."""
    try:
        return _ask(address, re.compile(pattern))
    except KafkaException as error:
        raise kafka_error(error, address) from error


def _ask(address: KafkaAddress, pattern: re.Pattern[str]) -> ClusterTopics:
    settings, heard = quiet_settings(address), list[KafkaError]()
    reading = {"group.id": "headrace-looking", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, **reading, "error_cb": heard.append})
    try:
        listed = _list(consumer, heard)
        topics = sorted(name for name in listed.topics if pattern.fullmatch(name) and not name.startswith("__consumer"))
        low: dict[str, dict[int, int]] = {}
        high: dict[str, dict[int, int]] = {}
        for topic in topics:
            for partition in listed.topics[topic].partitions:
                first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)
                low.setdefault(topic, {})[partition], high.setdefault(topic, {})[partition] = first, end
    finally:
        consumer.close()
    return ClusterTopics(str(listed.cluster_id or ""), KafkaPosition(low), KafkaPosition(high), tuple(_ids(settings, topics).items()))


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
    try:
        return _ids(quiet_settings(address), topics)
    except KafkaException as error:
        raise kafka_error(error, address) from error


def _ids(settings: dict[str, Any], topics: Iterable[str]) -> dict[str, str]:
    names = list(topics)
    if not names:
        return {}
    admin = AdminClient(settings)  # (kept: what a client promised goes with it)
    described = admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S)
    return {name: str(future.result().topic_id) for name, future in described.items()}


def compacted_topics(address: KafkaAddress, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics from which Kafka removes older records of a key. Raise `TransientError` while the cluster is unavailable."""
    wanted = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    try:
        admin = AdminClient(quiet_settings(address))  # (kept: what a client promised goes with it)
        described = admin.describe_configs(wanted, request_timeout=_TIMEOUT_S) if wanted else {}
        policies = {resource.name: str(future.result()["cleanup.policy"].value) for resource, future in described.items()}
    except KafkaException as error:
        if isinstance(error.args[0], KafkaError) and is_denied(error.args[0]):
            raise DefiniteError(
                f"Kafka does not show whether topics are compacted, and a target counts rows: {error.args[0].str()}",
                place=str(address),
                hint="grant the user the operation DescribeConfigs on the topics",
            ) from error
        raise kafka_error(error, address) from error
    return frozenset(name for name, policy in policies.items() if "compact" in policy)


def quiet_settings(address: KafkaAddress) -> dict[str, Any]:
    """Return librdkafka's settings for queries, without its own logging."""
    # Headrace reports an unavailable broker itself.
    return {**address.client_settings(), "log_level": 0, "error_cb": lambda _: None}


def kafka_error(error: KafkaException, address: KafkaAddress) -> HeadraceError:
    """Convert a librdkafka error."""
    inside = error.args[0] if isinstance(error.args[0], KafkaError) else KafkaError(KafkaError._FAIL, str(error))
    return reading_error(inside, str(address))


def check_offsets(reached: KafkaPosition, now: ClusterTopics, known_ids: dict[str, str], address: KafkaAddress) -> None:
    """Raise `DefiniteError` if the next records are no longer available."""
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
