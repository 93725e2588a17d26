"""Creates missing topics, and stores claims on topics. Existing topics are never changed or deleted."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.errors import DefiniteError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.kafka.consumers.message_source import TopicConsumer
from headrace.retry import effective_deadline
from headrace.sinks.kafka.delivery import Refusals, client_log, failure, producer_settings
from headrace.sinks.kafka.options import Cleanup, KafkaOptions
from headrace.sinks.target_claims import Claim

_WAIT_S: Final = 30.0
_TRY_S: Final = 3.0
_AS_THE_BROKER_SAYS: Final = -1
_PRODUCER_ONLY: Final = (
    "acks",
    "enable.idempotence",
    "partitioner",
    "compression",
    "linger.ms",
    "batch.",
    "queue.",
    "message.",
    "delivery.",
)
log = logging.getLogger("headrace")
TOPIC: Final = "headrace_targets"
_POLL_S: Final = 0.05
"""A poll for more records than the topic has waits this long each time."""
_POLLED: Final = 1000


def ensure_topics(address: KafkaAddress, choices: KafkaOptions, names: Iterable[str]) -> None:
    """Create missing topics; raise `DefiniteError` if one is missing and may not be created. Always sends a request."""
    wanted = sorted(set(names))
    admin, refusals = _admin(address, choices)
    existing = _existing(admin, refusals, address)
    missing = [name for name in wanted if name not in existing]
    if missing and not choices.create_topics:
        raise DefiniteError(
            f"the topic {missing[0]} does not exist", place=str(address), hint="make it, or let it be made: kafka.create_topics = true"
        )
    if missing:
        config = {} if choices.cleanup is Cleanup.BROKER else {"cleanup.policy": choices.cleanup.value}
        partitions, replication = choices.partitions or _AS_THE_BROKER_SAYS, choices.replication or _AS_THE_BROKER_SAYS
        _create(admin, [NewTopic(name, partitions, replication, config=config) for name in missing], address)


def existing_topics(address: KafkaAddress, choices: KafkaOptions) -> set[str]:
    return _existing(*_admin(address, choices), address)


def create_compacted(address: KafkaAddress, choices: KafkaOptions, name: str) -> None:
    """Create a topic of one partition that keeps the last record of each key, unless it exists."""
    admin, refusals = _admin(address, choices)
    if name in _existing(admin, refusals, address):
        return
    topic = NewTopic(name, 1, choices.replication or _AS_THE_BROKER_SAYS, config={"cleanup.policy": Cleanup.COMPACT.value})
    _create(admin, [topic], address)


def _admin(address: KafkaAddress, choices: KafkaOptions) -> tuple[AdminClient, Refusals]:
    refusals = Refusals()
    heard: dict[str, Any] = {"error_cb": refusals.note}
    try:
        return AdminClient({**client_properties(address, choices), **heard}, logger=client_log), refusals
    except KafkaException as error:
        raise failure(error, "making a client of Kafka's", str(address)) from error


def client_properties(address: KafkaAddress, choices: KafkaOptions) -> dict[str, Any]:
    shared = {name: value for name, value in choices.properties if not name.startswith(_PRODUCER_ONLY)}
    own = {name: value for name, value in address.client_settings().items() if not name.startswith(_PRODUCER_ONLY)}
    return {**own, **shared}


def _existing(admin: AdminClient, refusals: Refusals, address: KafkaAddress) -> set[str]:
    """Return the cluster's topics. Retries for a while, but not if the brokers refuse the client."""
    deadline = time.monotonic() + effective_deadline(_WAIT_S)
    while True:
        try:
            return set(admin.list_topics(timeout=_TRY_S).topics)
        except KafkaException as error:
            admin.poll(0)
            if refusals.repeated_error is not None or time.monotonic() > deadline:
                raise failure(refusals.repeated_error or error, "asking for the topics", str(address)) from error


def _create(admin: AdminClient, topics: list[NewTopic], address: KafkaAddress) -> None:
    for name, made in admin.create_topics(topics, request_timeout=_WAIT_S).items():
        try:
            made.result(timeout=_WAIT_S)
        except KafkaException as error:
            # Another pipe may have made it in the meantime.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure(error, f"making the topic {name}", str(address)) from error
        except TimeoutError as error:
            raise TransientError(
                f"making the topic {name} takes too long", place=str(address), hint="see whether the brokers are up"
            ) from error


@dataclass(frozen=True, slots=True)
class KafkaClaims:
    """All claims of one cluster: records in its compacted topic `headrace_targets`.

    A record's key is the topic and the id of the state, its value the claim; a record without a value removes it. The topic has one
    partition, so every reader sees all records in one order.
    """

    address: KafkaAddress
    choices: KafkaOptions

    def read(self) -> list[Claim]:
        if not self._exists:
            return []
        found: dict[bytes, Claim] = {}
        for message in self._messages():
            key, value = message.key() or b"", message.value()
            # A claim that is written again goes behind those of others: it is the last record of its key that compaction keeps.
            found.pop(key, None)
            if value is not None:
                found[key] = Claim(**json.loads(value))
        return list(found.values())

    def write(self, claims: Sequence[Claim]) -> None:
        if not self._exists and not self.choices.create_topics:
            log.warning(
                "a second pipe that writes to the same topics cannot be noticed: %s has no topic %s, and kafka.create_topics is false; "
                "create the topic with one partition and cleanup.policy=compact",
                self.address,
                TOPIC,
            )
            return
        create_compacted(self.address, self.choices, TOPIC)
        self._send([(_key(claim), json.dumps(asdict(claim)).encode()) for claim in claims])

    def remove(self, claims: Sequence[Claim]) -> None:
        self._send([(_key(claim), None) for claim in claims])

    def existing(self, targets: Collection[str]) -> set[str]:
        return existing_topics(self.address, self.choices).intersection(targets)

    def last_seen_us(self, claim: Claim) -> int:
        """Return 0: pipes do not report to a cluster that they run."""
        del claim
        return 0

    @property
    def _exists(self) -> bool:
        return TOPIC in existing_topics(self.address, self.choices)

    def _messages(self) -> list[Message]:
        deadline = time.monotonic() + _WAIT_S
        consumer = TopicConsumer(self.address, [TOPIC], properties=client_properties(self.address, self.choices))
        found: list[Message] = []
        try:
            while not consumer.is_at_end:
                found += [message for batch in consumer.poll(_POLLED, _POLL_S) for message in batch.messages]
                if time.monotonic() > deadline:
                    raise TransientError(
                        f"reading the topic {TOPIC} takes too long", place=str(self.address), hint="see whether the brokers are up"
                    )
        finally:
            consumer.close()
        return found

    def _send(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        if not records:
            return
        failed: list[KafkaError] = []

        def hear(error: KafkaError | None, message: Message) -> None:
            del message
            if error is not None:
                failed.append(error)

        producer = Producer(producer_settings(self.address, self.choices), logger=client_log)
        try:
            for key, value in records:
                producer.produce(TOPIC, value, key, on_delivery=hear)
                producer.poll(0)
            left = producer.flush(_WAIT_S)
        except KafkaException as error:
            raise failure(error, f"writing to the topic {TOPIC}", str(self.address)) from error
        if failed:
            raise failure(failed[0], f"writing to the topic {TOPIC}", str(self.address))
        if left:
            raise TransientError(
                f"writing to the topic {TOPIC} takes too long", place=str(self.address), hint="see whether the brokers are up"
            )


def _key(claim: Claim) -> bytes:
    # No topic has a space in its name.
    return f"{claim.target} {claim.state}".encode()
