"""The source's rows as the sink should have them: read, and led through the table's transforms."""

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
    """The rows of a condition in the source's SQL, with the columns of `shown`."""
    if table.source is None or shaper is None:
        return pa.Table.from_batches(scan_table(connection, address, shown, where, zero_dates=zero_dates), schema=shown.arrow_schema)
    # Batch by batch: rows that the filter leaves out are not held.
    made = [
        shaper.shaped_rows(table.source, pa.Table.from_batches([batch], schema=table.source.arrow_schema))
        for batch in scan_table(connection, address, table.source, where, zero_dates=zero_dates)
    ]
    rows = pa.concat_tables([table.schema.arrow_schema.empty_table(), *made]).unify_dictionaries()
    return rows.select([column.name for column in shown.columns])


def source_condition(table: TableComparison, keys: pa.Table) -> str:
    """The condition of having one of these keys of the sink, in the source's SQL."""
    if table.source is None:
        return key_condition(table.schema, keys)
    return key_condition(table.source, keys.select(list(table.schema.row_key)).rename_columns(list(table.source.row_key)))


def beginning(rows: pa.Table, name: str, prefixes: Iterable[str]) -> pa.Table:
    """The rows whose value of a text column begins with one of these."""
    found = pc.is_in(pc.utf8_slice_codeunits(rows.column(name), 0, 2), value_set=pa.array(list(prefixes), pa.string()))
    return rows.filter(found)
