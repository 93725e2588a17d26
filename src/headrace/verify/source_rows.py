"""Reads the source's rows as the sink should have them, with the table's transforms applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from headrace.model.schema import TableSchema, ZeroDates
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.snapshot.key_conditions import key_condition
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.transforms.block_transform import BlockTransformer
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
