"""Converts a parsed column definition to the column that the server creates, in exactly the form of `information_schema`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind
from headrace.sources.mysql.ddl.ast import ColumnText, DefaultForm, DefaultText, TypeText
from headrace.sources.mysql.ddl.column_defaults import default_of
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
    """Return the bytes of a character set's longest character."""
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
