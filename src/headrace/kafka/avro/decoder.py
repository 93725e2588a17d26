"""Bulk decoder of Avro bodies of one schema into Arrow arrays.

Buffers are sized by the last batch's needs. When one is too small, the kernel stops, the buffer is doubled, and the kernel resumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro import opcodes as o
from headrace.kafka.avro.decode_kernel import decode_rows
from headrace.kafka.avro.program import OutputNode, compile_program
from headrace.kafka.avro.schema import AvroKind, AvroSchema
from headrace.kafka.avro.wire_header_kernel import read_ids

REASONS: Final = {
    o.TRUNCATED: "it ends too early",
    o.NUMBER_TOO_LONG: "it holds a number of more than 64 bits",
    o.INT_TOO_LARGE: "it holds an int of more than 32 bits",
    o.BAD_LENGTH: "it holds a length that goes past its end",
    o.BAD_TEXT: "it holds a string that is not UTF-8",
    o.BAD_BRANCH: "it names a branch that the schema's union does not have",
    o.BAD_SYMBOL: "it names a symbol that the enum does not have",
    o.BAD_BOOLEAN: "it holds a boolean that is neither 0 nor 1",
    o.LEFT_OVER: "it is longer than its schema says",
    o.UNREADABLE_BRANCH: "it holds a type that the reader's schema has no place for",
    o.TOO_MANY_ITEMS: "it claims too many empty items",
}
_LARGEST: Final = (1 << 31) - 1
_FIRST_RUN: Final = 24
"""Expected bytes per text before any was read."""
ID_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class UndecodableRecord:
    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """One row per body; NULL where the body is missing or bad."""

    values: pa.Array
    """A struct array, where the reader's schema is a record."""
    bad: tuple[UndecodableRecord, ...] = ()


class Decoder:
    """Decodes bodies of a writer's schema as a reader's schema (or the same)."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema | None = None) -> None:
        wanted = reader or writer
        self._program = compile_program(writer.root, wanted.root)
        self._constants = np.frombuffer(self._program.constants or b"\0", np.uint8)
        self._items = [0.0] * self._program.levels
        self._bytes = [float(_FIRST_RUN)] * len(self._program.columns)
        self.type: pa.DataType = self._program.root.type

    def decode(self, bodies: pa.BinaryArray, *, skip: int = 0) -> DecodedColumns:
        """Decode every body, after `skip` bytes of each (a header). Bad bodies are listed, never raised."""
        rows, program = len(bodies), self._program
        if not pa.types.is_binary(bodies.type):
            bodies = bodies.cast(pa.binary())
        buffers = _Buffers(program.columns, program.levels, rows, self._items, self._bytes)
        reasons = np.zeros(rows, np.int32)
        state, before = np.zeros(o.STATE, np.int64), np.zeros(program.levels, np.int64)
        validity, offsets, data = bodies.buffers()
        while rows:
            decode_rows(
                program.steps,
                program.null_step,
                data.address if data else 0,
                offsets.address,
                validity.address if validity else 0,
                bodies.offset,
                rows,
                skip,
                buffers.lines,
                buffers.levels,
                self._constants.ctypes.data,
                program.tables.ctypes.data,
                reasons,
                before,
                state,
            )
            if state[o.STATUS] == o.DONE:
                break
            buffers.grow(int(state[o.STATUS]), int(state[o.ROOM_OF]), int(state[o.ROOM_NEEDED]))
        self._remember(buffers, rows)
        found = np.flatnonzero(reasons > o.ABSENT)
        bad = tuple(UndecodableRecord(int(row), REASONS[int(reasons[row])]) for row in found)
        if program.root.number < 0:
            return DecodedColumns(pa.nulls(rows), bad)
        return DecodedColumns(buffers.array(program.root), bad)

    def _remember(self, buffers: _Buffers, rows: int) -> None:
        for level in range(1, len(self._items)):
            self._items[level] = max(self._items[level] * 0.5, buffers.count(level) / max(rows, 1) * 1.1)
        for node in self._program.columns:
            if node.width == o.W_RUN:
                per_value = buffers.used(node) / max(buffers.count(node.level), 1) * 1.1
                self._bytes[node.number] = max(self._bytes[node.number] * 0.5, per_value)


class _Buffers:
    """The memory that the kernel fills, column by column."""

    def __init__(self, columns: list[OutputNode], levels: int, rows: int, items: list[float], run_bytes: list[float]) -> None:
        self._columns = columns
        self.levels = np.zeros(levels * o.L_LINE, np.int64)
        self.lines = np.zeros(max(len(columns), 1) * o.C_LINE, np.int64)
        self._kept: dict[tuple[int, int], np.ndarray[Any, np.dtype[np.uint8]]] = {}
        for level in range(levels):
            self.levels[level * o.L_LINE + o.L_ROOM] = rows if level == 0 else int(rows * items[level]) + 64
        for node in columns:
            line = node.number * o.C_LINE
            self.lines[line + o.C_LEVEL], self.lines[line + o.C_WIDTH], self.lines[line + o.C_ITEMS] = node.level, node.width, node.items
            room = self._room(node.level)
            self._put(node, o.C_VALIDITY, np.full((room >> 3) + 1, 0xFF, np.uint8))
            self._put(node, o.C_VALUES, _values(node, room))
            if node.width == o.W_RUN:
                self._put_data(node, np.empty(min(int(room * run_bytes[node.number]) + 1024, _LARGEST), np.uint8))

    def count(self, level: int) -> int:
        return int(self.levels[level * o.L_LINE + o.L_COUNT])

    def used(self, node: OutputNode) -> int:
        """Bytes of a column's data; for arrays, items."""
        offsets = self._kept[node.number, o.C_VALUES].view(np.int32)
        return int(offsets[self.count(node.level)])

    def grow(self, status: int, which: int, needed: int) -> None:
        """Double the room of the column that was too small."""
        if needed > _LARGEST:
            raise DefiniteError(
                "a batch of Avro messages has columns of more than 2 GiB", hint="read fewer records at once (maxOffsetsPerTrigger)"
            )
        if status == o.DATA_FULL:
            node, old = self._columns[which], self._kept[which, o.C_DATA]
            self._put_data(node, _longer(old, min(max(needed, 2 * len(old)), _LARGEST)))
            return
        room = max(2 * self._room(which), needed)
        self.levels[which * o.L_LINE + o.L_ROOM] = room
        for node in self._columns:
            if node.level == which:
                self._put(node, o.C_VALIDITY, _longer(self._kept[node.number, o.C_VALIDITY], (room >> 3) + 1, 0xFF))
                values = self._kept[node.number, o.C_VALUES]
                self._put(node, o.C_VALUES, _longer(values, _values_size(node, room)))

    def array(self, node: OutputNode) -> pa.Array:
        rows = self.count(node.level)
        if node.number < 0:
            return pa.nulls(rows)
        nulls = int(self.lines[node.number * o.C_LINE + o.C_NULLS])
        validity = pa.py_buffer(self._kept[node.number, o.C_VALIDITY]) if nulls else None
        values = self._kept[node.number, o.C_VALUES]
        unknown = -1 if nulls else 0
        if node.items >= 0:
            children = [self.array(child) for child in node.children]
            if node.kind is AvroKind.MAP:
                key, value = children
                fields = [node.type.key_field, node.type.item_field]
                children = [pa.StructArray.from_arrays([key, value], fields=fields)]
            return pa.Array.from_buffers(node.type, rows, [validity, pa.py_buffer(values)], unknown, children=children)
        if node.width == o.W_NOTHING and node.kind is not AvroKind.FIXED:
            children = [self.array(child) for child in node.children]
            return pa.Array.from_buffers(node.type, rows, [validity], unknown, children=children)
        if node.width == o.W_RUN:
            data = self._kept[node.number, o.C_DATA][: self.used(node)]
            return pa.Array.from_buffers(node.type, rows, [validity, pa.py_buffer(values), pa.py_buffer(data)], unknown)
        if node.kind is AvroKind.ENUM:
            indices = pa.Array.from_buffers(pa.int32(), rows, [validity, pa.py_buffer(values)], unknown)
            return pa.array(node.symbols, pa.string()).take(indices)
        if node.kind is AvroKind.BOOLEAN:
            values = np.packbits(values[:rows], bitorder="little")
        return pa.Array.from_buffers(node.type, rows, [validity, pa.py_buffer(values)], unknown)

    def _room(self, level: int) -> int:
        return int(self.levels[level * o.L_LINE + o.L_ROOM])

    def _put(self, node: OutputNode, cell: int, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._kept[node.number, cell] = memory
        self.lines[node.number * o.C_LINE + cell] = memory.ctypes.data

    def _put_data(self, node: OutputNode, memory: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._put(node, o.C_DATA, memory)
        self.lines[node.number * o.C_LINE + o.C_DATA_SIZE] = len(memory)


def _values_size(node: OutputNode, room: int) -> int:
    return room * node.width if node.width >= 0 else 4 * (room + 1)


def _values(node: OutputNode, room: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = np.empty(max(_values_size(node, room), 1), np.uint8)
    if node.width < 0:
        found[:4] = 0
    return found


def _longer(old: np.ndarray[Any, np.dtype[np.uint8]], size: int, rest: int | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found = np.empty(max(size, len(old)), np.uint8) if rest is None else np.full(max(size, len(old)), rest, np.uint8)
    found[: len(old)] = old
    return found


def schema_ids(messages: pa.BinaryArray, id_bytes: int = ID_BYTES) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the schema id of each message, and which messages have one; NULL has none."""
    ids = np.full(len(messages), -1, np.int64)
    validity, offsets, data = messages.buffers()
    if len(messages) and data is not None:
        read_ids(data.address, offsets.address, validity.address if validity else 0, messages.offset, id_bytes, ids)
    return ids, ids >= 0
