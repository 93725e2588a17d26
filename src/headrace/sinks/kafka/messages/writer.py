"""Encodes blocks, sends the messages, and waits for their acknowledgement.

Invariant: when `write` returns, every message of the block is acknowledged by all replicas in sync, in the block's order within each
partition. If it raises, some messages may be in the topic: the retry sends all messages of the block again, with the same positions,
keys and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from headrace.kafka.address import KafkaAddress
from headrace.sinks.kafka.messages.delivery import Delivery, pool, producer_settings
from headrace.sinks.kafka.messages.messages import MessageEncoder, Messages
from headrace.sinks.kafka.messages.options import KafkaOptions

B = TypeVar("B")


class KafkaWriter(Generic[B]):
    """Writes the blocks of one task."""

    def __init__(self, address: KafkaAddress, choices: KafkaOptions, encoder: MessageEncoder[B]) -> None:
        self._settings, self._timestamps = producer_settings(address, choices), choices.timestamps
        self._encoder = encoder
        self._delivery: Delivery | None = None

    def write(self, block: B) -> None:
        """Send the block's messages and wait until they are acknowledged."""
        self.send(self._encoder.encode(block))

    def send(self, messages: Iterable[Messages]) -> None:
        """Send messages and wait until they are acknowledged."""
        delivery = self._open()
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

    def _open(self) -> Delivery:
        if self._delivery is None:
            self._delivery = pool.take(self._settings)
        return self._delivery
