"""Avro records to events: the schema id before each body, the schema from the registry, whole columns at once.

Bodies are read with the schema that wrote them, without the parts that no reader needs. A record whose id, schema or body cannot be read
is reported and does not affect others. An unreachable registry is a `TransientError`.
"""

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import Decoder, schema_ids
from headrace.kafka.avro.schema import AvroKind, AvroSchema, AvroType, tree_of
from headrace.kafka.registry import open_repository
from headrace.kafka.schema_repository import SchemaRepository
from headrace.sources.debezium.events.options import DebeziumOptions, EventShape
from headrace.sources.debezium.events.parsed_events import (
    DELETE,
    MESSAGE,
    SOURCE,
    TRUNCATE,
    UPDATE,
    ConnectField,
    Events,
    ParsedEvents,
    Rejection,
    RowFields,
    Rows,
    WireFormat,
    key_deletions,
    millis_to_micros,
    no_columns,
    wire_type,
)
from headrace.sources.debezium.events.records import Records
from headrace.sources.debezium.formats.json_records import NO_ROWS, RecordType, about_event, classify_record, names_of_key
from headrace.sources.debezium.types.connect_schema import field_of_avro, key_names, row_fields

_OPS: Final = np.frombuffer(b"cudrtm", np.uint8)
_NO_KEY, _OTHER_KEY = -1, -2
"""Used instead of the id of a key's schema: no key, and a key that is not Avro."""
_HINT: Final = "check the converters of the connector (key.converter, value.converter)"

Mask = npt.NDArray[np.bool_]
Ops = npt.NDArray[np.uint8]


@functools.cache
def repository_at(address: str) -> SchemaRepository:
    """Return this process's connection to a registry, which caches every schema."""
    if not address:
        raise DefiniteError(
            "records in Avro name their schemas by number, and no schema registry is given", hint="give its address (registry)"
        )
    return open_repository(address)


@dataclass(frozen=True, slots=True)
class _AvroLayout:
    what: RecordType
    decoder: Decoder
    fields: RowFields
    about: Mapping[str, str]
    """For flat rows: the fields that are not columns, and the event property of each."""


class AvroParser:
    """Parser for records of one partition. Schemas and programs are cached for the whole process."""

    def __init__(self, options: DebeziumOptions, repository: SchemaRepository, expected: RowFields | None = None) -> None:
        """`expected`: the row as in the sink's table, for tombstones, of which only the key is known."""
        self._options, self._repository, self._expected = options, repository, expected
        self._id_bytes = options.schema_id_bytes
        if self._id_bytes not in (4, 8):
            raise DefiniteError(f"the id of a schema takes 4 or 8 bytes, not {self._id_bytes}", hint="set schema_id_bytes to 4 or 8")
        self.saw_flat = False
        """Whether any record was a row without an envelope."""
        self.saw_deleted = False
        """Whether flat rows carry their own deletion flag."""
        self.lacks_op = False
        """Whether a flat row does not name its operation."""

    def parse(self, records: Records, rows: Rows, before: Sequence[str] | None) -> ParsedEvents:
        values, keys = _taken(records.value, rows), _taken(records.key, rows)
        value_ids, framed = schema_ids(values, self._id_bytes)
        refused = [_rejection(row, "it is not in Avro as a schema registry's converters write it") for row in rows[~framed].tolist()]
        events: list[Events] = []
        ignored: dict[str, int] = {}
        for value_id, key_id, where in _grouped(value_ids, _key_ids(keys, self._id_bytes), framed):
            try:
                layout = self._layout(value_id, key_id, keys, where, records.topic)
            except DefiniteError as error:
                refused += [Rejection(row, f"its schema cannot be used: {error.message}", error.hint) for row in rows[where].tolist()]
                continue
            if layout.what in NO_ROWS:
                ignored[layout.what.value] = ignored.get(layout.what.value, 0) + len(where)
                continue
            reading = _AvroEventReader(layout, _taken(values, where), rows[where], 1 + self._id_bytes)
            events += reading.events(before)
            refused += reading.refused
            self.lacks_op |= reading.lacks_op
            if layout.what is RecordType.FLAT:
                self.saw_flat, self.saw_deleted = True, self.saw_deleted or "deleted" in layout.about.values()
        return ParsedEvents(tuple(events), tuple(refused), ignored)

    def parse_keys(self, records: Records, rows: Rows) -> ParsedEvents:
        keys = _taken(records.key, rows)
        ids, framed = schema_ids(keys, self._id_bytes)
        refused = [_rejection(row, "its key is not in Avro, so the deleted row is unknown") for row in rows[~framed].tolist()]
        events: list[Events] = []
        for number in np.unique(ids[framed]).tolist():
            where = np.flatnonzero(framed & (ids == number))
            try:
                made, wrong = self._deletions(self._repository.by_id(number), _taken(keys, where), rows[where])
            except DefiniteError as error:
                made, wrong = (
                    [],
                    [Rejection(row, f"its key's schema cannot be used: {error.message}", error.hint) for row in rows[where].tolist()],
                )
            events += made
            refused += wrong
        return ParsedEvents(tuple(events), tuple(refused))

    def _layout(self, value_id: int, key_id: int, keys: pa.BinaryArray, where: Rows, topic: str) -> _AvroLayout:
        value = self._repository.by_id(value_id)
        key = self._repository.by_id(key_id) if key_id >= 0 else None
        names: tuple[str, ...] | None = None
        if key_id == _OTHER_KEY:
            names = _names_in_json(keys[int(where[0])].as_py())
        return _layout_of(value, key, names, self._options.shape, self._options.flat_prefix, topic)

    def _deletions(self, schema: AvroSchema, keys: pa.BinaryArray, rows: Rows) -> tuple[list[Events], list[Rejection]]:
        expected, key = self._expected, field_of_avro(tree_of(schema.root))
        if expected is None:
            return [], [_rejection(row, "its table is not known") for row in rows.tolist()]
        names = key_names(key)
        if not names or set(names) != set(expected.key):
            reason = f"its key names {names or 'nothing'}, the table's key is {expected.key}"
            return [], [_rejection(row, reason) for row in rows.tolist()]
        described = {part.name: part for part in key.fields}
        fields = tuple(described.get(part.name, part) for part in expected.row)
        found = _decoder(schema.root).decode(keys, skip=1 + self._id_bytes)
        refused = [_rejection(int(rows[bad.row]), f"its key cannot be read: {bad.reason}") for bad in found.bad]
        good = pa.array(np.flatnonzero(found.values.is_valid().to_numpy(zero_copy_only=False)))
        values = found.values.take(good)
        count = len(values)
        if not count:
            return [], refused
        columns = [
            as_wire(values.field(values.type.get_field_index(part.name)), part)
            if part.name in described
            else pa.nulls(count, wire_type(part, WireFormat.AVRO))
            for part in fields
        ]
        image = _batch(columns, fields, count)
        return [key_deletions(RowFields(fields, expected.key), WireFormat.AVRO, rows[good.to_numpy()], image)], refused


@functools.lru_cache(maxsize=1024)
def _layout_of(
    value: AvroSchema, key: AvroSchema | None, names: tuple[str, ...] | None, shape: EventShape, prefix: str, topic: str
) -> _AvroLayout:
    """Return the layout of records with these schemas. `names`: the key's fields, if it is not in Avro."""
    described = field_of_avro(tree_of(value.root))
    what = RecordType.FLAT if shape is EventShape.FLAT else classify_record(described, [], topic)
    if what is RecordType.FLAT and shape is EventShape.ENVELOPE:
        raise DefiniteError("it is not a Debezium envelope", hint="set shape to flat or auto")
    if value.root.kind is not AvroKind.RECORD:
        raise DefiniteError(f"a value must be a record, not {value.root.label}", hint=_HINT)
    if what in NO_ROWS:
        return _AvroLayout(what, _decoder(value.root), RowFields((), ()), {})
    about = {} if what is RecordType.ENVELOPE else about_event((part.name for part in described.fields), prefix)
    fields = row_fields(described, None if key is None else field_of_avro(tree_of(key.root)), frozenset(about))
    if names is not None:
        fields = replace(fields, key=tuple(name for name in names if any(part.name == name for part in fields.row)))
    wanted = _requested_fields(value.root) if what is RecordType.ENVELOPE else value.root
    return _AvroLayout(what, _decoder(value.root, wanted), fields, about)


def _requested_fields(root: AvroType) -> AvroType:
    """Return an envelope's schema without unused parts; the decoder skips them."""
    kept = tuple(
        replace(field, type=_source_only(field.type)) if field.name == "source" else field
        for field in root.fields
        if field.name in ("before", "after", "source", "op")
    )
    return replace(root, fields=kept)


def _source_only(found: AvroType) -> AvroType:
    if found.kind is AvroKind.UNION:
        return replace(found, branches=tuple(_source_only(branch) for branch in found.branches))
    return replace(found, fields=tuple(field for field in found.fields if field.name == "ts_ms" or field.name in SOURCE.names))


def _decoder(writer: AvroType, reader: AvroType | None = None) -> Decoder:
    return Decoder(AvroSchema("", writer), None if reader is None else AvroSchema("", reader))


class _AvroEventReader:
    def __init__(self, layout: _AvroLayout, values: pa.BinaryArray, records: Rows, head: int) -> None:
        self._layout = layout
        found = layout.decoder.decode(values, skip=head)
        self.refused = [_rejection(int(records[bad.row]), f"its value does not match its schema: {bad.reason}") for bad in found.bad]
        self._records, self._values = records, found.values
        self.lacks_op = False
        """Whether a flat row does not name its operation."""
        if found.bad:
            self._keep(found.values.is_valid().to_numpy(zero_copy_only=False))

    def events(self, before: Sequence[str] | None) -> list[Events]:
        self._reject_unreadable_sources()
        op = self._envelope_ops() if self._layout.what is RecordType.ENVELOPE else self._flat_ops()
        if not len(self._records):
            return []
        fields, envelope = self._layout.fields, self._layout.what is RecordType.ENVELOPE
        row = self._part("after") if envelope else self._values
        old = self._part("before") if envelope else None
        deleted, imageless = op == DELETE, (op == TRUNCATE) | (op == MESSAGE)
        has_before = np.zeros(len(op), np.bool_)
        if old is not None:
            has_before = (op == UPDATE) & old.is_valid().to_numpy(zero_copy_only=False)
        columns = [self._image(row, old, part, deleted, imageless) for part in fields.row]
        asked = () if old is None else tuple(part for part in fields.row if before is None or part.name in before)
        befores = [_only(_column(old, part), has_before) for part in asked]
        made = Events(
            fields,
            WireFormat.AVRO,
            self._records,
            op,
            _batch(columns, fields.row, len(op)),
            self._source(),
            has_before,
            _batch(befores, asked, len(op)),
        )
        return [made]

    def _keep(self, good: Mask) -> None:
        chosen = np.flatnonzero(good)
        self._records, self._values = self._records[chosen], self._values.take(pa.array(chosen))

    def _part(self, name: str) -> Any:
        """Return a member of the values; None if the schema does not have it."""
        number = self._values.type.get_field_index(name)
        return None if number < 0 else self._values.field(number)

    def _reject(self, wrong: Mask, reasons: Sequence[str]) -> None:
        self.refused += [_rejection(int(row), reason) for row, reason in zip(self._records[wrong], reasons, strict=True)]
        self._keep(~wrong)

    def _envelope_ops(self) -> Ops:
        op = self._letters(self._part("op"))
        sides = [self._part(side) for side in ("after", "before")]
        after, before = (np.zeros(len(op), np.bool_) if side is None else side.is_valid().to_numpy(zero_copy_only=False) for side in sides)
        unknown = ~np.isin(op, _OPS)
        lacking = ~np.where(op == DELETE, before, after) & (op != TRUNCATE) & (op != MESSAGE) & ~unknown
        wrong = unknown | lacking
        if not wrong.any():
            return op
        texts = self._part("op")
        reasons = [
            f"its op is {texts[row].as_py()!r}, which is none of c, u, d, r, t and m"
            if unknown[row]
            else f"its op is {chr(op[row])!r}, and it holds no row in {'before' if op[row] == DELETE else 'after'!r}"
            for row in np.flatnonzero(wrong).tolist()
        ]
        self._reject(wrong, reasons)
        return np.asarray(op[~wrong])

    def _flat_ops(self) -> Ops:
        told = {said: self._part(name) for name, said in self._layout.about.items()}
        op = np.full(len(self._records), UPDATE, np.uint8)
        if "op" in told:
            letters, said = self._letters(told["op"]), told["op"].is_valid().to_numpy(zero_copy_only=False)
            op = np.where(said, letters, op).astype(np.uint8)
        self.lacks_op = "op" not in told or not said.all()
        if "deleted" in told:
            flag = told["deleted"]
            if pa.types.is_string(flag.type):
                flag = pc.equal(flag, "true")
            op = np.where(pc.fill_null(flag, False).to_numpy(zero_copy_only=False), np.uint8(DELETE), op).astype(np.uint8)
        wrong = ~np.isin(op, _OPS)
        if wrong.any():
            texts = told["op"]
            shown = [f"its op is {texts[row].as_py()!r}, which is none of c, u, d, r, t and m" for row in np.flatnonzero(wrong).tolist()]
            self._reject(wrong, shown)
            op = op[~wrong]
        return np.asarray(op)

    def _letters(self, texts: Any) -> Ops:
        """Return the code of one-letter texts; 0 for all others."""
        coded = pc.fill_null(texts, "").dictionary_encode()
        codes = [ord(text) if len(text) == 1 and text < "\x80" else 0 for text in coded.dictionary.to_pylist()]
        return np.asarray(np.array(codes or [0], np.uint8)[coded.indices.to_numpy(zero_copy_only=False)])

    def _image(self, row: Any, old: Any, part: ConnectField, deleted: Mask, imageless: Mask) -> pa.Array:
        array = _column(row, part)
        if old is not None and deleted.any():
            array = _chosen(deleted, _column(old, part), array)
        return _only(array, ~imageless) if imageless.any() else array

    def _reject_unreadable_sources(self) -> None:
        """Reject records with an unreadable source field: it may decide their order."""
        kinds = {**dict(zip(SOURCE.names, SOURCE.types, strict=True)), "ts_ms": pa.int64()}
        wrong = {
            name: mask
            for name, array in self._source_fields().items()
            if name in kinds and (mask := _unreadable(array, kinds[name])) is not None
        }
        if wrong:
            whole, told = np.logical_or.reduce(list(wrong.values())), self._source_fields()
            first = [next(name for name, mask in wrong.items() if mask[row]) for row in np.flatnonzero(whole).tolist()]
            shown = zip(first, np.flatnonzero(whole).tolist(), strict=True)
            self._reject(
                whole, [f"its source's {name} is {str(told[name][row].as_py())[:100]!r}, which is not a number" for name, row in shown]
            )

    def _source_fields(self) -> dict[str, pa.Array]:
        """Return the events' source fields in their own types."""
        if self._layout.what is RecordType.ENVELOPE:
            whole = self._part("source")
            return {} if whole is None else {one.name: whole.field(number) for number, one in enumerate(whole.type)}
        told = {}
        for name, said in self._layout.about.items():
            # The row's source fields take precedence over its event fields (`__source_ts_ms`, `__ts_ms`).
            if said not in told or "source_" in name:
                told[said] = self._part(name)
        return told

    def _source(self) -> pa.RecordBatch:
        told, rows = self._source_fields(), len(self._records)
        columns = {
            name: _cast(told[name], kind) if name in told else pa.nulls(rows, kind)
            for name, kind in zip(SOURCE.names, SOURCE.types, strict=True)
        }
        if "ts_ms" in told and columns["ts_us"].null_count:
            columns["ts_us"] = pc.coalesce(columns["ts_us"], millis_to_micros(_cast(told["ts_ms"], pa.int64())))
        return pa.RecordBatch.from_arrays([columns[name] for name in SOURCE.names], schema=SOURCE)


def _column(row: Any, part: ConnectField) -> pa.Array:
    """Return a row's column in its wire type; NULL where the row is NULL."""
    return as_wire(row.field(row.type.get_field_index(part.name)), part)


def _chosen(mask: Mask, one: pa.Array, other: pa.Array) -> pa.Array:
    if not pa.types.is_nested(one.type):
        return pc.if_else(pa.array(mask), one, other)
    places = np.arange(len(one)) + np.where(mask, 0, len(one))
    return pa.concat_arrays([one, other.cast(one.type)]).take(pa.array(places))


def _only(array: pa.Array, mask: Mask) -> pa.Array:
    return array if mask.all() else array.take(pa.array(np.arange(len(array)), mask=~mask))


def _batch(columns: Sequence[pa.Array], fields: Sequence[ConnectField], rows: int) -> pa.RecordBatch:
    if not columns:
        return no_columns(rows)
    return pa.RecordBatch.from_arrays(list(columns), names=[part.name for part in fields])


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a source field to the type used here; a field of an incompatible type is NULL."""
    if array.type == wanted:
        return array
    if pa.types.is_boolean(array.type) and pa.types.is_string(wanted):
        return pc.if_else(array, "true", "false")
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(array), wanted)


def _unreadable(array: pa.Array, wanted: pa.DataType) -> Mask | None:
    """Return a mask of values that failed the cast among others that did not; None if there are none."""
    if array.type == wanted or not pa.types.is_integer(wanted):
        return None
    try:
        array.cast(wanted)
    except pa.ArrowInvalid:
        texts = pc.fill_null(array.cast(pa.string()), "0")
        return np.asarray(pc.invert(pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")).to_numpy(zero_copy_only=False), dtype=np.bool_)
    except pa.ArrowNotImplementedError:
        return None
    return None


def _key_ids(keys: pa.BinaryArray, id_bytes: int) -> npt.NDArray[np.int64]:
    ids, framed = schema_ids(keys, id_bytes)
    ids[~framed] = _OTHER_KEY
    ids[keys.is_null().to_numpy(zero_copy_only=False)] = _NO_KEY
    return ids


def _names_in_json(key: bytes) -> tuple[str, ...]:
    """Return the field names of JSON keys next to Avro values; none for other keys."""
    try:
        return names_of_key(orjson.loads(key))
    except orjson.JSONDecodeError:
        return ()


def _grouped(values: npt.NDArray[np.int64], keys: npt.NDArray[np.int64], framed: Mask) -> list[tuple[int, int, Rows]]:
    rows = np.flatnonzero(framed)
    if not len(rows):
        return []
    one, other = values[rows], keys[rows]
    if (one == one[0]).all() and (other == other[0]).all():
        return [(int(one[0]), int(other[0]), rows)]
    value_ids, value_codes = np.unique(one, return_inverse=True)
    key_ids, key_codes = np.unique(other, return_inverse=True)
    codes = value_codes * len(key_ids) + key_codes
    return [
        (int(value_ids[code // len(key_ids)]), int(key_ids[code % len(key_ids)]), rows[codes == code]) for code in np.unique(codes).tolist()
    ]


def _taken(array: pa.Array, rows: Rows) -> pa.Array:
    """Return selected values of an array, in order; without a copy if all are selected."""
    return array if len(rows) == len(array) else array.take(pa.array(rows))


def _rejection(row: int, reason: str) -> Rejection:
    return Rejection(row, reason, _HINT)


def as_wire(array: pa.Array, field: ConnectField) -> pa.Array:
    """Return the values with maps as JSON documents and fixed types as bytes."""
    wanted = wire_type(field, WireFormat.AVRO)
    if array.type == wanted:
        return array
    if field.type == "struct":
        return _struct(array, field, wanted)
    if field.type == "array" and field.items is not None:
        items = as_wire(array.values, field.items)
        buffers = array.buffers()
        return pa.Array.from_buffers(wanted, len(array), buffers[:2], array.null_count, array.offset, children=[items])
    if field.type == "map":
        return pa.array([None if row is None else orjson.dumps(_document(row)).decode() for row in array.to_pylist()], pa.string())
    return array.cast(wanted)


def _struct(array: pa.Array, field: ConnectField, wanted: pa.DataType) -> pa.Array:
    parts = [as_wire(array.field(array.type.get_field_index(part.name)), part) for part in field.fields]
    gone = array.is_null()
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=gone if array.null_count else None)


def _document(row: Any) -> Any:
    """Return a map's entries, or the key-value records that Connect writes for keys that are not strings."""
    pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in row]
    return {
        _json_value(key) if isinstance(_json_value(key), str) else orjson.dumps(_json_value(key)).decode(): _json_value(value)
        for key, value in pairs
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, list):
        return [_json_value(one) for one in value]
    if isinstance(value, dict):
        return {key: _json_value(one) for key, one in value.items()}
    return value
