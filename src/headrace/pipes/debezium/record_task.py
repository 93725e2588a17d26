"""The task that reads Kafka records, decodes them and writes their blocks.

Invariant: when a task has ended, every record of its range is in the sink, or in its report (found, refused), or counted there as a record
without changes. If a task reports new tables, the driver runs the same batch again, which is safe because the sink is idempotent. A target
that counts rows gets whole windows, cut by the records alone and named by their offsets: it drops a window that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.debezium.counted_tables import CountedTopics, name_pieces
from headrace.pipes.debezium.record_reports import RecordsRead, RecordTaskReport
from headrace.runtime.error_transport import serialize_errors
from headrace.runtime.reports import SplitDone, encode_reports
from headrace.runtime.tasks import TASK_ATTEMPT, Retry
from headrace.sinks.base import Writer, WriterFactory
from headrace.sources.debezium.events.records import DecodedRecords, Records
from headrace.sources.debezium.offset_range_reader import OffsetRange
from headrace.sources.debezium.record_windows import cut_windows
from headrace.sources.splits import decode_split
from headrace.transforms.block_transform import BlockTransformer, kept_masks


class RecordReader(Protocol):
    """Decodes records to blocks. Picklable."""

    def read(self, records: Records) -> DecodedRecords: ...


class ValueKeeper(Protocol):
    """Fills in the values that did not change and that events leave out. Picklable."""

    def filled(self, block: ChangeBlock, kept: Mapping[str, pa.BooleanArray], place: str) -> ChangeBlock: ...


@dataclass(frozen=True, slots=True)
class RecordTask:
    """Reads records and writes their blocks. Picklable."""

    reader: RecordReader
    sink: WriterFactory
    retry: Retry
    shown: Mapping[TableName, TableSchema]
    """The replicated tables, with the columns that are read; blocks of other tables are only counted."""
    keeper: ValueKeeper | None = None
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with serialize_errors():
            report = self.run_ranges(decode_split(text, [OffsetRange]) for batch in batches for text in batch.column(0).to_pylist())
        yield encode_reports([report])

    def run_ranges(self, ranges: Iterable[OffsetRange]) -> SplitDone:
        """Fetch and write the records of ranges."""
        assert self.fetch is not None
        pieces = map(self.fetch, ranges)
        # A block of a target that counts rows must hold the same rows at each replay.
        return self.run(records for piece in pieces for records in (cut_windows(piece) if self.counted.tables else piece))

    def reads(self, topic: str) -> bool:
        """Whether a topic is read."""
        return self.left_out is None or not self.left_out(topic)

    def run(self, pieces: Iterable[Records]) -> SplitDone:
        """Read and write records."""
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
    """Return a block with the columns of a schema only."""
    if schema == block.schema:
        return block
    names = [column.name for column in schema.columns]
    return ChangeBlock(
        schema, block.images.select(names), block.op, block.version, block.commit_ts, block.transaction, block.order, block.query
    )


def select_ranges(whole: Iterable[OffsetRange], reads: Callable[[str], bool]) -> tuple[list[OffsetRange], RecordsRead]:
    """Return the ranges to read, and how many offsets, with gaps, the others have, whose tables are not selected."""
    ranges, passed = [], RecordsRead()
    for one in whole:
        if reads(one.topic):
            ranges.append(one)
        else:
            passed.ignore(f"topic {one.topic} is of a table that is not chosen", one.end - one.start)
    return ranges, passed
