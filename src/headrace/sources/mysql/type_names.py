"""The type names of MySQL and MariaDB, as `information_schema` prints them, and the kinds of their columns."""

from __future__ import annotations

from typing import Final

from headrace.model.schema import Kind

GEOMETRIES: Final = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection")
UNSIZED: Final = {
    "date": Kind.DATE,
    "json": Kind.JSON,
    "uuid": Kind.UUID,
    "inet4": Kind.INET4,
    "inet6": Kind.INET6,
    **dict.fromkeys(GEOMETRIES, Kind.GEOMETRY),
    **dict.fromkeys(("tinytext", "mediumtext", "longtext"), Kind.STRING),
    **dict.fromkeys(("tinyblob", "mediumblob", "longblob"), Kind.BYTES),
}
"""Types without parameters."""
_INTEGERS: Final = {
    "tinyint": (Kind.INT8, Kind.UINT8),
    "smallint": (Kind.INT16, Kind.UINT16),
    "mediumint": (Kind.INT32, Kind.UINT32),
    "int": (Kind.INT32, Kind.UINT32),
    "bigint": (Kind.INT64, Kind.UINT64),
}
_KINDS: Final = {
    **UNSIZED,
    "geomcollection": Kind.GEOMETRY,
    "float": Kind.FLOAT32,
    "double": Kind.FLOAT64,
    "decimal": Kind.DECIMAL,
    "bit": Kind.BIT,
    "year": Kind.YEAR,
    "datetime": Kind.DATETIME,
    "timestamp": Kind.TIMESTAMP,
    "time": Kind.TIME,
    "enum": Kind.ENUM,
    "set": Kind.SET,
    "vector": Kind.VECTOR,
    **dict.fromkeys(("char", "varchar", "text"), Kind.STRING),
    **dict.fromkeys(("binary", "varbinary", "blob"), Kind.BYTES),
}


def find_kind(word: str, *, unsigned: bool = False) -> Kind | None:
    return _INTEGERS[word][unsigned] if word in _INTEGERS else _KINDS.get(word)


def kind_of(word: str, *, unsigned: bool = False) -> Kind:
    return _INTEGERS[word][unsigned] if word in _INTEGERS else _KINDS[word]
