"""Reads the source's rows as the sink should have them, with the table's transforms applied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from headrace.model.schema import TableSchema, ZeroDates
from headrace.sources.mysql.server.connection import MySQLAddress
from headrace.sources.mysql.snapshot.key_conditions import key_condition
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.transforms.block_transform import BlockTransformer
from headrace.verify.table_spec import TableComparison


def read_rows(
    connection: Connection[Any],
    address: MySQLAddress,
    table: TableComparison,
    shown: TableSchema,
    where: str,
    zero_dates: ZeroDates,
    shaper: BlockTransformer | None,
) -> pa.Table:
    """Return the rows of an SQL condition, with the columns of `shown`."""
    if table.source is None or shaper is None:
        return pa.Table.from_batches(scan_table(connection, address, shown, where, zero_dates=zero_dates), schema=shown.arrow_schema)
    # Apply the transforms batch by batch: filtered rows are not held in memory.
    made = [
        shaper.transform_rows(table.source, pa.Table.from_batches([batch], schema=table.source.arrow_schema))
        for batch in scan_table(connection, address, table.source, where, zero_dates=zero_dates)
    ]
    rows = pa.concat_tables([table.schema.arrow_schema.empty_table(), *made]).unify_dictionaries()
    return rows.select([column.name for column in shown.columns])


def source_condition(table: TableComparison, keys: pa.Table) -> str:
    """Return the source's SQL condition for these keys of the sink."""
    if table.source is None:
        return key_condition(table.schema, keys)
    return key_condition(table.source, keys.select(list(table.schema.row_key)).rename_columns(list(table.source.row_key)))


def beginning(rows: pa.Table, name: str, prefixes: Iterable[str]) -> pa.Table:
    """Return the rows whose value of a text column starts with one of these prefixes."""
    found = pc.is_in(pc.utf8_slice_codeunits(rows.column(name), 0, 2), value_set=pa.array(list(prefixes), pa.string()))
    return rows.filter(found)
