"""Converts a parsed column definition to the column that the server creates, in exactly the form of `information_schema`.

A literal default is printed by the column's type, however it was written: `DEFAULT '1'` of a DECIMAL(5,2) is `1.00`. An expression keeps
the statement's text, in parentheses, without the changes that the server makes when it prints it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Final, assert_never

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind
from headrace.sources.mysql.ddl.ast import ColumnText, DefaultForm, DefaultText, TypeText
from headrace.sources.mysql.ddl.dialect import Dialect
from headrace.sources.mysql.type_names import GEOMETRIES, kind_of

_INTEGER_WIDTHS: Final = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
"""The display widths of signed and unsigned integers."""
_TEXT_SIZES: Final = (("tinytext", "tinyblob", 255), ("text", "blob", 65_535), ("mediumtext", "mediumblob", (1 << 24) - 1))
_BLOB_OF: Final = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}
_TEXT_OF: Final = {blob: text for text, blob in _BLOB_OF.items()}
_BYTES_OF: Final = {"tinytext": 255, "text": 65_535, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
_FRACTIONAL: Final = ("datetime", "timestamp", "time")
LONGEST_VARCHAR: Final = 65_535
_NO_DISPLAY_WIDTH: Final = 80_019
"""The MySQL version since which integers are shown without a display width."""
DEFAULT_VECTOR: Final = 2_048

_WIDTHS: Final = {
    **dict.fromkeys(("big5", "cp932", "euckr", "gb2312", "gbk", "sjis", "ucs2"), 2),
    **dict.fromkeys(("eucjpms", "ujis", "utf8mb3"), 3),
    **dict.fromkeys(("gb18030", "utf16", "utf16le", "utf32", "utf8mb4"), 4),
}
"""Bytes of the longest character, where it is not 1."""
_NOW: Final = re.compile(r"\(?\s*(?:current_timestamp|now|localtime|localtimestamp)\s*(?:\(\s*(\d*)\s*\))?\s*\)?", re.IGNORECASE)
_WIDE: Final = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
_EXACT: Final = Context(prec=100)
_NUMBERS: Final = (ValueForm.INTEGER, ValueForm.DECIMAL, ValueForm.FLOAT, ValueForm.YEAR)
_MOMENT: Final = re.compile(r"(\d{1,4})\D(\d{1,2})\D(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?)?")
_PLAIN_NUMBER: Final = re.compile(r"0|-?[1-9]\d*")
_CLOCK: Final = re.compile(r"(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?(?:\.(\d*))?")


@dataclass(frozen=True, slots=True)
class Setting:
    """The context of a column definition: the server, the session, and the table's character set."""

    dialect: Dialect
    charset: str
    explicit_timestamps: bool = True


def charset_of(charset: str, collation: str, otherwise: str) -> str:
    """Return the character set that a character set name, a collation, or neither stands for."""
    if charset and charset.lower() != "default":
        return _plain_charset(charset)
    name = collation.lower()
    # MariaDB's newest collations belong to any Unicode character set.
    if name and name != "default" and not name.startswith("uca1400"):
        return _plain_charset(name.split("_")[0])
    return otherwise


def _plain_charset(name: str) -> str:
    return "utf8mb3" if name.lower() == "utf8" else name.lower()


def character_width(charset: str) -> int:
    return _WIDTHS.get(charset, 1)


def define_column(text: ColumnText, setting: Setting) -> Column:
    """Return the column as the server will describe it. Membership in the primary key is not known here."""
    found = text.type
    charset = charset_of(text.charset or found.charset, text.collation, setting.charset)
    column = _define_type(text.name, found, charset, setting)
    column = replace(
        column,
        nullable=_is_nullable(text, setting),
        generated=text.generated,
        invisible=text.invisible,
        auto_increment=text.auto_increment or found.serial,
        default=_default(column, text, setting),
        comment=text.comment,
    )
    if text.compressed:
        column = replace(column, source_type=f"{column.source_type} /*M!100301 COMPRESSED*/")
    return column


def _default(column: Column, text: ColumnText, setting: Setting) -> str | None:
    if text.default is not None:
        return default_of(column, text.default, mariadb=setting.dialect.mariadb)
    implicit = column.type.zoned and not setting.explicit_timestamps
    # MariaDB shows the zero date as the default of a required column that is only set ON UPDATE.
    shown = setting.dialect.mariadb and text.on_update
    if (implicit or shown) and not _is_nullable(text, setting) and not text.generated:
        return default_of(column, DefaultText("0", DefaultForm.NUMBER), mariadb=setting.dialect.mariadb)
    return None


def _is_nullable(text: ColumnText, setting: Setting) -> bool:
    if text.type.serial or text.auto_increment or text.primary:
        return False
    computed = text.generated and setting.dialect.mariadb
    if text.nullable is None and text.type.word == "timestamp" and not setting.explicit_timestamps and not computed:
        return False
    return text.nullable is not False


def _define_type(name: str, text: TypeText, charset: str, setting: Setting) -> Column:
    word = text.word
    if word in _TEXT_OF or word in _BLOB_OF:
        return _define_string(name, text, charset, setting.dialect)
    kind = kind_of(word, unsigned=text.unsigned)
    if word in _INTEGER_WIDTHS:
        return Column(name, kind, source_type=_integer(text, setting.dialect))
    if word == "decimal":
        spelled = f"decimal({text.length},{text.scale}){_sign(text)}"
        return Column(name, kind, precision=text.length or 0, scale=text.scale or 0, source_type=spelled)
    if word in ("float", "double"):
        digits = f"({text.length},{text.scale})" if text.length is not None and text.scale is not None else ""
        return Column(name, kind, source_type=f"{word}{digits}{_sign(text)}")
    if word in _FRACTIONAL:
        digits = f"({text.length})" if text.length else ""
        return Column(name, kind, precision=text.length or 0, source_type=f"{word}{digits}")
    if word == "bit":
        return Column(name, kind, precision=text.length or 1, source_type=f"bit({text.length or 1})")
    if word in ("enum", "set"):
        # Trailing spaces are insignificant in text.
        members = text.members if charset == "binary" else tuple(member.rstrip(" ") for member in text.members)
        spelled = f"{word}({','.join(_quoted(member) for member in members)})"
        # Names without a character set: MySQL reports none, MariaDB reports binary.
        column_charset = "" if charset == "binary" and not setting.dialect.mariadb else charset
        return Column(name, kind, members=members, source_type=spelled, charset=column_charset)
    if word == "json" and setting.dialect.mariadb:
        return Column(name, Kind.STRING, source_type="longtext", charset="utf8mb4")
    if word in GEOMETRIES:
        spelled = "geomcollection" if word == "geometrycollection" and not setting.dialect.mariadb else word
        return Column(name, kind, source_type=spelled)
    if word == "vector":
        return Column(name, kind, source_type=f"vector({text.length or DEFAULT_VECTOR})")
    if word == "year":
        return Column(name, kind, source_type="year(4)" if _shows_width(setting.dialect) else "year")
    return Column(name, kind, source_type=word)


def _define_string(name: str, text: TypeText, charset: str, dialect: Dialect) -> Column:
    """Define CHAR, VARCHAR, TEXT and their binary counterparts. A length that exceeds its type selects a larger type."""
    word, length = text.word, text.length
    binary = word in _TEXT_OF or charset == "binary"
    charset = "binary" if binary else charset
    plain = _TEXT_OF.get(word, word)
    width = character_width(charset)
    if plain == "text" and length is not None and (length or not dialect.mariadb):
        plain, length = _fitting(length * width), None
    elif plain == "varchar" and (length or 0) * width > LONGEST_VARCHAR:
        plain, length = _fitting((length or 0) * width), None
    elif plain == "char" and length is None:
        length = 1
    spelled = _BLOB_OF[plain] if binary else plain
    if plain in ("char", "varchar"):
        spelled = f"{spelled}({length})"
    return Column(name, Kind.BYTES, source_type=spelled) if binary else Column(name, Kind.STRING, source_type=spelled, charset=charset)


def _fitting(size: int) -> str:
    return next((text for text, _, most in _TEXT_SIZES if size <= most), "longtext")


def convert_column(column: Column, charset: str) -> Column:
    """Return a column after CONVERT TO CHARACTER SET: a TEXT grows if its characters would no longer fit."""
    if not column.charset or column.charset == "binary":
        return column
    if column.form is ValueForm.MEMBERS:
        return replace(column, charset=charset)
    word, _, rest = column.source_type.partition(" ")
    plain = word.partition("(")[0]
    if plain in _BYTES_OF:
        characters = _BYTES_OF[plain] // character_width(column.charset)
        word = _fitting(characters * character_width(charset)) if plain != "longtext" else plain
    if charset == "binary":
        spelled = re.sub(r"^\w+", lambda found: _BLOB_OF[found[0]], word)
        default = column.default
        if default is not None and not default.startswith("("):
            default = f"0x{default.encode().hex().upper()}"
        return replace(column, kind=Kind.BYTES, charset="", default=default, source_type=" ".join(filter(None, (spelled, rest))))
    return replace(column, charset=charset, source_type=" ".join(filter(None, (word, rest))))


def are_distinct(names: Collection[str]) -> bool:
    """Whether no collation can treat two of the names as equal. False if this is not certain."""
    return all(name.isascii() and name.isprintable() for name in names) and len({name.rstrip(" ").lower() for name in names}) == len(names)


def string_length(column: Column) -> int | None:
    """Return the characters of a CHAR or VARCHAR (or the bytes of its binary counterpart); None for other types."""
    found = re.match(r"(?:var)?(?:char|binary)\((\d+)\)", column.source_type)
    return int(found[1]) if found else None


def _integer(text: TypeText, dialect: Dialect) -> str:
    signed, unsigned = _INTEGER_WIDTHS[text.word]
    width = text.length if text.length is not None else (unsigned if text.unsigned else signed)
    shown = _shows_width(dialect) or text.zerofill or (text.word == "tinyint" and text.length == 1 and not text.unsigned)
    return f"{text.word}({width}){_sign(text)}" if shown else f"{text.word}{_sign(text)}"


def _shows_width(dialect: Dialect) -> bool:
    return dialect.mariadb or dialect.version < _NO_DISPLAY_WIDTH


def _sign(text: TypeText) -> str:
    return (" unsigned" if text.unsigned else "") + (" zerofill" if text.zerofill else "")


_ESCAPED: Final = {"\\": "\\\\", "\0": "\\0", "'": "''", "\n": "\\n", "\r": "\\r"}


def _quoted(member: str) -> str:
    return "'" + "".join(_ESCAPED.get(char, char) for char in member) + "'"


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
