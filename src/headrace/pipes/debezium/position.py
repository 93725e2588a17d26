"""Positions in Kafka topics: for each partition, the offset of the next record, as in Spark's checkpoint.

Invariant: offsets only rise from batch to batch, so their sum orders positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.sources.base import Offset

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition."""


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    offsets: Offsets = field(default_factory=dict)
    gtid: str = ""

    @classmethod
    def from_json(cls, raw: Offset) -> KafkaPosition:
        return cls({topic: {int(partition): int(offset) for partition, offset in inner.items()} for topic, inner in raw.items()})

    def to_json(self) -> Offset:
        return {topic: {str(partition): offset for partition, offset in inner.items()} for topic, inner in self.offsets.items()}

    @property
    def version(self) -> int:
        """Rises with the position. (It is no row version: these come from the source's log.)"""
        return sum(offset for inner in self.offsets.values() for offset in inner.values())

    def covers(self, target: KafkaPosition) -> bool:
        return all(
            self.offsets.get(topic, {}).get(partition, 0) >= offset
            for topic, inner in target.offsets.items()
            for partition, offset in inner.items()
        )

    def __str__(self) -> str:
        return ", ".join(
            f"{topic}[{partition}]@{offset}" for topic, inner in sorted(self.offsets.items()) for partition, offset in sorted(inner.items())
        )
