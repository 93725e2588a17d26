"""Streams of Kafka topics: Spark's Kafka source plans the batches, and tasks read the records.

Spark's source finds the topics and their end offsets, limits batches and checkpoints offsets. Headrace never reads the frame of a batch.
Its offset ranges go to tasks, which fetch the records, decode them in bulk and write their blocks. (Measured: Spark's source and Arrow need
three times the CPU per record.)

Invariant: when a task has ended, every record of its range is in the sink, or in its reports (found, refused), or counted there as a record
without changes. If a task reports new tables, the driver runs the same batch again, which is safe because the sink is idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, col, lit

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.kafka.address import KafkaAddress
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.retry import current_wait
from headrace.runtime.checkpoint import initial_offset, offset_of
from headrace.runtime.error_transport import decode_error, serialize_errors
from headrace.runtime.reports import Report, SplitDone, encode_reports
from headrace.runtime.tasks import Retry
from headrace.sinks.base import Writer, WriterFactory
from headrace.sources.base import Offset
from headrace.sources.debezium.events.records import DecodedRecords, Records
from headrace.sources.debezium.offset_range_reader import UNREACHABLE, OffsetRange
from headrace.spark.kafka.record_reports import RecordsRead, RecordTaskReport
from headrace.spark.runtime.micro_batch import SparkBatchStream, run_task, translate_spark_error
from headrace.transforms.block_transform import BlockTransformer, kept_masks


class KafkaUnavailable(TransientError):
    """The Kafka cluster does not answer. Committed batches count; the pipe reads the rest when the cluster is back."""


class RecordReader(Protocol):
    """Decodes records to blocks. Picklable."""

    def read(self, records: Records) -> DecodedRecords: ...


class ValueKeeper(Protocol):
    """Fills in the values that did not change and that events leave out. Picklable."""

    def filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], place: str) -> ChangeBlock: ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which records a stream reads, and how many per batch."""

    address: KafkaAddress
    pattern: str
    """A regular expression over whole names of topics. New topics are read from their beginning."""
    start: Mapping[str, str] = field(default_factory=lambda: {"startingOffsets": "earliest"})
    """Where the first batch begins, as options of Spark's Kafka source."""
    max_offsets: int = 0
    """The maximum number of records per batch; 0: no limit."""
    min_partitions: int = 0
    """The minimum number of tasks per batch: several tasks then share a partition."""


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
                    hint="the topic was deleted, or made anew: have Debezium take a new snapshot, and begin anew with another --state",
                )


class RecordStream(SparkBatchStream):
    """A running stream of topics."""

    def __init__(
        self, session: SparkSession, subscription: Subscription, checkpoint: Path, run: Callable[[Callable[[Any], list[Report]], int], None]
    ) -> None:
        """`run` gets the function that runs a task over a batch, and the number of the batch. An error that it raises fails the batch."""
        self._address = subscription.address

        def batch(frame: DataFrame, number: int) -> None:
            ranges = plan_offset_ranges(checkpoint, number, subscription.min_partitions)
            run(lambda task: self._over(frame.sparkSession, ranges, task), number)

        super().__init__(session, load_kafka_frame(session, subscription), checkpoint, batch)

    def _over(self, session: SparkSession, whole: Sequence[OffsetRange], task: RecordTask) -> list[Report]:
        ranges, ignored = select_ranges(whole, task.reads)
        passed: list[Report] = [SplitDone(ignored)]
        if not ranges:
            return passed
        # Spark makes the rows: a DataFrame from Python data would start another kind of Python worker.
        splits = array(*(lit(json.dumps(one.to_json())) for one in ranges))
        frame = session.range(0, len(ranges), 1, len(ranges)).select(splits[col("id").cast("int")].alias("work"))
        try:
            return passed + run_task(frame, task)
        except TransientError as error:
            raise classify_transient_error(error) from error

    def _translated(self, error: Exception) -> HeadraceError:
        return decode_error(str(error)) or translate_kafka_error(str(error), self._address) or translate_spark_error(error)


def select_ranges(whole: Iterable[OffsetRange], reads: Callable[[str], bool]) -> tuple[list[OffsetRange], RecordsRead]:
    """Return the ranges to read, and how many offsets, with gaps, the others have, whose tables are not selected."""
    ranges, passed = [], RecordsRead()
    for one in whole:
        if reads(one.topic):
            ranges.append(one)
        else:
            passed.ignore(f"topic {one.topic} is of a table that is not chosen", one.end - one.start)
    return ranges, passed


def classify_transient_error(error: TransientError) -> TransientError:
    """Return `KafkaUnavailable` if a task could not reach Kafka, which the driver waits for; else the error, which is about the sink."""
    return KafkaUnavailable(error.message, place=error.place) if error.message.startswith(UNREACHABLE) else error


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
            hint="the topic was made anew, or keeps records for too short a time (retention.ms): have Debezium take a new snapshot, and "
            "begin anew with another --state",
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


@dataclass(frozen=True, slots=True)
class RecordTask:
    """Reads records and writes their blocks. Picklable."""

    reader: RecordReader
    sink: WriterFactory
    retry: Retry
    shown: Mapping[TableName, TableSchema]
    """The tables that are written, with the columns that are read of them; blocks of others are counted as left out."""
    keeper: ValueKeeper | None = None
    left_out: Callable[[str], bool] | None = None
    """Topics none of whose records are read, because their tables are not chosen."""
    news: Callable[[TableName], bool] | None = None
    """Tables that the driver takes up when they are found: the batch is read again then, and the task need not go on."""
    fetch: Callable[[OffsetRange], Iterator[Records]] | None = None
    """Gets the records of a range."""
    shape: BlockTransformer | None = None
    """What becomes of blocks before they are written, if they do not pass as they are."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.fetch is not None
        with serialize_errors():
            splits = (json.loads(split) for batch in batches for split in batch.column(0).to_pylist())
            report = self.run(records for split in splits for records in self.fetch(OffsetRange(*split)))
        yield encode_reports([report])

    def reads(self, topic: str) -> bool:
        """Whether records of a topic are read at all."""
        return self.left_out is None or not self.left_out(topic)

    def run(self, pieces: Iterable[Records]) -> SplitDone:
        """Read and write records."""
        done = RecordTaskReport()
        writer = self.sink.writer()
        try:
            for records in pieces:
                self._copy(records, writer, done)
                if self.news is not None and any(map(self.news, done.result.found)):
                    break
        finally:
            writer.close()
        return done.report()

    def _copy(self, records: Records, writer: Writer, done: RecordTaskReport) -> None:
        decoded = self.reader.read(records)
        done.add(records, decoded)
        for place, block in enumerate(decoded.blocks):
            schema = self.shown.get(block.schema.name)
            if schema is None:
                done.leave_out(block)
                continue
            kept = decoded.kept[place] if place < len(decoded.kept) else {}
            # Of a column that is not carried no value is missed, and the sink holds none.
            carried_names = {column.name for column in schema.columns}
            missing = {name: mask for name, mask in kept.items() if name in carried_names}
            shaped, kept = self._shaped(project(block, schema), missing, records)
            written = self._filled(shaped, kept, records)
            if written.rows:
                self.retry(lambda written=written: writer.write(written))  # type: ignore[misc]
            done.wrote(written)

    def _shaped(
        self, block: ChangeBlock, missing: Mapping[str, pa.BooleanArray], records: Records
    ) -> tuple[ChangeBlock, Mapping[str, pa.BooleanArray]]:
        """The block as it is written, and which of its values did not change and are not there."""
        if self.shape is None:
            return block, missing
        shape = self.shape.plan(block.schema)
        passing = {output.source: output.column.name for output in shape.outputs if output.is_plain}
        needed = {*shape.filter_inputs, *(name for output in shape.outputs if not output.is_plain for name in output.inputs)}
        for name in sorted(needed & missing.keys()):
            if pc.any(missing[name]).as_py():
                raise DefiniteError(
                    f"an event of table {block.schema.name} leaves out the value of {name}, which did not change, and transforms need it",
                    place=f"{records.topic}[{records.partition}]",
                    hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL)",
                )
        try:
            shaped, rows = self.shape.transform(block)
        except DefiniteError as error:
            place = f"{records.topic}[{records.partition}], {error.place}"
            raise DefiniteError(error.message, place=place, hint=error.hint) from error
        return shaped, kept_masks(missing, passing, rows)

    def _filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], records: Records) -> ChangeBlock:
        missing = next((name for name, mask in kept.items() if pc.any(mask).as_py()), None)
        if missing is None:
            return block
        if self.keeper is None:
            raise DefiniteError(
                f"an event of table {block.schema.name} leaves out the value of {missing}, which did not change, and that is set to halt",
                place=f"{records.topic}[{records.partition}]",
                hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL), or say --set "
                "debezium.unavailable=keep",
            )
        return self.keeper.filled(block, kept, f"{records.topic}[{records.partition}]")


def project(block: ChangeBlock, schema: TableSchema) -> ChangeBlock:
    """A block with the columns of a schema only."""
    if schema == block.schema:
        return block
    names = [column.name for column in schema.columns]
    return ChangeBlock(
        schema, block.images.select(names), block.op, block.version, block.commit_ts, block.transaction, block.order, block.query
    )
