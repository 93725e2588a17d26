"""Reads a region on both sides: its digests, and the rows that differ where the digests do.

Invariant: a row that differs is among the findings, unless `unread` counts it. Nothing here knows whether the sink is behind; findings are
what two reads, one after the other, showed. The source's rows are read as the sink should have them, with the table's transforms applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from headrace.model.digest import Digest
from headrace.model.schema import TableSchema, ZeroDates
from headrace.retry import retrying
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import MySQLAddress, connect
from headrace.sources.mysql.snapshot.key_columns import key_condition
from headrace.sources.mysql.snapshot.row_digests import in_buckets, read_buckets, read_digest
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.transforms.block_transform import BlockTransformer
from headrace.transforms.transform_plan import TransformPlan
from headrace.verify.regions import Region
from headrace.verify.result import check_not_ending
from headrace.verify.row_compare import Comparison, compare, different_keys
from headrace.verify.table_spec import TableComparison


class SourceRows(NamedTuple):
    """Rows of the source as the sink should have them."""

    rows: pa.Table
    excluded: int = 0
    """How many rows of the same condition the table's filter excludes."""


def read_rows(
    connection: Connection[Any],
    address: MySQLAddress,
    table: TableComparison,
    shown: TableSchema,
    where: str,
    zero_dates: ZeroDates,
    transformer: BlockTransformer | None,
) -> SourceRows:
    """Return the rows of an SQL condition, with the columns of `shown`."""
    if table.source is None or transformer is None:
        batches = scan_table(connection, address, shown, where, zero_dates=zero_dates)
        return SourceRows(pa.Table.from_batches(batches, schema=shown.arrow_schema))
    made = list(transform_batches(connection, address, table.source, where, zero_dates, transformer))
    rows = pa.concat_tables([table.schema.arrow_schema.empty_table(), *(one.rows for one in made)]).unify_dictionaries()
    return SourceRows(rows.select([column.name for column in shown.columns]), sum(one.excluded for one in made))


def transform_batches(
    connection: Connection[Any],
    address: MySQLAddress,
    source: TableSchema,
    where: str,
    zero_dates: ZeroDates,
    transformer: BlockTransformer,
) -> Iterator[SourceRows]:
    """Yield transformed rows batch by batch, so that excluded rows are not held in memory."""
    for batch in scan_table(connection, address, source, where, zero_dates=zero_dates):
        rows = transformer.transform_rows(source, pa.Table.from_batches([batch], schema=source.arrow_schema))
        yield SourceRows(rows, batch.num_rows - rows.num_rows)


def source_condition(table: TableComparison, keys: pa.Table) -> str:
    """Return the source's SQL condition for these keys of the sink."""
    if table.source is None:
        return key_condition(table.schema, keys)
    return key_condition(table.source, keys.select(list(table.schema.row_key)).rename_columns(list(table.source.row_key)))


def beginning(rows: pa.Table, name: str, prefixes: Iterable[str]) -> pa.Table:
    """Return the rows whose value of a text column starts with one of these prefixes."""
    found = pc.is_in(pc.utf8_slice_codeunits(rows.column(name), 0, 2), value_set=pa.array(list(prefixes), pa.string()))
    return rows.filter(found)


T = TypeVar("T")
MOST_KEYS: Final = 100_000
"""The maximum number of rows of a region that are read."""
_BUCKET_ROWS: Final = 400
_MOST_BUCKETS: Final = 20_000
_READ_ROWS: Final = 100_000
_MOST_READS: Final = 4
_KEYS_AT_ONCE: Final = 500
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Findings:
    comparison: Comparison
    keys: pa.Table
    """Keys of differing rows, at most `MOST_KEYS`; whole rows if the table has no key."""
    unread: int = 0
    """Rows in differing parts that were not read."""
    excluded: int = 0
    """Source rows of the region that the table's filter excludes."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The source and the sink. Picklable."""

    address: MySQLAddress
    sink: ClickHouseSink
    zero_dates: ZeroDates = ZeroDates.HALT
    """How the pipe handles invalid dates."""
    transformer: BlockTransformer | None = None
    """The pipe's transforms, if any."""

    @property
    def dates_read(self) -> ZeroDates:
        """How dates are read for the comparison: a pipe that halts at invalid dates has none."""
        return ZeroDates.EPOCH if self.zero_dates is ZeroDates.EPOCH else ZeroDates.NULL


class RegionReader(AbstractContextManager["RegionReader"]):
    """Reads both sides; belongs to one thread."""

    def __init__(self, sides: Endpoints) -> None:
        self._sides = sides
        self._connection: Connection[Any] | None = None
        self._digests, self._reader = sides.sink.digests(), sides.sink.reader()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def source_digest(self, table: TableComparison, wheres: Sequence[str]) -> Digest:
        total, digested = Digest(), table.digested if table.source is None else table.source
        for where in wheres:
            total += self._ask(lambda c, where=where: read_digest(c, self._sides.address, digested, where))  # type: ignore[misc]
        return total

    def sink_digest(self, table: TableComparison, condition: str) -> Digest:
        return retrying(lambda: self._digests.digest(table.schema, condition, _names(table.digested)), deadline_s=_DEADLINE_S)

    def narrow(self, table: TableComparison, region: Region, rows: int) -> Findings:
        """Find the rows that differ through digests of ever smaller parts. `rows`: the region's row count."""
        if rows <= _READ_ROWS:
            # Reading it costs no more than digests of its parts.
            return self.read(table, region)
        count = min(max(rows // _BUCKET_ROWS, 1), _MOST_BUCKETS)
        source = self._source_buckets(table, region.wheres, count)
        target = self._sink_buckets(table, region.conditions, count)
        sizes = {
            bucket: max(source.get(bucket, Digest()).rows, target.get(bucket, Digest()).rows)
            for bucket in sorted(source.keys() | target.keys())
            if source.get(bucket) != target.get(bucket)
        }
        groups = _grouped(sizes)
        found = [self.read(table, self._within(table, region, count, group)) for group in groups[:_MOST_READS]]
        unread = sum(sizes[bucket] for group in groups[_MOST_READS:] for bucket in group)
        return _joined(table, found, rows, unread)

    def read(self, table: TableComparison, region: Region, schema: TableSchema | None = None) -> Findings:
        """Find the rows that differ by reading the region on both sides; with a narrower schema, in its columns only."""
        shown, extra = schema or table.shown, not table.keeps_deleted
        parts = [self._source_rows(table, shown, where) for where in region.wheres]
        source = pa.concat_tables([part.rows for part in parts]).unify_dictionaries()
        if region.prefixes:
            source = beginning(source, region.prefixed, region.prefixes)
        target = self._sink_rows(table, shown, region.condition)
        comparison = compare(shown, source, target, count_extra=extra)
        most = source.num_rows + target.num_rows if comparison.total else 0
        keys = different_keys(shown, source, target, most=most, extra=extra)
        return _limited(comparison, keys, 0, sum(part.excluded for part in parts))

    def count_source(self, plan: TransformPlan) -> tuple[int, int]:
        """Return how many rows of a transformed table pass its filter, and how many the filter excludes."""
        sides, transformer = self._sides, self._sides.transformer
        assert transformer is not None

        def scan(connection: Connection[Any]) -> tuple[int, int]:
            passing = excluded = 0
            for part in transform_batches(connection, sides.address, plan.source, "", sides.dates_read, transformer):
                check_not_ending()
                passing += part.rows.num_rows
                excluded += part.excluded
            return passing, excluded

        return self._ask(scan)

    def _source_rows(self, table: TableComparison, shown: TableSchema, where: str) -> SourceRows:
        def scan(connection: Connection[Any]) -> SourceRows:
            sides = self._sides
            found = read_rows(connection, sides.address, table, shown, where, sides.dates_read, sides.transformer)
            return found._replace(rows=self._reader.kept(table.schema, found.rows))

        return self._ask(scan)

    def _sink_rows(self, table: TableComparison, shown: TableSchema, condition: str) -> pa.Table:
        return retrying(lambda: self._reader.read_where(table.schema, condition, _names(shown)), deadline_s=_DEADLINE_S)

    def source_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table:
        """Return the source's rows with these keys, and perhaps others that its collation considers equal."""
        return pa.concat_tables([self._source_rows(table, table.shown, source_condition(table, part)).rows for part in _parts(keys)])

    def sink_by_key(self, table: TableComparison, keys: pa.Table) -> pa.Table:
        return pa.concat_tables(
            [self._sink_rows(table, table.shown, self._reader.key_condition(table.schema, part)) for part in _parts(keys)]
        )

    def _source_buckets(self, table: TableComparison, wheres: Sequence[str], count: int) -> Mapping[int, Digest]:
        total: dict[int, Digest] = {}
        for where in wheres:
            _add(total, self._ask(lambda c, where=where: read_buckets(c, self._sides.address, table.digested, where, count)))  # type: ignore[misc]
        return total

    def _sink_buckets(self, table: TableComparison, conditions: Sequence[str], count: int) -> Mapping[int, Digest]:
        total: dict[int, Digest] = {}
        names = _names(table.digested)
        for condition in conditions:
            found = retrying(lambda one=condition: self._digests.buckets(table.schema, one, count, names), deadline_s=_DEADLINE_S)  # type: ignore[misc]
            _add(total, found)
        return total

    def _within(self, table: TableComparison, region: Region, count: int, buckets: Sequence[int]) -> Region:
        inside = in_buckets(table.digested, count, buckets)
        wheres = tuple(f"({where}) AND {inside}" if where else inside for where in region.wheres)
        condition = f"({region.condition}) AND {self._digests.in_buckets(table.schema, count, buckets, _names(table.digested))}"
        return Region(wheres, condition, region.estimate)

    def _ask(self, question: Callable[[Connection[Any]], T]) -> T:
        """Query the source; reconnect if the connection was lost."""

        def attempt() -> T:
            if self._connection is None:
                self._connection = connect(self._sides.address)
            try:
                return question(self._connection)
            except BaseException:
                # The rest of a result must not be read as the next one.
                self._connection.close()
                self._connection = None
                raise

        return retrying(attempt, deadline_s=_DEADLINE_S)


def _add(total: dict[int, Digest], found: Mapping[int, Digest]) -> None:
    for bucket, digest in found.items():
        total[bucket] = total.get(bucket, Digest()) + digest


def _names(schema: TableSchema) -> tuple[str, ...]:
    return tuple(column.name for column in schema.columns)


def _parts(keys: pa.Table) -> list[pa.Table]:
    return [keys.slice(start, _KEYS_AT_ONCE) for start in range(0, max(keys.num_rows, 1), _KEYS_AT_ONCE)] if keys.num_rows else []


def _grouped(sizes: Mapping[int, int]) -> list[list[int]]:
    """Combine buckets into groups that are small enough to be read at once."""
    groups: list[list[int]] = []
    held = _READ_ROWS
    for bucket, size in sizes.items():
        if held + size > _READ_ROWS:
            groups.append([])
            held = 0
        groups[-1].append(bucket)
        held += size
    return groups


def _joined(table: TableComparison, found: Sequence[Findings], rows: int, unread: int) -> Findings:
    differences = sum((one.comparison for one in found), Comparison())
    names = list(table.schema.row_key or table.columns)
    nothing = table.shown.arrow_schema.empty_table().select(names)
    keys = pa.concat_tables([nothing, *(one.keys for one in found)])
    unread += sum(one.unread for one in found)
    return _limited(replace(differences, rows=rows), keys, unread)


def _limited(comparison: Comparison, keys: pa.Table, unread: int, excluded: int = 0) -> Findings:
    return Findings(comparison, keys.slice(0, MOST_KEYS), unread + max(keys.num_rows - MOST_KEYS, 0), excluded)
