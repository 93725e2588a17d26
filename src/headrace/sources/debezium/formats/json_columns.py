"""Reads columns from JSON texts: a program scans the texts, then the positions of each value become an Arrow array of its wire type.

A text that cannot be parsed, or whose value does not fit its field, is marked with the problem (`ScannedRecords.problems`). All others are
read. Python runs only for the marked texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.errors import DefiniteError
from headrace.kernels.pointers import Bytes
from headrace.sources.debezium.events.parsed_events import ConnectField, WireFormat, wire_type
from headrace.sources.debezium.kernels import json_grammar as grammar
from headrace.sources.debezium.kernels.json_scan import KINDS, MAX_LEVELS, MEMBER_COLUMNS, NODE_COLUMNS, Kinds, Places, Table, scan
from headrace.sources.debezium.kernels.json_values import FINE, TOO_BIG, copy_tokens, pick, read_whole, tokens_size
from headrace.sources.debezium.types.column_mapping import DECIMAL

Path = tuple[str, ...]
_NAME_PADDING: Final = 16
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
_PADDING: Final = 208
_TEXTS: Final = 1 << grammar.TEXT | 1 << grammar.ESCAPED
_NUMBERS: Final = 1 << grammar.WHOLE | 1 << grammar.NUMBER
_SPECIAL: Final = ("NaN", "Infinity", "-Infinity")
"""Quoted texts of Connect's JSON converter for doubles that are not numbers."""
_RANGES: Final = {"int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31}
_KIND_NAMES: Final = {
    grammar.ABSENT: "nothing",
    grammar.NULL: "null",
    grammar.TRUE: "a truth value",
    grammar.FALSE: "a truth value",
    grammar.WHOLE: "a number",
    grammar.NUMBER: "a number with a fraction",
    grammar.TEXT: "a text",
    grammar.ESCAPED: "a text",
    grammar.OBJECT: "an object",
    grammar.ARRAY: "an array",
}
_REASONS: Final = {
    grammar.SYNTAX: "it is not JSON",
    grammar.CUT: "its JSON ends too early",
    grammar.CONTROL: "a text in it holds a bare control character",
    grammar.ESCAPE: "a text in it holds an escape that JSON does not have",
    grammar.SURROGATE: "a text in it holds half of a surrogate pair",
    grammar.UTF8: "a text in it is not UTF-8",
    grammar.TWICE: "it holds a field twice",
    grammar.DEEP: "it is nested too deeply",
    grammar.TRAILING: "something follows its JSON",
    grammar.NO_OBJECT: "it is not a JSON object",
}
NUMERIC: Final = "number"
"""The type of decimals that are written as numbers: `wire_array` returns their digits as text."""
_DOCUMENT: Final = "io.debezium.data.Json"


@dataclass(frozen=True, slots=True)
class ObjectMembers:
    """An object: its members, in the order in which they are expected, each a value or an object."""

    members: Mapping[str, ObjectMembers | None]
    strict: bool = False
    """Whether unlisted members are recorded."""
    passed: frozenset[str] = frozenset()
    """Members that are expected only to find the next one quickly: their values are checked, not recorded."""


@dataclass(frozen=True, slots=True)
class ScanProgram:
    names: Bytes
    nodes: Table
    members: Table
    slots: Mapping[Path, int]
    longest_name: int


def members_of_paths(fields: tuple[ConnectField, ...], *, strict: bool = False) -> ObjectMembers:
    """Return the shape of fields. Structs are objects; arrays and maps are read later, from their text."""
    return ObjectMembers({field.name: members_of_paths(field.fields) if field.type == "struct" else None for field in fields}, strict)


def build_program(shape: ObjectMembers) -> ScanProgram:
    names = bytearray()
    nodes: list[list[int]] = []
    members: list[list[int]] = []
    slots: dict[Path, int] = {}
    waiting: list[tuple[ObjectMembers, Path]] = [(shape, ())]
    while waiting:
        shape, path = waiting.pop(0)
        if len(path) >= MAX_LEVELS:
            raise DefiniteError(f"the event's schema is nested more than {MAX_LEVELS} levels deep", place=".".join(path))
        nodes.append([len(members), len(shape.members), int(shape.strict)])
        for name, below in shape.members.items():
            text = name.encode()
            noted = name not in shape.passed
            if noted:
                slots[(*path, name)] = len(slots)
            # Breadth-first order.
            child = len(nodes) + len(waiting) if below is not None else -1
            members.append([len(names), len(text), int(_is_plain(name)), child, len(slots) - 1 if noted else -1])
            names += text
            if below is not None:
                waiting.append((below, (*path, name)))
    return ScanProgram(
        np.frombuffer(names + bytearray(_NAME_PADDING), dtype=np.uint8),
        np.array(nodes, dtype=np.int64).reshape(-1, NODE_COLUMNS),
        np.array(members, dtype=np.int64).reshape(-1, MEMBER_COLUMNS),
        slots,
        max((member[1] for member in members), default=0),
    )


def _is_plain(name: str) -> bool:
    return not any(character in '"\\' or character < " " for character in name)


class TextColumn:
    """JSON texts in one buffer."""

    def __init__(self, data: Bytes, starts: Table, stops: Table) -> None:
        self.data, self.starts, self.stops = data, starts, stops

    @classmethod
    def of(cls, values: pa.BinaryArray) -> TextColumn:
        """Wrap an Arrow array without copying it; NULL is an empty text."""
        offsets = np.frombuffer(values.buffers()[1], dtype=np.int32, count=len(values) + 1 + values.offset)[values.offset :].astype(
            np.int64
        )
        raw = values.buffers()[2]
        data = np.frombuffer(raw, dtype=np.uint8) if raw is not None and raw.size else np.zeros(1, dtype=np.uint8)
        return cls(data, offsets[:-1].copy(), offsets[1:].copy())

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Rows | Mask) -> TextColumn:
        return TextColumn(self.data, self.starts[rows], self.stops[rows])

    def text(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.stops[row]].tobytes()


class ScannedRecords:
    """Texts with the positions of the requested values."""

    def __init__(self, texts: TextColumn, program: ScanProgram) -> None:
        self.texts, self._slots = texts, program.slots
        rows, slots = len(texts), max(len(program.slots), 1)
        # Rows of a length that is a power of two would all be written through the same lines of a cache.
        wide = rows + _PADDING
        self._begins = np.empty((slots, wide), dtype=np.int32)
        self._ends = np.empty((slots, wide), dtype=np.int32)
        self._kinds = np.zeros((slots, wide), dtype=np.uint8)
        self._counts = np.zeros((slots, KINDS), dtype=np.int64)
        self._status = np.empty((rows, 2), dtype=np.int64)
        self._unknown = np.zeros((rows, 2), dtype=np.int64)
        scratch = np.empty(6 * program.longest_name + 8, dtype=np.uint8)
        scan(
            texts.data,
            texts.starts,
            texts.stops,
            program.names,
            program.nodes,
            program.members,
            self._begins,
            self._ends,
            self._kinds,
            self._counts,
            self._status,
            self._unknown,
            scratch,
        )
        self.problems: dict[int, str] = {}
        """The problem of each unreadable row."""
        for row in np.flatnonzero(self._status[:, 0]).tolist():
            self.problems[row] = f"{_REASONS[int(self._status[row, 0])]}{self._spot(row)}"

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def good(self) -> Mask:
        mask = np.ones(len(self), dtype=np.bool_)
        mask[list(self.problems)] = False
        return mask

    @property
    def strangers(self) -> Rows:
        """Texts with a member that a strict part of the program does not list."""
        return np.flatnonzero(self._unknown[:, 1])

    def mark(self, row: int, problem: str) -> None:
        self.problems.setdefault(row, problem)

    def kinds(self, path: Path) -> Kinds:
        slot = self._slots.get(path)
        return np.zeros(len(self), dtype=np.uint8) if slot is None else self._kinds[slot, : len(self)]

    def counts(self, path: Path) -> Table:
        """Return the number of values of each kind, including those of unreadable texts; ABSENT is not counted."""
        slot = self._slots.get(path)
        return np.zeros(KINDS, dtype=np.int64) if slot is None else self._counts[slot]

    def values(self, path: Path) -> ScannedValues:
        slot = self._slots.get(path)
        if slot is None:
            nothing = np.zeros(len(self), dtype=np.int32)
            return ScannedValues(self, path, nothing, nothing, np.zeros(len(self), dtype=np.uint8))
        rows = len(self)
        return ScannedValues(self, path, self._begins[slot, :rows], self._ends[slot, :rows], self._kinds[slot, :rows])

    def _spot(self, row: int) -> str:
        """Position in the text, and the JSON type there."""
        code, start = int(self._status[row, 0]), int(self.texts.starts[row])
        if code == grammar.TWICE:
            return f" ({self._last_name(row)})"
        at = int(self._status[row, 1])
        return f" (byte {at - start} of {int(self.texts.stops[row]) - start})" if at >= start else ""

    def _last_name(self, row: int) -> str:
        before = self.texts.data[self.texts.starts[row] : self._status[row, 1]].tobytes().rstrip(b" \t\r\n:")
        return before[before.rfind(b'"', 0, -1) :].decode(errors="replace")


class ScannedValues:
    def __init__(self, scanned: ScannedRecords, path: Path, begins: Places, ends: Places, kinds: Kinds) -> None:
        self._scanned, self._path = scanned, path
        self._begins, self._ends, self.kinds = begins, ends, kinds

    def or_else(self, mask: Mask, other: ScannedValues) -> ScannedValues:
        rows = len(mask)
        found = np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows, np.uint8)
        pick(mask.view(np.uint8), self._begins, self._ends, self.kinds, other._begins, other._ends, other.kinds, *found)
        return ScannedValues(self._scanned, self._path, *found)

    def only(self, mask: Mask) -> ScannedValues:
        return ScannedValues(self._scanned, self._path, self._begins, self._ends, np.where(mask, self.kinds, np.uint8(grammar.ABSENT)))

    def whole(self, field_type: str = "int64") -> pa.Int64Array:
        """Return integers; a number out of the type's range is a problem."""
        rows = len(self.kinds)
        out, valid, bad = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.uint8), np.zeros(rows, dtype=np.uint8)
        if read_whole(self._scanned.texts.data, self._begins, self._ends, self.kinds, out, valid, bad):
            self.mark(bad, "a whole number")
        edge = _RANGES.get(field_type)
        if edge is not None:
            outside = (out >= edge) | (out < -edge)
            for row in np.flatnonzero(outside).tolist():
                self._scanned.mark(row, f"the field {self.name} holds {out[row]}, which does not fit {field_type}")
        return pa.Array.from_buffers(pa.int64(), rows, [_bitmap(valid), pa.py_buffer(out)])

    def text(self) -> pa.StringArray:
        return self._tokens(_TEXTS, "a text")

    def text_if_any(self) -> pa.StringArray:
        """Return strings; other values are NULL, without a problem."""
        return self.only((self.kinds == grammar.TEXT) | (self.kinds == grammar.ESCAPED)).text()

    def raw(self, *kinds: int) -> pa.StringArray:
        return self._tokens(sum(1 << kind for kind in kinds), " or ".join(dict.fromkeys(_KIND_NAMES[kind] for kind in kinds)))

    def double(self) -> pa.DoubleArray:
        texts = (self.kinds == grammar.TEXT) | (self.kinds == grammar.ESCAPED)
        tokens = self._tokens(_NUMBERS | (_TEXTS if texts.any() else 0), "a number")
        if texts.any():
            odd = texts & ~pc.is_in(tokens, value_set=pa.array(_SPECIAL)).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(odd).tolist():
                self._scanned.mark(row, f"the field {self.name} holds a text, where a number is expected")
            tokens = pc.if_else(pa.array(odd), pa.scalar(None, pa.string()), tokens)
        numbers = pc.cast(tokens, pa.float64())
        endless = pc.fill_null(pc.is_inf(numbers), False).to_numpy(zero_copy_only=False) & ~texts
        for row in np.flatnonzero(endless).tolist():
            self._scanned.mark(row, f"the field {self.name} holds a number that no double can hold")
        return numbers

    def letters(self) -> Kinds:
        """Return the code of one-letter texts; 0 for other values."""
        single = (self.kinds == grammar.TEXT) & (self._ends - self._begins == 1)
        return np.where(single, self._scanned.texts.data[np.where(single, self._begins, 0)], np.uint8(0))

    def text_or_truth_if_any(self) -> pa.StringArray:
        """Strings, and booleans as `true` and `false`; other values are NULL without a problem."""
        if not ((self.kinds == grammar.TRUE) | (self.kinds == grammar.FALSE)).any():
            return self.text_if_any()
        kinds = (grammar.TRUE, grammar.FALSE, grammar.TEXT, grammar.ESCAPED)
        return self.only(np.isin(self.kinds, kinds)).raw(*kinds)

    def shown(self, row: int) -> str:
        return self._scanned.texts.data[self._begins[row] : self._ends[row]].tobytes()[:40].decode(errors="replace")

    def truth(self) -> pa.BooleanArray:
        true, false = self.kinds == grammar.TRUE, self.kinds == grammar.FALSE
        bad = ~(true | false | (self.kinds <= grammar.NULL))
        self.mark(bad.astype(np.uint8), "a truth value")
        return pa.Array.from_buffers(pa.bool_(), len(true), [_bitmap((true | false).view(np.uint8)), _bitmap(true.view(np.uint8))])

    @property
    def name(self) -> str:
        return ".".join(self._path)

    def _tokens(self, taken: int, expected: str) -> pa.StringArray:
        rows = len(self.kinds)
        size = tokens_size(self._begins, self._ends, self.kinds, taken)
        offsets, out = np.empty(rows + 1, dtype=np.int32), np.empty(size + 64, dtype=np.uint8)
        valid, bad = np.empty(rows, dtype=np.uint8), np.zeros(rows, dtype=np.uint8)
        if copy_tokens(self._scanned.texts.data, self._begins, self._ends, self.kinds, taken, offsets, out, valid, bad):
            self.mark(bad, expected)
        return pa.Array.from_buffers(pa.string(), rows, [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(out)])

    def mark(self, bad: Kinds, expected: str) -> None:
        for row in np.flatnonzero(bad != FINE).tolist():
            if bad[row] == TOO_BIG:
                problem = f"the field {self.name} holds a number that 64 bits cannot hold"
            else:
                problem = f"the field {self.name} holds {_KIND_NAMES[int(self.kinds[row])]}, where {expected} is expected"
            self._scanned.mark(row, problem)


def _bitmap(valid: Kinds) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def wire_array(scanned: ScannedRecords, field: ConnectField, path: Path, chosen: Mask | None = None, other: Path | None = None) -> pa.Array:
    """Return a field's values in its wire type, from `path` where `chosen`, elsewhere from `other` (NULL without one)."""
    values = _picked(scanned, path, chosen, other)
    match field.type:
        case "int8" | "int16" | "int32" | "int64":
            return values.whole(field.type)
        case "float32" | "float64" | "float" | "double":
            return values.double()
        case "boolean":
            return values.truth()
        case "number":
            return values.raw(grammar.WHOLE, grammar.NUMBER)
        case "map":
            return values.raw(grammar.OBJECT, grammar.ARRAY)
        case "array":
            return _lists(scanned, values, field)
        case "struct":
            return _struct(scanned, values, field, path, chosen, other)
    return values.text()


def as_written(
    scanned: ScannedRecords, field: ConnectField, path: Path, *, described: bool, chosen: Mask | None = None, other: Path | None = None
) -> ConnectField:
    """The field by how its values are written, where a converter may write them in another way than expected.

    Decimals may be numbers (decimal.format=NUMERIC). Of rows that no schema describes, a column of small numbers may be one of truth
    values, and a document may be written as what it is. Where values are written in both ways, the expected one counts.
    """
    otherwise, usual, kinds = _otherwise(field, described=described)
    if not kinds:
        return field
    counts = np.bincount(_picked(scanned, path, chosen, other).kinds, minlength=grammar.ARRAY + 1)
    changed = any(counts[kind] for kind in kinds) and not any(counts[kind] for kind in usual)
    return replace(field, type=otherwise, semantic="", parameters={}) if changed else field


def _otherwise(field: ConnectField, *, described: bool) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the other type, the JSON kinds of the expected type, and those of the other."""
    if field.semantic == DECIMAL:
        return NUMERIC, (grammar.TEXT, grammar.ESCAPED), (grammar.WHOLE, grammar.NUMBER)
    if not described and field.type in ("int8", "int16", "int32"):
        return "boolean", (grammar.WHOLE, grammar.NUMBER), (grammar.TRUE, grammar.FALSE)
    if not described and field.semantic == _DOCUMENT:
        return "map", (grammar.TEXT, grammar.ESCAPED), (grammar.OBJECT, grammar.ARRAY)
    return "", (), ()


def _picked(scanned: ScannedRecords, path: Path, chosen: Mask | None, other: Path | None) -> ScannedValues:
    values = scanned.values(path)
    if chosen is None:
        return values
    return values.only(chosen) if other is None else values.or_else(chosen, scanned.values(other))


def _struct(
    scanned: ScannedRecords, values: ScannedValues, field: ConnectField, path: Path, chosen: Mask | None, other: Path | None
) -> pa.StructArray:
    children = [
        wire_array(scanned, inner, (*path, inner.name), chosen, None if other is None else (*other, inner.name)) for inner in field.fields
    ]
    bad = (values.kinds > grammar.NULL) & (values.kinds != grammar.OBJECT)
    values.mark(bad.astype(np.uint8), "an object")
    there = pa.array(values.kinds == grammar.OBJECT)
    return pa.StructArray.from_arrays(
        children, fields=[pa.field(inner.name, wire_type(inner, WireFormat.JSON)) for inner in field.fields], mask=pc.invert(there)
    )


def _lists(scanned: ScannedRecords, values: ScannedValues, field: ConnectField) -> pa.ListArray:
    """Parse arrays with Arrow's parser: each is a line of JSON."""
    wanted = wire_type(field, WireFormat.JSON)
    lines = values.raw(grammar.ARRAY)
    if not len(lines):
        return pa.array([], wanted)
    filled = pc.fill_null(lines, "null")
    # A text may hold the line's end only as an escape; between values it is space.
    flat = pc.replace_substring(pc.replace_substring(filled, "\n", " "), "\r", " ")
    joined = pc.binary_join_element_wise('{"v":', flat, "}\n", "")
    data = joined.buffers()[2].slice(0, int(np.frombuffer(joined.buffers()[1], dtype=np.int32)[len(joined)]))
    options = pj.ParseOptions(explicit_schema=pa.schema([("v", wanted)]), unexpected_field_behavior="error")
    try:
        table = pj.read_json(
            pa.BufferReader(data), parse_options=options, read_options=pj.ReadOptions(use_threads=False, block_size=1 << 30)
        )
    except pa.ArrowInvalid:
        return _lists_one_by_one(scanned, values, lines, wanted)
    return table["v"].combine_chunks()


def _lists_one_by_one(scanned: ScannedRecords, values: ScannedValues, lines: pa.StringArray, wanted: pa.DataType) -> pa.ListArray:
    """Find the array that is not of the wanted type, and read the others."""
    found: list[pa.Array] = []
    options = pj.ParseOptions(explicit_schema=pa.schema([("v", wanted)]))
    for row, line in enumerate(lines.to_pylist()):
        try:
            text = "null" if line is None else line.replace("\n", " ").replace("\r", " ")
            read = pj.read_json(pa.BufferReader(f'{{"v":{text}}}\n'.encode()), parse_options=options)
            found.append(read["v"].combine_chunks())
        except pa.ArrowInvalid:
            scanned.mark(row, f"the field {values.name} holds an array with a value of another type than {wanted.value_type}")
            found.append(pa.nulls(1, wanted))
    return pa.concat_arrays(found)
