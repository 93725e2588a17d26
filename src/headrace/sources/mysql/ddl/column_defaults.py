"""Converts a column's default to the form of `information_schema`: a literal as the server prints its value, an expression in parentheses.

A literal is printed by the column's type, however it was written: `DEFAULT '1'` of a DECIMAL(5,2) is `1.00`. An expression keeps the
statement's text, without the changes that the server makes when it prints it.
"""

from __future__ import annotations

import re
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final, assert_never

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column
from headrace.sources.mysql.ddl.ast import DefaultForm, DefaultText

_NOW: Final = re.compile(r"\(?\s*(?:current_timestamp|now|localtime|localtimestamp)\s*(?:\(\s*(\d*)\s*\))?\s*\)?", re.IGNORECASE)
_WIDE: Final = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
_EXACT: Final = Context(prec=100)
_NUMBERS: Final = (ValueForm.INTEGER, ValueForm.DECIMAL, ValueForm.FLOAT, ValueForm.YEAR)
_MOMENT: Final = re.compile(r"(\d{1,4})\D(\d{1,2})\D(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?)?")
_PLAIN_NUMBER: Final = re.compile(r"0|-?[1-9]\d*")
_CLOCK: Final = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?")


def default_of(column: Column, default: DefaultText, *, mariadb: bool) -> str:
    """Return a default as the server prints it; an expression if the text does not show how the server converts it."""
    if default.written is DefaultForm.EXPRESSION:
        return _expression(column, default.text)
    if default.written is DefaultForm.BITS:
        return _bits(column, bytes.fromhex(default.text))
    if column.form is ValueForm.TIME:
        # A fraction that is too long is cut off by MariaDB and rounded by MySQL.
        return _time(column, default.text, ROUND_DOWN if mariadb else ROUND_HALF_UP)
    if column.form is ValueForm.YEAR:
        return _year(default)
    if column.form is ValueForm.BITS and default.written is DefaultForm.STRING:
        return _bits(column, default.text.encode())
    if default.written is DefaultForm.NUMBER and not _is_printed(column, default.text):
        return f"({default.text})"
    return _literal(column, default.text)


def _is_printed(column: Column, number: str) -> bool:
    """Whether the server prints a number as the statement writes it.

    Text columns store its shortest form, ENUM and SET the member at that index, and integer columns round a float to even.
    """
    if column.form is ValueForm.MEMBERS:
        return False
    if column.form in (ValueForm.TEXT, ValueForm.BYTES):
        return _PLAIN_NUMBER.fullmatch(number) is not None
    return not (column.form is ValueForm.INTEGER and "e" in number.lower())


def _expression(column: Column, text: str) -> str:
    if _NOW.fullmatch(text.strip()) and column.form is ValueForm.TIMESTAMP:
        return f"(current_timestamp({column.precision or ''}))"
    return text if text.startswith("(") else f"({text})"


def _bits(column: Column, raw: bytes) -> str:
    if column.form is ValueForm.BITS:
        return f"b'{int.from_bytes(raw, 'big'):b}'"
    if column.form is ValueForm.BYTES:
        return _binary(column, raw)
    if column.form in _NUMBERS:
        return _literal(column, str(int.from_bytes(raw, "big")))
    if not raw.isascii() or column.charset in _WIDE:
        return f"(0x{raw.hex().upper()})"
    return raw.decode("ascii")


def _binary(column: Column, raw: bytes) -> str:
    return "0x" + (raw.rstrip(b"\0") if column.source_type.startswith("binary") else raw).hex().upper()


def _literal(column: Column, text: str) -> str:
    match column.form:
        case ValueForm.BITS:
            return f"b'{int(text):b}'" if text.isdecimal() else text
        case ValueForm.BYTES:
            return _binary(column, text.encode())
        case ValueForm.INTEGER | ValueForm.DECIMAL:
            return _number(column, text, column.scale)
        case ValueForm.FLOAT:
            digits = re.search(r"\(\d+,(\d+)\)", column.source_type)
            if not digits:
                return text
            printed = _number(column, text, int(digits[1]))
            # The server rounds in binary; decimal rounding may give another value.
            return printed if _is_equal(printed, text) else f"({text})"
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            return _moment(column, text)
        case ValueForm.MEMBERS if not column.type.multiple:
            return next((member for member in column.members if member.lower() == text.rstrip(" ").lower()), text)
        case ValueForm.MEMBERS | ValueForm.TEXT | ValueForm.YEAR | ValueForm.TIME:
            return text
        case ValueForm.JSON | ValueForm.FIXED_BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return text
        case unknown:
            assert_never(unknown)


def _is_equal(printed: str, text: str) -> bool:
    try:
        return Decimal(printed) == Decimal(text.strip())
    except InvalidOperation:
        return False


def _number(column: Column, text: str, scale: int) -> str:
    try:
        value = Decimal(text.strip()).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    except InvalidOperation:
        return text
    printed = f"{value:f}"
    if "zerofill" not in column.source_type:
        return printed
    width = re.search(r"\((\d+)", column.source_type)
    digits = column.precision + bool(column.scale) if column.form is ValueForm.DECIMAL else int(width[1]) if width else 0
    return printed.zfill(digits)


def _year(default: DefaultText) -> str:
    """Years of one or two digits are in this century or the last, but the number 0 is the year 0000."""
    if not default.text.isdecimal() or len(default.text) > 3 or (int(default.text) == 0 and default.written is DefaultForm.NUMBER):
        return default.text.zfill(4) if default.text.isdecimal() else default.text
    if len(default.text) == 3:
        return f"({default.text})"
    year = int(default.text)
    return str(year + (2000 if year < 70 else 1900))


def _fraction(column: Column, digits: str | None) -> str:
    return "." + (digits or "").ljust(6, "0")[: column.precision] if column.precision else ""


def _year_of(digits: str, *, is_zero: bool) -> int:
    """Two digits mean a year from 1970 to 2069, except in the zero date."""
    year = int(digits)
    return year if len(digits) != 2 or is_zero else year + (2000 if year < 70 else 1900)


def _moment(column: Column, text: str) -> str:
    if text in {"0", ""}:
        text = "0000-00-00 00:00:00"
    found = _MOMENT.fullmatch(text.strip())
    if not found:
        return text
    month, day = int(found[2]), int(found[3])
    year = _year_of(found[1], is_zero=not any(int(part or 0) for part in found.groups()))
    printed = f"{year:04}-{month:02}-{day:02}"
    if column.form is ValueForm.DATE:
        # One server rounds up to the next day, the other truncates.
        return printed if not (found[7] or "").strip("0") else f"('{text}')"
    if (found[7] or "")[column.precision :].strip("0"):
        # One server rounds the fraction, the other truncates it.
        return f"('{text}')"
    hour, minute, second = (int(part or 0) for part in found.groups()[3:6])
    return f"{printed} {hour:02}:{minute:02}:{second:02}{_fraction(column, found[7])}"


def _time(column: Column, text: str, rounding: str) -> str:
    if text.isdecimal():
        # 10203 means 01:02:03.
        hours, rest = divmod(int(text), 10_000)
        text = f"{hours}:{rest // 100}:{rest % 100}"
    found = _CLOCK.fullmatch(text.strip())
    if not found:
        return text
    seconds = Decimal(f"{int(found[2]) * 3600 + int(found[3]) * 60 + int(found[4] or 0)}.{found[5] or 0}")
    rounded = seconds.quantize(Decimal(1).scaleb(-column.precision), rounding)
    whole, _, fraction = f"{rounded:f}".partition(".")
    minutes, second = divmod(int(whole), 60)
    return f"{found[1]}{minutes // 60:02}:{minutes % 60:02}:{second:02}{'.' if fraction else ''}{fraction}"
