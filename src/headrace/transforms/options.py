"""What a user may choose to be done to a table's rows on their way to a sink.

Pure data: picklable, comparable, no engine is asked. A table's choices are those of every glob that matches it, laid over each other in
their order: maps and lists are added up, a later filter takes an earlier one's place.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of `TransformOptions` and their values."""


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """What is done to one table's rows. What stands under a field is its documentation for users."""

    filter: str = ""
    """A SQL expression over the source's columns: only rows for which it is true are in the sink. A row that an update moves into or out of
    that is inserted or deleted there."""
    computed: tuple[tuple[str, str], ...] = ()
    """New columns, each with the SQL expression over the source's columns that it is made by; the type is the expression's (`CAST` sets
    it). With the name of a source's column it takes that column's place."""
    rename: tuple[tuple[str, str], ...] = ()
    """Source column to its name in the sink."""
    drop: tuple[str, ...] = ()
    """Source columns (globs) that are left out; expressions may still use them."""
    mask: tuple[tuple[str, str], ...] = ()
    """Source column to what is shown of it: `null`, `empty`, `text ANYTHING`, `first N`, `last N` or `email`. NULL stays NULL."""
    hash: tuple[tuple[str, str], ...] = ()
    """Source column to the hash that takes its place: `sha256`, `md5` (digits of base 16) or `number` (the first 64 bits of sha256). NULL
    stays NULL."""
    hash_salt: str = ""
    """What is put before each value that is hashed: `env:NAME` or `file:PATH`, where the secret is; empty: nothing."""

    @property
    def is_empty(self) -> bool:
        """Whether rows pass as they are."""
        return not (self.filter or self.computed or self.rename or self.drop or self.mask or self.hash)

    def makes_the_same(self, other: TransformOptions) -> bool:
        """Whether both make the same of a row: in which order columns are named, and where the salt is kept, does not matter."""
        mine, others = ((one.filter, *map(frozenset, (one.computed, one.rename, one.drop, one.mask, one.hash))) for one in (self, other))
        return mine == others


class MaskKind(StrEnum):
    """What a mask leaves."""

    NULL = "null"
    EMPTY = "empty"
    TEXT = "text"
    FIRST = "first"
    LAST = "last"
    EMAIL = "email"


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask, read."""

    kind: MaskKind
    count: int = 0
    text: str = ""


class Hash(StrEnum):
    """Which hash."""

    SHA256 = "sha256"
    MD5 = "md5"
    NUMBER = "number"


_MASK_HINT: Final = "a mask is null, empty, text ANYTHING, first N, last N or email"
_COUNTED: Final = re.compile(r"(first|last)[ :]?([0-9]{1,4})")
_HIDING: Final = frozenset({"filter", "computed", "drop", "mask", "hash"})
SALT_HINT: Final = "write env:NAME or file:PATH: where the secret is, not the secret, for settings are kept"


def read_mask(text: str, place: str) -> Mask:
    """The mask that a text means."""
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return Mask(MaskKind(counted[1]), int(counted[2]))
    if text == MaskKind.TEXT or text.startswith(("text ", "text:")):
        return Mask(MaskKind.TEXT, text=text[5:])
    if text in (MaskKind.NULL, MaskKind.EMPTY, MaskKind.EMAIL):
        return Mask(MaskKind(text))
    raise DefiniteError(f"{text!r} is no mask", place=place, hint=_MASK_HINT)


def read_hash(text: str, place: str) -> Hash:
    """The hash that a text means."""
    if text in set(Hash):
        return Hash(text)
    raise DefiniteError(f"{text!r} is no hash", place=place, hint=f"a hash is {', '.join(Hash)}")


def check_salt(text: str, place: str) -> None:
    """Raise `DefiniteError` unless the text says where a secret is."""
    kind, _, rest = text.partition(":")
    if text and (kind not in ("env", "file") or not rest):
        # What was given may be the secret itself: it is not shown.
        raise DefiniteError("hash_salt does not say where the secret is", place=place, hint=SALT_HINT)


@dataclass(frozen=True, slots=True)
class Transforms:
    """What is done to which tables."""

    tables: tuple[tuple[str, Fields], ...] = ()
    """A glob over `database.table` of the source, and what is chosen for the tables that it matches."""

    def of(self, name: TableName) -> TransformOptions:
        """What was chosen for a table."""
        chosen: dict[str, Any] = {}
        for glob, own in self.tables:
            if fnmatch.fnmatchcase(str(name), glob):
                chosen.update({field: _merged(chosen.get(field), value) for field, value in own})
        return replace(TransformOptions(), **chosen)

    def unmatched(self, names: Iterable[TableName]) -> tuple[str, ...]:
        """The globs that match none of these tables."""
        texts = [str(name) for name in names]
        return tuple(glob for glob, _ in self.tables if not any(fnmatch.fnmatchcase(text, glob) for text in texts))

    def place(self, name: TableName, field: str) -> str:
        """Where a table's choice was made, for people."""
        globs = [glob for glob, own in self.tables if fnmatch.fnmatchcase(str(name), glob) and field in dict(own)]
        return f'transforms."{globs[-1]}".{field}' if globs else f"transforms, {field}"

    def hide(self, name: str) -> bool:
        """Whether anything of a table (`database.table`) is not to be seen in the sink."""
        hiding = (glob for glob, own in self.tables if any(value for field, value in own if field in _HIDING))
        return any(fnmatch.fnmatchcase(name, glob) for glob in hiding)

    @property
    def salts(self) -> tuple[str, ...]:
        """Where the secrets are that hashes need."""
        return tuple(dict.fromkeys(value for _, own in self.tables for field, value in own if field == "hash_salt" and value))


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, tuple) or not isinstance(above, tuple):
        return above
    if all(isinstance(one, tuple) for one in (*below, *above)):
        return tuple({**dict(below), **dict(above)}.items())
    return tuple(dict.fromkeys((*below, *above)))
