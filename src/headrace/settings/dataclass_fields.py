"""The settings that a dataclass defines: names, types, defaults and descriptions, all taken from the class itself.

Invariant: `to_plain` converts every value that `parse_value` returns back to a form that `parse_value` reads as the same value. So files,
flags and state directories hold settings in one form, and a new field of a class is a setting at once.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

TEXT_PAIRS = tuple[tuple[str, str], ...]
"""The type of a field that maps names to texts: a TOML table."""
TEXT_LIST = tuple[str, ...]
TEXT_MAP = Mapping[str, str]
"""Like `TEXT_PAIRS`, for classes that are not sent to other processes."""
Size = NewType("Size", int)
"""The type of a field that is a number of bytes: `67108864`, or `"64M"`."""
_SIZE = re.compile(r"([0-9]+)([KMG]?)i?B?", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}


class InvalidValue(ValueError):
    """A value that a field cannot have; the message is what it can have."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Any
    """Its resolved type."""
    default: Any
    flag: str
    """The placeholder of the value in `--help`, if the field names one (`metadata={"flag": "DIR"}`)."""
    owner: type
    """The class with the field."""

    @property
    def text(self) -> str:
        """Its description: the string literal below the field, or the docstring of its type."""
        return _field_descriptions(self.owner.__module__).get((self.owner.__name__, self.name), "") or _type_description(self.kind)


@functools.cache
def setting_fields(settings: type) -> dict[str, Field]:
    """Return the fields of a settings class, in order."""
    kinds, found = get_type_hints(settings), {}
    for one in fields(settings):
        default = one.default if one.default is not MISSING else one.default_factory() if one.default_factory is not MISSING else None
        found[one.name] = Field(one.name, kinds[one.name], default, one.metadata.get("flag", ""), settings)
    return found


def merge_fields(*classes: type) -> dict[str, Field]:
    return {name: one for each in classes for name, one in setting_fields(each).items()}


def parse_value(kind: Any, raw: Any) -> Any:
    """Convert a value of a file, flag or state directory to the type; raise `InvalidValue` if that is not possible."""
    if get_origin(kind) in (Union, UnionType):
        return _parse_union(kind, raw)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if isinstance(raw, str) and raw in set(kind):
            return kind(raw)
    elif kind is bool:
        if isinstance(raw, bool):
            return raw
    elif kind in (int, float):
        if isinstance(raw, int | float) and not isinstance(raw, bool) and (kind is float or isinstance(raw, int)):
            if not math.isfinite(raw) or raw < 0:
                raise InvalidValue("a number that is not negative")
            return kind(raw)
    elif kind is str:
        if isinstance(raw, str):
            return raw
    elif kind is Path:
        if isinstance(raw, str | Path) and str(raw):
            return Path(raw)
    elif kind is Size:
        size = _SIZE.fullmatch(raw.strip()) if isinstance(raw, str) else None
        if size is not None:
            return int(size[1]) << _SHIFTS[size[2].upper()]
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
            return raw
    elif kind == TEXT_LIST:
        if isinstance(raw, list | tuple) and all(isinstance(one, str) for one in raw):
            return tuple(raw)
    elif kind in (TEXT_PAIRS, TEXT_MAP):
        if isinstance(raw, dict) and all(isinstance(one, str | int | float | bool) for one in raw.values()):
            pairs = tuple((name, _as_text(value)) for name, value in raw.items())
            return pairs if kind == TEXT_PAIRS else dict(pairs)
    else:
        raise TypeError(f"no way to read a setting of type {kind}")
    raise InvalidValue(describe_type(kind))


def select_values(values: Mapping[str, Any], *classes: type) -> dict[str, Any]:
    """Return the values of the fields of these classes, with defaults for missing ones. Flags give enums as texts and tuples as lists."""
    found = {}
    for name, one in merge_fields(*classes).items():
        value = values.get(name, one.default)
        is_enum = isinstance(one.kind, type) and issubclass(one.kind, StrEnum)
        found[name] = one.kind(value) if is_enum else tuple(value) if one.kind == TEXT_LIST else value
    return found


def to_plain(kind: Any, value: Any) -> Any:
    """Convert a value to the types of a file: texts, numbers, lists, tables."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return dict(value) if kind == TEXT_PAIRS else list(value)
    return str(value) if isinstance(value, Path) else value


def describe_type(kind: Any) -> str:
    """Describe the values of a type, for messages."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(describe_type(one) for one in _union_members(kind))
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(f'"{one.value}"' for one in kind)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text in quotes",
        Path: "a path in quotes",
        Size: 'a number of bytes, such as 67108864 or "64M"',
    }
    if kind in words:
        return words[kind]
    return 'a list of texts, such as ["a", "b"]' if kind == TEXT_LIST else 'a table of texts, such as { name = "text" }'


def closest_match(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar; empty if none is similar."""
    folded = {one.replace("_", ""): one for one in known}
    found = difflib.get_close_matches(name.lower().replace("-", "").replace("_", ""), folded, 1, 0.6)
    return folded[found[0]] if found else ""


def value_hint(one: Field, raw: Any) -> str:
    """Return the valid value that is most similar to an invalid one; the field's description if there is none."""
    words = [str(value) for value in one.kind] if isinstance(one.kind, type) and issubclass(one.kind, StrEnum) else []
    near = closest_match(raw, words) if isinstance(raw, str) else ""
    return f'did you mean "{near}"?' if near else one.text


def is_valid(one: Field, raw: Any) -> bool:
    """Return whether a field can have the value."""
    try:
        parse_value(one.kind, raw)
    except InvalidValue:
        return False
    return True


def _parse_union(kind: Any, raw: Any) -> Any:
    for one in _union_members(kind):
        try:
            return parse_value(one, raw)
        except InvalidValue:
            continue
    raise InvalidValue(describe_type(kind))


def _union_members(kind: Any) -> tuple[Any, ...]:
    return tuple(one for one in get_args(kind) if one is not type(None))


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@functools.cache
def _field_descriptions(module: str) -> dict[tuple[str, str], str]:
    """Return the string literals below the fields of a module's classes, by class and field."""
    found: dict[tuple[str, str], str] = {}
    for body in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(body, ast.ClassDef):
            for line, below in itertools.pairwise(body.body):
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
                    text = below.value.value if isinstance(below.value, ast.Constant) else ""
                    found[body.name, line.target.id] = " ".join(str(text).split())
    return found


def _type_description(kind: Any) -> str:
    # `getdoc` of a class without a docstring returns its parent's.
    own = isinstance(kind, type) and issubclass(kind, StrEnum) and inspect.getdoc(kind) != inspect.getdoc(StrEnum)
    return " ".join((inspect.getdoc(kind) or "").split()) if own else ""
