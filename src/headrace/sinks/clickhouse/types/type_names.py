"""Parses and renders ClickHouse type names.

Invariant: `parse_type(text).sql_name` is the same type, spelled like the server does (if the capitals are right).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.identifiers import quote_text, unescape

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.|'')*')|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<number>-?\d+)|(?P<mark>[(),=]))", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ClickHouseType:
    """A type: its name, and its arguments as types, numbers, texts or (text, number) pairs of an Enum."""

    name: str
    arguments: tuple[ClickHouseType | int | str | tuple[str, int], ...] = ()

    @property
    def sql_name(self) -> str:
        if not self.arguments:
            return self.name
        return f"{self.name}({', '.join(map(_spell, self.arguments))})"

    @property
    def members(self) -> dict[str, int]:
        """The names and numbers of an Enum; a name without a number follows its predecessor."""
        found: dict[str, int] = {}
        last = 0
        for argument in self.arguments:
            if isinstance(argument, tuple):
                name, last = argument
            elif isinstance(argument, str):
                name, last = argument, last + 1
            else:
                continue
            found[name] = last
        return found

    def number(self, place: int, otherwise: int) -> int:
        """Return a numeric argument."""
        given = self.arguments[place] if place < len(self.arguments) else otherwise
        return given if isinstance(given, int) else otherwise

    def text(self, place: int) -> str:
        """Return a text argument; empty if there is none."""
        given = self.arguments[place] if place < len(self.arguments) else ""
        return given if isinstance(given, str) else ""

    def inner(self) -> ClickHouseType | None:
        """Return the only argument if it is a type."""
        first = self.arguments[0] if len(self.arguments) == 1 else None
        return first if isinstance(first, ClickHouseType) else None


@dataclass(frozen=True, slots=True)
class StoredType:
    """A column's type without LowCardinality and Nullable."""

    plain: ClickHouseType
    nullable: bool = False
    low_cardinality: bool = False

    @property
    def sql_name(self) -> str:
        inner = f"Nullable({self.plain.sql_name})" if self.nullable else self.plain.sql_name
        return f"LowCardinality({inner})" if self.low_cardinality else inner


def parse_type(text: str) -> ClickHouseType:
    """Parse a type name; raise `DefiniteError` if it is invalid."""
    parser = _TypeParser(text)
    found = parser.type()
    if parser.peek() is not None:
        raise parser.misspelt()
    return found


def parse_stored_type(text: str) -> StoredType:
    """Parse a type and unwrap LowCardinality and Nullable."""
    found = StoredType(parse_type(text))
    for wrapper, field in (("LowCardinality", "low_cardinality"), ("Nullable", "nullable")):
        inner = found.plain.inner() if found.plain.name == wrapper else None
        if inner is not None:
            found = replace(found, plain=inner, **{field: True})
    return found


def is_nullable(stored: str) -> bool:
    """Whether a type, which may be unknown to `parse_type`, holds NULL."""
    return stored.startswith(("Nullable(", "LowCardinality(Nullable("))


def _spell(argument: ClickHouseType | int | str | tuple[str, int]) -> str:
    match argument:
        case ClickHouseType():
            return argument.sql_name
        case int():
            return str(argument)
        case str():
            return quote_text(argument)
        case (name, number):
            return f"{quote_text(name)} = {number}"


class _TypeParser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def type(self) -> ClickHouseType:
        name = self._take("word")
        if self.peek() != "(":
            return ClickHouseType(name)
        self._take("mark")
        arguments: list[ClickHouseType | int | str | tuple[str, int]] = []
        while self.peek() != ")":
            arguments.append(self._argument())
            if self.peek() == ",":
                self._take("mark")
            elif self.peek() != ")":
                raise self.misspelt()
        self._take("mark")
        return ClickHouseType(name, tuple(arguments))

    def peek(self) -> str | None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            if self._text[self._at :].strip():
                raise self.misspelt()
            return None
        return match.group().strip()

    def misspelt(self) -> DefiniteError:
        return DefiniteError(f"{self._text!r} is not a type of ClickHouse", hint="write it as ClickHouse does, such as Nullable(Int64)")

    def _argument(self) -> ClickHouseType | int | str | tuple[str, int]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self.misspelt()
        if match.group("number"):
            return int(self._take("number"))
        if not match.group("text"):
            return self.type()
        text = unescape(self._take("text")[1:-1].replace("''", "'"))
        if self.peek() != "=":
            return text
        self._take("mark")
        return text, int(self._take("number"))

    def _take(self, kind: str) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.group(kind) is None:
            raise self.misspelt()
        self._at = match.end()
        return str(match.group(kind))
