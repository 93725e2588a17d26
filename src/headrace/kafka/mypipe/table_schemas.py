"""Avro schemas of tables in mypipe's topics: records of specific messages, and column descriptions for generic ones.

Invariant: a schema written here can be read back into the table's columns, kinds and key. What Avro cannot express is in properties that
begin with `headrace.`, which other readers skip. Fields outside the key are nullable with default null, so adding or removing a column
keeps old and new messages readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping as Map
from dataclasses import dataclass
from typing import Any, Final

from headrace.kafka.mypipe.values import ValueMapping, avro_type
from headrace.kafka.mypipe.wire_format import Mutation, columns_subject, header_fields, specific_subject
from headrace.model.schema import Column, Kind, TableName, TableSchema

COLUMN, TABLE, COLUMNS = "headrace.column", "headrace.table", "headrace.columns"
RECORDS_NAMESPACE: Final = "mypipe.kafka"
_HEADER: Final = tuple(field["name"] for field in header_fields())
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_KINDS_OF_AVRO_TYPES: Final = {"int": Kind.INT32, "long": Kind.INT64, "float": Kind.FLOAT32, "double": Kind.FLOAT64, "string": Kind.STRING}


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table described by a schema: its columns with their fields, in order."""

    columns: tuple[Column, ...]
    fields: tuple[str, ...]
    """The field of each column, without old_ or new_."""
    key: tuple[str, ...]
    name: TableName | None = None
    """The table's name, if the schema has it."""

    def schema(self, name: TableName) -> TableSchema:
        return TableSchema(self.name or name, self.columns, self.key)


def field_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return a unique field name per column: its name if Avro allows it, else a similar one; none equals a header field."""
    taken = set(_HEADER)
    found = []
    for column in columns:
        clean = avro_name(column.name)
        while clean in taken:
            clean += "_"
        taken.add(clean)
        found.append(clean)
    return tuple(found)


def avro_name(name: str) -> str:
    """Return a valid Avro name: letters, digits and underscores, no digit first."""
    clean = _NOT_IN_A_NAME.sub("_", name) or "_"
    return f"_{clean}" if clean[0].isdigit() else clean


def specific_schema(schema: TableSchema, mutation: Mutation, mapping: ValueMapping) -> dict[str, Any]:
    """Return the record schema of the table's messages of one kind."""
    fields = header_fields()
    for prefix in ("old_", "new_") if mutation is Mutation.UPDATE else ("",):
        for column, name in zip(schema.columns, field_names(schema.columns), strict=True):
            plain = avro_type(column, mapping)
            required = column.name in schema.row_key
            typed = {"type": plain} if required else {"type": ["null", plain], "default": None}
            fields.append({"name": prefix + name, **typed, COLUMN: column_json(column)})
    return {
        "type": "record",
        "name": avro_name(specific_subject(schema.name, mutation)),
        "namespace": RECORDS_NAMESPACE,
        "fields": fields,
        TABLE: _table_json(schema),
    }


def columns_schema(schema: TableSchema) -> dict[str, Any]:
    """Return the column description for readers of generic messages.

    It is a record without fields: every version can replace every other, so no registry rejects one.
    """
    return {
        "type": "record",
        "name": avro_name(columns_subject(schema.name)),
        "namespace": RECORDS_NAMESPACE,
        "fields": [],
        TABLE: _table_json(schema),
        COLUMNS: [column_json(column) for column in schema.columns],
    }


def read_described_columns(raw: Map[str, Any]) -> DescribedTable:
    """Read a columns schema."""
    columns = tuple(read_column(column) for column in raw.get(COLUMNS, ()))
    return DescribedTable(columns, tuple(column.name for column in columns), *_read_table(raw))


def read_described_record(raw: Map[str, Any], mutation: Mutation) -> DescribedTable:
    """Read a specific record's schema; for one that a mypipe user wrote by hand, derive the columns from the Avro types."""
    prefix = "new_" if mutation is Mutation.UPDATE else ""
    found = [field for field in raw["fields"] if field["name"].startswith(prefix) and field["name"] not in _HEADER]
    names = tuple(field["name"].removeprefix(prefix) for field in found)
    columns = tuple(
        read_column(field[COLUMN]) if COLUMN in field else _column_of_field(name, field["type"])
        for name, field in zip(names, found, strict=True)
    )
    return DescribedTable(columns, names, *_read_table(raw))


def column_json(column: Column) -> dict[str, Any]:
    """Return a column's JSON without defaults. Comments and default values are omitted: readers do not need them."""
    found: dict[str, Any] = {"name": column.name, "kind": column.kind.value, "type": column.source_type}
    if not column.nullable:
        found["nullable"] = False
    for name in ("precision", "scale", "charset"):
        if getattr(column, name):
            found[name] = getattr(column, name)
    return {**found, "members": list(column.members)} if column.members else found


def kind_of_avro(word: str) -> Kind:
    """Return the kind of a column of which only the Avro type is known."""
    return _KINDS_OF_AVRO_TYPES.get(word, Kind.BYTES)


def read_column(raw: Map[str, Any]) -> Column:
    return Column(
        raw["name"],
        Kind(raw["kind"]),
        raw.get("nullable", True),
        raw.get("precision", 0),
        raw.get("scale", 0),
        tuple(raw.get("members", ())),
        raw.get("type", ""),
        raw.get("charset", ""),
    )


def _table_json(schema: TableSchema) -> dict[str, Any]:
    return {"database": schema.name.database, "table": schema.name.table, "key": list(schema.row_key)}


def _read_table(raw: Map[str, Any]) -> tuple[tuple[str, ...], TableName | None]:
    table = raw.get(TABLE)
    return (tuple(table["key"]), TableName(table["database"], table["table"])) if table else ((), None)


def _column_of_field(name: str, kind: Any) -> Column:
    """Return a column of which only the Avro type is known."""
    options = kind if isinstance(kind, list) else [kind]
    plain = next((option for option in options if option != "null"), "bytes")
    word = plain["type"] if isinstance(plain, dict) else plain
    if isinstance(plain, dict) and plain.get("logicalType") == "decimal":
        return Column(name, Kind.DECIMAL, precision=plain["precision"], scale=plain.get("scale", 0))
    return Column(name, kind_of_avro(word), "null" in options)
