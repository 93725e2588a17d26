"""Parses HOCON, the format of Typesafe's configuration library: JSON with comments, bare keys and texts, dotted keys, and substitutions.

Invariant: the result is complete, or an error names the line. Objects of one key are merged, later values replace earlier ones, `${path}`
is looked up in the file and then in the environment. `include` is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from headrace.errors import DefiniteError
from headrace.settings.settings_file import merge_tables

Keys: TypeAlias = tuple[str, ...]
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ENDS_BARE: Final = frozenset('$"{}[]:=,+#`^?!@*&\\\n')
_BLANKS: Final = " \t\r\ufeff\u00a0"
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_WORDS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None, "yes": True, "no": False, "on": True, "off": False}
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class _Reference:
    path: Keys
    optional: bool
    line: int


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    quoted: bool


@dataclass(slots=True)
class _Value:
    """The unresolved value of a key: its parts in order."""

    parts: list[Any]


@dataclass(frozen=True, slots=True)
class Hocon:
    """The content of a file, with the line of each key."""

    content: Mapping[str, Any]
    lines: Mapping[Keys, int] = field(default_factory=dict)


def parse_hocon(text: str, file: str, environment: Mapping[str, str] | None = None) -> Hocon:
    parser = _HoconParser(text, file)
    root = parser.root()
    resolver = _Resolver(root, file, os.environ if environment is None else environment)
    return Hocon(resolver.whole(), parser.lines)


class _HoconParser:
    def __init__(self, text: str, file: str) -> None:
        self._text, self._file = text, file
        self._at, self._line = 0, 1
        self.lines: dict[Keys, int] = {}

    def root(self) -> dict[str, Any]:
        self._skip(newlines=True)
        braced = self._peek() == "{"
        if braced:
            self._take()
        content = self._fields((), "}" if braced else "")
        _drop_missing_self_references(content, ())
        self._skip(newlines=True)
        if self._peek():
            raise self._wrong(f"{self._peek()!r} has no place after the end")
        return content

    def _fields(self, path: Keys, end: str) -> dict[str, Any]:
        """Parse the keys of an object and its end."""
        found: dict[str, Any] = {}
        while True:
            self._skip(newlines=True, commas=True)
            if self._peek() == end:
                self._take()
                return found
            if not self._peek():
                raise self._wrong("the file ends inside of {")
            line = self._line
            key = self._key()
            if key == ("include",):
                raise DefiniteError(
                    "include brings what another file says", place=f"{self._file}, line {line}", hint="put that file's content here"
                )
            self._skip(newlines=True)
            append = self._text.startswith("+=", self._at)
            if append or self._peek() in ("=", ":"):
                self._at += 2 if append else 1
            elif self._peek() != "{":
                raise self._wrong(f"after the key {'.'.join(key)} comes =, : or {{")
            for length in range(1, len(key) + 1):
                self.lines.setdefault((*path, *key[:length]), line)
            self.lines[(*path, *key)] = line
            value = self._value((*path, *key))
            if append:
                # The earlier value may be in an object that the parser merges with this one later.
                value = _Value([_Reference((*path, *key), optional=True, line=line), [value]])
            self._set(found, key, value, path)

    def _set(self, table: dict[str, Any], key: Keys, value: _Value, around: Keys) -> None:
        for name in key[:-1]:
            inner = table.get(name)
            if not (isinstance(inner, _Value) and len(inner.parts) == 1 and isinstance(inner.parts[0], dict)):
                inner = table[name] = _Value([{}])
            table = inner.parts[0]
        name, before = key[-1], table.get(key[-1])
        table[name] = value if before is None else _over(before, value, (*around, *key))

    def _value(self, path: Keys) -> _Value:
        """Parse a value: up to the end of the line, a comma, or the end of the enclosing object or array."""
        self._skip(newlines=True)
        parts: list[Any] = []
        while True:
            blank = self._blanks()
            next_one = self._peek()
            if not next_one or next_one in "\n,}]" or self._comment():
                break
            if blank and parts and isinstance(parts[-1], _Text | _Reference):
                parts.append(_Text(blank, quoted=False))
            parts.append(self._part(path))
        while parts and isinstance(parts[-1], _Text) and not parts[-1].quoted and not parts[-1].text.strip():
            parts.pop()
        if not parts:
            raise self._wrong(f"{'.'.join(path)} has no value")
        return _Value(parts)

    def _part(self, path: Keys) -> Any:
        if self._text.startswith("${", self._at):
            return self._reference()
        letter = self._peek()
        if letter == "{":
            self._take()
            return self._fields(path, "}")
        if letter == "[":
            self._take()
            return self._array(path)
        if letter == '"':
            return _Text(self._quoted(), quoted=True)
        return _Text(self._bare(_ENDS_BARE - {":", "=", "+", "@", "*", "?", "!", "&", "^", "`", "\\"}), quoted=False)

    def _array(self, path: Keys) -> list[_Value]:
        found: list[_Value] = []
        while True:
            self._skip(newlines=True, commas=True)
            if self._peek() == "]":
                self._take()
                return found
            if not self._peek():
                raise self._wrong("the file ends inside of [")
            found.append(self._value(path))

    def _key(self) -> Keys:
        parts: list[str] = []
        current, has_one = "", False
        while True:
            letter = self._peek()
            if letter == '"':
                current, has_one = current + self._quoted(), True
            elif letter == ".":
                self._take()
                if not has_one:
                    raise self._wrong("a key begins with a dot, or has two")
                parts.append(current)
                current, has_one = "", False
            elif letter and letter not in _ENDS_BARE and letter not in _BLANKS:
                current, has_one = current + self._bare(_ENDS_BARE | {"."} | set(_BLANKS)), True
            else:
                break
        if not has_one:
            raise self._wrong(f"a key was expected, not {self._peek()!r}")
        return (*parts, current)

    def _quoted(self) -> str:
        if self._text.startswith('"""', self._at):
            end = self._text.find('"""', self._at + 3)
            if end < 0:
                raise self._wrong('""" is never closed')
            # Additional quotes at the end belong to the text.
            while self._text.startswith('"', end + 3):
                end += 1
            found = self._text[self._at + 3 : end]
            self._line += found.count("\n")
            self._at = end + 3
            return found
        self._at += 1
        letters: list[str] = []
        while True:
            letter = self._peek()
            if not letter or letter == "\n":
                raise self._wrong('" is not closed on its line')
            self._take()
            if letter == '"':
                return "".join(letters)
            letters.append(self._escape() if letter == "\\" else letter)

    def _escape(self) -> str:
        letter = self._peek()
        self._take()
        if letter == "u":
            digits = self._text[self._at : self._at + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise self._wrong("\\u needs four digits of base 16")
            self._at += 4
            return chr(int(digits, 16))
        if letter not in _ESCAPES:
            raise self._wrong(f"\\{letter} means nothing in a text")
        return _ESCAPES[letter]

    def _bare(self, ends: frozenset[str] | set[str]) -> str:
        start = self._at
        while self._peek() and self._peek() not in ends and self._peek() not in _BLANKS and not self._text.startswith("//", self._at):
            self._at += 1
        if start == self._at:
            raise self._wrong(f"{self._peek()!r} has no place here")
        return self._text[start : self._at]

    def _reference(self) -> _Reference:
        end = self._text.find("}", self._at)
        inside = self._text[self._at + 2 : end] if end >= 0 else "\n"
        if "\n" in inside:
            raise self._wrong("${ is not closed on its line")
        line = self._line
        self._at = end + 1
        optional = inside.startswith("?")
        path = tuple(part.strip().strip('"') for part in inside.removeprefix("?").split("."))
        return _Reference(path, optional, line)

    def _blanks(self) -> str:
        start = self._at
        while self._peek() and self._peek() in _BLANKS:
            self._at += 1
        return self._text[start : self._at]

    def _comment(self) -> bool:
        return self._peek() == "#" or self._text.startswith("//", self._at)

    def _skip(self, *, newlines: bool = False, commas: bool = False) -> None:
        while True:
            self._blanks()
            if self._comment():
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif (newlines and self._peek() == "\n") or (commas and self._peek() == ","):
                self._take()
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> None:
        self._line += self._peek() == "\n"
        self._at += 1

    def _wrong(self, message: str) -> DefiniteError:
        return DefiniteError(message, place=f"{self._file}, line {self._line}", hint="correct it: the file is read as HOCON")


def _over(before: _Value, value: _Value, path: Keys) -> _Value:
    """Combine a second value of a key with the first: objects are merged, `${itself}` is the first value, any other value replaces it."""
    if any(isinstance(part, _Reference) and part.path == path for part in value.parts):
        parts = [
            inner for part in value.parts for inner in (before.parts if isinstance(part, _Reference) and part.path == path else [part])
        ]
        return _Value(parts)
    if all(isinstance(part, dict) for one in (before, value) for part in one.parts):
        merged: dict[str, Any] = {}
        for part in (*before.parts, *value.parts):
            _merge(merged, part, path)
        return _Value([merged])
    if isinstance(value.parts[0], dict) and any(isinstance(part, dict | _Reference) for part in before.parts):
        return _Value([*before.parts, *value.parts])
    return value


def _merge(below: dict[str, Any], above: dict[str, Any], path: Keys) -> None:
    for name, value in above.items():
        below[name] = _over(below[name], value, (*path, name)) if name in below else value


def _drop_missing_self_references(table: dict[str, Any], path: Keys) -> None:
    """Remove `${?itself}` where the key had no earlier value."""
    for name, value in table.items():
        here = (*path, name)
        own = [part for part in value.parts if isinstance(part, _Reference) and part.optional and part.path == here]
        value.parts = [part for part in value.parts if part not in own]
        # An object after other parts may refer to their keys: the reference stays and is an error.
        if value.parts and isinstance(value.parts[0], dict):
            _drop_missing_self_references(value.parts[0], here)


class _Resolver:
    def __init__(self, root: dict[str, Any], file: str, environment: Mapping[str, str]) -> None:
        self._root, self._file, self._environment = root, file, environment
        self._under_way: list[Keys] = []

    def whole(self) -> dict[str, Any]:
        return self._object(self._root)

    def _object(self, raw: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, value in raw.items():
            resolved = self._value(value)
            if resolved is not _MISSING:
                found[name] = resolved
        return found

    def _value(self, value: _Value) -> Any:
        parts = [self._part(part) for part in value.parts]
        given = [part for part in parts if part is not _MISSING]
        if not given:
            return _MISSING
        solid = [part for part in given if not (isinstance(part, _Text) and not part.quoted and not part.text.strip())]
        if solid and all(isinstance(part, dict) for part in solid):
            merged: dict[str, Any] = {}
            for part in solid:
                merged = merge_tables(merged, part)
            return merged
        if solid and all(isinstance(part, list) for part in solid):
            return [one for part in solid for one in part]
        if len(given) == 1:
            return _typed(given[0])
        if any(isinstance(part, dict | list) for part in given):
            raise DefiniteError(
                "texts, arrays and objects cannot stand side by side", place=self._file, hint="give one value, or several of one kind"
            )
        return "".join(part.text if isinstance(part, _Text) else _as_text(part) for part in given).strip()

    def _part(self, part: Any) -> Any:
        if isinstance(part, _Reference):
            return self._led_to(part)
        if isinstance(part, dict):
            return self._object(part)
        if isinstance(part, list):
            return [one for one in map(self._value, part) if one is not _MISSING]
        return part

    def _led_to(self, reference: _Reference) -> Any:
        if reference.path in self._under_way:
            raise self._wrong(reference, "leads to itself")
        self._under_way.append(reference.path)
        try:
            found = self._look_up(reference.path)
        finally:
            self._under_way.pop()
        if found is _MISSING:
            found = self._environment.get(".".join(reference.path), _MISSING)
        if found is _MISSING and not reference.optional:
            raise self._wrong(reference, "leads nowhere: neither the file nor the environment has it")
        return found

    def _look_up(self, path: Keys) -> Any:
        found: Any = _Value([self._root])
        for name in path:
            for part in reversed(found.parts):
                inner = self._part(part) if isinstance(part, _Reference) else part
                if isinstance(inner, dict) and name in inner:
                    found = inner[name]
                    break
            else:
                return _MISSING
            if not isinstance(found, _Value):
                found = _Value([found])
        return self._value(found)

    def _wrong(self, reference: _Reference, why: str) -> DefiniteError:
        name = ".".join(reference.path)
        return DefiniteError(
            f"${{{name}}} {why}", place=f"{self._file}, line {reference.line}", hint=f"set it, or write ${{?{name}}} if it may be missing"
        )


def _typed(part: Any) -> Any:
    if not isinstance(part, _Text):
        return part
    text = part.text.strip() if not part.quoted else part.text
    if part.quoted:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return float(text) if any(letter in text for letter in ".eE") else int(text)
    return text


def _as_text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
