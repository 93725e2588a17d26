"""Reads records as a pipe does, and merges them as the sink does: tables evolve with the events, the highest version of a key wins.

A second way from records to rows, without Headrace's driver and ClickHouse. Its result is compared with the server's rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.sources.debezium.events.event_versions import LogTail
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records, RejectedRecord
from headrace.sources.debezium.reader import DebeziumReader
from headrace.sources.debezium.types.schema_widening import widen_schema

_MOST_ROUNDS = 12
_TAKES_AWAY = (Op.DELETE, Op.BEFORE)

Row = Mapping[str, Any]
Key = tuple[Any, ...]


@dataclass
class Replay:
    """A reader, its driver and its sink."""

    reader: DebeziumReader
    keys: Mapping[TableName, tuple[str, ...]] = field(default_factory=dict)
    """The sort keys of tables that are not sorted by their primary key."""
    refused: list[RejectedRecord] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    changes: int = 0
    tails: dict[tuple[str, int], LogTail] = field(default_factory=dict)
    images: dict[TableName, dict[Key, tuple[int, bool, Row]]] = field(default_factory=dict)
    """By table and sort key: the highest version, whether the row exists, and its values."""
    counted: dict[TableName, dict[tuple[Key, int], int]] = field(default_factory=dict)
    """Tables without a key: the count of each row, by row and occurrence."""

    def feed(self, records: Records) -> DecodedRecords:
        """Feed one batch: read it until the tables have the columns that its events need, then write it."""
        for _ in range(_MOST_ROUNDS):
            decoded = replace(self.reader, tails=self.tails).read(records)
            tables = dict(self.reader.tables)
            for found in decoded.found:
                known = tables.get(found.schema.name)
                schema = found.schema if known is None else widen_schema(known.schema, found.schema, zeroes=found.zeroes).schema
                order = None if known is None else known.order
                tables[schema.name] = KnownTable(schema, self.keys.get(schema.name, schema.row_key), order)
            emptied = dict(self.reader.emptied)
            for truncation in decoded.truncations:
                emptied[truncation.table] = max(emptied.get(truncation.table, 0), truncation.version)
            for name, order in decoded.orders.items():
                tables[name] = replace(tables[name], order=order)
            self.reader = replace(self.reader, tables=tables, emptied=emptied)
            if not decoded.found:
                self._write(decoded)
                if decoded.tail is not None:
                    self.tails[records.topic, records.partition] = decoded.tail
                return decoded
        raise AssertionError(f"tables still change after {_MOST_ROUNDS} rounds: {decoded.found}")

    def feed_all(self, batches: Iterable[Records], dice: random.Random) -> None:
        """Cut the partitions into random batches, mixed at random; feed some batches twice, as after a crash."""
        waiting = [_cut(records, dice) for records in batches]
        while waiting:
            pieces = dice.choice(waiting)
            piece = pieces.pop(0)
            before = dict(self.tails)
            self.feed(piece)
            if dice.random() < 0.2:
                self.tails = before
                self.feed(piece)
            waiting = [pieces for pieces in waiting if pieces]

    def rows(self, table: TableName) -> list[Row]:
        """Return the rows of the table."""
        if table in self.counted:
            sums: dict[Key, int] = {}
            for (row, _), sign in self.counted[table].items():
                sums[row] = sums.get(row, 0) + sign
            names = [column.name for column in self.reader.tables[table].schema.columns]
            return [dict(zip(names, row, strict=False)) for row, number in sums.items() for _ in range(number)]
        names = [column.name for column in self.reader.tables[table].schema.columns]
        found = self.images.get(table, {}).values()
        return [{name: row.get(name) for name in names} for _, there, row in found if there]

    def _write(self, decoded: DecodedRecords) -> None:
        self.refused += decoded.refused
        for what, number in decoded.ignored.items():
            self.ignored[what] = self.ignored.get(what, 0) + number
        for block, kept in zip(decoded.blocks, decoded.kept, strict=True):
            assert block.images.schema == block.schema.arrow_schema
            block.images.validate()
            self.changes += block.changes
            known = self.reader.tables[block.schema.name]
            order = block.version if block.order is None else block.order
            marks = zip(block.op.to_pylist(), block.version.to_pylist(), order.to_pylist(), block.images.to_pylist(), strict=True)
            for place, (op, version, number, row) in enumerate(marks):
                if not known.schema.row_key:
                    counted = self.counted.setdefault(block.schema.name, {})
                    counted[tuple(map(str, row.values())), number] = -1 if op in _TAKES_AWAY else 1
                    continue
                self._merge(known, op, version, row, [name for name, mask in kept.items() if mask[place].as_py()])

        for truncation in decoded.truncations:
            rows = self.images.get(truncation.table, {})
            for key in [key for key, (version, _, _) in rows.items() if version < truncation.version]:
                del rows[key]

    def _merge(self, known: KnownTable, op: int, version: int, row: dict[str, Any], kept: list[str]) -> None:
        rows = self.images.setdefault(known.schema.name, {})
        key = tuple(row[name] for name in known.keys or known.schema.row_key)
        there = rows.get(key)
        if there is None or version >= there[0]:
            row.update({name: there[2].get(name) for name in kept} if there is not None else {})
            rows[key] = (version, op not in _TAKES_AWAY, row)


def _cut(records: Records, dice: random.Random) -> list[Records]:
    bounds = sorted({0, records.rows, *(dice.randrange(records.rows + 1) for _ in range(dice.randrange(4)))})
    return [
        Records(
            records.topic,
            records.partition,
            records.offset[start:end],
            records.key[start:end],
            records.value[start:end],
            records.timestamp[start:end],
            None if records.headers is None else records.headers[start:end],
        )
        for start, end in pairwise(bounds)
    ]
