"""Compiles a schema, or a pair of writer's and reader's schemas, to a program for the decoder kernel, and to the columns that it fills.

Columns follow the reader's schema: a record is a struct, a nullable union its other branch, a union of several types a struct with a member
for each (named as the branch is, at most one of them there), an enum a text, an array a list, a map a map. Values come in the
writer's order: a column is named by its number, so fields that were moved, dropped, added or promoted cost nothing more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro import opcodes as o
from headrace.kafka.avro.schema import AvroField, AvroKind, AvroType, branch_for, matches, source_of

_ARROW: Final = {
    AvroKind.BOOLEAN: pa.bool_(),
    AvroKind.INT: pa.int32(),
    AvroKind.LONG: pa.int64(),
    AvroKind.FLOAT: pa.float32(),
    AvroKind.DOUBLE: pa.float64(),
    AvroKind.BYTES: pa.binary(),
    AvroKind.STRING: pa.string(),
    AvroKind.ENUM: pa.string(),
    AvroKind.NULL: pa.null(),
}
_WIDTHS: Final = {AvroKind.BOOLEAN: 1, AvroKind.INT: 4, AvroKind.LONG: 8, AvroKind.FLOAT: 4, AvroKind.DOUBLE: 8, AvroKind.ENUM: 4}
_LEAST: Final = {AvroKind.NULL: 0, AvroKind.FLOAT: 4, AvroKind.DOUBLE: 8}
_READ: Final = {
    (AvroKind.INT, AvroKind.INT): o.INT,
    (AvroKind.INT, AvroKind.LONG): o.INT_AS_LONG,
    (AvroKind.INT, AvroKind.FLOAT): o.INT_AS_FLOAT,
    (AvroKind.INT, AvroKind.DOUBLE): o.INT_AS_DOUBLE,
    (AvroKind.LONG, AvroKind.LONG): o.LONG,
    (AvroKind.LONG, AvroKind.FLOAT): o.LONG_AS_FLOAT,
    (AvroKind.LONG, AvroKind.DOUBLE): o.LONG_AS_DOUBLE,
    (AvroKind.FLOAT, AvroKind.FLOAT): o.FLOAT,
    (AvroKind.FLOAT, AvroKind.DOUBLE): o.FLOAT_AS_DOUBLE,
    (AvroKind.DOUBLE, AvroKind.DOUBLE): o.DOUBLE,
    (AvroKind.BOOLEAN, AvroKind.BOOLEAN): o.BOOLEAN,
    (AvroKind.STRING, AvroKind.STRING): o.STRING,
    (AvroKind.BYTES, AvroKind.STRING): o.STRING,
    (AvroKind.BYTES, AvroKind.BYTES): o.BYTES,
    (AvroKind.STRING, AvroKind.BYTES): o.BYTES,
}


@dataclass(frozen=True, slots=True)
class OutputNode:
    number: int
    """-1 for null, which has no column."""
    kind: AvroKind
    """The kind of its values; UNION: a struct of members."""
    level: int
    width: int
    type: pa.DataType
    children: tuple[OutputNode, ...] = ()
    names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    items: int = -1
    """The level of an array's or map's items."""


@dataclass(slots=True)
class DecodeProgram:
    root: OutputNode
    columns: list[OutputNode]
    levels: int
    steps: np.ndarray
    null_step: int
    constants: bytes
    tables: np.ndarray


def compile_program(writer: AvroType, reader: AvroType) -> DecodeProgram:
    build = _ProgramBuilder()
    root = build.node(reader, 0)
    build.read(writer, root, reader, reader.label)
    build.step(o.END)
    null_step = len(build.steps)
    build.nothing(root)
    build.step(o.END)
    steps = np.array(build.steps, dtype=np.int64).reshape(-1)
    tables = np.array(build.tables or [0], dtype=np.int32)
    return DecodeProgram(root, build.columns, build.levels, steps, null_step, bytes(build.constants), tables)


def least_bytes(found: AvroType) -> int:
    if found.kind is AvroKind.FIXED:
        return found.size
    if found.kind is AvroKind.RECORD:
        return sum(least_bytes(one.type) for one in found.fields)
    return _LEAST.get(found.kind, 1)


class _ProgramBuilder:
    def __init__(self) -> None:
        self.columns: list[OutputNode] = []
        self.levels = 1
        self.steps: list[tuple[int, int, int, int]] = []
        self.constants = bytearray()
        self.tables: list[int] = []
        self._depth = 0

    def step(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        self.steps.append((op, a, b, c))
        return len(self.steps) - 1

    def node(self, found: AvroType, level: int) -> OutputNode:
        if found.kind is AvroKind.UNION:
            inner = found.values
            if not inner:
                return OutputNode(-1, AvroKind.NULL, level, o.W_NOTHING, pa.null())
            if len(inner) == 1:
                return self.node(inner[0], level)
            return self._struct(found, level, [(branch.label, branch) for branch in inner])
        if found.kind is AvroKind.RECORD:
            return self._struct(found, level, [(one.name, one.type) for one in found.fields])
        if found.kind in (AvroKind.ARRAY, AvroKind.MAP):
            return self._list(found, level)
        if found.kind is AvroKind.NULL:
            return OutputNode(-1, AvroKind.NULL, level, o.W_NOTHING, pa.null())
        number = self._reserve()
        if found.kind is AvroKind.FIXED:
            return self._store_constant(OutputNode(number, found.kind, level, found.size, pa.binary(found.size)))
        width = _WIDTHS.get(found.kind, o.W_RUN)
        return self._store_constant(OutputNode(number, found.kind, level, width, _ARROW[found.kind], symbols=found.symbols))

    def _struct(self, found: AvroType, level: int, parts: list[tuple[str, AvroType]]) -> OutputNode:
        number = self._reserve()
        children = tuple(self.node(inner, level) for _, inner in parts)
        members = found.kind is AvroKind.UNION
        fields = [
            pa.field(name, child.type, nullable=members or inner.nullable) for (name, inner), child in zip(parts, children, strict=True)
        ]
        names = tuple(name for name, _ in parts)
        return self._store_constant(OutputNode(number, found.kind, level, o.W_NOTHING, pa.struct(fields), children, names))

    def _list(self, found: AvroType, level: int) -> OutputNode:
        number, items = self._reserve(), self.levels
        self.levels += 1
        if found.kind is AvroKind.ARRAY:
            child = self.node(found.content, items)
            kind = pa.list_(pa.field("item", child.type, nullable=found.content.nullable))
            return self._store_constant(OutputNode(number, found.kind, level, o.W_LIST, kind, (child,), items=items))
        key, value = self.node(AvroType(AvroKind.STRING), items), self.node(found.content, items)
        kind = pa.map_(pa.string(), pa.field("value", value.type, nullable=found.content.nullable))
        return self._store_constant(OutputNode(number, found.kind, level, o.W_LIST, kind, (key, value), items=items))

    def _reserve(self) -> int:
        self.columns.append(OutputNode(len(self.columns), AvroKind.NULL, 0, 0, pa.null()))
        return len(self.columns) - 1

    def _store_constant(self, node: OutputNode) -> OutputNode:
        self.columns[node.number] = node
        return node

    def nothing(self, node: OutputNode) -> None:
        """Emit steps that set a column and its nested columns to NULL; levels of items stay unchanged."""
        if node.number >= 0:
            self.step(o.NULL, node.number)
        if node.items < 0:
            for child in node.children:
                self.nothing(child)

    def read(self, writer: AvroType, node: OutputNode, reader: AvroType, path: str) -> None:
        if writer.kind is AvroKind.UNION:
            self._branches(len(writer.branches), lambda number: self._read_branch(writer.branches[number], node, reader, path))
        elif reader.kind is AvroKind.UNION:
            number = branch_for(writer, reader)
            if number is None:
                raise _unreadable(writer, reader, path)
            self._read_member(writer, node, reader, number, path)
        elif not matches(writer, reader):
            raise _unreadable(writer, reader, path)
        else:
            self._read_same(writer, node, reader, path)

    def _branches(self, count: int, emit: Callable[[int], None]) -> None:
        head = self.step(o.BRANCH, count)
        jumps = [self.step(o.JUMP) for _ in range(count)]
        ends = []
        for number, jump in enumerate(jumps):
            self.steps[jump] = (o.JUMP, len(self.steps), 0, 0)
            emit(number)
            ends.append(self.step(o.JUMP))
        assert head < jumps[0]
        for end in ends:
            self.steps[end] = (o.JUMP, len(self.steps), 0, 0)

    def _read_branch(self, writer: AvroType, node: OutputNode, reader: AvroType, path: str) -> None:
        """Emit a union. A branch without a matching reader type is an error only in records that use it."""
        kept = len(self.steps), len(self.constants), len(self.tables)
        try:
            self.read(writer, node, reader, path)
        except DefiniteError:
            del self.steps[kept[0] :], self.constants[kept[1] :], self.tables[kept[2] :]
            self.step(o.FAIL, o.UNREADABLE_BRANCH)

    def _read_member(self, writer: AvroType, node: OutputNode, reader: AvroType, number: int, path: str) -> None:
        """Emit a value into one branch of the reader's union."""
        branch = reader.branches[number]
        if branch.kind is AvroKind.NULL:
            self.nothing(node)
        elif node.kind is not AvroKind.UNION:
            self.read(writer, node, branch, path)
        else:
            for name, child in zip(node.names, node.children, strict=True):
                if name == branch.label:
                    self.read(writer, child, branch, f"{path}.{name}")
                else:
                    self.nothing(child)

    def _read_same(self, writer: AvroType, node: OutputNode, reader: AvroType, path: str) -> None:
        if reader.kind is AvroKind.NULL:
            return
        if reader.kind is AvroKind.RECORD:
            self._read_record(writer, node, reader, path)
        elif reader.kind in (AvroKind.ARRAY, AvroKind.MAP):
            self._read_items(writer, node, reader, path)
        elif reader.kind is AvroKind.ENUM:
            fallback = reader.symbols.index(reader.default) if reader.default is not None else -1
            table = [reader.symbols.index(symbol) if symbol in reader.symbols else fallback for symbol in writer.symbols]
            self.step(o.ENUM, node.number, len(self.tables), len(table))
            self.tables.extend(table)
        elif reader.kind is AvroKind.FIXED:
            self.step(o.FIXED, node.number, reader.size)
        else:
            self.step(_READ[writer.kind, reader.kind], node.number)

    def _read_record(self, writer: AvroType, node: OutputNode, reader: AvroType, path: str) -> None:
        sources: dict[str, tuple[AvroField, OutputNode]] = {}
        for one, child in zip(reader.fields, node.children, strict=True):
            source = source_of(one, writer)
            if source is not None and source.name not in sources:
                sources[source.name] = one, child
            elif one.has_default:
                self._default(one, child, f"{path}.{one.name}")
            else:
                raise DefiniteError(
                    f"the field {path}.{one.name} is not in the data and has no default",
                    hint="give the field a default in the reader's schema",
                )
        for written in writer.fields:
            if written.name in sources:
                one, child = sources[written.name]
                self.read(written.type, child, one.type, f"{path}.{one.name}")
            else:
                self._skip(written.type)

    def _default(self, one: AvroField, node: OutputNode, path: str) -> None:
        content = encode_default(one.type, one.default, path)
        start = len(self.constants)
        self.constants.extend(content)
        self.step(o.CONSTANT, start, start + len(content))
        self.read(one.type, node, one.type, path)
        self.step(o.MESSAGE)

    def _read_items(self, writer: AvroType, node: OutputNode, reader: AvroType, path: str) -> None:
        def one_item() -> None:
            value = node.children[-1]
            if reader.kind is AvroKind.MAP:
                self.step(o.STRING, node.children[0].number)
            self.read(writer.content, value, reader.content, f"{path}[]")

        self._loop(writer, node.number, one_item)

    def _loop(self, writer: AvroType, column: int, emit: Callable[[], None]) -> None:
        least = least_bytes(writer.content) + (writer.kind is AvroKind.MAP)
        loop = self.step(o.LOOP, column, 0, self._depth)
        self.step(o.LEAST, least)
        self._depth += 1
        emit()
        self._depth -= 1
        self.step(o.ITEM, column, loop, self._depth)
        self.steps[loop] = (o.LOOP, column, len(self.steps), self._depth)

    def _skip(self, writer: AvroType) -> None:
        match writer.kind:
            case AvroKind.NULL:
                return
            case AvroKind.BOOLEAN | AvroKind.FLOAT | AvroKind.DOUBLE | AvroKind.FIXED:
                sizes = {AvroKind.BOOLEAN: 1, AvroKind.FLOAT: 4, AvroKind.DOUBLE: 8}
                self.step(o.SKIP_BYTES, sizes.get(writer.kind, writer.size))
            case AvroKind.INT | AvroKind.LONG | AvroKind.ENUM:
                self.step(o.SKIP_NUMBER)
            case AvroKind.STRING | AvroKind.BYTES:
                self.step(o.SKIP_RUN)
            case AvroKind.RECORD:
                for one in writer.fields:
                    self._skip(one.type)
            case AvroKind.UNION:
                self._branches(len(writer.branches), lambda number: self._skip(writer.branches[number]))
            case AvroKind.ARRAY | AvroKind.MAP:
                self._loop(writer, -1, lambda: self._skip_entry(writer))
            case unknown:
                assert_never(unknown)

    def _skip_entry(self, writer: AvroType) -> None:
        if writer.kind is AvroKind.MAP:
            self.step(o.SKIP_RUN)
        self._skip(writer.content)


def _unreadable(writer: AvroType, reader: AvroType, path: str) -> DefiniteError:
    return DefiniteError(
        f"{path}: data written as {writer.label} cannot be read as {reader.label}", hint="read it with the schema that wrote it"
    )


def encode_number(number: int) -> bytes:
    """Encode an int or a long: zigzag, seven bits per byte."""
    word = (number << 1 ^ number >> 63) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while word > 0x7F:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    out.append(word)
    return bytes(out)


def encode_run(content: bytes) -> bytes:
    return encode_number(len(content)) + content


def encode_default(found: AvroType, value: Any, place: str) -> bytes:
    """Encode a field's default from a schema's JSON: bytes are text of code points 0 to 255; a union uses the first branch that fits."""
    try:
        return _encode(found, value)
    except (TypeError, ValueError, KeyError, OverflowError, struct.error, AttributeError) as error:
        raise DefiniteError(
            f"the default of {place} in an Avro schema is not a valid {found.label}: {value!r}", hint="correct the schema"
        ) from error


def _encode(found: AvroType, value: Any) -> bytes:
    match found.kind:
        case AvroKind.NULL:
            return _when(value is None, b"")
        case AvroKind.BOOLEAN:
            return _when(isinstance(value, bool), b"\1" if value else b"\0")
        case AvroKind.INT | AvroKind.LONG:
            bits = 31 if found.kind is AvroKind.INT else 63
            return _when(isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits, encode_number(value))
        case AvroKind.FLOAT:
            return struct.pack("<f", _number(value))
        case AvroKind.DOUBLE:
            return struct.pack("<d", _number(value))
        case AvroKind.BYTES:
            return encode_run(value.encode("latin-1"))
        case AvroKind.STRING:
            return encode_run(value.encode())
        case AvroKind.FIXED:
            content = value.encode("latin-1")
            return _when(len(content) == found.size, content)
        case AvroKind.ENUM:
            return encode_number(found.symbols.index(value))
        case AvroKind.ARRAY:
            items = b"".join(_encode(found.content, item) for item in _of(list, value))
            return encode_number(len(value)) + items + b"\0" if value else b"\0"
        case AvroKind.MAP:
            entries = b"".join(encode_run(key.encode()) + _encode(found.content, item) for key, item in _of(dict, value).items())
            return encode_number(len(value)) + entries + b"\0" if value else b"\0"
        case AvroKind.RECORD:
            return b"".join(_encode(field.type, _of(dict, value).get(field.name, field.default)) for field in found.fields)
        case AvroKind.UNION:
            return _encode_branch(found, value)


def _encode_branch(found: AvroType, value: Any) -> bytes:
    for number, branch in enumerate(found.branches):
        try:
            return encode_number(number) + _encode(branch, value)
        except (TypeError, ValueError, KeyError, OverflowError, struct.error, AttributeError):
            continue
    raise ValueError(value)


def _when(fine: bool, content: bytes) -> bytes:
    if not fine:
        raise ValueError
    return content


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _of(wanted: type, value: Any) -> Any:
    if not isinstance(value, wanted):
        raise TypeError
    return value
