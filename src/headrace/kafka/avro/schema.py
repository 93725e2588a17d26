"""Parsed Avro schemas, with full names and resolved references, and schema resolution: as what data of one can be read with another.

Invariant: an `AvroType` is a finite tree. A recursive record has no columns and is rejected by name. Logical types and foreign properties
(such as Connect's) are stored by name and not interpreted.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from headrace.errors import DefiniteError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KNOWN: Final = frozenset(
    ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size", "default", "order", "logicalType")
)
MAX_DEPTH: Final = 60
"""How deep types may lie in each other: the compiled readers keep one counter for each level."""


class AvroKind(StrEnum):
    NULL = "null"
    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    FIXED = "fixed"
    ENUM = "enum"
    ARRAY = "array"
    MAP = "map"
    RECORD = "record"
    UNION = "union"


PRIMITIVES: Final = frozenset(
    (AvroKind.NULL, AvroKind.BOOLEAN, AvroKind.INT, AvroKind.LONG, AvroKind.FLOAT, AvroKind.DOUBLE, AvroKind.BYTES, AvroKind.STRING),
)


@dataclass(frozen=True, slots=True)
class NoDefault:
    """Marks a field without a default (null is a default)."""


NO_DEFAULT: Final = NoDefault()


@dataclass(frozen=True, slots=True)
class AvroField:
    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    """In the form of JSON."""
    aliases: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_default(self) -> bool:
        return not isinstance(self.default, NoDefault)


@dataclass(frozen=True, slots=True)
class AvroType:
    kind: AvroKind
    name: str = ""
    """The full name of a record, an enum or a fixed."""
    fields: tuple[AvroField, ...] = ()
    branches: tuple[AvroType, ...] = ()
    """The branches of a union."""
    items: AvroType | None = None
    """The items of an array, or the values of a map."""
    symbols: tuple[str, ...] = ()
    default: str | None = None
    """Of an enum: the symbol for unknown symbols."""
    size: int = 0
    """The size of a fixed."""
    logical: str = ""
    aliases: tuple[str, ...] = ()
    """In full."""
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Properties that Avro does not define, such as `connect.name`, and parameters of logical types."""

    @property
    def content(self) -> AvroType:
        if self.items is None:
            raise DefiniteError(f"Avro's type {self.label} holds no items")
        return self.items

    @property
    def label(self) -> str:
        """The name of a union's branch: the type's name, or its kind."""
        return self.name or self.kind.value

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def nullable(self) -> bool:
        return self.kind is AvroKind.NULL or any(branch.kind is AvroKind.NULL for branch in self.branches)

    @property
    def values(self) -> tuple[AvroType, ...]:
        """The branches of a union that are not null; for other types, the type itself."""
        return tuple(branch for branch in self.branches if branch.kind is not AvroKind.NULL) if self.kind is AvroKind.UNION else (self,)

    def field(self, name: str) -> AvroField | None:
        return next((found for found in self.fields if found.name == name), None)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    text: str
    root: AvroType = field(compare=False)
    references: tuple[str, ...] = ()
    """The texts of the schemas that it names: equal texts are different schemas if these differ."""


@functools.lru_cache(maxsize=4096)
def parse_schema(text: str, *, strict: bool = True, references: tuple[str, ...] = ()) -> AvroSchema:
    """Parse a schema's JSON. Not strict: names that Avro does not allow are accepted, as many writers use them.

    references: the schemas whose names it uses, dependencies first.
    """
    parser = _SchemaParser(strict)
    for other in references:
        parser.parse(_tree(other), "", 0)
    return AvroSchema(text, parser.parse(_tree(text), "", 0), references)


def schema_of(tree: Mapping[str, Any] | Sequence[Any] | str) -> AvroSchema:
    return parse_schema(json.dumps(tree, separators=(",", ":")))


def tree_of(found: AvroType, seen: set[str] | None = None) -> Any:
    """Return a type as JSON: with full names, and types of other schemas written out at their first use."""
    seen = set() if seen is None else seen
    if found.kind is AvroKind.UNION:
        return [tree_of(branch, seen) for branch in found.branches]
    if found.name and found.name in seen:
        return found.name
    seen.add(found.name)
    tree: dict[str, Any] = {"type": found.kind.value, **found.properties}
    if found.logical:
        tree["logicalType"] = found.logical
    if found.name:
        tree |= {"name": found.name, "aliases": list(found.aliases)}
    match found.kind:
        case AvroKind.RECORD:
            tree["fields"] = [_field_tree(one, seen) for one in found.fields]
        case AvroKind.ARRAY | AvroKind.MAP:
            tree["items" if found.kind is AvroKind.ARRAY else "values"] = tree_of(found.content, seen)
        case AvroKind.ENUM:
            tree |= {"symbols": list(found.symbols)} | ({} if found.default is None else {"default": found.default})
        case AvroKind.FIXED:
            tree["size"] = found.size
    return tree if len(tree) > 1 else found.kind.value


def _field_tree(one: AvroField, seen: set[str]) -> dict[str, Any]:
    tree = {"name": one.name, "type": tree_of(one.type, seen), "aliases": list(one.aliases), **one.properties}
    return {**tree, "default": one.default} if one.has_default else tree


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DefiniteError(f"an Avro schema is not JSON: {error}", hint="give the schema as JSON, as in an .avsc file") from error


class _SchemaParser:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._named: dict[str, AvroType | None] = {}

    def parse(self, tree: Any, namespace: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise _wrong(f"types lie more than {MAX_DEPTH} deep in each other")
        if isinstance(tree, str):
            return self._by_name(tree, namespace)
        if isinstance(tree, list):
            return self._union(tree, namespace, depth)
        if not isinstance(tree, dict):
            raise _wrong(f"{json.dumps(tree)[:60]} is no type")
        word = tree.get("type")
        if isinstance(word, dict | list):
            return self.parse(word, namespace, depth + 1)
        if not isinstance(word, str):
            raise _wrong("a type has no word for what it is")
        match word:
            case "record" | "error":
                return self._record(tree, namespace, depth)
            case "enum":
                return self._enum(tree, namespace)
            case "fixed":
                return self._fixed(tree, namespace)
            case "array" | "map":
                inner = tree.get("items" if word == "array" else "values")
                if inner is None:
                    raise _wrong(f"an {word} does not say what it holds" if word == "array" else "a map does not say what it holds")
                return AvroType(AvroKind(word), items=self.parse(inner, namespace, depth + 1), **_extras(tree))
        if word in PRIMITIVES:
            return AvroType(AvroKind(word), **_extras(tree))
        return self._by_name(word, namespace)

    def _by_name(self, word: str, namespace: str) -> AvroType:
        if word in PRIMITIVES:
            return AvroType(AvroKind(word))
        full = word if "." in word or not namespace else f"{namespace}.{word}"
        if full not in self._named and word in self._named:
            full = word
        if full not in self._named:
            raise _wrong(f"the type {word!r} is not defined before it is used")
        found = self._named[full]
        if found is None:
            raise _wrong(f"the record {full} holds itself, which columns cannot")
        return found

    def _union(self, tree: list[Any], namespace: str, depth: int) -> AvroType:
        branches = tuple(self.parse(branch, namespace, depth + 1) for branch in tree)
        labels = [branch.label for branch in branches]
        if not branches or any(branch.kind is AvroKind.UNION for branch in branches):
            raise _wrong("a union is empty or holds a union")
        if len(set(labels)) != len(labels):
            raise _wrong(f"a union holds a type twice: {', '.join(labels)}")
        return AvroType(AvroKind.UNION, branches=branches)

    def _record(self, tree: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name, space = self._name(tree, namespace)
        self._named[name] = None
        given = tree.get("fields")
        if not isinstance(given, list):
            raise _wrong(f"the record {name} has no fields")
        fields = tuple(self._field(one, space, depth) for one in given)
        names = [one.name for one in fields]
        if len(set(names)) != len(names):
            raise _wrong(f"the record {name} has a field twice: {next(one for one in names if names.count(one) > 1)}")
        found = AvroType(AvroKind.RECORD, name=name, fields=fields, aliases=_aliases(tree, space), **_extras(tree))
        self._named[name] = found
        return found

    def _field(self, tree: Any, namespace: str, depth: int) -> AvroField:
        if not isinstance(tree, dict) or not isinstance(tree.get("name"), str) or "type" not in tree:
            raise _wrong("a field has no name or no type")
        self._check(tree["name"])
        extras = {key: value for key, value in tree.items() if key not in _KNOWN}
        default = tree.get("default", NO_DEFAULT)
        return AvroField(tree["name"], self.parse(tree["type"], namespace, depth + 1), default, tuple(tree.get("aliases", ())), extras)

    def _enum(self, tree: dict[str, Any], namespace: str) -> AvroType:
        name, space = self._name(tree, namespace)
        symbols = tree.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols) or len(set(symbols)) != len(symbols):
            raise _wrong(f"the symbols of the enum {name} are no list of different texts")
        default = tree.get("default")
        if default is not None and default not in symbols:
            raise _wrong(f"the default {default!r} of the enum {name} is none of its symbols")
        found = AvroType(AvroKind.ENUM, name=name, symbols=tuple(symbols), default=default, aliases=_aliases(tree, space), **_extras(tree))
        self._named[name] = found
        return found

    def _fixed(self, tree: dict[str, Any], namespace: str) -> AvroType:
        name, space = self._name(tree, namespace)
        size = tree.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
            raise _wrong(f"the size of the fixed {name} is no number of bytes")
        found = AvroType(AvroKind.FIXED, name=name, size=size, aliases=_aliases(tree, space), **_extras(tree))
        self._named[name] = found
        return found

    def _name(self, tree: dict[str, Any], namespace: str) -> tuple[str, str]:
        """Return a type's full name, and the namespace inside it."""
        given = tree.get("name")
        if not isinstance(given, str) or not given:
            raise _wrong(f"a {tree['type']} has no name")
        space, dot, short = given.rpartition(".")
        if not dot:
            space = tree.get("namespace", namespace) or ""
        for part in (*space.split("."), short) if space else (short,):
            self._check(part)
        full = f"{space}.{short}" if space else short
        if full in self._named or full in PRIMITIVES:
            raise _wrong(f"the name {full} is defined twice")
        return full, space

    def _check(self, name: str) -> None:
        if self._strict and not _NAME.fullmatch(name):
            raise _wrong(f"{name!r} is no name: letters, digits and _ only, no digit first")


def _extras(tree: Mapping[str, Any]) -> dict[str, Any]:
    properties = {key: value for key, value in tree.items() if key not in _KNOWN}
    logical = tree.get("logicalType", "")
    return {"logical": logical if isinstance(logical, str) else "", "properties": properties}


def _aliases(tree: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    return tuple(alias if "." in alias or not namespace else f"{namespace}.{alias}" for alias in tree.get("aliases", ()))


def _wrong(reason: str) -> DefiniteError:
    return DefiniteError(f"an Avro schema cannot be read: {reason}", hint="correct the schema, or the one in the schema repository")


_PROMOTIONS: Final = {
    AvroKind.INT: (AvroKind.LONG, AvroKind.FLOAT, AvroKind.DOUBLE),
    AvroKind.LONG: (AvroKind.FLOAT, AvroKind.DOUBLE),
    AvroKind.FLOAT: (AvroKind.DOUBLE,),
    AvroKind.STRING: (AvroKind.BYTES,),
    AvroKind.BYTES: (AvroKind.STRING,),
}


def matches(writer: AvroType, reader: AvroType) -> bool:
    """Return whether two types (not unions) have the same kind and name, or one is promoted to the other."""
    return _same(writer, reader) or reader.kind in _PROMOTIONS.get(writer.kind, ())


def branch_for(writer: AvroType, reader: AvroType) -> int | None:
    """Return the branch of the reader's union for a type (not a union): the equal one if it exists, else the first match."""
    for fits in (_equal, _same, matches):
        for number, branch in enumerate(reader.branches):
            if fits(writer, branch):
                return number
    return None


def source_of(field: AvroField, writer: AvroType) -> AvroField | None:
    for name in (field.name, *field.aliases):
        found = writer.field(name)
        if found is not None:
            return found
    return None


def problems(writer: AvroType, reader: AvroType, path: str = "") -> tuple[str, ...]:
    """Return why data of the writer's schema cannot always be read with the reader's; empty if it can."""
    at = path or reader.label
    if writer.kind is AvroKind.UNION:
        return tuple(problem for branch in writer.branches for problem in problems(branch, reader, path))
    if reader.kind is AvroKind.UNION:
        number = branch_for(writer, reader)
        if number is None:
            return (f"{at}: what was written as {writer.label} is none of {', '.join(branch.label for branch in reader.branches)}",)
        return problems(writer, reader.branches[number], path)
    if not matches(writer, reader):
        return (f"{at}: {_described(writer)} cannot be read as {_described(reader)}",)
    if reader.kind in (AvroKind.ARRAY, AvroKind.MAP):
        return problems(writer.content, reader.content, f"{at}[]")
    if reader.kind is AvroKind.ENUM and reader.default is None:
        gone = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        return (f"{at}: the symbols {', '.join(gone)} are gone and the enum has no default",) if gone else ()
    if reader.kind is not AvroKind.RECORD:
        return ()
    found: list[str] = []
    for one in reader.fields:
        source = source_of(one, writer)
        if source is not None:
            found.extend(problems(source.type, one.type, f"{at}.{one.name}"))
        elif not one.has_default:
            found.append(f"{at}.{one.name}: the field is new and has no default")
    return tuple(found)


def _equal(writer: AvroType, reader: AvroType) -> bool:
    return writer.kind is reader.kind and writer.name == reader.name and writer.size == reader.size


def _same(writer: AvroType, reader: AvroType) -> bool:
    if writer.kind is not reader.kind:
        return False
    if writer.kind is AvroKind.FIXED:
        return writer.size == reader.size and _names_match(writer, reader)
    if writer.kind in (AvroKind.RECORD, AvroKind.ENUM):
        return _names_match(writer, reader)
    return True


def _names_match(writer: AvroType, reader: AvroType) -> bool:
    """Names match without their namespaces; aliases are whole names."""
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _described(found: AvroType) -> str:
    return f"{found.kind.value} {found.name}".strip() + (f"({found.size})" if found.kind is AvroKind.FIXED else "")
