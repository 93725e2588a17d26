"""The fields of a settings class as a user may write them: names, types, defaults and meanings, all taken from the class itself.

Invariant: whatever `read` accepts, `plain` writes back so that `read` gives the same value again. So a file, a flag and a state directory
hold settings in one form, and a field that is added to a class is a setting at once.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

PAIRS = tuple[tuple[str, str], ...]
"""The type of a field that maps names to texts: a table in a file."""
NAMES = tuple[str, ...]
TEXTS = Mapping[str, str]
"""The same as `PAIRS`, of classes that are not carried to other processes."""
Size = NewType("Size", int)
"""The type of a field that is a number of bytes: `67108864`, or `"64M"`."""
_SIZE = re.compile(r"([0-9]+)([KMG]?)i?B?", re.IGNORECASE)
_SHIFTS = {"": 0, "K": 10, "M": 20, "G": 30}


class Unfit(ValueError):
    """A value that a field cannot have; the text says what it can have."""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    name: str
    kind: Any
    """Its type, resolved."""
    default: Any
    text: str
    """What it means, as its class says."""


@functools.cache
def fields_of(settings: type) -> dict[str, Field]:
    """The fields of a settings class, in its order."""
    kinds, texts = get_type_hints(settings), _texts(settings)
    found = {}
    for one in fields(settings):
        default = one.default if one.default is not MISSING else one.default_factory() if one.default_factory is not MISSING else None
        found[one.name] = Field(one.name, kinds[one.name], default, texts.get(one.name, ""))
    return found


def read(kind: Any, raw: Any) -> Any:
    """A value of the type, from what a file, a flag or a state directory says; `Unfit` if it cannot be one."""
    if get_origin(kind) in (Union, UnionType):
        return _read_first(kind, raw)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if isinstance(raw, str) and raw in set(kind):
            return kind(raw)
    elif kind is bool:
        if isinstance(raw, bool):
            return raw
    elif kind in (int, float):
        if isinstance(raw, int | float) and not isinstance(raw, bool) and (kind is float or isinstance(raw, int)):
            if not math.isfinite(raw) or raw < 0:
                raise Unfit("a number that is not negative")
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
    elif kind == NAMES:
        if isinstance(raw, list | tuple) and all(isinstance(one, str) for one in raw):
            return tuple(raw)
    elif kind in (PAIRS, TEXTS):
        if isinstance(raw, dict) and all(isinstance(one, str | int | float | bool) for one in raw.values()):
            pairs = tuple((name, _as_text(value)) for name, value in raw.items())
            return pairs if kind == PAIRS else dict(pairs)
    else:
        raise TypeError(f"no way to read a setting of type {kind}")
    raise Unfit(allowed(kind))


def plain(kind: Any, value: Any) -> Any:
    """The value in the words of a file: texts, numbers, lists, tables."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return dict(value) if kind == PAIRS else list(value)
    return str(value) if isinstance(value, Path) else value


def allowed(kind: Any) -> str:
    """What a field of the type can be, for people."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(allowed(one) for one in _members(kind))
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
    return 'a list of texts, such as ["a", "b"]' if kind == NAMES else 'a table of texts, such as { name = "text" }'


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was most likely meant; empty if none is near."""
    folded = {one.replace("_", ""): one for one in known}
    found = difflib.get_close_matches(name.lower().replace("-", "").replace("_", ""), folded, 1, 0.6)
    return folded[found[0]] if found else ""


def _read_first(kind: Any, raw: Any) -> Any:
    for one in _members(kind):
        try:
            return read(one, raw)
        except Unfit:
            continue
    raise Unfit(allowed(kind))


def _members(kind: Any) -> tuple[Any, ...]:
    return tuple(one for one in get_args(kind) if one is not type(None))


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _texts(settings: type) -> dict[str, str]:
    """What stands under each field in the source of its class, or of the class of its type."""
    body = ast.parse(textwrap.dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for line, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
            found[line.target.id] = " ".join(str(text).split()) or _text_of_type(get_type_hints(settings)[line.target.id])
    return found


def _text_of_type(kind: Any) -> str:
    # A class without a text has its parent's.
    own = isinstance(kind, type) and issubclass(kind, StrEnum) and inspect.getdoc(kind) != inspect.getdoc(StrEnum)
    return " ".join((inspect.getdoc(kind) or "").split()) if own else ""
