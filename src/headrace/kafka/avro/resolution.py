"""Avro schema resolution: whether, and as what, data of one schema can be read with another.

`matches` compares two types only (kinds and names), as a union chooses its branch; `problems` compares them recursively.
"""

from __future__ import annotations

from typing import Final

from headrace.kafka.avro.schema import AvroField, AvroKind, AvroType

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
    """Return the writer's field of a reader's field."""
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
    for field in reader.fields:
        source = source_of(field, writer)
        if source is not None:
            found.extend(problems(source.type, field.type, f"{at}.{field.name}"))
        elif not field.has_default:
            found.append(f"{at}.{field.name}: the field is new and has no default")
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
