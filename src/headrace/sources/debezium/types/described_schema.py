"""The schema of a table as its events describe it, completed by what is known of the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.model.schema import TableName, TableSchema
from headrace.sources.debezium.events.fields import RowFields
from headrace.sources.debezium.types.column_mapping import table_schema
from headrace.sources.debezium.types.inferred_fields import SEEN
from headrace.sources.debezium.types.values import default_text

_schemas: dict[int, tuple[RowFields, TableName, TableSchema]] = {}
"""Cache by the identity of the fields: a parser reuses the fields of a schema."""
_MAX_SCHEMAS: Final = 256


def described_schema(table: TableName, fields: RowFields) -> TableSchema:
    """Return the table that fields describe."""
    cached = _schemas.get(id(fields))
    if cached is not None and cached[0] is fields and cached[1] == table:
        return cached[2]
    if len(_schemas) >= _MAX_SCHEMAS:
        _schemas.clear()
    schema = table_schema(table, fields, default_text)
    _schemas[id(fields)] = (fields, table, schema)
    return schema


def completed_schema(table: TableName, known: TableSchema, expected: RowFields, fields: RowFields) -> TableSchema:
    """Return the table as fields describe it; columns whose fields are only the expected ones stay as they are known."""
    expected_ids = {id(field) for field in expected.row}
    undescribed = {field.name for field in fields.row if id(field) in expected_ids or SEEN in field.parameters}
    if undescribed:
        described = [column for column in table_schema(table, fields, default_text).columns if column.name not in undescribed]
        kept = [column for column in known.columns if column.name in undescribed]
        schema = replace(known, columns=(*kept, *described), primary_key=fields.key)
    else:
        schema = described_schema(table, fields)
    # Keys without names (or in another format) do not change the table's key.
    return schema if fields.key else replace(schema, primary_key=known.row_key)
