"""Claims on topics: records in the compacted topic `headrace_targets` of the same cluster.

A record's key is the topic and the id of the state, its value the claim; a record without a value removes it. The topic has one partition,
so every reader sees all records in one order.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.errors import TransientError
from headrace.kafka.address import KafkaAddress
from headrace.kafka.consumers.message_source import TopicConsumer
from headrace.sinks.kafka.messages.delivery import client_log, producer_settings
from headrace.sinks.kafka.messages.errors import failure
from headrace.sinks.kafka.messages.options import KafkaOptions
from headrace.sinks.kafka.messages.topics import client_properties, create_compacted, existing_topics
from headrace.sinks.target_claims import Claim

log = logging.getLogger("headrace")

TOPIC: Final = "headrace_targets"
_WAIT_S: Final = 30.0
_POLL_S: Final = 0.05
"""A poll for more records than the topic has waits this long each time."""
_POLLED: Final = 1000


@dataclass(frozen=True, slots=True)
class KafkaClaims:
    """All claims of one cluster."""

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
