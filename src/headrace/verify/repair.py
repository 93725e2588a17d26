"""Repairs rows: writes differing rows again with the source's values.

As with a snapshot's chunk, the log's position is captured before a row is read and becomes the row's version: every later change has a
higher version and wins, every earlier one is included. A row that the source no longer has is deleted with that version; so is a row that
the sink holds under another sort key. A repair may be repeated, and the pipe may run meanwhile.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Final

import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.retry import retrying
from headrace.sinks.base import Writer
from headrace.sinks.clickhouse.bookkeeping.dead_letters import RejectedRows, key_text
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.tables.target_table import EngineFamily, MetadataRole, TargetTable
from headrace.sources.mysql.server.connection import connect, query
from headrace.sources.mysql.server.position import BinlogPosition
from headrace.sources.mysql.snapshot.log_watermark import note_position
from headrace.verify.key_values import chosen, key_list
from headrace.verify.region_reader import Endpoints, read_rows, source_condition
from headrace.verify.table_spec import TableComparison
from headrace.verify.watermark import Watermark

_KEYS_AT_ONCE: Final = 500


def refusal(table: TableComparison, sides: Endpoints, watermark: Watermark[BinlogPosition] | None) -> str:
    """Return why a table's rows cannot be repaired one by one, and what to do instead; empty if they can."""
    name, layout = table.schema.name, sides.sink.target_table(table.schema)
    if watermark is None:
        return "no pipe from the source's own log is known, whose versions they would get; name it with --state or --pipe"
    if not layout.has_key:
        return f"its rows have no key that distinguishes them; headrace resync {name} reads the table again"
    if not table.keyed:
        return f"its key is hashed, and no hash tells the source's row; headrace resync {name} reads the table again"
    if layout.family is not EngineFamily.REPLACING:
        return f"its engine ({layout.family}) keeps more than the last image of a row; headrace resync {name} reads the table again"
    return ""


class Repairer:
    """Repairs rows of one table."""

    def __init__(self, sides: Endpoints, table: TableComparison, watermark: Watermark[BinlogPosition]) -> None:
        self._sides, self._table, self._watermark = sides, table, watermark
        self._schema, self._layout = table.schema, sides.sink.target_table(table.schema)

    def rewrite(self, keys: pa.Table) -> int:
        """Write the rows with these keys again; return the highest version written."""
        highest = 0
        reader = self._sides.sink.reader()
        for start in range(0, keys.num_rows, _KEYS_AT_ONCE):
            part = keys.slice(start, _KEYS_AT_ONCE)
            source, position = self._read_source(part, self._watermark.ask().position)
            target = retrying(lambda part=part: reader.read_where(self._schema, reader.key_condition(self._schema, part)))  # type: ignore[misc]
            writer = self._sides.sink.writer(_halt)
            try:
                self._write(writer, self._stale(source, target), Op.DELETE, position)
                self._write(writer, source, Op.SNAPSHOT, position)
            finally:
                writer.close()
            highest = max(highest, position.version)
        return highest

    def why_not(self, keys: pa.Table, version: int) -> str:
        """Return why rows still differ after they were written with a version."""
        mark = self._layout.metadata_column(MetadataRole.VERSION)
        reader = self._sides.sink.reader()
        if mark is not None:
            stored, condition = quote_name(mark.name), reader.key_condition(self._schema, keys.slice(0, _KEYS_AT_ONCE))
            [[found]] = reader.query(f"SELECT max({stored}) FROM {self._layout.qualified} WHERE {condition}")[1]
            if int(found) > version:
                return (
                    f"the sink has a version of them ({found}) above the position of the source's log ({version}), which something else "
                    f"than this pipe has written; take it away (ALTER TABLE {self._layout.qualified} DELETE WHERE {mark.name} > {version}) "
                    f"and repair again, or drop the table and headrace resync {self._schema.name}"
                )
        return f"they still differ after they were written; headrace resync {self._schema.name} reads the table again"

    def _read_source(self, keys: pa.Table, reached: BinlogPosition) -> tuple[pa.Table, BinlogPosition]:
        address = self._sides.address

        def read() -> tuple[pa.Table, BinlogPosition]:
            with closing(connect(address)) as connection:
                position = note_position(connection, address, reached.epoch).with_version_after(reached)
                where, sides = source_condition(self._table, keys), self._sides
                rows = read_rows(connection, address, self._table, self._schema, where, sides.dates_read, sides.transformer).rows
                query(connection, address, "COMMIT")
                return rows, position

        return retrying(read)

    def _stale(self, source: pa.Table, target: pa.Table) -> pa.Table:
        """Return the sink's rows that no source row replaces: deleted ones, and those stored under another sort key."""
        places = list(dict.fromkeys((*self._schema.row_key, *self._layout.key_dependencies)))
        kept = set(key_list(source, places))
        return chosen(target, set(key_list(target, places)) - kept, places)

    def _write(self, writer: Writer, rows: pa.Table, op: Op, position: BinlogPosition) -> None:
        now_us = time.time_ns() // 1000
        for batch in rows.combine_chunks().to_batches():
            count = batch.num_rows
            block = ChangeBlock(
                self._schema,
                pa.RecordBatch.from_arrays(batch.columns, schema=self._schema.arrow_schema),
                pa.repeat(pa.scalar(int(op), pa.uint8()), count),
                pa.repeat(pa.scalar(position.version, pa.uint64()), count),
                pa.repeat(pa.scalar(now_us, pa.int64()), count),
            )
            retrying(lambda block=block: writer.write(block))  # type: ignore[misc]


def _halt(layout: TargetTable, block: ChangeBlock, refused: RejectedRows) -> None:
    """Ignore rejected rows: the pipe's own writer rejects and records them, too."""
    raise DefiniteError(
        f"the row is refused: {refused.reasons[0]}",
        place=f"table {layout.source}, row {key_text(block, int(refused.rows[0]))}",
        hint="correct the value in the source or the target table's type, then repair again",
    )
