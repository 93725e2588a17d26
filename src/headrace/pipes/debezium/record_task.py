"""The task that reads Kafka records, decodes them and writes their blocks; what tasks report, and how the driver merges the reports.

Invariant: when a task has ended, every record of its range is in the sink, or in its report (found, refused), or counted there as a record
without changes. If a task reports new tables, the driver runs the same batch again, which is safe because the sink is idempotent. A target
that counts rows gets whole windows, cut by the records alone and named by their offsets: it drops a window that it knows.

Reports are small, whatever the records contain. A task reports unreadable records whole up to `CARRIED_BYTES`. Of the others it reports the
offset, by which the driver fetches the record from the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.debezium.counted_tables import CountedTopics, name_pieces
from headrace.runtime.reports import Report, SplitDone, TableWrites, serialize_errors, sum_writes
from headrace.runtime.tasks import TASK_ATTEMPT, Retry
from headrace.sinks.base import Writer, WriterFactory
from headrace.sinks.clickhouse.unchanged_values import UnchangedValueFiller
from headrace.sources.debezium.events.event_versions import LogTail, TableVersioning
from headrace.sources.debezium.events.keyless_snapshots import KeylessSnapshot, begun_twice, second_snapshot
from headrace.sources.debezium.events.options import SecondSnapshot
from headrace.sources.debezium.events.records import DecodedRecords, DetectedSchema, Records, RejectedRecord, Truncation
from headrace.sources.debezium.events.source_marks import MarkKey, SourceMark
from headrace.sources.debezium.offset_range_reader import OffsetRange, cut_windows
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.splits import decode_split
from headrace.transforms.block_transform import BlockTransformer, kept_masks

MOST_REFUSED: Final = 1000
"""The maximum number of unreadable records per task: more indicate a wrong setting."""
CARRIED_BYTES: Final = 1 << 20
"""How many bytes of unreadable records a task reports."""
_REASON_CHARACTERS: Final = 2000
Known = Mapping[tuple[TableName, str], KeylessSnapshot]
"""The snapshot whose rows the target shows, by table and topic."""


@dataclass(slots=True)
class RecordsRead:
    """What a task found in its records, for the driver."""

    found: dict[TableName, dict[TableSchema, DetectedSchema]] = field(default_factory=dict)
    refused: list[RejectedRecord] = field(default_factory=list)
    truncations: dict[TableName, int] = field(default_factory=dict)
    """The last version at which a table was emptied."""
    ignored: dict[str, int] = field(default_factory=dict)
    """How many records are no change of a row, by reason."""
    orders: dict[TableName, dict[TableVersioning, None]] = field(default_factory=dict)
    tails: dict[tuple[str, int], tuple[int, LogTail]] = field(default_factory=dict)
    """By topic and partition: the offset of the last record, and the tail after it."""
    snapshots: dict[KeylessSnapshot, None] = field(default_factory=dict)
    filled: set[tuple[TableName, str]] = field(default_factory=set)
    """Tables with changes, and the topics that brought them."""
    marks: dict[MarkKey, SourceMark] = field(default_factory=dict)
    """The marks after the last records, of tables whose target counts rows."""

    deferred: bool = False
    """Whether changes wait until all rows of snapshots in the batch are stored."""

    def ignore(self, why: str, count: int) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + count


class RecordTaskReport:
    def __init__(self) -> None:
        self.result = RecordsRead()
        self._written: list[TableWrites] = []
        self._kept_bytes = 0

    def add(self, records: Records, decoded: DecodedRecords) -> None:
        result = self.result
        for found in decoded.found:
            result.found.setdefault(found.schema.name, {}).setdefault(found.schema, found)
        for truncation in decoded.truncations:
            result.truncations[truncation.table] = max(truncation.version, result.truncations.get(truncation.table, 0))
        for why, count in decoded.ignored.items():
            result.ignore(why, count)
        for name, order in decoded.orders.items():
            result.orders.setdefault(name, {})[order] = None
        if decoded.tail is not None:
            result.tails[records.topic, records.partition] = (int(records.offset[-1].as_py()), decoded.tail)
        result.marks.update(decoded.marks)
        result.snapshots.update(dict.fromkeys(decoded.snapshots))
        result.filled.update((block.schema.name, records.topic) for block in decoded.blocks)
        result.refused.extend(map(self._carried, decoded.refused))
        if len(result.refused) > MOST_REFUSED:
            first = result.refused[0]
            raise DefiniteError(
                f"more than {MOST_REFUSED} records of one batch cannot be read; the first: {first.reason}",
                place=first.place,
                hint=first.hint or "that is no matter of some records: check debezium.format and which topics are chosen",
            )

    def _carried(self, one: RejectedRecord) -> RejectedRecord:
        size = len(one.key or b"") + len(one.value or b"") + sum(len(name) + len(value or b"") for name, value in one.headers)
        one = replace(one, reason=one.reason[:_REASON_CHARACTERS])
        if self._kept_bytes + size > CARRIED_BYTES:
            return replace(one, key=None, value=None, headers=(), is_whole=False)
        self._kept_bytes += size
        return one

    def leave_out(self, block: ChangeBlock) -> None:
        self.result.ignore(f"table {block.schema.name} is not chosen", block.changes)

    def wrote(self, block: ChangeBlock, filtered: int) -> None:
        self._written.append(TableWrites(block.subject, block.changes, block.nbytes, block.newest, filtered))

    def report(self) -> SplitDone:
        return SplitDone(self.result, sum_writes(self._written))


def read_found_tables(results: Iterable[RecordsRead]) -> list[DetectedSchema]:
    """Return the schemas that tasks found, by table in the order in which the source committed them."""
    found = [one for result in results for schemas in result.found.values() for one in schemas.values()]
    return sorted(found, key=lambda one: (one.schema.name, one.told_at, one.topic, one.partition, one.offset))


def read_refused_records(results: Iterable[RecordsRead]) -> list[RejectedRecord]:
    return sorted((one for result in results for one in result.refused), key=lambda one: (one.topic, one.partition, one.offset))


def read_truncations(results: Iterable[RecordsRead]) -> list[Truncation]:
    """Return each emptied table once, with the last version at which it was emptied."""
    last: dict[TableName, int] = {}
    for result in results:
        for name, version in result.truncations.items():
            last[name] = max(version, last.get(name, 0))
    return [Truncation(name, version) for name, version in sorted(last.items())]


def read_orders(results: Iterable[RecordsRead]) -> dict[TableName, TableVersioning]:
    """Return the rules that first records have fixed; raise `DefiniteError` if two tasks found different ones of a table."""
    found: dict[TableName, TableVersioning] = {}
    for name, order in ((name, order) for result in results for name, orders in result.orders.items() for order in orders):
        if found.setdefault(name, order) != order:
            raise DefiniteError(
                f"records of table {name} are ordered by different rules: {_order_text(found[name])} and {_order_text(order)}",
                place=f"table {name}",
                hint="choose one with debezium.versions, or lead the topics to different tables with debezium.topics",
            )
    return found


def read_tails(results: Iterable[RecordsRead]) -> dict[tuple[str, int], LogTail]:
    """Return the tail of each partition, from the task that read its last records."""
    last: dict[tuple[str, int], tuple[int, LogTail]] = {}
    for result in results:
        for place, one in result.tails.items():
            last[place] = max(last.get(place, (-1, LogTail())), one, key=lambda tail: tail[0])
    return {place: tail for place, (_, tail) in last.items()}


def read_filled_topics(results: Iterable[RecordsRead]) -> dict[TableName, set[str]]:
    """Return the topics that brought changes, by table."""
    found: dict[TableName, set[str]] = {}
    for name, topic in (one for result in results for one in result.filled):
        found.setdefault(name, set()).add(topic)
    return found


def _order_text(order: TableVersioning) -> str:
    return f"{order.rule} ({order.topic})" if order.topic else str(order.rule)


def newest_snapshots(
    known: Known, seen: Iterable[KeylessSnapshot], chosen: SecondSnapshot, replaceable: Callable[[TableName], bool]
) -> tuple[dict[tuple[TableName, str], KeylessSnapshot], list[Truncation]]:
    """Return the current snapshots after a batch, and the truncations of tables without a key that start over with a new one.

    The target of such a table shows the rows of one snapshot and the changes after it: at a second snapshot the pipe halts, or its rows
    replace all older ones, as configured.

    `replaceable`: whether versions tell which rows of a table are older than a snapshot.
    """
    counts, restarted = dict(known), list[Truncation]()
    for one in sorted(seen, key=lambda one: (one.table, one.topic, one.version, one.place)):
        former = counts.get((one.table, one.topic))
        if former is None:
            counts[one.table, one.topic] = one
        elif former.place == one.place:
            begins = former.begins | one.begins
            if len(begins) > 1:
                raise begun_twice(one)
            counts[one.table, one.topic] = replace(former, begins=begins, version=max(former.version, one.version))
        else:
            if chosen is SecondSnapshot.HALT or not replaceable(one.table) or one.version <= former.version:
                raise second_snapshot(former, one, replaceable=replaceable(one.table))
            counts[one.table, one.topic] = one
            restarted.append(Truncation(one.table, one.version))
    return counts, restarted


@dataclass(frozen=True, slots=True)
class RecordTask:
    """Reads records and writes their blocks. Picklable."""

    reader: DebeziumReader
    sink: WriterFactory
    retry: Retry
    shown: Mapping[TableName, TableSchema]
    """The replicated tables, with the columns that are read; blocks of other tables are only counted."""
    keeper: UnchangedValueFiller | None = None
    left_out: Callable[[str], bool] | None = None
    """Whether a topic is not read, because its table is not selected."""
    news: Callable[[TableName], bool] | None = None
    """Whether the driver adds a newly found table. The task ends then, because the batch is read again."""
    fetch: Callable[[OffsetRange], Iterator[Records]] | None = None
    """Reads the records of a range."""
    transformer: BlockTransformer | None = None
    """Transforms blocks before they are written; None: the pipe has no transforms."""
    counted: CountedTopics = field(default_factory=CountedTopics)
    """The tables whose target counts rows."""

    def __call__(self, splits: Iterable[str]) -> Iterator[Report]:
        with serialize_errors():
            yield self.run_ranges(decode_split(text, [OffsetRange]) for text in splits)

    def run_ranges(self, ranges: Iterable[OffsetRange]) -> SplitDone:
        assert self.fetch is not None
        pieces = map(self.fetch, ranges)
        # A block of a target that counts rows must hold the same rows at each replay.
        return self.run(records for piece in pieces for records in (cut_windows(piece) if self.counted.tables else piece))

    def reads(self, topic: str) -> bool:
        return self.left_out is None or not self.left_out(topic)

    def run(self, pieces: Iterable[Records]) -> SplitDone:
        done = RecordTaskReport()
        # An earlier attempt of this task may have written blocks.
        writer = (self.sink.for_replay() if TASK_ATTEMPT.get() else self.sink).writer()
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
            counts = self.counted.check(block.schema.name, records)
            if counts and any(found.schema.name == block.schema.name for found in decoded.found):
                # A part of the window would take the name of the whole. It is written when the batch is read again.
                continue
            kept = decoded.kept[place] if place < len(decoded.kept) else {}
            # The sink has no column for values that are not replicated.
            carried_names = {column.name for column in schema.columns}
            missing = {name: mask for name, mask in kept.items() if name in carried_names}
            carried = project(block, schema)
            transformed, kept = self._transformed(carried, missing, records)
            written = self._filled(transformed, kept, records, counts=counts)
            for piece in name_pieces(written, records) if counts else [written]:
                is_next = self.counted.takes(piece, records) if counts else True
                done.result.deferred |= is_next is None
                if piece.rows and is_next:
                    self.retry(lambda piece=piece: writer.write(piece))  # type: ignore[misc]
            done.wrote(written, 0 if self.transformer is None else carried.changes - transformed.changes)

    def _transformed(
        self, block: ChangeBlock, missing: Mapping[str, pa.BooleanArray], records: Records
    ) -> tuple[ChangeBlock, Mapping[str, pa.BooleanArray]]:
        """Return the transformed block, and which of its values did not change and are missing."""
        if self.transformer is None:
            return block, missing
        plan = self.transformer.plan(block.schema)
        passing = {output.source: output.column.name for output in plan.outputs if output.is_plain}
        needed = {*plan.filter_inputs, *(name for output in plan.outputs if not output.is_plain for name in output.inputs)}
        for name in sorted(needed & missing.keys()):
            if pc.any(missing[name]).as_py():
                raise DefiniteError(
                    f"an event of table {block.schema.name} leaves out the value of {name}, which did not change, and transforms need it",
                    place=f"{records.topic}[{records.partition}]",
                    hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL)",
                )
        try:
            transformed, rows = self.transformer.transform(block)
        except DefiniteError as error:
            place = f"{records.topic}[{records.partition}], {error.place}"
            raise DefiniteError(error.message, place=place, hint=error.hint) from error
        return transformed, kept_masks(missing, passing, rows)

    def _filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], records: Records, *, counts: bool) -> ChangeBlock:
        missing = next((name for name, mask in kept.items() if pc.any(mask).as_py()), None)
        if missing is None:
            return block
        if counts:
            raise DefiniteError(
                f"an event of table {block.schema.name} has the placeholder of an unknown value in {missing}, and the target counts rows: "
                "it needs every value",
                place=f"{records.topic}[{records.partition}]",
                hint="if the text is a value of the source, give another one: --set debezium.placeholder=TEXT",
            )
        if self.keeper is None:
            raise DefiniteError(
                f"an event of table {block.schema.name} leaves out the value of {missing}, which did not change, and that is set to halt",
                place=f"{records.topic}[{records.partition}]",
                hint="have the source log whole rows (PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL), or say --set "
                "debezium.unavailable=keep",
            )
        return self.keeper.filled(block, kept, f"{records.topic}[{records.partition}]")


def project(block: ChangeBlock, schema: TableSchema) -> ChangeBlock:
    if schema == block.schema:
        return block
    return replace(block, schema=schema, images=block.images.select([column.name for column in schema.columns]))


def select_ranges(whole: Iterable[OffsetRange], reads: Callable[[str], bool]) -> tuple[list[OffsetRange], RecordsRead]:
    """Return the ranges to read, and how many offsets, with gaps, the others have, whose tables are not selected."""
    ranges, passed = [], RecordsRead()
    for one in whole:
        if reads(one.topic):
            ranges.append(one)
        else:
            passed.ignore(f"topic {one.topic} is of a table that is not chosen", one.end - one.start)
    return ranges, passed
