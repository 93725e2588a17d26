"""ScyllaDB's log in Kafka: one JSON message per row of the log (see `log_documents`).

A message holds a part of a row. Only all messages of a row together give its content, so a compacted topic would lose data. The key of a
message is the partition key: the changes of a partition stay in order, range and partition deletions included. A block that is written
again appears again with the same positions, by which readers discard the repetition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.cql.blocks import LogBlock, RowBlock
from headrace.cql.tables import CqlTable
from headrace.errors import DefiniteError
from headrace.kafka.address import KafkaAddress, parse_kafka_url
from headrace.model.schema import TableName
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.kafka.delivery import KafkaWriter, Messages
from headrace.sinks.kafka.options import Cleanup, KafkaOptions, MessageFormat, Tombstones
from headrace.sinks.kafka.scylla.log_documents import log_documents, row_documents
from headrace.sinks.kafka.topics import KafkaClaims, ensure_topics

TOPIC: Final = "${prefix}.${db}.${table}"


@dataclass(frozen=True, slots=True)
class KafkaLogSink(LogSink):
    """A cluster. Picklable; its text never contains the password."""

    address: KafkaAddress
    choices: KafkaOptions = field(default_factory=KafkaOptions)

    @classmethod
    def from_url(cls, url: str, choices: KafkaOptions | None = None) -> KafkaLogSink:
        """Parse `kafka://host:port/topic`; the optional topic is a pattern for the topics' names."""
        address, chosen = parse_kafka_url(url), choices or KafkaOptions()
        _check(chosen)
        return cls(replace(address, topic=""), replace(chosen, topic=address.topic or chosen.topic or TOPIC))

    def prepare(self, tables: Iterable[CqlTable]) -> None:
        taken: dict[str, TableName] = {}
        for table in tables:
            topic = self.choices.topic_of(table.name)
            other = taken.setdefault(topic, table.name)
            if other != table.name and self.choices.is_apart:
                raise DefiniteError(
                    f"the tables {other} and {table.name} would both go to the topic {topic}",
                    hint="choose another pattern with kafka.topic, or leave one of the tables out",
                )
        ensure_topics(self.address, self.choices, taken)

    def claims(self) -> KafkaClaims:
        return KafkaClaims(self.address, self.choices)

    def target_of(self, name: TableName) -> str:
        return self.choices.topic_of(name)

    def writer(self) -> KafkaWriter[LogBlock | RowBlock]:
        return KafkaWriter(self.address, self.choices, LogMessageEncoder(self.choices))


@dataclass(frozen=True, slots=True)
class LogMessageEncoder:
    choices: KafkaOptions

    def encode(self, block: LogBlock | RowBlock) -> list[Messages]:
        made = log_documents(block) if isinstance(block, LogBlock) else row_documents(block)
        if not len(made.value):
            return []
        return [
            Messages(
                self.choices.topic_of(block.table.name),
                made.key.cast(pa.binary()),
                made.value.cast(pa.binary()),
                pa.array(np.zeros(len(made.micros), np.uint64)),
                pa.array(made.micros // 1000),
                position=tuple(made.position.to_pylist()) if made.position is not None else (None,) * len(made.micros),
            )
        ]


def _check(choices: KafkaOptions) -> None:
    if choices.format is not MessageFormat.GENERIC:
        raise DefiniteError(
            f"rows of ScyllaDB's log are no messages in the format {choices.format}",
            place="kafka.format",
            hint="leave it out: they are JSON of their own, see docs/scylla.md",
        )
    if choices.cleanup is Cleanup.COMPACT or choices.tombstones is Tombstones.ON:
        raise DefiniteError(
            "a message of ScyllaDB's log is a part of a row: a topic that keeps only the last of each key would lose the others",
            place="kafka.cleanup, kafka.tombstones",
            hint="leave them out",
        )
