"""Encodes Arrow columns as bodies of one schema, in bulk.

Every field is a column, a constant (`pa.Scalar`), or, for a map, a `MapColumns`: one entry per column. Structs, lists and maps
in columns become records, arrays and maps; a union of several types is a struct with a member for each branch, as the decoder gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro import opcodes as o
from headrace.kafka.avro.default_values import encode_default, encode_number, encode_run
from headrace.kafka.avro.encode_kernel import encode_rows
from headrace.kafka.avro.schema import MAX_DEPTH, AvroField, AvroKind, AvroSchema, AvroType

_ARROW: Final = {
    AvroKind.BOOLEAN: pa.bool_(),
    AvroKind.INT: pa.int32(),
    AvroKind.LONG: pa.int64(),
    AvroKind.FLOAT: pa.float32(),
    AvroKind.DOUBLE: pa.float64(),
    AvroKind.BYTES: pa.binary(),
    AvroKind.STRING: pa.string(),
}
_STEPS: Final = {
    AvroKind.BOOLEAN: (o.W_BOOLEAN, 0),
    AvroKind.INT: (o.W_INT, 0),
    AvroKind.LONG: (o.W_LONG, 0),
    AvroKind.FLOAT: (o.W_RAW, 4),
    AvroKind.DOUBLE: (o.W_RAW, 8),
    AvroKind.BYTES: (o.W_BYTES, 0),
    AvroKind.STRING: (o.W_BYTES, 0),
    AvroKind.ENUM: (o.W_INT, 0),
}
_LARGEST: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class MapColumns:
    """A map with one entry per column.

    An entry that is not `present` is omitted. A column without a `present` mask omits its NULLs, unless the map's values are nullable.
    """

    entries: Mapping[str, pa.Array]
    present: Mapping[str, pa.BooleanArray] = field(default_factory=dict)


Source: TypeAlias = Any
"""`pa.Array | pa.Scalar | MapOf`; pyarrow has no types for the checker."""


class Encoder:
    """Encodes bodies of one schema, which is a record."""

    def __init__(self, schema: AvroSchema) -> None:
        if schema.root.kind is not AvroKind.RECORD:
            raise DefiniteError(f"messages must be records, not {schema.root.label}", hint="give the schema of a record")
        self._root = schema.root
        self._row_bytes = 0.0

    def encode(self, columns: Mapping[str, Source], *, rows: int | None = None, prefix: bytes = b"") -> pa.BinaryArray:
        """Return a body for each row, with `prefix` before it. `rows` is needed only if no field is a column.

        A field without a column is written as its default. A NULL where the schema allows none is a `DefiniteError`.
        """
        count = _rows_of(columns, rows)
        unknown = [name for name in columns if self._root.field(name) is None]
        if unknown:
            raise DefiniteError(f"{self._root.name} has no field {unknown[0]!r}")
        plan = _EncodePlan()
        plan.constant(prefix)
        for one in self._root.fields:
            plan.field(one, columns.get(one.name), f"{self._root.short_name}.{one.name}")
        plan.step(o.W_END)
        return self._run(plan, count)

    def _run(self, plan: _EncodePlan, rows: int) -> pa.BinaryArray:
        steps, lines = np.array(plan.steps, np.int64).reshape(-1), np.array(plan.lines or [0], np.int64)
        constants = np.frombuffer(bytes(plan.constants) or b"\0", np.uint8)
        out = np.empty(int(rows * (self._row_bytes or 32.0 + 8 * len(plan.names))) + 1024, np.uint8)
        offsets, state = np.zeros(rows + 1, np.int32), np.zeros(o.STATE, np.int64)
        index = np.zeros(plan.levels, np.int64)
        while True:
            encode_rows(steps, lines, index, constants.ctypes.data, rows, out, offsets, state)
            if state[o.STATUS] == o.DONE:
                break
            row = int(state[o.AT])
            if state[o.STATUS] == o.WRONG:
                raise DefiniteError(
                    f"{plan.names[int(state[o.ROOM_OF])]} is NULL in row {row}, and its schema does not allow that",
                    hint="make the field a union with null",
                )
            out = _longer(out, int(offsets[row]))
        used = int(offsets[rows])
        self._row_bytes = max(self._row_bytes * 0.5, used / max(rows, 1) * 1.1)
        return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(out[:used])], 0)


class _EncodePlan:
    """The program of one call, and the columns that it reads."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int, int]] = []
        self.lines: list[int] = []
        self.names: list[str] = []
        self.constants = bytearray()
        self.levels = 1
        self._pending = bytearray()
        self._kept: list[Any] = []

    def constant(self, content: bytes) -> None:
        """Add constant bytes; adjacent ones are joined to one step."""
        self._pending += content

    def step(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.here()
        self.steps.append((op, a, b, c))
        return len(self.steps) - 1

    def here(self) -> int:
        """Return the number of the next step."""
        if self._pending:
            start = len(self.constants)
            self.constants += self._pending
            self._pending = bytearray()
            self.steps.append((o.W_CONSTANT, start, len(self.constants), 0))
        return len(self.steps)

    def aim(self, step: int) -> None:
        """Set the target of a jump to the next step."""
        here = self.here()
        op, a, b, c = self.steps[step]
        self.steps[step] = (op, here, b, c) if op == o.W_JUMP else (op, a, here, c)

    def field(self, one: AvroField, source: Source | None, path: str) -> None:
        if source is None:
            if not one.has_default:
                raise DefiniteError(f"{path} has neither a column nor a default")
            self.constant(encode_default(one.type, one.default, path))
        elif isinstance(source, MapColumns):
            self._map_of(one.type, source, path)
        elif isinstance(source, pa.Scalar):
            value = source.as_py()
            self.constant(encode_default(one.type, value.decode("latin-1") if isinstance(value, bytes) else value, path))
        else:
            self.value(one.type, source, 0, path)

    def value(self, found: AvroType, array: pa.Array, level: int, path: str) -> None:
        """Write a column's value."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        match found.kind:
            case AvroKind.UNION:
                self._union(found, array, level, path)
            case AvroKind.NULL:
                return
            case AvroKind.RECORD:
                self._record(found, array, level, path)
            case AvroKind.ARRAY | AvroKind.MAP:
                self._items(found, array, level, path)
            case _:
                self._scalar(found, array, level, path)

    def _union(self, found: AvroType, array: pa.Array, level: int, path: str) -> None:
        null = next((number for number, branch in enumerate(found.branches) if branch.kind is AvroKind.NULL), None)
        if null is not None and (pa.types.is_null(array.type) or not found.values):
            self.constant(encode_number(null))
            return
        column = self._column(array, level, path) if array.null_count else -1
        missing = self.step(o.W_IF_NULL, column) if column >= 0 and null is not None else -1
        if len(found.values) == 1:
            number, branch = next((n, b) for n, b in enumerate(found.branches) if b.kind is not AvroKind.NULL)
            self.constant(encode_number(number))
            self.value(branch, array, level, path)
            ends = []
        else:
            ends = self._members(found, array, level, path)
        if missing >= 0 and null is not None:
            ends.append(self.step(o.W_JUMP))
            self.aim(missing)
            self.constant(encode_number(null))
        if ends:
            for end in ends:
                self.aim(end)

    def _members(self, found: AvroType, array: pa.Array, level: int, path: str) -> list[int]:
        """Write the first member of a struct that is not NULL. A row without any is an error at the last one."""
        if not pa.types.is_struct(array.type):
            raise DefiniteError(f"{path} is a union of several types: its column must be a struct with a member for each")
        ends = []
        given = [
            (number, branch, array.field(array.type.get_field_index(branch.label)))
            for number, branch in enumerate(found.branches)
            if branch.kind is not AvroKind.NULL and array.type.get_field_index(branch.label) >= 0
        ]
        for number, branch, member in given:
            last = number == given[-1][0]
            column = self._column(member, level, f"{path}.{branch.label}")
            absent = self.step(o.W_REQUIRED if last else o.W_IF_NULL, column)
            self.constant(encode_number(number))
            self.value(branch, member, level, f"{path}.{branch.label}")
            if not last:
                ends.append(self.step(o.W_JUMP))
                self.aim(absent)
        return ends

    def _record(self, found: AvroType, array: pa.Array, level: int, path: str) -> None:
        if not pa.types.is_struct(array.type):
            raise DefiniteError(f"{path} is a record, and its column holds {array.type}")
        if array.null_count:
            self.step(o.W_REQUIRED, self._column(array, level, path))
        for one in found.fields:
            number = array.type.get_field_index(one.name)
            inner = f"{path}.{one.name}"
            if number >= 0:
                self.value(one.type, array.field(number), level, inner)
            else:
                self.field(one, None, inner)

    def _items(self, found: AvroType, array: pa.Array, level: int, path: str) -> None:
        if pa.types.is_large_list(array.type):
            array = array.cast(pa.list_(array.type.value_type))
        fits = pa.types.is_map(array.type) if found.kind is AvroKind.MAP else pa.types.is_list(array.type)
        if not fits:
            raise DefiniteError(f"{path} is {found.kind.value}, and its column holds {array.type}")
        inner = self.levels
        self.levels += 1
        if self.levels > MAX_DEPTH:
            raise DefiniteError(f"{path}: more than {MAX_DEPTH} arrays and maps in one schema")
        column = self._column(array, level, path)
        loop = self.step(o.W_LOOP, column, 0, inner)
        if found.kind is AvroKind.MAP:
            self._scalar(AvroType(AvroKind.STRING), array.keys, inner, f"{path} (keys)")
            self.value(found.content, array.items, inner, f"{path}[]")
        else:
            self.value(found.content, array.values, inner, f"{path}[]")
        self.step(o.W_ITEM, column, loop, inner)
        self.aim(loop)

    def _map_of(self, found: AvroType, source: MapColumns, path: str) -> None:
        if found.kind is not AvroKind.MAP:
            raise DefiniteError(f"{path} is not a map")
        always, conditions = 0, {}
        for name, array in source.entries.items():
            if name in source.present:
                conditions[name] = self._mask(source.present[name], f"{path}[{name}]")
            elif array.null_count and not found.content.nullable:
                conditions[name] = self._column(array, 0, f"{path}[{name}]")
            else:
                always += 1
        for condition in conditions.values():
            self.step(o.W_TALLY, condition)
        head = self.step(o.W_ENTRIES, always) if conditions else -1
        if head < 0:
            self.constant(encode_number(always))
        for name, array in source.entries.items():
            absent = self.step(o.W_IF_NULL, conditions[name]) if name in conditions else -1
            self.constant(encode_run(name.encode()))
            self.value(found.content, array, 0, f"{path}[{name}]")
            if absent >= 0:
                self.aim(absent)
        if head >= 0 or always:
            self.constant(b"\0")
        if head >= 0:
            self.aim(head)

    def _scalar(self, found: AvroType, array: pa.Array, level: int, path: str) -> None:
        if found.kind is AvroKind.ENUM:
            array = _symbols(found, array, path)
        elif found.kind is AvroKind.FIXED:
            array = _cast(array, pa.binary(found.size), path)
        else:
            array = _cast(array, _ARROW[found.kind], path)
        op, size = _STEPS.get(found.kind, (o.W_RAW, found.size))
        self.step(op, self._column(array, level, path), size)

    def _column(self, array: pa.Array, level: int, path: str) -> int:
        """Return the table line of a column's buffers."""
        buffers = array.buffers()
        validity = buffers[0] if buffers else None
        values = buffers[1] if len(buffers) > 1 and not pa.types.is_struct(array.type) else None
        run = pa.types.is_binary(array.type) or pa.types.is_string(array.type)
        data = buffers[2] if run else None
        readable = data if run else values
        if pa.types.is_null(array.type):
            # Arrow has no bitmap for a null column.
            validity = pa.py_buffer(bytes(((len(array) + array.offset) >> 3) + 1))
        return self._line(array, level, validity if array.null_count else None, values, data, readable.size if readable else 0, path)

    def _mask(self, mask: pa.BooleanArray, path: str) -> int:
        """Return a column line whose validity is a mask."""
        if mask.null_count:
            raise DefiniteError(f"{path}: whether an entry is present cannot be NULL")
        return self._line(mask, 0, mask.buffers()[1], None, None, 0, path)

    def _line(self, array: pa.Array, level: int, validity: Any, values: Any, data: Any, size: int, path: str) -> int:
        addresses = [buffer.address if buffer is not None else 0 for buffer in (values, validity, data)]
        self._kept.append((array, validity))
        self.names.append(path)
        # C_LEVEL, C_VALUES, C_VALIDITY, C_DATA, C_DATA_SIZE, C_WIDTH, C_NULLS, and in C_ITEMS where the values begin.
        self.lines += [level, *addresses, size, 0, 0, array.offset]
        return len(self.names) - 1


def _rows_of(columns: Mapping[str, Source], rows: int | None) -> int:
    lengths = {
        len(array)
        for source in columns.values()
        if not isinstance(source, pa.Scalar)
        for array in ([*source.entries.values(), *source.present.values()] if isinstance(source, MapColumns) else [source])
    }
    if rows is not None:
        lengths.add(rows)
    if len(lengths) != 1:
        raise DefiniteError(f"columns of different lengths cannot be written as rows: {sorted(lengths)}")
    return lengths.pop()


def _cast(array: pa.Array, wanted: pa.DataType, path: str) -> pa.Array:
    if array.type == wanted:
        return array
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DefiniteError(f"{path}: values of type {array.type} cannot be written as {wanted}: {error}") from error


def _symbols(found: AvroType, array: pa.Array, path: str) -> pa.Array:
    """Return the numbers of an enum's symbols."""
    numbers = pc.index_in(_cast(array, pa.string(), path), value_set=pa.array(found.symbols, pa.string()))
    if numbers.null_count != array.null_count:
        raise DefiniteError(
            f"{path} holds a value that is not a symbol of the enum {found.name}", hint=f"its symbols are {', '.join(found.symbols)}"
        )
    return numbers


def _longer(out: np.ndarray[Any, np.dtype[np.uint8]], used: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if len(out) >= _LARGEST:
        raise DefiniteError("the messages of one block take more than 2 GiB", hint="write smaller blocks")
    found = np.empty(min(2 * len(out), _LARGEST), np.uint8)
    found[:used] = out[:used]
    return found
