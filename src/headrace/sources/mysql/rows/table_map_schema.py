"""Derives a table's schema from its table map alone, if the server writes full metadata (`binlog_row_metadata=FULL`).

Used where no other schema is available: for copied log files, or a log older than the stored schemas. Invariant: rows decoded by such a
schema have the same values as by the captured one. Properties that a map lacks keep their defaults: secondary indexes, defaults, comments,
generated columns. MariaDB's UUID, INET4 and INET6 appear as the BINARY columns in which the log stores them.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import Column, TableSchema
from headrace.sources.mysql.charsets import UnknownCharset, charset_of_collation, decode_text
from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.table_map import TYPE_NAMES, TableMap
from headrace.sources.mysql.rows.column_layout import OLD_TEMPORAL
from headrace.sources.mysql.type_names import kind_of

_BINARY: Final = "binary"
_INTEGERS: Final = {
    tablemap.TINY: "tinyint",
    tablemap.SHORT: "smallint",
    tablemap.INT24: "mediumint",
    tablemap.LONG: "int",
    tablemap.LONGLONG: "bigint",
}
_PLAIN: Final = (tablemap.FLOAT, tablemap.DOUBLE, tablemap.DATE, tablemap.YEAR, tablemap.JSON, tablemap.VECTOR, tablemap.GEOMETRY)
_FRACTIONAL: Final = {tablemap.DATETIME2: "datetime", tablemap.TIMESTAMP2: "timestamp", tablemap.TIME2: "time"}
_STRINGS: Final = {
    tablemap.VARCHAR: ("varchar", "varbinary"),
    tablemap.VAR_STRING: ("varchar", "varbinary"),
    tablemap.VARCHAR_COMPRESSED: ("varchar", "varbinary"),
    tablemap.STRING: ("char", "binary"),
    tablemap.BLOB: ("text", "blob"),
    tablemap.BLOB_COMPRESSED: ("text", "blob"),
}


def schema_of(table_map: TableMap) -> TableSchema | None:
    """Return the schema of the map; None if the server wrote too little metadata."""
    if table_map.names is None or table_map.collations is None or table_map.primary_key is None:
        return None
    try:
        columns = tuple(_column(table_map, table_map.names[c], c, table_map.collations[c]) for c in range(len(table_map.types)))
    except UnknownCharset as error:
        raise DefiniteError(f"a column of {table_map.name} has an unknown {error}", place=f"table {table_map.name}") from error
    return TableSchema(table_map.name, columns, tuple(columns[c].name for c in table_map.primary_key))


def _column(table_map: TableMap, name: str, c: int, collation: int) -> Column:
    stored, metadata, nullable = table_map.types[c], table_map.metadata[c], table_map.nullable[c]
    invisible = table_map.visible is not None and not table_map.visible[c]
    unsigned = table_map.unsigned is not None and table_map.unsigned[c]
    if stored in _INTEGERS:
        word = _INTEGERS[stored]
        text = f"{word} unsigned" if unsigned else word
        return Column(name, kind_of(word, unsigned=unsigned), nullable, source_type=text, invisible=invisible)
    if stored == tablemap.NEWDECIMAL:
        digits, scale = metadata >> 8, metadata & 255
        text = f"decimal({digits},{scale})"
        return Column(name, kind_of("decimal"), nullable, precision=digits, scale=scale, source_type=text, invisible=invisible)
    if stored in _FRACTIONAL:
        word = _FRACTIONAL[stored]
        text = f"{word}({metadata})" if metadata else word
        return Column(name, kind_of(word), nullable, precision=metadata, source_type=text, invisible=invisible)
    if stored == tablemap.BIT:
        return Column(name, kind_of("bit"), nullable, precision=metadata, source_type=f"bit({metadata})", invisible=invisible)
    if stored in _PLAIN:
        word = TYPE_NAMES[stored].lower()
        return Column(name, kind_of(word), nullable, source_type=word, invisible=invisible)
    if stored in _STRINGS:
        return _string(name, stored, metadata, nullable, charset_of_collation(collation), invisible)
    if stored in (tablemap.ENUM, tablemap.SET):
        return _named(name, stored, nullable, charset_of_collation(collation), table_map.members[c] or (), invisible)
    raise _unknown(table_map, name, stored)


def _string(name: str, stored: int, metadata: int, nullable: bool, charset: str, invisible: bool) -> Column:
    text, binary = _STRINGS[stored]
    word = binary if charset == _BINARY else text
    spelled = word if stored in (tablemap.BLOB, tablemap.BLOB_COMPRESSED) or charset != _BINARY else f"{word}({metadata})"
    return Column(name, kind_of(word), nullable, source_type=spelled, charset="" if charset == _BINARY else charset, invisible=invisible)


def _named(name: str, stored: int, nullable: bool, charset: str, members: tuple[bytes, ...], invisible: bool) -> Column:
    word = "enum" if stored == tablemap.ENUM else "set"
    names = tuple(decode_text(charset, member) for member in members)
    return Column(name, kind_of(word), nullable, members=names, source_type=word, charset=charset, invisible=invisible)


def _unknown(table_map: TableMap, name: str, stored: int) -> DefiniteError:
    place = f"table {table_map.name}, column {name}"
    if stored in OLD_TEMPORAL:
        return DefiniteError(
            f"column {name} of {table_map.name} is stored in a form older than MySQL 5.6, whose fractional digits are not in the log",
            place=place,
            hint=f"ALTER TABLE {table_map.name} FORCE on the source (MariaDB: with mysql56_temporal_format = ON), then continue from there",
        )
    return DefiniteError(f"column {name} of {table_map.name} has a type that is not known ({stored})", place=place)
