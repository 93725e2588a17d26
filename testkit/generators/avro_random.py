"""Random Avro schemas, values, and reader schemas. fastavro is the reference."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import fastavro
import pyarrow as pa

from headrace.kafka.avro.schema import AvroKind, AvroType

_PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",)}
_CHARACTERS = "aZ0_ é€🚰\x00\n"


class RandomAvro:
    """Draws schemas and values from one seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self._names = 0

    def record(self, depth: int = 3) -> dict[str, Any]:
        fields = [{"name": f"f{number}", "type": self.type(depth - 1)} for number in range(self.draw.randint(0 if depth < 3 else 1, 6))]
        return {"type": "record", "name": self._name("R"), "fields": fields}

    def flat_record(self) -> dict[str, Any]:
        """A record whose fields hold single values, NULL or not."""
        kinds = [*_PRIMITIVES, {"type": "fixed", "name": "F", "size": self.draw.choice((1, 3, 16, 40))}]
        drawn = self.draw.sample(kinds, self.draw.randint(1, len(kinds)))
        forms = [self.draw.choice((kind, ["null", kind], [kind, "null"])) for kind in drawn]
        return {"type": "record", "name": "R", "fields": [{"name": f"f{number}", "type": form} for number, form in enumerate(forms)]}

    def type(self, depth: int) -> Any:
        pick = self.draw.random()
        if depth <= 0 or pick < 0.4:
            return self.draw.choice(_PRIMITIVES)
        if pick < 0.6:
            inner = self._value(depth - 1)
            return [inner, "null"] if self.draw.random() < 0.4 else ["null", inner]
        if pick < 0.68:
            return self._union(depth - 1)
        return self._value(depth - 1)

    def _value(self, depth: int) -> Any:
        """A type that is neither a union nor null."""
        kind = self.draw.choice(("primitive", "primitive", "enum", "fixed", "array", "map", "record"))
        if depth <= 0 and kind in ("array", "map", "record"):
            kind = "primitive"
        match kind:
            case "enum":
                return {"type": "enum", "name": self._name("E"), "symbols": [f"S{n}" for n in range(self.draw.randint(1, 5))]}
            case "fixed":
                return {"type": "fixed", "name": self._name("F"), "size": self.draw.choice((1, 3, 16, 40))}
            case "array":
                return {"type": "array", "items": self.type(depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(depth - 1)}
            case "record":
                return self.record(depth)
        return self.draw.choice(_PRIMITIVES)

    def _union(self, depth: int) -> list[Any]:
        """Branches that fastavro can distinguish by their values."""
        branches: list[Any] = [self.draw.choice(("int", "long", "double")), "boolean", self.draw.choice(("string", "bytes"))]
        if depth > 0:
            branches.append(self.draw.choice((self.record(1), {"type": "array", "items": "int"}, {"type": "map", "values": "string"})))
        self.draw.shuffle(branches)
        branches = branches[: self.draw.randint(2, len(branches))]
        if self.draw.random() < 0.5:
            branches.insert(self.draw.randint(0, len(branches)), "null")
        return branches

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def value(self, found: AvroType) -> Any:
        draw = self.draw
        match found.kind:
            case AvroKind.NULL:
                return None
            case AvroKind.BOOLEAN:
                return draw.random() < 0.5
            case AvroKind.INT | AvroKind.LONG:
                bits = 31 if found.kind is AvroKind.INT else 63
                return draw.choice((0, -1, 1, 63, -64, 64, (1 << bits) - 1, -(1 << bits), draw.randint(-(1 << bits), (1 << bits) - 1)))
            case AvroKind.FLOAT:
                return struct.unpack("<f", struct.pack("<f", draw.uniform(-1e30, 1e30)))[0]
            case AvroKind.DOUBLE:
                return draw.choice((0.0, -0.5, 1e300, draw.uniform(-1e9, 1e9)))
            case AvroKind.BYTES:
                return draw.randbytes(draw.choice((0, 1, 7, 40, 200)))
            case AvroKind.STRING:
                return "".join(draw.choices(_CHARACTERS, k=draw.choice((0, 1, 5, 8, 9, 33, 600))))
            case AvroKind.FIXED:
                return draw.randbytes(found.size)
            case AvroKind.ENUM:
                return draw.choice(found.symbols)
            case AvroKind.ARRAY:
                return [self.value(found.content) for _ in range(draw.choice((0, 1, 3)))]
            case AvroKind.MAP:
                return {f"k{number}é": self.value(found.content) for number in range(draw.choice((0, 1, 3)))}
            case AvroKind.RECORD:
                return {one.name: self.value(one.type) for one in found.fields}
            case AvroKind.UNION:
                return self.value(draw.choice(found.branches))

    def evolved(self, tree: Any) -> Any:
        """Return a reader schema for data of a writer schema."""
        draw = self.draw
        if isinstance(tree, str):
            return draw.choice(_PROMOTED[tree]) if tree in _PROMOTED and draw.random() < 0.3 else tree
        if isinstance(tree, list):
            return tree
        match tree["type"]:
            case "array":
                return {**tree, "items": self.evolved(tree["items"])}
            case "map":
                return {**tree, "values": self.evolved(tree["values"])}
            case "record":
                return self._evolved_record(tree)
        return tree

    def _evolved_record(self, tree: dict[str, Any]) -> dict[str, Any]:
        draw, fields = self.draw, []
        for field in tree["fields"]:
            pick = draw.random()
            if pick < 0.2 and "name" not in str(field["type"]):
                continue
            changed = {**field, "type": self.evolved(field["type"])}
            if pick < 0.3:
                changed |= {"name": f"{field['name']}_new", "aliases": [field["name"]]}
            elif pick < 0.45 and isinstance(changed["type"], str):
                changed["type"] = ["null", changed["type"]]
            fields.append(changed)
        for number in range(draw.randint(0, 2)):
            kind, default = draw.choice(
                (("int", 7), ("string", "né"), (["null", "long"], None), ({"type": "array", "items": "int"}, [1, 2]), ("double", 0.5))
            )
            fields.append({"name": f"added{number}", "type": kind, "default": default})
        draw.shuffle(fields)
        return {**tree, "fields": fields}


def plain(found: AvroType, value: Any) -> Any:
    """Return a value of Headrace's decoder in the form of fastavro."""
    if value is None:
        return None
    match found.kind:
        case AvroKind.RECORD:
            return {one.name: plain(one.type, value[one.name]) for one in found.fields}
        case AvroKind.ARRAY:
            return [plain(found.content, item) for item in value]
        case AvroKind.MAP:
            return {key: plain(found.content, item) for key, item in value}
        case AvroKind.UNION if len(found.values) > 1:
            there = [branch for branch in found.values if value[branch.label] is not None]
            assert len(there) <= 1, value
            return plain(there[0], value[there[0].label]) if there else None
        case AvroKind.UNION:
            return plain(found.values[0], value)
    return value


def narrowed(found: AvroType, value: Any) -> Any:
    """Return a value of fastavro with 32-bit floats: it promotes a long to a 64-bit float."""
    if found.kind is AvroKind.FLOAT:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if found.kind is AvroKind.RECORD:
        return {one.name: narrowed(one.type, value[one.name]) for one in found.fields}
    if found.kind is AvroKind.ARRAY:
        return [narrowed(found.content, item) for item in value]
    if found.kind is AvroKind.MAP:
        return {key: narrowed(found.content, item) for key, item in value.items()}
    if found.kind is AvroKind.UNION and len(found.values) == 1 and value is not None:
        return narrowed(found.values[0], value)
    return value


def write_with_fastavro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def read_with_fastavro(body: bytes, writer: Any, reader: Any = None) -> tuple[Any, int]:
    """Return the value, and the number of bytes that were read."""
    source = io.BytesIO(body)
    return fastavro.schemaless_reader(source, writer, reader), source.tell()


def fields_of(rows: pa.StructArray) -> dict[str, pa.Array]:
    """A struct array's columns by name."""
    return {field.name: rows.field(number) for number, field in enumerate(rows.type)}
