"""Reads rows merged from cells, for comparison with their base tables.

Rows are in ClickHouse's Arrow types (texts as bytes, uuids as uuids); `headrace.cql.decode.canonical_bytes` makes them comparable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.cql.tables import CqlColumn, CqlTable
from headrace.sinks.clickhouse.cells.merged_rows.row_merge import NO_TRANSFORMS
from headrace.sinks.clickhouse.cells.merged_rows.row_transforms import RowTransforms
from headrace.sinks.clickhouse.cells.tables import stored_transforms, stores_rows, table_locations
from headrace.sinks.clickhouse.cells.types import is_plain, value_sql
from headrace.sinks.clickhouse.server.bounded_client import unlimited_body
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_name, quote_text
from headrace.sinks.clickhouse.tables.target_cache import TargetScope

_SETTINGS: Final = {"output_format_arrow_string_as_string": "0", "max_query_size": str(16 << 20), "enable_time_time64_type": "1"}
_FLOATS: Final = frozenset({"double", "float"})
_TEXTS: Final = frozenset({"decimal", "varint"})

Key = Sequence[bytes | None]
"""Serialised values of the key columns; null clustering columns mean a partition's static columns."""


class CellReader:
    def __init__(self, scope: TargetScope) -> None:
        self._scope = scope

    def is_there(self, table: CqlTable) -> bool:
        """Whether the table's view exists."""
        return bool(self._engine(table))

    def count(self, table: CqlTable) -> int:
        """Return the number of rows in the view."""
        [[found]] = self._query(f"SELECT count() FROM {self._shown(table)}")
        return int(found)

    def _engine(self, table: CqlTable) -> str:
        locations = table_locations(table, self._scope)
        where = f"database = {quote_text(locations.database)} AND name = {quote_text(locations.table)}"
        return next((str(row[0]) for row in self._query(f"SELECT engine FROM system.tables WHERE {where}")), "")

    def _shown(self, table: CqlTable) -> str:
        """Return the FROM operand: a view of rows, or a postimage table with FINAL."""
        return table_locations(table, self._scope).view + ("" if self._engine(table) == "View" else " FINAL")

    def stores_rows(self, table: CqlTable) -> bool:
        """Whether rows are stored that are merged from cells, so that the two may differ."""
        return stores_rows(self._scope, table_locations(table, self._scope))

    def transforms(self, table: CqlTable) -> RowTransforms:
        """Return the transforms of the stored rows."""
        return stored_transforms(self._scope, table_locations(table, self._scope)) if self.stores_rows(table) else NO_TRANSFORMS

    def rows(
        self, table: CqlTable, condition: str = "1", *, from_cells: bool = False, transforms: RowTransforms = NO_TRANSFORMS
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows that satisfy a condition, with all columns in the table's order and by the names of the source.

        `from_cells`: merge cells now, instead of reading stored rows. `transforms`: how the view was made.
        """
        names = ", ".join(quote_name(column.name) for column in table.columns)
        shown = table_locations(table, self._scope).live if from_cells else self._shown(table)
        if transforms.renamed:
            named = (f"{quote_name(transforms.name_of(column))} AS {quote_name(column.name)}" for column in table.columns)
            # One level more: conditions use the names of the source, which may be other columns of the view.
            shown = f"(SELECT {', '.join(f'shown.{one}' for one in named)} FROM {shown} AS shown)"
        query = f"SELECT {names} FROM {shown} WHERE {condition}"
        connection = connect(self._scope.target)
        with translate_errors(self._scope.target, f"reading {table.name}"):
            with unlimited_body():
                answer = connection.client.query_arrow_stream(query, settings=connection.supported(_SETTINGS))
            with answer as stream:
                for found in stream:
                    found.validate(full=True)
                    yield from [found] if isinstance(found, pa.RecordBatch) else found.to_batches()

    def key_condition(self, table: CqlTable, keys: Sequence[Key], texts: Sequence[Sequence[str]] = ()) -> str:
        """Return a condition that all rows with these keys satisfy, and few others; `texts` are the key values as text."""
        columns = table.partition_key + table.clustering
        spelled = texts or [[""] * len(columns)] * len(keys)
        return " OR ".join(
            "(" + (" AND ".join(filter(None, map(_equals, columns, key, row))) or "1") + ")" for key, row in zip(keys, spelled, strict=True)
        )

    def _query(self, query: str) -> Any:
        connection = connect(self._scope.target)
        with translate_errors(self._scope.target, "reading views"):
            return connection.client.query(query, settings=connection.supported(_SETTINGS)).result_rows


def _equals(column: CqlColumn, raw: bytes | None, text: str) -> str:
    name = quote_name(column.name)
    if raw is None:
        return f"isNull({name})"
    if column.type.name in _TEXTS:
        return f"{name} = {quote_text(text)}" if text else ""
    if not is_plain(column.type) or column.type.name in _FLOATS or not raw:
        return ""
    return f"{name} = {value_sql(column.type, f'''unhex('{raw.hex()}')''')}"
