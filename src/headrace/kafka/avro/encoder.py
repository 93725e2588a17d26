"""Encodes Arrow columns as bodies of one schema, in bulk.

Every field is a column, a constant (`pa.Scalar`), or, for a map, a `MapColumns`: one entry per column. Columns hold single values, not
structs, lists or maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro import opcodes as o
from headrace.kafka.avro.encode_kernel import encode_rows
from headrace.kafka.avro.program import encode_default, encode_number, encode_run
from headrace.kafka.avro.schema import AvroField, AvroKind, AvroSchema, AvroType

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
}
_LARGEST: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class MapColumns:
    """A map with one entry per column.

    An entry that is NULL is omitted, unless the map's values are nullable.
    """

    entries: Mapping[str, pa.Array]


Source: TypeAlias = Any
"""`pa.Array | pa.Scalar | MapColumns`; pyarrow has no types for the checker."""


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
        while True:
            encode_rows(steps, lines, constants.ctypes.data, rows, out, offsets, state)
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
        if self._pending:
            start = len(self.constants)
            self.constants += self._pending
            self._pending = bytearray()
            self.steps.append((o.W_CONSTANT, start, len(self.constants), 0))
        return len(self.steps)

    def aim(self, step: int) -> None:
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
            self.value(one.type, source, path)

    def value(self, found: AvroType, array: pa.Array, path: str) -> None:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if found.kind is AvroKind.UNION:
            self._union(found, array, path)
        elif found.kind is not AvroKind.NULL:
            self._scalar(found, array, path)

    def _union(self, found: AvroType, array: pa.Array, path: str) -> None:
        null = next((number for number, branch in enumerate(found.branches) if branch.kind is AvroKind.NULL), None)
        if null is not None and (pa.types.is_null(array.type) or not found.values):
            self.constant(encode_number(null))
            return
        if len(found.values) != 1:
            raise DefiniteError(f"{path} is a union of several types: a column has only one")
        missing = self.step(o.W_IF_NULL, self._column(array, path)) if array.null_count and null is not None else -1
        self.constant(encode_number(found.branches.index(found.values[0])))
        self.value(found.values[0], array, path)
        if missing >= 0 and null is not None:
            end = self.step(o.W_JUMP)
            self.aim(missing)
            self.constant(encode_number(null))
            self.aim(end)

    def _map_of(self, found: AvroType, source: MapColumns, path: str) -> None:
        if found.kind is not AvroKind.MAP:
            raise DefiniteError(f"{path} is not a map")
        always, conditions = 0, {}
        for name, array in source.entries.items():
            if array.null_count and not found.content.nullable:
                conditions[name] = self._column(array, f"{path}[{name}]")
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
            self.value(found.content, array, f"{path}[{name}]")
            if absent >= 0:
                self.aim(absent)
        if head >= 0 or always:
            self.constant(b"\0")
        if head >= 0:
            self.aim(head)

    def _scalar(self, found: AvroType, array: pa.Array, path: str) -> None:
        wanted = pa.binary(found.size) if found.kind is AvroKind.FIXED else _ARROW.get(found.kind)
        if wanted is None:
            raise DefiniteError(f"{path} is {found.kind.value}, and its column holds {array.type}")
        op, size = _STEPS.get(found.kind, (o.W_RAW, found.size))
        self.step(op, self._column(_cast(array, wanted, path), path), size)

    def _column(self, array: pa.Array, path: str) -> int:
        """Return the table line of a column's buffers."""
        validity, values, data = (*array.buffers(), None, None)[:3]
        if pa.types.is_null(array.type):
            # Arrow has no bitmap for a null column.
            validity = pa.py_buffer(bytes(((len(array) + array.offset) >> 3) + 1))
        readable = data if pa.types.is_binary(array.type) or pa.types.is_string(array.type) else values
        addresses = [buffer.address if buffer is not None else 0 for buffer in (values, validity if array.null_count else None, data)]
        self._kept.append((array, validity))
        self.names.append(path)
        # C_LEVEL, C_VALUES, C_VALIDITY, C_DATA, C_DATA_SIZE, C_WIDTH, C_NULLS, and in C_ITEMS where the values begin.
        self.lines += [0, *addresses, readable.size if readable is not None else 0, 0, 0, array.offset]
        return len(self.names) - 1


def _rows_of(columns: Mapping[str, Source], rows: int | None) -> int:
    lengths = {
        len(array)
        for source in columns.values()
        if not isinstance(source, pa.Scalar)
        for array in (source.entries.values() if isinstance(source, MapColumns) else [source])
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


def _longer(out: np.ndarray[Any, np.dtype[np.uint8]], used: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if len(out) >= _LARGEST:
        raise DefiniteError("the messages of one block take more than 2 GiB", hint="write smaller blocks")
    found = np.empty(min(2 * len(out), _LARGEST), np.uint8)
    found[:used] = out[:used]
    return found
