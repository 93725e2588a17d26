"""Options of row transforms, and the secrets that hashes use.

Options are pure data: picklable, comparable, independent of the engine. The options of a table are those of all globs that match it, merged
in their order: maps and lists are combined, a later filter replaces an earlier one.

Invariant: a secret exists only in the memory of the driver and its tasks. State keeps a fingerprint, which shows a resumed pipe that the
secret has changed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

Fields: TypeAlias = tuple[tuple[str, Any], ...]
"""Fields of `TransformOptions` and their values."""


@dataclass(frozen=True, slots=True)
class TransformOptions:
    """Transforms of one table. The string below a field is its documentation for users."""

    filter: str = ""
    """A SQL expression over source columns: the sink gets only rows for which it is true. An update that changes the result inserts or
    deletes the row in the sink."""
    computed: tuple[tuple[str, str], ...] = ()
    """New columns, each with its SQL expression over source columns; the expression determines the type (use `CAST`). A name of a source
    column replaces that column."""
    rename: tuple[tuple[str, str], ...] = ()
    """Source column to its name in the sink."""
    drop: tuple[str, ...] = ()
    """Source columns (globs) that the sink does not get; expressions may still use them."""
    mask: tuple[tuple[str, str], ...] = ()
    """Source column to its mask: `null`, `empty`, `text ANYTHING`, `first N`, `last N` or `email`. NULL stays NULL."""
    hash: tuple[tuple[str, str], ...] = ()
    """Source column to the hash that replaces its values: `sha256` or `md5` (hexadecimal), or `number` (the first 64 bits of sha256). NULL
    stays NULL."""
    hash_salt: str = ""
    """The salt that precedes each hashed value: `env:NAME` or `file:PATH`, where the secret is; empty: no salt."""

    @property
    def is_empty(self) -> bool:
        return not (self.filter or self.computed or self.rename or self.drop or self.mask or self.hash)

    def makes_the_same(self, other: TransformOptions) -> bool:
        """Whether both give the same rows. The order of columns and the place of the salt do not matter."""
        mine, others = ((one.filter, *map(frozenset, (one.computed, one.rename, one.drop, one.mask, one.hash))) for one in (self, other))
        return mine == others


class MaskKind(StrEnum):
    """The kinds of masks."""

    NULL = "null"
    EMPTY = "empty"
    TEXT = "text"
    FIRST = "first"
    LAST = "last"
    EMAIL = "email"


@dataclass(frozen=True, slots=True)
class Mask:
    kind: MaskKind
    count: int = 0
    text: str = ""


class Hash(StrEnum):
    """The hash functions."""

    SHA256 = "sha256"
    MD5 = "md5"
    NUMBER = "number"


_MASK_HINT: Final = "a mask is null, empty, text ANYTHING, first N, last N or email"
_COUNTED: Final = re.compile(r"(first|last)[ :]?([0-9]{1,4})")
_EXPRESSIONS: Final = frozenset({"filter", "computed"})
_HIDING: Final = frozenset({"filter", "computed", "drop", "mask", "hash"})
SALT_HINT: Final = "write env:NAME or file:PATH: the location of the secret, not the secret itself, because settings are stored"


def read_mask(text: str, place: str) -> Mask:
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return Mask(MaskKind(counted[1]), int(counted[2]))
    if text == MaskKind.TEXT or text.startswith(("text ", "text:")):
        return Mask(MaskKind.TEXT, text=text[5:])
    if text in (MaskKind.NULL, MaskKind.EMPTY, MaskKind.EMAIL):
        return Mask(MaskKind(text))
    raise DefiniteError(f"{text!r} is no mask", place=place, hint=_MASK_HINT)


def read_hash(text: str, place: str) -> Hash:
    if text in set(Hash):
        return Hash(text)
    raise DefiniteError(f"{text!r} is no hash", place=place, hint=f"a hash is {', '.join(Hash)}")


def check_salt(text: str, place: str) -> None:
    """Raise `DefiniteError` unless the text names the place of a secret."""
    kind, _, rest = text.partition(":")
    if text and (kind not in ("env", "file") or not rest):
        # The text may be the secret itself, so the error does not show it.
        raise DefiniteError("hash_salt does not say where the secret is", place=place, hint=SALT_HINT)


@dataclass(frozen=True, slots=True)
class Transforms:
    tables: tuple[tuple[str, Fields], ...] = ()
    """A glob over `database.table` of the source, and the options of matching tables."""

    def of(self, name: TableName) -> TransformOptions:
        chosen: dict[str, Any] = {}
        for glob, own in self.tables:
            if fnmatch.fnmatchcase(str(name), glob):
                chosen.update({field: _merged(chosen.get(field), value) for field, value in own})
        return replace(TransformOptions(), **chosen)

    def unmatched(self, names: Iterable[TableName]) -> tuple[str, ...]:
        """Return the globs that match none of these tables."""
        texts = [str(name) for name in names]
        return tuple(glob for glob, _ in self.tables if not any(fnmatch.fnmatchcase(text, glob) for text in texts))

    def place(self, name: TableName, field: str) -> str:
        """Return the place of a table's option, for messages."""
        globs = [glob for glob, own in self.tables if fnmatch.fnmatchcase(str(name), glob) and field in dict(own)]
        return f'transforms."{globs[-1]}".{field}' if globs else f"transforms, {field}"

    def hide(self, name: str) -> bool:
        """Return whether transforms hide values of a table (`database.table`) from the sink."""
        hiding = (glob for glob, own in self.tables if any(value for field, value in own if field in _HIDING))
        return any(fnmatch.fnmatchcase(name, glob) for glob in hiding)

    @property
    def have_expressions(self) -> bool:
        """Whether a table has a SQL expression."""
        return any(value for _, own in self.tables for field, value in own if field in _EXPRESSIONS)

    @property
    def salts(self) -> tuple[str, ...]:
        """The places of the salts."""
        return tuple(dict.fromkeys(value for _, own in self.tables for field, value in own if field == "hash_salt" and value))


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, tuple) or not isinstance(above, tuple):
        return above
    if all(isinstance(one, tuple) for one in (*below, *above)):
        return tuple({**dict(below), **dict(above)}.items())
    return tuple(dict.fromkeys((*below, *above)))


@dataclass(frozen=True, slots=True)
class Salts:
    """Secrets by the text that gives their location. Picklable; never displayed."""

    found: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def of(self, reference: str) -> bytes:
        return self.found[reference] if reference else b""

    def fingerprints(self) -> dict[str, str]:
        """Return values that change with the secrets and reveal nothing else."""
        return {reference: hashlib.sha256(b"headrace salt\0" + secret).hexdigest()[:16] for reference, secret in self.found.items()}


def read_salts(transforms: Transforms) -> Salts:
    return Salts({reference: _read(reference) for reference in transforms.salts})


def _read(reference: str) -> bytes:
    check_salt(reference, "hash_salt")
    kind, _, rest = reference.partition(":")
    if kind == "env":
        found = os.environ.get(rest, "").encode()
        where = f"the variable {rest} is not set, or empty"
    else:
        try:
            found = Path(rest).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise DefiniteError(f"the salt cannot be read: {error}", place=f"hash_salt = {reference}", hint=SALT_HINT) from error
        where = "the file is empty"
    if not found:
        raise DefiniteError(f"there is no salt: {where}", place=f"hash_salt = {reference}", hint="put a long random text there")
    try:
        found.decode()
    except UnicodeDecodeError as error:
        raise DefiniteError("the salt is not text", place=f"hash_salt = {reference}", hint="use letters and digits") from error
    return found
