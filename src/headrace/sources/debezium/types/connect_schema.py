"""Parses schemas of events into fields: Kafka Connect's JSON, and Avro as Connect's converters write it.

Invariant: a row described by Confluent's or Apicurio's Avro converter and the same row described by Connect's JSON converter give equal
fields.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields
from headrace.sources.debezium.types.column_mapping import DECIMAL, ESCAPED, PRECISION

_JSON_WORDS: Final = {"float": "float32", "double": "float64"}
_CONNECT_WORDS: Final = frozenset({"int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes"})
_AVRO_WORDS: Final = {
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
    "fixed": "bytes",
    "enum": "string",
}
_LOGICAL: Final = {
    "date": "io.debezium.time.Date",
    "time-millis": "io.debezium.time.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "time-nanos": "io.debezium.time.NanoTime",
    "timestamp-millis": "io.debezium.time.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "uuid": "io.debezium.data.Uuid",
    "decimal": DECIMAL,
}
"""Avro's own logical types, of schemas that no converter of Connect's made."""
_WRITTEN_IN_STATEMENTS: Final = ("io.debezium.connector.mysql.", "io.debezium.connector.mariadb.")
_ENVELOPE: Final = frozenset({"before", "after", "op"})


def field_of(schema: Mapping[str, Any], name: str = "") -> ConnectField:
    """One schema of Kafka Connect, as its JSON converter writes it."""
    word = str(schema.get("type", ""))
    word = _JSON_WORDS.get(word, word)
    if word not in _CONNECT_WORDS and word not in ("struct", "array", "map"):
        raise _unreadable(name, f"no type of Kafka Connect is called {word!r}")
    inner = schema.get("items") if word == "array" else schema.get("values") if word == "map" else None
    return ConnectField(
        name or str(schema.get("field", "")),
        word,
        str(schema.get("name") or ""),
        {str(key): str(value) for key, value in (schema.get("parameters") or {}).items()},
        bool(schema.get("optional", False)),
        schema.get("default"),
        tuple(field_of(part) for part in schema.get("fields", ())) if word == "struct" else (),
        None if inner is None else field_of(inner, "item"),
    )


def field_of_avro(schema: Any, name: str = "") -> ConnectField:
    """One Avro schema, as parsed JSON, in the words of Connect. Records that were named before may be named again."""
    return _Avro().field(schema, name, "")


class _Avro:
    def __init__(self) -> None:
        self._named: dict[str, ConnectField] = {}

    def field(self, schema: Any, name: str, namespace: str) -> ConnectField:
        if isinstance(schema, list):
            return self._union(schema, name, namespace)
        if isinstance(schema, str):
            if schema in _AVRO_WORDS:
                return ConnectField(name, _AVRO_WORDS[schema], optional=False)
            known = self._named.get(schema) or self._named.get(f"{namespace}.{schema}")
            if known is None:
                raise _unreadable(name, f"the Avro schema names the type {schema!r} and does not define it")
            return replace(known, name=name, optional=False, default=None)
        if not isinstance(schema, dict):
            raise _unreadable(name, "the Avro schema holds something that is no schema")
        word = schema.get("type")
        if isinstance(word, dict | list):
            # {"type": {"type": …}}: only wrapped.
            return self.field(word, name, namespace)
        match word:
            case "record":
                return self._record(schema, name, namespace)
            case "array":
                return self._array(schema, name, namespace)
            case "map":
                inner = self.field(schema.get("values"), "item", namespace)
                return _with_logical_type(schema, ConnectField(name, "map", optional=False, items=inner))
            case str() if word in _AVRO_WORDS:
                return self._plain(schema, word, name, namespace)
            case str():
                return self.field(word, name, namespace)
        raise _unreadable(name, "the Avro schema has a part without a type")

    def _union(self, branches: list[Any], name: str, namespace: str) -> ConnectField:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1:
            raise _unreadable(name, "an Avro union of several types has no meaning in a row")
        return replace(self.field(others[0], name, namespace), optional=len(others) < len(branches))

    def _record(self, schema: dict[str, Any], name: str, namespace: str) -> ConnectField:
        full, namespace = _full_name(schema, namespace)
        parts = tuple(self._part(part, namespace) for part in schema.get("fields", ()))
        found = _with_logical_type(schema, ConnectField(name, "struct", full, optional=False, fields=parts))
        self._named[full] = found
        return found

    def _part(self, part: dict[str, Any], namespace: str) -> ConnectField:
        found = self.field(part["type"], str(part["name"]), namespace)
        default = found.default if found.default is not None else part.get("default")
        if found.type == "bytes" and isinstance(default, str):
            # Avro's JSON has bytes as characters 0 to 255, Connect's as base64.
            default = b64encode(default.encode("latin-1", "replace")).decode()
        return replace(found, default=default)

    def _array(self, schema: dict[str, Any], name: str, namespace: str) -> ConnectField:
        inner = self.field(schema.get("items"), "item", namespace)
        names = tuple(part.name for part in inner.fields)
        if inner.type == "struct" and names == ("key", "value") and inner.semantic.endswith("MapEntry"):
            # Connect writes a map with non-string keys as an array of entries.
            return _with_logical_type(
                schema, ConnectField(name, "map", optional=False, fields=(inner.fields[0],), items=replace(inner.fields[1], name="item"))
            )
        return _with_logical_type(schema, ConnectField(name, "array", optional=False, items=inner))

    def _plain(self, schema: dict[str, Any], word: str, name: str, namespace: str) -> ConnectField:
        found = _with_logical_type(schema, ConnectField(name, _AVRO_WORDS[word], optional=False))
        if word == "enum" and not found.parameters.get("allowed"):
            symbols = ",".join(str(symbol).replace(",", "\\,") for symbol in schema.get("symbols", ()))
            found = replace(found, semantic="io.debezium.data.Enum", parameters={"allowed": symbols})
        if word in ("fixed", "enum"):
            full, _ = _full_name(schema, namespace)
            self._named[full] = found
        return found


def _with_logical_type(schema: Mapping[str, Any], found: ConnectField) -> ConnectField:
    """Add the properties that Connect's converters write to a field; otherwise Avro's own logical type."""
    semantic = str(schema.get("connect.name") or found.semantic)
    parameters = {str(key): str(value) for key, value in (schema.get("connect.parameters") or {}).items()}
    logical = str(schema.get("logicalType", ""))
    if not schema.get("connect.name") and logical in _LOGICAL:
        semantic = _LOGICAL[logical]
    if semantic == DECIMAL and "scale" not in parameters:
        parameters["scale"] = str(schema.get("scale", 0))
    if semantic == DECIMAL and "precision" in schema and not schema.get("connect.name"):
        # Ignored next to Connect's own properties: converters write 64 where Connect has no precision.
        parameters.setdefault(PRECISION, str(schema["precision"]))
    word = schema.get("connect.type")
    return replace(
        found,
        type=str(word) if word in _CONNECT_WORDS else found.type,
        semantic=semantic,
        parameters=parameters or found.parameters,
        default=schema.get("connect.default", found.default),
    )


def _full_name(schema: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    name = str(schema.get("name", ""))
    space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", namespace))
    return (name if "." in name or not space else f"{space}.{name}"), space


def is_envelope(value: ConnectField) -> bool:
    return {part.name for part in value.fields} >= _ENVELOPE


def row_fields(value: ConnectField, key: ConnectField | None, leave_out: frozenset[str] = frozenset()) -> RowFields:
    """A table's row as the schemas of a record's value and key describe it. `leave_out`: what a transform added to flat rows."""
    if is_envelope(value):
        images = [part for part in value.fields if part.name in ("after", "before")]
        row = next((part.fields for part in sorted(images, key=lambda part: part.name) if part.fields), ())
        source = next((part.semantic for part in value.fields if part.name == "source"), "")
        if source.startswith(_WRITTEN_IN_STATEMENTS):
            row = tuple(_with_escapes(part) for part in row)
    else:
        row = tuple(part for part in value.fields if part.name not in leave_out)
    names = {part.name for part in row}
    key_fields = () if key is None else key_names(key)
    strange = next((name for name in key_fields if name not in names), None)
    if strange is not None:
        raise DefiniteError(
            f"the key of a record has a field {strange!r} that its row has not",
            hint="let the key be made of the row's own fields (message.key.columns; key.enforce.uniqueness=false of a router)",
        )
    return RowFields(row, key_fields)


def _with_escapes(field: ConnectField) -> ConnectField:
    """A field of MySQL's or MariaDB's: names of its enums are written as in statements."""
    named = field.semantic in ("io.debezium.data.Enum", "io.debezium.data.EnumSet")
    return replace(field, parameters={**field.parameters, ESCAPED: "1"}) if named else field


def key_names(key: ConnectField) -> tuple[str, ...]:
    """The names of a key's fields; a key that is no struct has none."""
    return tuple(part.name for part in key.fields)


def _unreadable(name: str, why: str) -> DefiniteError:
    return DefiniteError(
        f"the schema of a record cannot be read: {why}",
        place=f"field {name}" if name else "",
        hint="check the converters of the connector (key.converter, value.converter)",
    )
