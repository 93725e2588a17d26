"""mypipe's message format: the four bytes before the Avro body, the schemas of messages, and subject names.

Invariant: mypipe's own consumers can read what is written here. Magic 0, the mutation's kind (1 insert, 2 update, 3 delete), the schema id
as a signed 16-bit big-endian number, then one Avro record. What mypipe's format has no field for is in message headers, which its
consumers ignore.

A table's schema (the record of specific messages, or the column description for generic ones) can be read back into the table's columns,
kinds and key. What Avro cannot express is in properties that begin with `headrace.`, which other readers skip. Fields outside the key are
nullable with default null, so adding or removing a column keeps old and new messages readable.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Mapping
from collections.abc import Mapping as Map
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro.schema import parse_schema
from headrace.kafka.mypipe.values import ValueMapping, avro_type
from headrace.kafka.registry import MemoryRepository
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.text_values import fixed_bytes

MAGIC: Final = 0
HEAD_BYTES: Final = 4
MOST_ID: Final = 32_767
NAMESPACE: Final = "mypipe.avro"
POSITION_HEADER: Final = "headrace.position"
"""The change's position in the source's log: 8 bytes, big-endian. A snapshot row has 8 more: its number in the snapshot."""
COMMITTED_HEADER: Final = "headrace.committed"
"""When the change was committed: microseconds since 1970, 8 bytes, the most significant first."""
COLUMNS_HEADER: Final = "headrace.columns"
"""Generic messages: the id (2 bytes) of the schema that lists the table's columns and their types."""
NULLS_HEADER: Final = "headrace.nulls"
"""Generic messages: the columns that are NULL, as a JSON list; they are in none of the maps."""
OLD_NULLS_HEADER: Final = "headrace.old_nulls"
"""The same, of the row before an update."""

_NUMBERED: Final = r"(?s)^(?P<server>.*?)(?P<number>\d{0,18})$"
GUID: Final[dict[str, Any]] = {"type": "fixed", "name": "Guid", "namespace": NAMESPACE, "size": 16}
MAPS: Final = {"bytes": "bytes", "integers": "int", "strings": "string", "longs": "long"}
"""The maps of a generic mutation in their order, and the Avro type of their values."""
COLUMN, TABLE, COLUMNS = "headrace.column", "headrace.table", "headrace.columns"
RECORDS_NAMESPACE: Final = "mypipe.kafka"
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_KINDS_OF_AVRO_TYPES: Final = {"int": Kind.INT32, "long": Kind.INT64, "float": Kind.FLOAT32, "double": Kind.FLOAT64, "string": Kind.STRING}


class Mutation(IntEnum):
    """The kind of a mutation: the second byte of a message."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


def header_fields(*, with_txid: bool = True) -> list[dict[str, Any]]:
    """The fields with which each mutation begins."""
    fields: list[dict[str, Any]] = [
        {"name": "database", "type": "string"},
        {"name": "table", "type": "string"},
        {"name": "tableId", "type": "long"},
    ]
    return [*fields, {"name": "txid", "type": ["null", GUID], "default": None}] if with_txid else fields


HEADER_FIELDS: Final = frozenset(field["name"] for field in header_fields())


def generic_schema(mutation: Mutation, *, old_shape: bool = False) -> dict[str, Any]:
    """Return the schema of a generic mutation; `old_shape`: without transactions and bytes."""
    prefixes = ("old_", "new_") if mutation is Mutation.UPDATE else ("",)
    fields = header_fields(with_txid=not old_shape)
    for prefix in prefixes:
        for name, values in MAPS.items():
            if old_shape and name == "bytes":
                continue
            # A default lets readers of this schema read messages of the old shape.
            default: dict[str, Any] = {"default": {}} if name == "bytes" else {}
            fields.append({"name": prefix + name, "type": {"type": "map", "values": values}, **default})
    return {"type": "record", "name": f"{mutation.word.capitalize()}Mutation", "namespace": NAMESPACE, "fields": fields}


def schema_text(tree: Mapping[str, Any]) -> str:
    """Return a schema's text as it is registered; always the same."""
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def generic_repository(*, old_shape: bool = False) -> MemoryRepository:
    """Return an in-memory repository with the generic schemas, with the same ids in every process: 1 insert, 2 update, 3 delete."""
    found = MemoryRepository()
    for mutation in Mutation:
        found.register(generic_subject(mutation), parse_schema(schema_text(generic_schema(mutation, old_shape=old_shape))))
    return found


def generic_subject(mutation: Mutation) -> str:
    return f"generic_{mutation.word}"


def specific_subject(table: TableName, mutation: Mutation) -> str:
    return f"{table.database}_{table.table}_{mutation.word}"


def columns_subject(table: TableName) -> str:
    """Return the subject that describes the columns of a table in generic topics; mypipe itself has none."""
    return f"{table.database}_{table.table}_columns"


def head(mutation: Mutation, schema_id: int) -> bytes:
    return struct.pack(">BB", MAGIC, mutation) + id_bytes(schema_id)


def id_bytes(schema_id: int) -> bytes:
    if not 0 <= schema_id <= MOST_ID:
        raise DefiniteError(
            f"schema id {schema_id} does not fit mypipe's messages, which have two bytes for it",
            hint="keep the schemas in a folder or in a registry of their own: kafka.registry",
        )
    return struct.pack(">h", schema_id)


@dataclass(frozen=True, slots=True)
class MessageHeads:
    is_good: npt.NDArray[np.bool_]
    """Whether it is a mypipe message."""
    kind: npt.NDArray[np.uint8]
    schema_id: npt.NDArray[np.int16]


def read_heads(values: pa.BinaryArray) -> MessageHeads:
    """Decode the heads of messages; NULL and short messages are not valid."""
    count = len(values)
    if not count:
        return MessageHeads(np.zeros(0, bool), np.zeros(0, np.uint8), np.zeros(0, np.int16))
    offsets = np.frombuffer(values.buffers()[1], dtype=np.int32, count=count + 1 + values.offset)[values.offset :]
    lengths = np.diff(offsets)
    long_enough = lengths >= HEAD_BYTES
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)
    starts = np.where(long_enough, offsets[:-1], 0)
    padded = data if data.size >= HEAD_BYTES else np.zeros(HEAD_BYTES, np.uint8)
    heads = padded[starts[:, None] + np.arange(HEAD_BYTES)]
    kind = heads[:, 1]
    schema_id = np.ascontiguousarray(heads[:, 2:4]).view(">i2").reshape(-1).astype(np.int16)
    good = long_enough & (heads[:, 0] == MAGIC) & (kind >= Mutation.INSERT) & (kind <= Mutation.DELETE)
    if values.null_count:
        good &= values.is_valid().to_numpy(zero_copy_only=False)
    return MessageHeads(good, kind, schema_id)


def transaction_guids(names: pa.StringArray) -> pa.FixedSizeBinaryArray:
    """Return the Guid of each transaction, derived from the source's name for it.

    A UUID of version 8: a digest of the name without its last number (a GTID's server part), then that number. So nothing is hashed per
    transaction, and the Guids of one server ascend.
    """
    parts = pc.extract_regex(names, _NUMBERED)
    servers = parts.field(0).dictionary_encode()
    digests = [hashlib.sha256(server.encode()).digest()[:8] for server in servers.dictionary.to_pylist()]
    rows = np.empty((len(names), 16), dtype=np.uint8)
    rows[:, :8] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 8)[servers.indices.to_numpy()]
    numbers = pc.if_else(pc.equal(parts.field(1), ""), "0", parts.field(1)).cast(pa.uint64()).to_numpy()
    rows[:, 8:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    rows[:, 6] = rows[:, 6] & 0x0F | 0x80
    rows[:, 8] = rows[:, 8] & 0x3F | 0x80
    return fixed_bytes(rows)


def position_bytes(version: pa.Array, row: pa.Array | None = None) -> list[bytes]:
    """Return the position header of each message; `row`: number of a snapshot row (they share one version)."""
    columns = [version.to_numpy(zero_copy_only=False)]
    if row is not None:
        columns.append(row.to_numpy(zero_copy_only=False))
    packed = np.stack(columns, axis=1).astype(">u8")
    width = 8 * len(columns)
    raw = packed.tobytes()
    return [raw[at : at + width] for at in range(0, len(raw), width)]


def read_position(header: bytes) -> tuple[int, int | None]:
    """Return the version, and the row number of a snapshot row."""
    if len(header) not in (8, 16):
        raise DefiniteError(f"a position of {len(header)} bytes", hint="the message was not written by Headrace, or was changed since")
    return int.from_bytes(header[:8], "big"), int.from_bytes(header[8:], "big") if len(header) == 16 else None


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
    taken = set(HEADER_FIELDS)
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
    columns = tuple(read_column(column) for column in raw.get(COLUMNS, ()))
    return DescribedTable(columns, tuple(column.name for column in columns), *_read_table(raw))


def read_described_record(raw: Map[str, Any], mutation: Mutation) -> DescribedTable:
    """Read a specific record's schema; for one that a mypipe user wrote by hand, derive the columns from the Avro types."""
    prefix = "new_" if mutation is Mutation.UPDATE else ""
    found = [field for field in raw["fields"] if field["name"].startswith(prefix) and field["name"] not in HEADER_FIELDS]
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
    options = kind if isinstance(kind, list) else [kind]
    plain = next((option for option in options if option != "null"), "bytes")
    word = plain["type"] if isinstance(plain, dict) else plain
    if isinstance(plain, dict) and plain.get("logicalType") == "decimal":
        return Column(name, Kind.DECIMAL, precision=plain["precision"], scale=plain.get("scale", 0))
    return Column(name, kind_of_avro(word), "null" in options)
