"""The values that existing rows hold in a new column.

A constant default is the value of every row. A required column without a default holds the server's implicit value. If the value depends on
the row, the time, the session's time zone, or on rules that differ between servers, it is `UnknownValues` and the table is read again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Final, assert_never

from headrace.model.alter_effects import BackfillValue, Effect, UnknownValues
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column

_DATE: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_MOMENT: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_CLOCK: Final = re.compile(r"(-?)(\d{2,3}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?")
_LENGTH: Final = re.compile(r"\((\d+)\)")
_ANY_TEXT: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
_EPOCH: Final = date(1970, 1, 1).toordinal()
_REQUIRED: Final = UnknownValues("it is required and has no default")
_ON_ITS_OWN: Final = UnknownValues("the source computes it for every row")


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
    parse = _parser(column)
    value = parse(column, column.default) if parse is not None else None
    return BackfillValue(value) if value is not None else UnknownValues(f"the text of its default {column.default!r} is not exact")


def _implicit(column: Column) -> Effect:
    """Return the implicit value of a required column without a default."""
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


def _integer(column: Column, text: str) -> object:
    del column
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _float(column: Column, text: str) -> object:
    try:
        value = float(text)
        return struct.unpack("<f", struct.pack("<f", value))[0] if column.type.bits == 32 else value
    except (ValueError, OverflowError):
        return None


def _decimal(column: Column, text: str) -> object:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return value if value.is_finite() and -int(value.as_tuple().exponent) <= column.scale else None


def _bits(column: Column, text: str) -> object:
    del column
    found = re.fullmatch(r"b'([01]*)'", text)
    return int(found[1] or "0", 2) if found else None


def _text(column: Column, text: str) -> object:
    if not text.isascii() and column.charset not in _ANY_TEXT:
        return None
    return text.rstrip(" ") if column.source_type.lower().startswith("char") else text


def _bytes(column: Column, text: str) -> object:
    if not re.fullmatch(r"0x(?:[0-9A-Fa-f]{2})*", text):
        return None
    return _padded(column, bytes.fromhex(text[2:]))


def _padded(column: Column, value: bytes) -> bytes:
    length = _LENGTH.search(column.source_type)
    return value.ljust(int(length[1]), b"\0") if column.source_type.lower().startswith("binary") and length else value


def _member(column: Column, text: str) -> object:
    return text if text in column.members else None


def _members(column: Column, text: str) -> object:
    """A SET prints its names in the order of its members, not in the order of its default."""
    names = text.split(",") if text else []
    return ",".join(member for member in column.members if member in names) if set(names) <= set(column.members) else None


def _day(year: str, month: str, day: str) -> int | None:
    try:
        return date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        return None


def _date(column: Column, text: str) -> object:
    del column
    found = _DATE.fullmatch(text)
    return _day(*found.groups()) if found else None


def _datetime(column: Column, text: str) -> object:
    del column
    found = _MOMENT.fullmatch(text)
    day = _day(*found.groups()[:3]) if found else None
    if found is None or day is None:
        return None
    hour, minute, second = (int(part) for part in found.groups()[3:6])
    return ((day * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def _time(column: Column, text: str) -> object:
    del column
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    micros = (int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4])) * 1_000_000 + int((found[5] or "").ljust(6, "0"))
    return -micros if found[1] else micros


def _year(column: Column, text: str) -> object:
    del column
    return int(text) if re.fullmatch(r"\d{4}", text) else None


def _parser(column: Column) -> Callable[[Column, str], object] | None:
    """Return the function that parses a literal default; None if its text does not determine the value."""
    match column.form:
        case ValueForm.INTEGER:
            return _integer
        case ValueForm.FLOAT:
            return _float
        case ValueForm.DECIMAL:
            return _decimal
        case ValueForm.BITS:
            return _bits
        case ValueForm.TEXT:
            return _text
        case ValueForm.BYTES:
            return _bytes
        case ValueForm.MEMBERS:
            return _members if column.type.multiple else _member
        case ValueForm.DATE:
            return _date
        case ValueForm.TIMESTAMP:
            # The text of a TIMESTAMP depends on the time zone.
            return None if column.type.zoned else _datetime
        case ValueForm.TIME:
            return _time
        case ValueForm.YEAR:
            return _year
        case ValueForm.JSON | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return None
        case unknown:
            assert_never(unknown)
