"""The effect of an ALTER on existing values, as far as the servers' rules are certain.

An ALTER may rewrite every row without a row event: cut text, pad bytes, round numbers, recompute. A session in strict mode refuses to
change a value in most of these cases, so a logged statement has changed none. Changes that even a strict session makes silently (trailing
spaces, fractional digits) are stated here, or reported as `UnknownValues`. The tests check these rules on both servers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.model.alter_effects import Effect, Truncated, Unchanged, UnknownValues
from headrace.model.schema import Column, Kind
from headrace.model.schema_change import AddColumn, ModifyColumn
from headrace.sources.mysql.ddl.column_definition import are_distinct, character_width
from headrace.sources.mysql.ddl.dialect import PAD_CHAR_TO_FULL_LENGTH, STRICT
from headrace.sources.mysql.events.query_session import Session
from headrace.sources.mysql.schema.added_column_values import backfill_value

_UNICODE: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_WORD: Final = re.compile(r"\s*([a-z]+)\s*(?:\((\d+)\))?", re.IGNORECASE)
_HEX: Final = re.compile(r"0x(?:[0-9A-F]{2})*")
_BYTES_OF: Final = {
    size + kind: most
    for size, most in (("tiny", 255), ("", 65_535), ("medium", (1 << 24) - 1), ("long", (1 << 32) - 1))
    for kind in ("text", "blob")
}
_BITS: Final = {
    Kind.INT8: (-(1 << 7), (1 << 7) - 1),
    Kind.INT16: (-(1 << 15), (1 << 15) - 1),
    Kind.INT32: (-(1 << 31), (1 << 31) - 1),
    Kind.INT64: (-(1 << 63), (1 << 63) - 1),
    Kind.UINT8: (0, (1 << 8) - 1),
    Kind.UINT16: (0, (1 << 16) - 1),
    Kind.UINT32: (0, (1 << 32) - 1),
    Kind.UINT64: (0, (1 << 64) - 1),
}
_MEDIUM: Final = {Kind.INT32: (-(1 << 23), (1 << 23) - 1), Kind.UINT32: (0, (1 << 24) - 1)}
_EXACT_IN_DOUBLE: Final = frozenset({Kind.INT8, Kind.INT16, Kind.INT32, Kind.UINT8, Kind.UINT16, Kind.UINT32})
_AS_THEY_ARE: Final = frozenset({Kind.DATE, Kind.YEAR, Kind.JSON, Kind.GEOMETRY, Kind.VECTOR, Kind.UUID, Kind.INET4, Kind.INET6})
"""Kinds whose values do not depend on the parameters of the type."""
_FRACTIONAL: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_FLOATS: Final = frozenset({Kind.FLOAT32, Kind.FLOAT64})
_NAMED: Final = frozenset({Kind.ENUM, Kind.SET})
_UTF8: Final = frozenset({"", "utf8mb3", "utf8mb4"})

_CONVERTED: Final = UnknownValues("the source converted its values to another type")
_NOT_STRICT: Final = UnknownValues("a session that is not strict may have changed values to fit")


def is_strict(session: Session) -> bool:
    """Whether the statement's session was in strict mode."""
    return bool(session.sql_mode & STRICT)


def effect_of(change: AddColumn | ModifyColumn, session: Session) -> Effect:
    """Return the effect of a change on the values of its column."""
    if isinstance(change, AddColumn):
        return (
            backfill_value(change.column) if _is_exact(change.column.default or "", session) else UnknownValues("its default was converted")
        )
    old, new = change.column, change.new_column
    if session.sql_mode & PAD_CHAR_TO_FULL_LENGTH and _form(old.source_type)[0] == "char" and _form(new.source_type)[0] != "char":
        return UnknownValues("the source kept the spaces that fill up a CHAR")
    return _modified(old, new, strict=is_strict(session))


def _is_exact(default: str, session: Session) -> bool:
    """Whether the server's conversion to the connection's character set left a default unchanged. A default of bytes holds UTF-8."""
    plain = all(int(default[at : at + 2], 16) < 128 for at in range(2, len(default), 2)) if _HEX.fullmatch(default) else default.isascii()
    return plain or (session.connection_charset in _UTF8 and (session.connection_charset != "utf8mb3" or max(default) <= "\uffff"))


def _modified(old: Column, new: Column, *, strict: bool) -> Effect:
    if old.generated or new.generated:
        # The expression may have changed with it.
        return Unchanged() if _plain(old) == _plain(new) else UnknownValues("the source computes it")
    if new.auto_increment and not old.auto_increment:
        return UnknownValues("the source numbered rows that held 0")
    if old.nullable and not new.nullable and (not strict or new.kind is Kind.TIMESTAMP):
        return UnknownValues("the source put something in the place of NULLs")
    if old.kind in _BITS:
        return _from_integer(old, new, strict=strict)
    if old.kind in _NAMED:
        return _from_names(old, new, strict=strict)
    if old.kind is not new.kind and not (old.kind in _FLOATS and new.kind in _FLOATS):
        return _CONVERTED
    if old.kind in _AS_THEY_ARE:
        return Unchanged()
    if old.kind is Kind.BIT:
        return _if(new.precision >= old.precision or strict)
    if old.kind in _FRACTIONAL:
        return Unchanged() if new.precision >= old.precision else UnknownValues("the source rounded fractions of seconds")
    if old.kind in _FLOATS:
        return _float(old, new, strict=strict)
    if old.kind is Kind.DECIMAL:
        return _decimal(old, new, strict=strict)
    return _bytes(old, new) if old.kind is Kind.BYTES else _text(old, new, strict=strict)


def _plain(column: Column) -> Column:
    return replace(column, default=None, comment="", invisible=False)


def _if(sure: bool) -> Effect:
    return Unchanged() if sure else _NOT_STRICT


def _range(column: Column) -> tuple[int, int]:
    return _MEDIUM[column.kind] if column.source_type.startswith("mediumint") else _BITS[column.kind]


def _from_integer(old: Column, new: Column, *, strict: bool) -> Effect:
    least, most = _range(old)
    if new.kind in _BITS:
        lowest, highest = _range(new)
        return _if(strict or (lowest <= least and most <= highest))
    if new.kind is Kind.DECIMAL and "unsigned" not in new.source_type:
        return Unchanged() if new.precision - new.scale >= len(str(most)) else _CONVERTED
    if new.kind is Kind.FLOAT64 and "(" not in new.source_type and "unsigned" not in new.source_type:
        return Unchanged() if old.kind in _EXACT_IN_DOUBLE else _CONVERTED
    if new.kind is Kind.STRING and "zerofill" not in old.source_type:
        word, length = _form(new.source_type)
        room = length if word in ("char", "varchar") else _BYTES_OF.get(word, 0) // character_width(new.charset)
        return Unchanged() if room >= max(len(str(least)), len(str(most))) else _CONVERTED
    return _CONVERTED


def _float(old: Column, new: Column, *, strict: bool) -> Effect:
    if old.source_type == new.source_type:
        return Unchanged()
    if "(" in new.source_type:
        return UnknownValues("the source rounded to the digits of the new type")
    if old.kind is Kind.FLOAT64 and new.kind is Kind.FLOAT32:
        return UnknownValues("the source rounded to fewer bits")
    return _if(strict or "unsigned" not in new.source_type)


def _decimal(old: Column, new: Column, *, strict: bool) -> Effect:
    if new.scale < old.scale:
        return UnknownValues("the source rounded digits behind the point")
    if new.precision - new.scale < old.precision - old.scale:
        return _CONVERTED
    return _if(strict or "unsigned" not in new.source_type)


def _from_names(old: Column, new: Column, *, strict: bool) -> Effect:
    if new.kind is Kind.STRING:
        word, length = _form(new.source_type)
        longest = (
            max(map(len, old.members), default=0) if old.kind is Kind.ENUM else sum(map(len, old.members)) + max(len(old.members) - 1, 0)
        )
        room = length if word in ("char", "varchar") else _BYTES_OF.get(word, 0) // character_width(new.charset)
        return _characters(old, new, strict=strict) if room >= longest and word != "char" else _CONVERTED
    if new.kind is not old.kind:
        return _CONVERTED
    grown, shrunk = set(new.members) >= set(old.members), set(new.members) <= set(old.members)
    if not (grown or shrunk) or (old.kind is Kind.SET and not _in_order(old.members, new.members)):
        # A name may now match another one that its collation treats as equal; a SET prints its names in the order of its members.
        return _CONVERTED
    if not (strict and grown) and not are_distinct({*old.members, *new.members}):
        # The new collation may treat two names as equal; only a strict session refuses such a definition.
        return _CONVERTED
    return _characters(old, new, strict=strict) if grown or strict else _NOT_STRICT


def _in_order(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
    """Whether the names that both have are in the same order."""
    return [name for name in old if name in new] == [name for name in new if name in old]


def _characters(old: Column, new: Column, *, strict: bool) -> Effect:
    return _if(old.charset == new.charset or new.charset in _UNICODE or strict)


def _text(old: Column, new: Column, *, strict: bool) -> Effect:
    kept = _characters(old, new, strict=strict)
    if not isinstance(kept, Unchanged):
        return kept
    (word, length), (new_word, new_length) = _form(old.source_type), _form(new.source_type)
    if new_word in ("char", "varchar"):
        fits = word in ("char", "varchar") and new_length >= length
        if fits and (new_word == "varchar" or word == "char"):
            return Unchanged()
        # Even a strict session cuts trailing spaces silently, and nothing else.
        return Truncated(None if fits else new_length, stripped=new_word == "char") if fits or strict else _NOT_STRICT
    characters = length if word in ("char", "varchar") else _BYTES_OF.get(word, 0)
    if word not in ("char", "varchar") and old.charset == new.charset:
        return Unchanged() if _BYTES_OF.get(new_word, 0) >= characters else _CONVERTED
    if word not in ("char", "varchar"):
        characters //= character_width(old.charset)
    return Unchanged() if _BYTES_OF.get(new_word, 0) >= characters * character_width(new.charset) else _CONVERTED


def _bytes(old: Column, new: Column) -> Effect:
    (word, length), (new_word, new_length) = _form(old.source_type), _form(new.source_type)
    if new_word == "binary":
        return Unchanged() if (word, length) == (new_word, new_length) else UnknownValues("the source padded or cut bytes")
    room, needed = _BYTES_OF.get(new_word, new_length), _BYTES_OF.get(word, length)
    return Unchanged() if room >= needed else UnknownValues("the source may have cut bytes")


def _form(source_type: str) -> tuple[str, int]:
    """Return a type's first word, and its length."""
    found = _WORD.match(source_type)
    return (found[1].lower(), int(found[2] or 1)) if found is not None else (source_type, 0)
