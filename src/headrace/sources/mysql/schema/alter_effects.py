"""The effect of an ALTER on existing values, as far as the servers' rules are certain.

An ALTER may rewrite every row without a row event: cut text, pad bytes, round numbers, recompute. A session in strict mode refuses to
change a value in most of these cases, so a logged statement has changed none. Changes that even a strict session makes silently (trailing
spaces, fractional digits) are stated here, or reported as `UnknownValues`. The tests check these rules on both servers.

The values of existing rows in a new column: a constant default is the value of every row. A required column without a default holds the
server's implicit value. If the value depends on the row, the time, the session's time zone, or on rules that differ between servers, it is
`UnknownValues` and the table is read again.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, assert_never

from headrace.model.alter_effects import BackfillValue, Effect, Truncated, Unchanged, UnknownValues
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.model.schema_change import AddColumn, ModifyColumn
from headrace.sources.mysql.ddl.column_definition import are_distinct, character_width
from headrace.sources.mysql.ddl.dialect import PAD_CHAR_TO_FULL_LENGTH, STRICT
from headrace.sources.mysql.events.event_types import Session

_UNICODE: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_WORD: Final = re.compile(r"\s*([a-z]+)\s*(?:\((\d+)\))?", re.IGNORECASE)
_HEX: Final = re.compile(r"0x(?:[0-9A-F]{2})*")
_BYTES_OF: Final = {
    size + kind: most
    for size, most in (("tiny", 255), ("", 65_535), ("medium", (1 << 24) - 1), ("long", (1 << 32) - 1))
    for kind in ("text", "blob")
}
_MEDIUM: Final = {True: (-(1 << 23), (1 << 23) - 1), False: (0, (1 << 24) - 1)}
"""The range of a MEDIUMINT, if it is signed and if it is not."""
_BITS_OF_DOUBLE: Final = 53
_UTF8: Final = frozenset({"", "utf8mb3", "utf8mb4"})

_CONVERTED: Final = UnknownValues("the source converted its values to another type")
_NOT_STRICT: Final = UnknownValues("a session that is not strict may have changed values to fit")
_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_MOMENT: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_CLOCK: Final = re.compile(r"(-?)(\d{2,3}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_LENGTH: Final = re.compile(r"\((\d+)\)")
_MICROSECOND: Final = timedelta(microseconds=1)
_REQUIRED: Final = UnknownValues("it is required and has no default")
_ON_ITS_OWN: Final = UnknownValues("the source computes it for every row")


def is_strict(session: Session) -> bool:
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
    if old.nullable and not new.nullable and (not strict or new.type.zoned):
        return UnknownValues("the source put something in the place of NULLs")
    if old.form is ValueForm.INTEGER:
        return _from_integer(old, new, strict=strict)
    if old.form is ValueForm.MEMBERS:
        return _from_names(old, new, strict=strict)
    if old.kind is not new.kind and not (old.form is ValueForm.FLOAT and new.form is ValueForm.FLOAT):
        return _CONVERTED
    match old.form:
        case ValueForm.DATE | ValueForm.YEAR | ValueForm.JSON | ValueForm.GEOMETRY | ValueForm.VECTOR | ValueForm.FIXED_BYTES:
            # Values do not depend on the parameters of the type.
            return Unchanged()
        case ValueForm.BITS:
            return _if(new.precision >= old.precision or strict)
        case ValueForm.TIMESTAMP | ValueForm.TIME:
            return Unchanged() if new.precision >= old.precision else UnknownValues("the source rounded fractions of seconds")
        case ValueForm.FLOAT:
            return _float(old, new, strict=strict)
        case ValueForm.DECIMAL:
            return _decimal(old, new, strict=strict)
        case ValueForm.BYTES:
            return _bytes(old, new)
        case ValueForm.TEXT:
            return _text(old, new, strict=strict)
        case unknown:
            assert_never(unknown)


def _plain(column: Column) -> Column:
    return replace(column, default=None, comment="", invisible=False)


def _if(sure: bool) -> Effect:
    return Unchanged() if sure else _NOT_STRICT


def _range(column: Column) -> tuple[int, int]:
    return _MEDIUM[column.type.signed] if column.source_type.startswith("mediumint") else column.type.value_range


def _from_integer(old: Column, new: Column, *, strict: bool) -> Effect:
    least, most = _range(old)
    if new.form is ValueForm.INTEGER:
        lowest, highest = _range(new)
        return _if(strict or (lowest <= least and most <= highest))
    if new.form is ValueForm.DECIMAL and "unsigned" not in new.source_type:
        return Unchanged() if new.precision - new.scale >= len(str(most)) else _CONVERTED
    if new.form is ValueForm.FLOAT and new.type.bits == 64 and "(" not in new.source_type and "unsigned" not in new.source_type:
        return Unchanged() if old.type.bits <= _BITS_OF_DOUBLE else _CONVERTED
    if new.form is ValueForm.TEXT and "zerofill" not in old.source_type:
        return Unchanged() if _room(new) >= max(len(str(least)), len(str(most))) else _CONVERTED
    return _CONVERTED


def _float(old: Column, new: Column, *, strict: bool) -> Effect:
    if old.source_type == new.source_type:
        return Unchanged()
    if "(" in new.source_type:
        return UnknownValues("the source rounded to the digits of the new type")
    if new.type.bits < old.type.bits:
        return UnknownValues("the source rounded to fewer bits")
    return _if(strict or "unsigned" not in new.source_type)


def _decimal(old: Column, new: Column, *, strict: bool) -> Effect:
    if new.scale < old.scale:
        return UnknownValues("the source rounded digits behind the point")
    if new.precision - new.scale < old.precision - old.scale:
        return _CONVERTED
    return _if(strict or "unsigned" not in new.source_type)


def _from_names(old: Column, new: Column, *, strict: bool) -> Effect:
    if new.form is ValueForm.TEXT:
        sizes = [len(member) for member in old.members]
        longest = sum(sizes) + max(len(sizes) - 1, 0) if old.type.multiple else max(sizes, default=0)
        fits = _room(new) >= longest and _form(new.source_type)[0] != "char"
        return _characters(old, new, strict=strict) if fits else _CONVERTED
    if new.kind is not old.kind:
        return _CONVERTED
    grown, shrunk = set(new.members) >= set(old.members), set(new.members) <= set(old.members)
    if not (grown or shrunk) or (old.type.multiple and not _in_order(old.members, new.members)):
        # A name may now match another one that its collation treats as equal; a SET prints its names in the order of its members.
        return _CONVERTED
    if not (strict and grown) and not are_distinct({*old.members, *new.members}):
        # The new collation may treat two names as equal; only a strict session refuses such a definition.
        return _CONVERTED
    return _characters(old, new, strict=strict) if grown or strict else _NOT_STRICT


def _in_order(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
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


def _room(column: Column) -> int:
    word, length = _form(column.source_type)
    return length if word in ("char", "varchar") else _BYTES_OF.get(word, 0) // character_width(column.charset)


def _form(source_type: str) -> tuple[str, int]:
    found = _WORD.match(source_type)
    return (found[1].lower(), int(found[2] or 1)) if found is not None else (source_type, 0)


def backfill_value(column: Column, *, zeroes: bool = True) -> Effect:
    """Return the value of existing rows in a new column. `zeroes`: whether the server fills a required column without a default with zero
    values.
    """
    if column.generated or column.auto_increment:
        return _ON_ITS_OWN
    if column.default is None:
        if column.nullable:
            return BackfillValue(None)
        return _implicit(column) if zeroes else _REQUIRED
    if column.default.startswith("("):
        # An expression. A string in parentheses looks the same, but is rare enough to resync.
        return _ON_ITS_OWN
    value = _parsed(column, column.default)
    return BackfillValue(value) if value is not None else UnknownValues(f"the text of its default {column.default!r} is not exact")


def _implicit(column: Column) -> Effect:
    match column.form:
        case ValueForm.INTEGER | ValueForm.BITS | ValueForm.TIME:
            return BackfillValue(0)
        case ValueForm.FLOAT:
            return BackfillValue(0.0)
        case ValueForm.DECIMAL:
            return BackfillValue(Decimal(0))
        case ValueForm.MEMBERS if not column.type.multiple:
            return BackfillValue(column.members[0]) if column.members else _REQUIRED
        case ValueForm.TEXT | ValueForm.MEMBERS:
            return BackfillValue("")
        case ValueForm.BYTES:
            return BackfillValue(_padded(column, b""))
        case ValueForm.YEAR | ValueForm.DATE | ValueForm.TIMESTAMP | ValueForm.JSON:
            return _REQUIRED
        case ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return _REQUIRED
        case unknown:
            assert_never(unknown)


def _padded(column: Column, value: bytes) -> bytes:
    length = _LENGTH.search(column.source_type)
    return value.ljust(int(length[1]), b"\0") if column.source_type.lower().startswith("binary") and length else value


def _parsed(column: Column, text: str) -> object:
    """Return the value of a literal default; None if its text does not determine it."""
    match column.form:
        case ValueForm.INTEGER:
            return int(text) if re.fullmatch(r"-?\d+", text) else None
        case ValueForm.YEAR:
            return int(text) if re.fullmatch(r"\d{4}", text) else None
        case ValueForm.FLOAT | ValueForm.DECIMAL:
            return _parsed_number(column, text)
        case ValueForm.BITS:
            bits = re.fullmatch(r"b'([01]*)'", text)
            return int(bits[1] or "0", 2) if bits else None
        case ValueForm.TEXT if not text.isascii() and column.charset not in _UNICODE:
            return None
        case ValueForm.TEXT:
            return text.rstrip(" ") if column.source_type.lower().startswith("char") else text
        case ValueForm.BYTES:
            return _padded(column, bytes.fromhex(text[2:])) if re.fullmatch(r"0x(?:[0-9A-Fa-f]{2})*", text) else None
        case ValueForm.MEMBERS if column.type.multiple:
            # A SET prints its names in the order of its members, not in the order of its default.
            names = text.split(",") if text else []
            return ",".join(member for member in column.members if member in names) if set(names) <= set(column.members) else None
        case ValueForm.MEMBERS:
            return text if text in column.members else None
        case ValueForm.DATE:
            since = _since_1970(text) if _DATE.fullmatch(text) else None
            return None if since is None else since.days
        case ValueForm.TIMESTAMP:
            # The text of a TIMESTAMP depends on the time zone.
            since = _since_1970(text) if _MOMENT.fullmatch(text) and not column.type.zoned else None
            return None if since is None else since // _MICROSECOND
        case ValueForm.TIME:
            clock = _CLOCK.fullmatch(text)
            if clock is None:
                return None
            micros = (int(clock[2]) * 3600 + int(clock[3]) * 60 + int(clock[4])) * 1_000_000 + int((clock[5] or "").ljust(6, "0"))
            return -micros if clock[1] else micros
        case ValueForm.JSON | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return None
        case unknown:
            assert_never(unknown)


def _parsed_number(column: Column, text: str) -> object:
    try:
        if column.form is ValueForm.DECIMAL:
            value = Decimal(text)
            return value if value.is_finite() and -int(value.as_tuple().exponent) <= column.scale else None
        return struct.unpack("<f", struct.pack("<f", float(text)))[0] if column.type.bits == 32 else float(text)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def _since_1970(text: str) -> timedelta | None:
    """Return the time from 1970 to a date, or to a date and time; None if there is no such date."""
    try:
        return datetime.fromisoformat(text) - datetime(1970, 1, 1)
    except ValueError:
        return None
