"""The task that reads Kafka records, decodes them and writes their blocks.

Invariant: when a task has ended, every record of its range is in the sink, or in its report (found, refused), or counted there as a record
without changes. If a task reports new tables, the driver runs the same batch again, which is safe because the sink is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableName, TableSchema
from headrace.pipes.debezium.record_reports import RecordsRead, RecordTaskReport
from headrace.runtime.error_transport import serialize_errors
from headrace.runtime.reports import SplitDone, encode_reports
from headrace.runtime.tasks import TASK_ATTEMPT, Retry
from headrace.sinks.base import Writer, WriterFactory
from headrace.sources.debezium.events.records import DecodedRecords, Records
from headrace.sources.debezium.offset_range_reader import OffsetRange
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

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert self.fetch is not None
        with serialize_errors():
            ranges = [decode_split(text, [OffsetRange]) for batch in batches for text in batch.column(0).to_pylist()]
            report = self.run(records for one in ranges for records in self.fetch(one))
        yield encode_reports([report])

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
            kept = decoded.kept[place] if place < len(decoded.kept) else {}
            # The sink has no column for values that are not replicated.
            carried_names = {column.name for column in schema.columns}
            missing = {name: mask for name, mask in kept.items() if name in carried_names}
            carried = project(block, schema)
            transformed, kept = self._transformed(carried, missing, records)
            written = self._filled(transformed, kept, records)
            if written.rows:
                self.retry(lambda written=written: writer.write(written))  # type: ignore[misc]
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
