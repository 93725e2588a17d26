"""The Kafka Connect schemas of Debezium's events, for events that contain them."""

from __future__ import annotations

from typing import Any, Final

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.sinks.kafka.debezium.json_fragments import field_of

_SOURCE_TYPE: Final = "__debezium.source.column.type"
_MOST_INT64: Final = (1 << 63) - 1
_SNAPSHOT: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


def key_schema(schema: TableSchema, prefix: str, connector: str) -> dict[str, Any]:
    """Return the schema of a table's keys."""
    fields = [field_of(schema.column(name), connector) for name in schema.row_key]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{_base(schema, prefix)}.Key"}


def value_schema(schema: TableSchema, prefix: str, connector: str) -> dict[str, Any]:
    """Return the schema of a table's events."""
    base = _base(schema, prefix)
    row = {"fields": [_row_field(column, connector) for column in schema.columns], "optional": True, "name": f"{base}.Value"}
    source = {"fields": _source_fields(), "optional": False, "name": f"io.debezium.connector.{connector}.Source", "version": 1}
    order = [_plain("string", "id"), _plain("int64", "total_order"), _plain("int64", "data_collection_order")]
    fields = [
        {"type": "struct", **row, "field": "before"},
        {"type": "struct", **row, "field": "after"},
        {"type": "struct", **source, "field": "source"},
        {"type": "struct", "fields": order, "optional": True, "name": "event.block", "version": 1, "field": "transaction"},
        _plain("string", "op"),
        *(_plain("int64", name, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{base}.Envelope", "version": 2}


def _row_field(column: Column, connector: str) -> dict[str, Any]:
    """Return the schema of a column in a row.

    A BIGINT UNSIGNED is marked, as Debezium does with `column.propagate.source.type`: otherwise readers could not distinguish its
    numbers above 9223372036854775807 from negative ones. Keys stay as they are: partitions depend on their bytes.
    """
    field = field_of(column, connector)
    if column.form is not ValueForm.INTEGER or column.type.value_range[1] <= _MOST_INT64:
        return field
    head = {name: field.pop(name) for name in ("type", "optional")}
    return {**head, "parameters": {_SOURCE_TYPE: "BIGINT UNSIGNED"}, **field}


def _source_fields() -> list[dict[str, Any]]:
    snapshot = {
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": _SNAPSHOT},
        "default": "false",
        "field": "snapshot",
    }
    return [
        *(_plain("string", name) for name in ("version", "connector", "name")),
        _plain("int64", "ts_ms"),
        {"type": "string", "optional": True, **snapshot},
        _plain("string", "db"),
        _plain("string", "sequence", optional=True),
        _plain("int64", "ts_us", optional=True),
        _plain("int64", "ts_ns", optional=True),
        _plain("string", "table", optional=True),
        _plain("int64", "server_id"),
        _plain("string", "gtid", optional=True),
        _plain("string", "file"),
        _plain("int64", "pos"),
        _plain("int32", "row"),
        _plain("int64", "thread", optional=True),
        _plain("string", "query", optional=True),
    ]


def _plain(kind: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _base(schema: TableSchema, prefix: str) -> str:
    return f"{prefix}.{schema.name.database}.{schema.name.table}"
