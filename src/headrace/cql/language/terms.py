"""Parses terms of CQL statements: literals, collections and parameter markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cassandra.query import UNSET_VALUE

from headrace.cql.language.lexer import CqlCursor, CqlTokenKind
from headrace.errors import DefiniteError


@dataclass(frozen=True, slots=True)
class Constant:
    """A single word, number or string; `null`, `true` and fields' names are of kind NAME."""

    kind: CqlTokenKind
    text: str

    @property
    def is_null(self) -> bool:
        return self.kind is CqlTokenKind.NAME and self.text == "null"

    def __str__(self) -> str:
        return f"'{self.text}'" if self.kind is CqlTokenKind.STRING else self.text


@dataclass(frozen=True, slots=True)
class Marker:
    number: int
    """Its index among the statement's markers, from 0."""
    name: str = ""

    def __str__(self) -> str:
        return f":{self.name}" if self.name else "?"


@dataclass(frozen=True, slots=True)
class Brackets:
    """`[a, b]`: a list or a vector."""

    items: tuple[Term, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.items))}]"


@dataclass(frozen=True, slots=True)
class Braces:
    """`{a, b}`, `{k: v}` or `{field: v}`; `{}` is any of them."""

    keys: tuple[Term, ...] = ()
    values: tuple[Term, ...] | None = None

    def __str__(self) -> str:
        if self.values is None:
            return f"{{{', '.join(map(str, self.keys))}}}"
        return "{" + ", ".join(f"{key}: {value}" for key, value in zip(self.keys, self.values, strict=True)) + "}"


@dataclass(frozen=True, slots=True)
class Parentheses:
    """`(a, b)`: a tuple, or the values of IN."""

    items: tuple[Term, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Term = Constant | Marker | Brackets | Braces | Parentheses
NULL = Constant(CqlTokenKind.NAME, "null")


@dataclass(slots=True)
class Markers:
    count: int = 0


@dataclass(frozen=True, slots=True)
class SerializedValue:
    """A parameter that is serialised already."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values of a statement's markers."""

    given: Sequence[object] | Mapping[str, object] = field(default_factory=tuple)

    def of(self, marker: Marker) -> object:
        if isinstance(self.given, Mapping):
            if marker.name in self.given:
                return self.given[marker.name]
        elif marker.number < len(self.given):
            return self.given[marker.number]
        shown = f":{marker.name}" if marker.name else f"{marker.number + 1}"
        raise DefiniteError(f"there is no parameter for marker {shown}", hint="give as many parameters as the statement has markers")

    def is_unset(self, term: Term | None) -> bool:
        """Return whether a parameter is the driver's *unset*, which leaves the value unchanged."""
        found = self.of(term) if isinstance(term, Marker) else None
        return (found.value if isinstance(found, SerializedValue) else found) is UNSET_VALUE


_NO_CONSTANTS = frozenset({CqlTokenKind.BIND, CqlTokenKind.SIGN, CqlTokenKind.END})


def read_term(cursor: CqlCursor, markers: Markers) -> Term:
    token = cursor.peek
    if cursor.skip_sign("["):
        return Brackets(tuple(cursor.items_until("]", lambda: read_term(cursor, markers))))
    if cursor.skip_sign("("):
        return Parentheses(tuple(cursor.items_until(")", lambda: read_term(cursor, markers))))
    if cursor.skip_sign("{"):
        return _braces(cursor, markers)
    if cursor.skip_sign("-"):
        negative = cursor.take()
        is_number = negative.kind in (CqlTokenKind.INTEGER, CqlTokenKind.FLOAT, CqlTokenKind.DURATION)
        if not is_number and negative.text not in {"nan", "infinity"}:
            raise cursor.unexpected("a number")
        return Constant(negative.kind, "-" + negative.text)
    if token.kind is CqlTokenKind.BIND or cursor.is_sign(":"):
        cursor.take()
        name = cursor.name() if token.kind is CqlTokenKind.SIGN else ""
        markers.count += 1
        return Marker(markers.count - 1, name)
    if token.kind is CqlTokenKind.NAME and cursor.ahead(1).text == "(" and cursor.ahead(1).kind is CqlTokenKind.SIGN:
        hint = "write the value itself"
        raise DefiniteError(f"what {token.text}() gives is known to the server alone", place=f"statement {cursor.text}", hint=hint)
    if token.kind in _NO_CONSTANTS:
        raise cursor.unexpected("a value")
    cursor.take()
    return Constant(token.kind, token.text)


def _braces(cursor: CqlCursor, markers: Markers) -> Braces:
    values: list[Term] = []

    def read_key() -> Term:
        key = read_term(cursor, markers)
        if cursor.skip_sign(":"):
            values.append(read_term(cursor, markers))
        return key

    keys = cursor.items_until("}", read_key)
    if values and len(values) != len(keys):
        raise cursor.unexpected("a value for every key")
    return Braces(tuple(keys), tuple(values) if values else None)
