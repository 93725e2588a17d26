"""JSON records to parsed events.

Records with a schema are read with it. Records without one are read with the fields expected of their table; an unexpected field is
inferred from the records that hold it (`infer_fields`), so that the sink gets a column before anything is written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.options import EventShape as ChosenShape
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
from headrace.sources.debezium.formats.json_columns import (
    NUMERIC,
    Mask,
    ScannedRecords,
    TextColumn,
    as_written,
    build_program,
    members_of_paths,
    wire_array,
)
from headrace.sources.debezium.formats.json_records import (
    NO_ROWS,
    EventLayout,
    RecordGroup,
    RecordType,
    about_event,
    classify_record,
    envelope_layout,
    flat_layout,
    group_records,
    names_of_key,
    objects,
    parsed,
    presence_program,
    schema_of,
)
from headrace.sources.debezium.kernels import json_grammar as grammar
from headrace.sources.debezium.types.connect_schema import key_names, row_fields
from headrace.sources.debezium.types.inferred_fields import DEFAULTED, as_seen, infer_fields

_IS_OP: Final = np.isin(np.arange(256), np.frombuffer(b"cudrtm", dtype=np.uint8))
_SHAPES: Final = {
    grammar.TRUE: "boolean",
    grammar.FALSE: "boolean",
    grammar.WHOLE: "int64",
    grammar.NUMBER: "float64",
    grammar.TEXT: "string",
    grammar.ESCAPED: "string",
    grammar.OBJECT: "map",
    grammar.ARRAY: "map",
}
_ONLY_TOLD: Final = frozenset({"connector", "db", "schema", "table", "snapshot"})
"""Source fields requested only while something is unknown; a value that is no string counts as absent."""
_HINT: Final = "check the record (headrace tail), and the producers of its topic"
_MOST_ROUNDS: Final = 8
_MAX_UNKNOWN_FIELDS: Final = 256
_MOST_REQUIRED: Final = 62
"""Fields checked for presence, one bit each."""


class JsonParser:
    """Parses JSON records of one table, or of one topic. Belongs to a task."""

    def __init__(self, options: DebeziumOptions, expected: RowFields | None, asked: frozenset[str] | None = None) -> None:
        """`asked`: the columns of `SOURCE` to read, the others stay NULL; None: all."""
        self._options, self._expected = options, expected
        self._asked = frozenset(SOURCE.names) if asked is None else asked
        self.saw_flat = False
        """Whether flat rows were parsed, and which of them carry their own deletion flag."""
        self.saw_deleted = False
        self.lacks_op = False
        """Whether a flat row does not name its operation."""

    def parse(self, records: Records, rows: Rows, before: Sequence[str] | None) -> ParsedEvents:
        everything = group_records(TextColumn.of(records.value).take(rows), TextColumn.of(records.key).take(rows))
        refused = [Rejection(int(rows[row]), error.message, error.hint) for row, error in everything.problems.items()]
        ignored: dict[str, int] = {}
        events: list[Events] = []
        for part in everything.parts:
            made, wrong, number, what = self._read(part, records, rows, before)
            events += made
            refused += [Rejection(int(rows[part.rows[row]]), reason, _HINT) for row, reason in sorted(wrong.items())]
            if number:
                ignored[what] = ignored.get(what, 0) + number
        tombstones = tuple(rows[everything.empty].tolist())
        return ParsedEvents(tuple(events), tuple(sorted(refused, key=lambda refusal: refusal.record)), ignored, tombstones)

    def _read(
        self, part: RecordGroup, records: Records, rows: Rows, before: Sequence[str] | None
    ) -> tuple[list[Events], Mapping[int, str], int, str]:
        what = self._record_type(part, records, rows[part.rows])
        if what in NO_ROWS:
            scanned = ScannedRecords(part.payloads, presence_program())
            return [], scanned.problems, len(scanned) - len(scanned.problems), what.value
        try:
            layout = self._layout(part, what, records, rows)
        except DefiniteError as error:
            return [], dict.fromkeys(range(len(part.rows)), error.message), 0, ""
        scanned = ScannedRecords(part.payloads, layout.program)
        if part.value is None:
            scanned, layout = self._with_unknown_fields(scanned, layout, what)
            layout = replace(layout, fields=as_seen(layout.fields, _shapes(scanned, layout))) if self._expected is not None else layout
        reading = _JsonEventReader(scanned, layout, what, before, self._asked, described=part.value is not None)
        made = reading.events(rows[part.rows])
        # An unreadable record does not show whether it is a flat row.
        if any(len(events.op) for events in made):
            self.saw_flat |= what is RecordType.FLAT
            self.saw_deleted |= layout.deleted is not None
            self.lacks_op |= reading.lacks_op
        return made, scanned.problems, 0, ""

    def _record_type(self, part: RecordGroup, records: Records, rows: Rows) -> RecordType:
        if part.value is not None:
            found = classify_record(part.value, [], records.topic)
        else:
            key = records.key[int(rows[0])].as_py()
            found = classify_record(None, list(objects(part.payloads)), records.topic, None if key is None else parsed(key))
        if found in NO_ROWS or self._options.shape is ChosenShape.AUTO:
            return found
        return RecordType.FLAT if self._options.shape is ChosenShape.FLAT else RecordType.ENVELOPE

    def _layout(self, part: RecordGroup, what: RecordType, records: Records, rows: Rows) -> EventLayout:
        prefix = self._options.flat_prefix
        if part.value is not None:
            return _described_layout(part.name, what, prefix)
        key = self._key_of(records, rows[part.rows])
        fields = self._expected or RowFields((), key or ())
        if key is not None and fields.key != key and (self._expected is None or set(fields.key) != set(key)):
            fields = replace(fields, key=key)
        if what is RecordType.ENVELOPE:
            return envelope_layout(fields)
        return flat_layout(fields, about_event((name for document in objects(part.payloads) for name in document), prefix))

    @staticmethod
    def _key_of(records: Records, rows: Rows) -> tuple[str, ...] | None:
        """Return the key's field names from the first and last record; None if keys have no names."""
        keys = [parsed(text) for text in (records.key[int(row)].as_py() for row in (rows[0], rows[-1])) if text is not None]
        found = [names_of_key(key) for key in keys]
        # The last one wins: if the two differ, the table's key changed in between.
        return found[-1] if found else () if records.key.null_count == len(records.key) else None

    def _with_unknown_fields(self, scanned: ScannedRecords, layout: EventLayout, what: RecordType) -> tuple[ScannedRecords, EventLayout]:
        """Repeat the scan when rows hold unexpected fields: a field is added when it has a value."""
        for _ in range(_MOST_ROUNDS):
            strangers = _unknown_fields(scanned, layout)
            if not len(strangers):
                return scanned, layout
            chosen = np.unique(np.concatenate([strangers[:_MAX_UNKNOWN_FIELDS], strangers[-_MAX_UNKNOWN_FIELDS:]]))
            images = [image for row in chosen for image in _images(parsed(scanned.texts.text(int(row))), what)]
            layout = self._grown(layout, images, what)
            scanned = ScannedRecords(scanned.texts, layout.program)
        for row in _unknown_fields(scanned, layout).tolist():
            scanned.mark(row, "it holds fields that its table does not have")
        return scanned, layout

    def _grown(self, layout: EventLayout, images: list[dict[str, Any]], what: RecordType) -> EventLayout:
        names = (name for image in images for name in image)
        about = about_event(names, self._options.flat_prefix) if what is RecordType.FLAT else {}
        known = {field.name for field in layout.fields.row} | about.keys()
        new = tuple(field for field in infer_fields(images) if field.name not in known)
        known |= {field.name for field in new}
        silent = frozenset({name for image in images for name in image} | layout.silent) - known
        fields = replace(layout.fields, row=(*layout.fields.row, *new))
        if what is RecordType.ENVELOPE:
            return envelope_layout(fields, silent)
        known_about = {path[0]: said for said, path in layout.source.items() if len(path) == 1}
        return flat_layout(fields, {**known_about, **about}, silent)

    def parse_keys(self, records: Records, rows: Rows) -> ParsedEvents:
        everything = group_records(
            TextColumn.of(records.key).take(rows), TextColumn(np.zeros(1, np.uint8), *np.zeros((2, len(rows)), np.int64))
        )
        refused = [Rejection(int(rows[row]), error.message, error.hint) for row, error in everything.problems.items()]
        refused += [Rejection(int(rows[row]), "it has no key, so the deleted row is unknown", _HINT) for row in everything.empty.tolist()]
        events = []
        for part in everything.parts:
            made, wrong = self._deletions(part, rows)
            events += made
            refused += [Rejection(int(rows[part.rows[row]]), f"its key cannot be read: {reason}", _HINT) for row, reason in wrong.items()]
        return ParsedEvents(tuple(events), tuple(refused))

    def _deletions(self, part: RecordGroup, rows: Rows) -> tuple[list[Events], Mapping[int, str]]:
        if self._expected is None:
            return [], dict.fromkeys(range(len(part.rows)), "its table is not known")
        names = self._expected.key if part.value is None else key_names(part.value)
        if set(names) != set(self._expected.key):
            return [], dict.fromkeys(range(len(part.rows)), f"it names {names}, the table's key is {self._expected.key}")
        described = {field.name: field for field in (part.value.fields if part.value is not None else ())}
        row = tuple(described.get(field.name, field) for field in self._expected.row)
        keys = tuple(field for field in row if field.name in names)
        scanned = ScannedRecords(part.payloads, build_program(members_of_paths(keys, strict=True)))
        arrays = [
            wire_array(scanned, field, (field.name,)) if field.name in names else pa.nulls(len(scanned), wire_type(field, WireFormat.JSON))
            for field in row
        ]
        for row_of_key in scanned.strangers.tolist():
            scanned.mark(row_of_key, f"it names other fields than the table's key, {self._expected.key}")
        for field in keys:
            for missing in np.flatnonzero(scanned.kinds((field.name,)) <= grammar.NULL).tolist():
                scanned.mark(missing, f"the field {field.name} is missing")
        good = np.flatnonzero(scanned.good)
        if not len(good):
            return [], scanned.problems
        image = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in row]).take(pa.array(good))
        return [key_deletions(RowFields(row, self._expected.key), WireFormat.JSON, rows[part.rows[good]], image)], scanned.problems


@functools.lru_cache(maxsize=256)
def _described_layout(name: tuple[bytes | None, bytes | None], what: RecordType, prefix: str) -> EventLayout:
    value, key = (None if text is None else schema_of(text) for text in name)
    assert isinstance(value, ConnectField)
    assert not isinstance(key, DefiniteError)
    if what is RecordType.ENVELOPE:
        return envelope_layout(row_fields(value, key))
    about = about_event((field.name for field in value.fields), prefix)
    return flat_layout(row_fields(value, key, frozenset(about)), about)


def _unknown_fields(scanned: ScannedRecords, layout: EventLayout) -> Rows:
    """Find texts with a field that the layout does not know, or knows only by name."""
    found = np.zeros(len(scanned), np.bool_)
    found[scanned.strangers] = True
    for name in layout.silent:
        for side in (layout.after, layout.before):
            if side is not None:
                found |= scanned.kinds((*side, name)) > grammar.NULL
    found[list(scanned.problems)] = False
    return np.flatnonzero(found)


def _shapes(scanned: ScannedRecords, layout: EventLayout) -> dict[str, set[str]]:
    sides = [side for side in (layout.after, layout.before) if side is not None]
    found: dict[str, set[str]] = {}
    for field in layout.fields.row:
        counts = [scanned.counts((*side, field.name)) for side in sides]
        found[field.name] = {shape for kind, shape in _SHAPES.items() if any(count[kind] for count in counts)}
    return found


def _images(document: Any, what: RecordType) -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        return []
    sides = [document] if what is RecordType.FLAT else [document.get("after"), document.get("before")]
    return [side for side in sides if isinstance(side, dict)]


class _JsonEventReader:
    def __init__(
        self,
        scanned: ScannedRecords,
        layout: EventLayout,
        what: RecordType,
        before: Sequence[str] | None,
        source: frozenset[str],
        *,
        described: bool,
    ) -> None:
        self._scanned, self._layout, self._record_type, self._described = scanned, layout, what, described
        self._of_source = source
        self.lacks_op = False
        """Whether a flat row does not name its operation."""
        self._written: dict[str, ConnectField] = {}
        row = layout.fields.row
        self._asked = row if before is None else tuple(field for field in row if field.name in before)

    def events(self, records: Rows) -> list[Events]:
        """`records`: the record of each text. Events without a schema that lack a required field, or one whose column has a default, are
        of a table that no longer or not yet has the column: they form groups of their own."""
        scanned, layout = self._scanned, self._layout
        op = self._envelope_ops() if self._record_type is RecordType.ENVELOPE else self._flat_ops()
        deleted = op == DELETE
        has_before = np.zeros(len(scanned), np.bool_)
        if layout.before is not None:
            has_before = (op == UPDATE) & (scanned.kinds(layout.before) == grammar.OBJECT)
        image, fields = self._image(op, deleted)
        before = self._before(has_before)
        source = self._source()
        lacking = self._lacking(op, deleted) if not self._described else np.zeros(len(scanned), np.int64)
        made = Events(fields, WireFormat.JSON, records, op, image, source, has_before, before)
        if not scanned.problems and not lacking.any():
            return [made]
        good = scanned.good
        return [self._without(made, np.flatnonzero(good & (lacking == pattern)), pattern) for pattern in np.unique(lacking[good]).tolist()]

    def _lacking(self, op: npt.NDArray[np.uint8], deleted: Mask) -> npt.NDArray[np.int64]:
        """Return as bits which fields are missing that are required, or whose columns have a default."""
        layout = self._layout
        found = np.zeros(len(op), np.int64)
        if self._is_whole():
            return found
        has_image = (op != TRUNCATE) & (op != MESSAGE)
        for place, field in enumerate(self._required()):
            kinds = self._scanned.kinds((*layout.after, field.name))
            if layout.before is not None:
                kinds = np.where(deleted, self._scanned.kinds((*layout.before, field.name)), kinds)
            found |= ((kinds == grammar.ABSENT) & has_image).astype(np.int64) << place
        return found

    def _is_whole(self) -> bool:
        """Return whether every row, before and after, has every field that may be missing. Counting is cheaper than a search."""
        scanned, layout = self._scanned, self._layout
        if layout.before is None or scanned.problems:
            return False
        sides = [(side, int(scanned.counts(side)[grammar.OBJECT])) for side in (layout.after, layout.before)]
        return all(int(scanned.counts((*side, field.name)).sum()) == rows for field in self._required() for side, rows in sides)

    def _required(self) -> list[ConnectField]:
        row = self._layout.fields.row
        defaulted = (field for field in row if field.optional and DEFAULTED in field.parameters)
        return [*(field for field in row if not field.optional), *defaulted][:_MOST_REQUIRED]

    def _without(self, made: Events, rows: Rows, pattern: int) -> Events:
        lost = {field.name for place, field in enumerate(self._required()) if pattern >> place & 1}
        taken = pa.array(rows)
        fields, image, before = made.fields, made.image.take(taken), made.before.take(taken)
        if lost:
            fields = replace(fields, row=tuple(field for field in fields.row if field.name not in lost))
            image = image.drop_columns([name for name in image.schema.names if name in lost])
            before = before.drop_columns([name for name in before.schema.names if name in lost])
        return Events(fields, made.wire, made.record[rows], made.op[rows], image, made.source.take(taken), made.has_before[rows], before)

    def _letters(self, path: tuple[str, ...]) -> npt.NDArray[np.uint8]:
        values = self._scanned.values(path)
        return values.letters()

    def _envelope_ops(self) -> npt.NDArray[np.uint8]:
        scanned, layout = self._scanned, self._layout
        assert layout.before is not None
        op = self._letters(layout.op)
        for row in np.flatnonzero(~_IS_OP[op]).tolist():
            scanned.mark(row, _wrong_op(scanned, layout.op, row))
        after, before = scanned.kinds(layout.after), scanned.kinds(layout.before)
        for side, kinds in (("after", after), ("before", before)):
            for row in np.flatnonzero((kinds > grammar.NULL) & (kinds != grammar.OBJECT)).tolist():
                scanned.mark(row, f"its {side!r} is not an object")
        imageless = (op == TRUNCATE) | (op == MESSAGE)
        lacking = np.where(op == DELETE, before, after) <= grammar.NULL
        for row in np.flatnonzero(lacking & ~imageless).tolist():
            side = "before" if op[row] == DELETE else "after"
            scanned.mark(row, f"its op is {chr(op[row])!r}, and it holds no row in {side!r}" if op[row] else "it holds no row")
        return op

    def _flat_ops(self) -> npt.NDArray[np.uint8]:
        scanned, layout = self._scanned, self._layout
        said = scanned.kinds(layout.op) > grammar.NULL if layout.op else np.zeros(len(scanned), np.bool_)
        self.lacks_op = not said[scanned.good].all()
        op = np.where(said, self._letters(layout.op), np.uint8(UPDATE)) if layout.op else np.full(len(scanned), UPDATE, np.uint8)
        for row in np.flatnonzero(~_IS_OP[op]).tolist():
            scanned.mark(row, _wrong_op(scanned, layout.op, row))
        if layout.deleted is not None:
            op = np.where(self._deleted(layout.deleted), np.uint8(DELETE), op)
        return op.astype(np.uint8)

    def _deleted(self, path: tuple[str, ...]) -> Mask:
        """`__deleted`: the text "true" or "false", or a truth value."""
        kinds = self._scanned.kinds(path)
        texts = self._scanned.values(path).only((kinds == grammar.TEXT) | (kinds == grammar.ESCAPED)).text()
        for row in np.flatnonzero((kinds > grammar.FALSE) & (kinds != grammar.TEXT) & (kinds != grammar.ESCAPED)).tolist():
            self._scanned.mark(row, f"the field {path[0]} is neither true nor false")
        told = pc.fill_null(pc.equal(texts, "true"), False).to_numpy(zero_copy_only=False)
        return np.asarray(told | (kinds == grammar.TRUE), dtype=np.bool_)

    def _image(self, op: npt.NDArray[np.uint8], deleted: Mask) -> tuple[pa.RecordBatch, RowFields]:
        scanned, layout = self._scanned, self._layout
        chosen: Mask | None = None
        if layout.before is not None:
            chosen = ~deleted
        columns, fields = [], []
        for field in layout.fields.row:
            path, other = (*layout.after, field.name), None if layout.before is None else (*layout.before, field.name)
            written = as_written(scanned, field, path, described=self._described, chosen=chosen, other=other)
            columns.append(wire_array(scanned, written, path, chosen, other))
            self._written[field.name] = written
            fields.append(replace(written, type="string") if written.type == NUMERIC else written)
        imageless = (op == TRUNCATE) | (op == MESSAGE)
        if imageless.any():
            columns = [pc.if_else(pa.array(imageless), pa.scalar(None, column.type), column) for column in columns]
        if not columns:
            return no_columns(len(scanned)), layout.fields
        same = all(one is other for one, other in zip(fields, layout.fields.row, strict=True))
        told = layout.fields if same else RowFields(tuple(fields), layout.fields.key)
        return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields]), told

    def _before(self, has_before: Mask) -> pa.RecordBatch:
        layout = self._layout
        if not self._asked:
            return no_columns(len(has_before))
        if layout.before is None or not has_before.any():
            columns = [pa.nulls(len(has_before), wire_type(field, WireFormat.JSON)) for field in self._asked]
        else:
            columns = []
            for field in self._asked:
                # In the same form as the image: the two are compared.
                columns.append(wire_array(self._scanned, self._written[field.name], (*layout.before, field.name), has_before))
        return pa.RecordBatch.from_arrays(columns, names=[field.name for field in self._asked])

    def _source(self) -> pa.RecordBatch:
        scanned, paths = self._scanned, self._layout.source
        columns: dict[str, pa.Array] = {}
        for name, kind in zip(SOURCE.names, SOURCE.types, strict=True):
            path = paths.get(name)
            if path is None or name not in self._of_source:
                columns[name] = pa.nulls(len(scanned), kind)
                continue
            values = scanned.values(path)
            if name in _ONLY_TOLD:
                columns[name] = values.text_or_truth_if_any()
            else:
                columns[name] = values.text() if pa.types.is_string(kind) else values.whole()
        if "ts_ms" in paths and columns["ts_us"].null_count:
            columns["ts_us"] = pc.coalesce(columns["ts_us"], millis_to_micros(scanned.values(paths["ts_ms"]).whole()))
        return pa.RecordBatch.from_arrays([columns[name] for name in SOURCE.names], schema=SOURCE)


def _wrong_op(scanned: ScannedRecords, path: tuple[str, ...], row: int) -> str:
    kind = int(scanned.kinds(path)[row])
    if kind <= grammar.NULL:
        return "it has no 'op', so it is not a change event"
    if kind not in (grammar.TEXT, grammar.ESCAPED):
        return "its 'op' is not a string"
    return f"its op is {scanned.values(path).shown(row)!r}, which is none of c, u, d, r, t and m"
