"""Streams of Kafka topics: Spark's Kafka source plans the batches, and tasks read the records.

Spark's source finds the topics and their end offsets, limits batches and checkpoints offsets. Headrace never reads the frame of a batch.
Its offset ranges go to tasks, which fetch the records, decode them in bulk and write their blocks. (Measured: Spark's source and Arrow need
three times the CPU per record.)
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import DefiniteError, HeadraceError
from headrace.kafka.address import KafkaAddress
from headrace.retry import current_wait
from headrace.runtime.checkpoint import initial_offset, offset_of
from headrace.runtime.interface import OnRecordBatch
from headrace.runtime.reports import Report, decode_error
from headrace.runtime.tasks import TaskFunction
from headrace.sources.base import Offset
from headrace.sources.debezium.offset_range_reader import KafkaUnavailable, OffsetRange, Subscription
from headrace.sources.splits import encode_split
from headrace.spark.runtime.micro_batch import SparkBatchStream, run_task, translate_spark_error


def load_kafka_frame(session: SparkSession, subscription: Subscription) -> DataFrame:
    """Return the frame of a subscription, whose batches Spark's Kafka source plans."""
    options: dict[str, str] = {
        # Skip the records of aborted transactions.
        "kafka.isolation.level": "read_committed",
        **subscription.address.spark_options(),
        **subscription.start,
        "subscribePattern": subscription.pattern,
        "failOnDataLoss": "true",
    }
    if current_wait().pipe:
        # Spark polls Kafka for new records. With many pipes, each must not do so a hundred times per second.
        session.conf.set("spark.sql.streaming.pollingDelay", "100ms")
    if subscription.max_offsets:
        options["maxOffsetsPerTrigger"] = str(subscription.max_offsets)
    return session.readStream.format("kafka").options(**options).load()


def plan_offset_ranges(checkpoint: Path, batch: int, at_least: int = 0) -> list[OffsetRange]:
    """Return the offset ranges of a planned batch; with `at_least`, cut into about that many.

    Raises `DefiniteError` if a partition was deleted or shortened: Spark checks that only when it reads the records itself.
    """
    before: Offset = offset_of(checkpoint, batch - 1) if batch else initial_offset(checkpoint) or {}
    _check_going_on(before, offset_of(checkpoint, batch))
    whole = [
        # A new partition is read from its beginning.
        OffsetRange(topic, int(partition), before.get(topic, {}).get(partition, 0), end)
        for topic, ends in offset_of(checkpoint, batch).items()
        for partition, end in ends.items()
    ]
    found = [one for one in whole if one.end > one.start]
    total = sum(one.end - one.start for one in found)
    most = max(total // at_least, 1) if at_least > len(found) else total
    return [replace(one, start=start, end=min(start + most, one.end)) for one in found for start in range(one.start, one.end, max(most, 1))]


def _check_going_on(before: Offset, now: Offset) -> None:
    for topic, inner in before.items():
        for partition, start in inner.items():
            end = now.get(topic, {}).get(partition)
            if end is None or end < start:
                raise DefiniteError(
                    f"{topic}[{partition}] was read up to {start}, and {'is there no more' if end is None else f'ends at {end}'}: "
                    "records that were not read yet are gone from Kafka",
                    place=f"{topic}[{partition}]",
                    hint="the topic was deleted, or recreated: have Debezium take a new snapshot, and start over with another --state",
                )


class RecordStream(SparkBatchStream):
    def __init__(self, session: SparkSession, subscription: Subscription, checkpoint: Path, run: OnRecordBatch) -> None:
        self._address = subscription.address

        self._latency_s = subscription.latency_s
        self._took_all = True

        def batch(frame: DataFrame, number: int) -> None:
            ranges = plan_offset_ranges(checkpoint, number, subscription.min_partitions)
            most = subscription.max_offsets
            self._took_all = not most or sum(one.end - one.start for one in ranges) < most
            run(functools.partial(_run_ranges, frame.sparkSession), ranges, number)

        super().__init__(session, load_kafka_frame(session, subscription), checkpoint, batch)

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        begun_s = time.monotonic()
        super()._batch(frame, batch_id)
        if self._took_all:
            # The batch is visible in the sink. Spark plans the next one when this returns; a stop does not wait.
            self._stop_requested.wait(max(begun_s + self._latency_s - time.monotonic(), 0))

    def _translated(self, error: Exception) -> HeadraceError:
        return decode_error(str(error)) or translate_kafka_error(str(error), self._address) or translate_spark_error(error)


def _run_ranges(session: SparkSession, task: TaskFunction, ranges: Sequence[OffsetRange]) -> list[Report]:
    return run_task(session, [encode_split(one) for one in ranges], task)


_LOST: Final = ("KAFKA_DATA_LOSS", "some data may have been", "OffsetOutOfRangeException", "was changed from", "topicPartitions are gone")
_AWAY: Final = (
    "TimeoutException",
    "DisconnectException",
    "NetworkException",
    "BrokerNotAvailableException",
    "LeaderNotAvailableException",
    "NotLeaderOrFollowerException",
    "No resolvable bootstrap urls",
    "CoordinatorNotAvailableException",
    "Failed to update metadata",
)
_DENIED: Final = ("SaslAuthenticationException", "SslAuthenticationException", "AuthorizationException")


def translate_kafka_error(text: str, address: KafkaAddress) -> HeadraceError | None:
    """Return the error of Spark's Kafka source, if the text is about Kafka."""
    line = next((line.strip() for line in text.splitlines() if any(word in line for word in (*_LOST, *_DENIED, *_AWAY))), "")
    if any(word in text for word in _LOST):
        return DefiniteError(
            f"records that were not read yet are gone from Kafka: {_without_secrets(line, address)}",
            place=str(address),
            hint="the topic was recreated, or keeps records for too short a time (retention.ms): have Debezium take a new snapshot, and "
            "start over with another --state",
        )
    if any(word in text for word in _DENIED):
        return DefiniteError(
            f"Kafka denies access: {_without_secrets(line, address)}",
            place=str(address),
            hint="check user, password and security.protocol in the source's address, and the user's right to read the topics",
        )
    if any(word in text for word in _AWAY):
        return KafkaUnavailable(f"Kafka is unavailable: {_without_secrets(line, address)}", place=str(address))
    return None


def _without_secrets(line: str, address: KafkaAddress) -> str:
    return line.replace(address.password, "***")[:300] if address.password else line[:300]
