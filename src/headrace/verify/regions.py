"""Splits a table into regions: sets of rows that both sides select in the same way.

A region is a key range where both sides order the key alike and the sink is sorted by it: both sides then find the range by an index.
Otherwise (text in collation order; a sink with another sort key) the whole table is one region: the source computes digests range by range
in its own order, the sink at once, and sums may be added in any order. Every row belongs to exactly one region on each side, and equal keys
belong to the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pymysql.connections import Connection

from headrace.model.column_types import ValueForm
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableSchema
from headrace.sinks.clickhouse.server.identifiers import quote_name
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.snapshot.chunk_planner import ChunkBounds, compare_key, plan_bounds
from headrace.sources.mysql.snapshot.lock_free_snapshot import estimate_rows
from headrace.sources.mysql.snapshot.row_digests import in_buckets, sampled
from headrace.verify.table_spec import TableComparison

CHUNK_ROWS: Final = 250_000
_ALIKE: Final = frozenset({ValueForm.INTEGER, ValueForm.DECIMAL, ValueForm.BYTES, ValueForm.YEAR})
"""Forms that both sides order alike and represent exactly."""
_SINK_ROWS: Final = 20_000_000
"""The maximum number of rows in one digest query of the sink: it takes seconds, far below any timeout."""
_HASHED_ROWS: Final = 2_000_000
"""The maximum number of rows of a table with a hashed key that are read at once."""
_TWO_DIGITS: Final = tuple(f"{number:02x}" for number in range(256))
_LEAST_SAMPLE_CHUNK: Final = 2_000
_SAMPLE_CHUNKS: Final = 8


@dataclass(frozen=True, slots=True)
class Region(JsonRecord):
    """Some rows of a table, selected by conditions in each side's SQL; the source's conditions are disjoint."""

    wheres: tuple[str, ...]
    condition: str
    estimate: int
    parts: tuple[str, ...] = ()
    """Conditions for the sink that split the region into disjoint parts, if it is too large for one query."""
    prefixed: str = ""
    prefixes: tuple[str, ...] = ()
    """If not empty: only rows whose value of that column in the sink starts with one of these prefixes."""

    @property
    def conditions(self) -> tuple[str, ...]:
        return self.parts or (self.condition,)


@dataclass(frozen=True, slots=True)
class Sample:
    """A reproducible sample of the rows."""

    seed: int
    share: float = 0.0
    """The share of all rows, if given."""
    rows: int = 0
    """Otherwise the approximate number of rows per table."""

    def of(self, rows: int) -> float:
        """Return the share for a table of about this many rows."""
        return min(1.0, self.share or self.rows / max(rows, 1))


def plan_regions(
    connection: Connection[Any], address: MySQLAddress, sink: ClickHouseSink, table: TableComparison, chunk_rows: int, sample: Sample | None
) -> list[Region]:
    """Return regions of about `chunk_rows` rows, or one for the whole table; with a sample, those that belong to it."""
    rows = estimate_rows(connection, address, table.schema.name)
    share = 1.0 if sample is None else sample.of(rows)
    if share < 1.0:
        chunk_rows = min(max(int(rows * share / _SAMPLE_CHUNKS), _LEAST_SAMPLE_CHUNK), chunk_rows)
    if not table.keeps_key:
        return _by_prefix(sink, table, rows)
    cuts = plan_bounds(connection, address, table.source or table.schema, rows, chunk_rows)
    ranges = _ranges(sink, table.schema, cuts)
    if sample is not None and share < 1.0:
        if len(ranges) > 1:
            return _sampled_ranges(ranges, sample.seed, share)
        if table.keyed or table.source is None:
            return [_sampled_rows(sink, table, rows, sample.seed, share)]
    if len(ranges) == 1 and (table.read or not table.by_digest):
        return _buckets(sink, table, rows, chunk_rows)
    return ranges if len(ranges) > 1 else [_whole(sink, table, rows, tuple(where for where, _ in cuts.ranges))]


def _whole(sink: ClickHouseSink, table: TableComparison, rows: int, wheres: tuple[str, ...]) -> Region:
    """Return the table as one region; the sink is queried in parts if one query would take minutes."""
    count, digests = -(-rows // _SINK_ROWS), sink.digests()
    names = [column.name for column in table.digested.columns]
    parts = [digests.in_buckets(table.schema, count, [i], names) for i in range(count)] if count > 1 else []
    return Region(wheres, "1", max(rows, 1), tuple(parts))


def _ranges(sink: ClickHouseSink, schema: TableSchema, cuts: ChunkBounds) -> list[Region]:
    """Return a region for each chunk, split at the key columns that both sides order alike."""
    width = 0
    if cuts.bounds and sink.digests().is_sorted_by(schema):
        forms = [schema.column(name).form for name in schema.row_key]
        width = next((i for i, form in enumerate(forms) if form not in _ALIKE), len(forms))
    width = min(width, len(cuts.columns))
    columns = cuts.columns[:width]
    bounds: list[tuple[tuple[Any, ...] | None, int]] = []
    size = 0
    for bound, estimate in zip([*cuts.bounds, None], cuts.sizes, strict=True):
        size += estimate
        short = None if bound is None else bound[:width]
        if short is not None and (not width or (bounds and bounds[-1][0] == short)):
            continue
        bounds.append((short, size))
        size = 0
    reader, found = sink.reader(), []
    for (lower, _), (upper, estimate) in pairwise([(None, 0), *bounds]):
        sides = [
            compare_key(columns, lower, ">", ">") if lower is not None else "",
            compare_key(columns, upper, "<", "<=") if upper is not None else "",
        ]
        where = " AND ".join(side for side in sides if side)
        found.append(Region((where,), reader.range_condition(schema, lower, upper), max(estimate, 1)))
    return found


def _sampled_ranges(regions: list[Region], seed: int, share: float) -> list[Region]:
    count = max(1, round(len(regions) * share))
    return sorted(random.Random(seed).sample(regions, count), key=regions.index)


def _sampled_rows(sink: ClickHouseSink, table: TableComparison, rows: int, seed: int, share: float) -> Region:
    where = sampled(table.source or table.digested, seed, share)
    names = [column.name for column in table.digested.columns]
    return Region((where,), sink.digests().sampled(table.schema, seed, share, names), max(int(rows * share), 1))


def _buckets(sink: ClickHouseSink, table: TableComparison, rows: int, chunk_rows: int) -> list[Region]:
    """Split a region by a hash of the key into parts that fit in memory; each part costs a scan."""
    count = max(1, -(-rows // chunk_rows))
    keyed = table.schema.row_key and not set(table.schema.row_key) & set(table.read)
    if count == 1 or not keyed:
        return [Region(("",), "1", max(rows, 1))]
    digests = sink.digests()
    return [
        Region((in_buckets(table.source or table.digested, count, [i]),), digests.in_buckets(table.schema, count, [i]), rows // count)
        for i in range(count)
    ]


def _by_prefix(sink: ClickHouseSink, table: TableComparison, rows: int) -> list[Region]:
    """Split a table with a hashed key by the first digits of the hash; each part costs a read of the source."""
    count = min(max(1, -(-rows // _HASHED_ROWS)), len(_TWO_DIGITS))
    hashed = next((name for name in table.schema.row_key if table.schema.column(name).form is ValueForm.TEXT), "")
    if count == 1 or not hashed:
        return [Region(("",), "1", max(rows, 1))]
    name = quote_name(sink.target_table(table.schema).stored_column(hashed).name)
    found = []
    for part in range(count):
        prefixes = _TWO_DIGITS[part::count]
        listed = ", ".join(f"'{prefix}'" for prefix in prefixes)
        found.append(Region(("",), f"substring({name}, 1, 2) IN ({listed})", rows // count, (), hashed, prefixes))
    return found
