"""What a Kafka cluster says of itself: its identity, its topics, and from where to where their records go.

Asked through librdkafka, before and beside Spark's own consumers. Invariant: nothing is read or committed here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.errors import DefiniteError, HeadraceError
from headrace.kafka.address import KafkaAddress
from headrace.pipes.debezium.position import KafkaPosition
from headrace.retry import limited
from headrace.sources.debezium.offset_range_reader import is_denied, reading_error

_TIMEOUT_S: Final = 10.0
_TRY_S: Final = 2.0
_HEARING_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Standing:
    """The chosen topics at one moment."""

    cluster: str
    low: KafkaPosition
    """The first records that are still there."""
    high: KafkaPosition
    """The end."""
    ids: tuple[tuple[str, str], ...]
    """What tells each topic from another of its name."""


def standing(address: KafkaAddress, pattern: str) -> Standing:
    """Which topics there are, and which offsets they hold. Raises `TransientError` while the cluster is away."""
    try:
        return _ask(address, re.compile(pattern))
    except KafkaException as error:
        raise kafka_error(error, address) from error


def _ask(address: KafkaAddress, pattern: re.Pattern[str]) -> Standing:
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
    return Standing(str(listed.cluster_id or ""), KafkaPosition(low), KafkaPosition(high), tuple(_ids(settings, topics).items()))


def _list(consumer: Consumer, heard: list[KafkaError]) -> Any:
    """What topics there are. A login that is refused looks like a broker that is away, except in what the client hears meanwhile."""
    deadline = time.monotonic() + limited(_TIMEOUT_S)
    while True:
        try:
            return consumer.list_topics(timeout=_TRY_S)
        except KafkaException:
            consumer.poll(_HEARING_S)
            refused = [error for error in heard if is_denied(error)]
            # Once may be chance: a broker that goes down cuts logins off, too.
            if len(refused) > 1:
                raise KafkaException(refused[-1]) from None
            if time.monotonic() > deadline:
                raise


def topic_ids(address: KafkaAddress, topics: Iterable[str]) -> dict[str, str]:
    """What tells each topic from another of its name. Raises `TransientError` while the cluster is away."""
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


def quiet_settings(address: KafkaAddress) -> dict[str, Any]:
    """What librdkafka is told where we ask and nobody waits to hear of its troubles."""
    # What a broker that is away means is said in our own words.
    return {**address.client_settings(), "log_level": 0, "error_cb": lambda _: None}


def kafka_error(error: KafkaException, address: KafkaAddress) -> HeadraceError:
    """What librdkafka fails of, as an error of ours."""
    inside = error.args[0] if isinstance(error.args[0], KafkaError) else KafkaError(KafkaError._FAIL, str(error))
    return reading_error(inside, str(address))


def check_offsets(reached: KafkaPosition, now: Standing, known_ids: dict[str, str], address: KafkaAddress) -> None:
    """Raise `DefiniteError` if what was to be read next is there no more."""
    check_ids({topic: identity for topic, identity in known_ids.items() if topic in reached.offsets}, dict(now.ids), address)
    for topic, inner in reached.offsets.items():
        if topic not in now.high.offsets:
            raise _gone(f"the topic {topic} is there no more", address)
        for partition, offset in inner.items():
            low, high = now.low.offsets[topic].get(partition, 0), now.high.offsets[topic].get(partition, 0)
            if offset < low:
                raise _gone(f"records of {topic}[{partition}] from {offset} to {low} were removed before they were read", address)
            if offset > high:
                raise _gone(f"{topic}[{partition}] ends at {high}, and was read up to {offset}: it was made anew", address)


def check_ids(known: Mapping[str, str], now: Mapping[str, str], address: KafkaAddress) -> None:
    """Raise `DefiniteError` if a topic is another one than the one that was read under its name."""
    for topic, identity in known.items():
        if now.get(topic, identity) != identity:
            raise _gone(f"the topic {topic} was deleted and made anew", address)


def _gone(message: str, address: KafkaAddress) -> DefiniteError:
    return DefiniteError(
        message,
        place=str(address),
        hint="have Debezium take a new snapshot (an incremental one, say) and begin anew with another --state; lengthen the topic's "
        "retention.ms if records are removed too soon",
    )
