"""Batches that Spark's own Kafka source plans, and what a task does with the records of one.

Spark's source finds the topics and their ends, limits batches and keeps their offsets in its checkpoint; a batch's frame is never read. Its
ranges of offsets go to tasks as addresses, and tasks fetch the records themselves, read them in bulk and write each piece's blocks.
(Measured: through Spark's source and Arrow a record took three times the CPU.) Invariant: when a task has ended, every record of its range
is in the sink, or in its reports (found, refused), or counted there as one that carries no change. What a task reports of tables that the
sink does not know yet makes the driver run the same batch again, which the sink's idempotency allows.
"""

from __future__ import annotations

import base64
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
from headrace.model.change import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.sinks.base import Outlet, Writer
from headrace.sources.base import Offset
from headrace.sources.debezium.fetching import AWAY, OffsetRange
from headrace.sources.debezium.records import Decoded, Found, Records, Refused, Truncation
from headrace.sources.debezium.snapshots import Snapshot
from headrace.sources.debezium.versions import Order, Tail
from headrace.spark.checkpoint import initial_offset, offset_of
from headrace.spark.faults import carried, decode
from headrace.spark.logs import mark_log
from headrace.spark.stream import BatchStream, run_task, spark_failure
from headrace.spark.tasks import Report, Retry, report_batch

CHANGES, FOUND, REFUSED, TRUNCATED, IGNORED, RECORDS = "changes", "found", "refused", "truncated", "ignored", "records"
ORDER, TAIL, SNAPSHOT, FILLED = "order", "tail", "snapshot", "filled"
"""Kinds of reports."""
MOST_REFUSED: Final = 1000
"""Of one task: more than that is not a matter of some records."""


class KafkaAway(TransientError):
    """The cluster does not answer Spark: what was read so far counts, the rest is read when it is back."""


class RecordReader(Protocol):
    """Makes blocks of records. Picklable."""

    def read(self, records: Records) -> Decoded: ...


class ValueKeeper(Protocol):
    """Puts the values that did not change, and that events do not hold, into blocks. Picklable."""

    def filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], place: str) -> ChangeBlock: ...


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which records a stream reads, and how fast."""

    address: KafkaAddress
    pattern: str
    """A regular expression over whole names of topics; topics that come later are taken in, from their beginning."""
    start: Mapping[str, str] = field(default_factory=lambda: {"startingOffsets": "earliest"})
    """Where the first batch begins, in the words of Spark's options."""
    max_offsets: int = 0
    """The most records of one batch; 0: all that are there."""
    min_partitions: int = 0
    """Tasks of a batch at the least: a partition's records are then cut among several."""


def planned_frame(session: SparkSession, subscription: Subscription) -> DataFrame:
    """The records of a subscription, as Spark's Kafka source plans them."""
    options: dict[str, str] = {
        # Records of transactions that were given up are no records.
        "kafka.isolation.level": "read_committed",
        **subscription.address.spark_options(),
        **subscription.start,
        "subscribePattern": subscription.pattern,
        "failOnDataLoss": "true",
    }
    if subscription.max_offsets:
        options["maxOffsetsPerTrigger"] = str(subscription.max_offsets)
    return session.readStream.format("kafka").options(**options).load()


def ranges_of(checkpoint: Path, batch: int, at_least: int = 0) -> list[OffsetRange]:
    """What a planned batch holds, partition by partition; with `at_least`, cut into about so many ranges.

    Raises `DefiniteError` if a partition is gone or ends before it was read to: Spark looks for that only when it reads records itself.
    """
    before: Offset = offset_of(checkpoint, batch - 1) if batch else initial_offset(checkpoint) or {}
    _check_going_on(before, offset_of(checkpoint, batch))
    whole = [
        # A partition that has come since is read from its beginning.
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


class RecordStream(BatchStream):
    """A running replication of topics."""

    def __init__(
        self, session: SparkSession, subscription: Subscription, checkpoint: Path, run: Callable[[Callable[[Any], list[Report]], int], None]
    ) -> None:
        """`run` gets what runs a task over a batch, as often as it likes, and the batch's number; what it raises stops the batch."""
        self._address = subscription.address

        def batch(frame: DataFrame, number: int) -> None:
            ranges = ranges_of(checkpoint, number, subscription.min_partitions)
            run(lambda task: self._over(frame.sparkSession, ranges, task), number)

        super().__init__(session, planned_frame(session, subscription), checkpoint, batch)

    def _over(self, session: SparkSession, ranges: Sequence[OffsetRange], task: Any) -> list[Report]:
        if not ranges:
            return []
        # Rows made by Spark itself: a frame from Python's data would start a Python worker of another kind.
        works = array(*(lit(json.dumps(one.to_json())) for one in ranges))
        frame = session.range(0, len(ranges), 1, len(ranges)).select(works[col("id").cast("int")].alias("work"))
        try:
            return run_task(frame, task)
        except TransientError as error:
            raise told_apart(error) from error

    def _translated(self, error: Exception) -> HeadraceError:
        return decode(str(error)) or kafka_failure(str(error), self._address) or spark_failure(error)


def told_apart(error: TransientError) -> TransientError:
    """What a task waited for in vain: Kafka, which the driver waits for, or the sink, which was waited for long enough."""
    return KafkaAway(error.message, place=error.place) if error.message.startswith(AWAY) else error


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


def kafka_failure(text: str, address: KafkaAddress) -> HeadraceError | None:
    """What Spark's Kafka source fails of, if it is about Kafka."""
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
            f"Kafka does not let us in: {_without_secrets(line, address)}",
            place=str(address),
            hint="check user, password and security.protocol in the source's address, and the user's right to read the topics",
        )
    if any(word in text for word in _AWAY):
        return KafkaAway(f"Kafka is away: {_without_secrets(line, address)}", place=str(address))
    return None


def _without_secrets(line: str, address: KafkaAddress) -> str:
    return line.replace(address.password, "***")[:300] if address.password else line[:300]


@dataclass(frozen=True, slots=True)
class RecordTask:
    """Reads records and writes their blocks. Picklable."""

    reader: RecordReader
    sink: Outlet
    retry: Retry
    shown: Mapping[TableName, TableSchema]
    """The tables that are written, with the columns that are carried of them; blocks of others are counted as left out."""
    keeper: ValueKeeper | None = None
    left_out: Callable[[str], bool] | None = None
    """Topics none of whose records are read, because their tables are not chosen."""
    news: Callable[[TableName], bool] | None = None
    """Tables that the driver takes up when they are found: the batch is read again then, and the task need not go on."""
    fetch: Callable[[OffsetRange], Iterator[Records]] | None = None
    """Gets the records of a range."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mark_log()
        assert self.fetch is not None
        with carried():
            works = (json.loads(work) for batch in batches for work in batch.column(0).to_pylist())
            reports = self.run(records for work in works for records in self.fetch(OffsetRange(*work)))
        yield report_batch(reports)

    def run(self, pieces: Iterable[Records]) -> list[Report]:
        """Read and write; what is left for the driver."""
        done = _Done()
        writer = self.sink.writer()
        try:
            for records in pieces:
                if self.left_out is not None and self.left_out(records.topic):
                    done.pass_over(records)
                else:
                    self._copy(records, writer, done)
                    if self.news is not None and any(map(self.news, done.found)):
                        break
        finally:
            writer.close()
        return done.reports()

    def _copy(self, records: Records, writer: Writer, done: _Done) -> None:
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
            written = self._filled(project(block, schema), missing, records)
            self.retry(lambda written=written: writer.write(written))  # type: ignore[misc]
            done.wrote(written)

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


class _Done:
    """What a task has done so far."""

    def __init__(self) -> None:
        self._changes: dict[str, list[int]] = {}
        self._found: dict[TableName, dict[TableSchema, Found]] = {}
        self._refused: list[Refused] = []
        self._truncations: dict[TableName, int] = {}
        self._ignored: dict[str, int] = {}
        self._orders: dict[TableName, dict[Order, None]] = {}
        self._tails: dict[tuple[str, int], tuple[int, Tail]] = {}
        self._snapshots: dict[Snapshot, None] = {}
        self._filled: dict[tuple[TableName, str], None] = {}
        self._records = self._bytes = 0

    @property
    def found(self) -> Iterable[TableName]:
        return self._found

    def add(self, records: Records, decoded: Decoded) -> None:
        self._records += records.rows
        self._bytes += int(records.value.nbytes)
        for found in decoded.found:
            self._found.setdefault(found.schema.name, {}).setdefault(found.schema, found)
        for truncation in decoded.truncations:
            self._truncations[truncation.table] = max(truncation.version, self._truncations.get(truncation.table, 0))
        for why, count in decoded.ignored.items():
            self._ignored[why] = self._ignored.get(why, 0) + count
        for name, order in decoded.orders.items():
            self._orders.setdefault(name, {})[order] = None
        if decoded.tail is not None:
            self._tails[records.topic, records.partition] = (int(records.offset[-1].as_py()), decoded.tail)
        self._snapshots |= dict.fromkeys(decoded.snapshots)
        self._filled |= dict.fromkeys((block.schema.name, records.topic) for block in decoded.blocks)
        self._refused += decoded.refused
        if len(self._refused) > MOST_REFUSED:
            first = self._refused[0]
            raise DefiniteError(
                f"more than {MOST_REFUSED} records of one batch cannot be read; the first: {first.reason}",
                place=f"{first.topic}[{first.partition}]@{first.offset}",
                hint=first.hint or "that is no matter of some records: check debezium.format and which topics are chosen",
            )

    def pass_over(self, records: Records) -> None:
        self._records += records.rows
        why = f"topic {records.topic} is of a table that is not chosen"
        self._ignored[why] = self._ignored.get(why, 0) + records.rows

    def leave_out(self, block: ChangeBlock) -> None:
        why = f"table {block.schema.name} is not chosen"
        self._ignored[why] = self._ignored.get(why, 0) + block.changes

    def wrote(self, block: ChangeBlock) -> None:
        totals = self._changes.setdefault(str(block.schema.name), [0, 0, 0])
        totals[0] += block.changes
        totals[1] += block.images.nbytes
        totals[2] = max(totals[2], int(pc.max(block.commit_ts).as_py() or 0))

    def reports(self) -> list[Report]:
        return [
            Report(RECORDS, "", self._records, self._bytes, 0, ""),
            *(Report(CHANGES, table, rows, size, newest, "") for table, (rows, size, newest) in self._changes.items()),
            *(Report(FOUND, str(name), 0, 0, 0, _found_text(one)) for name, all_of in self._found.items() for one in all_of.values()),
            *(Report(REFUSED, one.topic, 0, 0, 0, _refused_text(one)) for one in self._refused),
            *(
                Report(TRUNCATED, str(name), 0, 0, 0, json.dumps([name.database, name.table, version]))
                for name, version in self._truncations.items()
            ),
            *(Report(IGNORED, why, count, 0, 0, "") for why, count in self._ignored.items()),
            *(
                Report(ORDER, str(name), 0, 0, 0, json.dumps([name.database, name.table, order.to_json()]))
                for name, all_of in self._orders.items()
                for order in all_of
            ),
            *(
                Report(TAIL, topic, 0, 0, 0, json.dumps([topic, partition, offset, tail.to_json()]))
                for (topic, partition), (offset, tail) in self._tails.items()
            ),
            *(Report(SNAPSHOT, str(one.table), 0, 0, 0, json.dumps(one.to_json())) for one in self._snapshots),
            *(Report(FILLED, str(name), 0, 0, 0, json.dumps([name.database, name.table, topic])) for name, topic in self._filled),
        ]


def found_in(reports: Iterable[Report]) -> list[Found]:
    """What tasks found, table by table in the order in which the source came to be so, and alike each time."""
    found = []
    for report in reports:
        if report.kind == FOUND:
            raw = json.loads(report.detail)
            found.append(
                Found(TableSchema.from_json(raw["schema"]), raw["topic"], raw["partition"], raw["offset"], raw["told_at"], raw["zeroes"])
            )
    return sorted(found, key=lambda one: (one.schema.name, one.told_at, one.topic, one.partition, one.offset))


def refused_in(reports: Iterable[Report]) -> list[Refused]:
    found = [_refused(json.loads(report.detail)) for report in reports if report.kind == REFUSED]
    return sorted(found, key=lambda one: (one.topic, one.partition, one.offset))


def truncations_in(reports: Iterable[Report]) -> list[Truncation]:
    """Each table once, with the last version at which it was emptied."""
    last: dict[TableName, int] = {}
    for report in reports:
        if report.kind == TRUNCATED:
            database, table, version = json.loads(report.detail)
            name = TableName(database, table)
            last[name] = max(version, last.get(name, 0))
    return [Truncation(name, version) for name, version in sorted(last.items())]


def orders_in(reports: Iterable[Report]) -> dict[TableName, Order]:
    """The rules that first records have fixed; raises `DefiniteError` if two tasks found different ones of a table."""
    found: dict[TableName, Order] = {}
    for report in reports:
        if report.kind == ORDER:
            database, table, raw = json.loads(report.detail)
            name, order = TableName(database, table), Order.from_json(raw)
            if found.setdefault(name, order) != order:
                raise DefiniteError(
                    f"records of table {name} are ordered by different rules: {_order_text(found[name])} and {_order_text(order)}",
                    place=f"table {name}",
                    hint="choose one with debezium.versions, or lead the topics to different tables with debezium.topics",
                )
    return found


def tails_in(reports: Iterable[Report]) -> dict[tuple[str, int], Tail]:
    """Of each partition, the tail that the task with the last records of it told."""
    last: dict[tuple[str, int], tuple[int, Tail]] = {}
    for report in reports:
        if report.kind == TAIL:
            topic, partition, offset, raw = json.loads(report.detail)
            last[topic, partition] = max(last.get((topic, partition), (-1, Tail())), (offset, Tail.from_json(raw)), key=lambda one: one[0])
    return {place: tail for place, (_, tail) in last.items()}


def snapshots_in(reports: Iterable[Report]) -> list[Snapshot]:
    """Snapshots of tables without a key."""
    return [Snapshot.from_json(json.loads(report.detail)) for report in reports if report.kind == SNAPSHOT]


def filled_in(reports: Iterable[Report]) -> dict[TableName, set[str]]:
    """The topics that brought changes, by table."""
    found: dict[TableName, set[str]] = {}
    for report in reports:
        if report.kind == FILLED:
            database, table, topic = json.loads(report.detail)
            found.setdefault(TableName(database, table), set()).add(topic)
    return found


def _order_text(order: Order) -> str:
    return f"{order.rule} ({order.topic})" if order.topic else str(order.rule)


def _found_text(one: Found) -> str:
    place = {"topic": one.topic, "partition": one.partition, "offset": one.offset, "told_at": one.told_at, "zeroes": one.zeroes}
    return json.dumps({"schema": one.schema.to_json(), **place})


def _refused_text(one: Refused) -> str:
    return json.dumps(
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "reason": one.reason,
            "hint": one.hint,
            "key": _encoded(one.key),
            "value": _encoded(one.value),
            "headers": [[name, _encoded(value)] for name, value in one.headers],
        }
    )


def _refused(raw: dict[str, Any]) -> Refused:
    headers = tuple((name, _decoded(value)) for name, value in raw["headers"])
    place = (raw["topic"], raw["partition"], raw["offset"], raw["reason"], raw["hint"])
    return Refused(*place, _decoded(raw["key"]), _decoded(raw["value"]), headers)


def _encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
