"""A table's decoder: built once from its schema and table map, then run over row events.

The decoder's description (small arrays for the kernel) is built per distinct table map. Running it yields change blocks of bounded size.
Decoding the same bytes again gives equal blocks, including versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock
from headrace.model.column_types import ValueForm
from headrace.model.projection import Projection
from headrace.model.schema import Column, TableName, TableSchema, ZeroDates
from headrace.sources.mysql.charsets import UTF8, UnknownCharset, charset_of_collation, decode_text
from headrace.sources.mysql.events import table_map as tablemap
from headrace.sources.mysql.events.event_types import DAMAGE_HINT, truncated
from headrace.sources.mysql.events.table_map import TYPE_NAMES, TableMap
from headrace.sources.mysql.kernels import row_images
from headrace.sources.mysql.kernels.arrow_arena import Arena
from headrace.sources.mysql.rows.column_finish import (
    ZERO_CODES,
    Finisher,
    check_key_dates,
    check_values,
    finish_column,
    finisher,
    logged_zero_date,
    slot_for,
    warn_of_zero_dates,
)
from headrace.sources.mysql.rows.column_layout import OLD_TEMPORAL, column_layout

MAX_BLOCK_ROWS: Final = 65_536
_MAX_DATA_BYTES: Final = 8 << 20
_LARGEST_DATA_BYTES: Final = (1 << 31) - 1
"""The limit of 32-bit offsets."""
_PLACE: Final = 6
"""The column of an index with an event's offset in its file (see `scan`)."""

_INTEGER_STORAGE: Final = {8: {tablemap.TINY}, 16: {tablemap.SHORT}, 32: {tablemap.LONG, tablemap.INT24}, 64: {tablemap.LONGLONG}}
_PADDED: Final = (ValueForm.BYTES, ValueForm.FIXED_BYTES)
_COMPRESSED: Final = {tablemap.VARCHAR_COMPRESSED, tablemap.BLOB_COMPRESSED}
_TEXT_STORAGE: Final = {tablemap.VARCHAR, tablemap.VAR_STRING, tablemap.STRING, tablemap.BLOB} | _COMPRESSED
_COLLATED: Final = (ValueForm.TEXT, ValueForm.BYTES, ValueForm.MEMBERS)
_BINARY_COLLATION: Final = 63
_BEYOND_THREE_BYTES: Final = frozenset({"", "utf16", "utf16le", "utf32", "gb18030"})
"""Character sets other than utf8mb4 with characters that a server's table descriptions cannot show. The empty name stands for an unknown
set.
"""
_UNVALIDATED: Final = frozenset({ValueForm.JSON})
"""Forms whose values the kernel copies without full validation."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    every_before: bool = False
    """Whether to emit the before image of every update, not only of those that change the key."""
    zero_dates: ZeroDates = ZeroDates.HALT
    """How to read an invalid date."""
    transactions: bool = False
    """Whether to label every image with its transaction and its order in it."""
    queries: bool = False
    """Whether to label every image with its statement, if the source logs it."""
    foreign_key_checks: frozenset[TableName] = frozenset()
    """Tables whose images are labelled with whether foreign keys were checked."""
    projection: Projection = field(default_factory=Projection)
    """The columns to read. Blocks have the projected schema."""


class RowDecoder:
    """Turns row events of one table map into blocks of one schema."""

    def __init__(self, schema: TableSchema, table_map: TableMap, key_columns: tuple[str, ...], options: ReadOptions, place: str) -> None:
        self.schema = options.projection.project(schema)
        self._options = options
        order = _column_order(schema, table_map, place)
        columns = [schema.columns[i] for i in order]
        self._names = [column.name for column in columns]
        # Columns that are not read are still checked against the schema, and stepped over.
        places = {column.name: n for n, column in enumerate(self.schema.columns)}
        description = np.zeros((6, len(columns)), dtype=np.int32)
        for c, column in enumerate(columns):
            encoding, a, b, words = _encode(column, table_map.types[c], table_map.metadata[c], schema, place)
            _check_sign(column, table_map.unsigned[c] if table_map.unsigned else None, schema, place)
            description[:, c] = encoding, a, b, places.get(column.name, -1), column.name in key_columns, words
        if table_map.collations is not None:
            columns = [_as_logged(*pair, schema, place) for pair in zip(columns, table_map.collations, strict=True)]
        self._table = description
        self._keys = len(key_columns)
        # Rows without a key are identified by all their values.
        self._every_before = options.every_before or not key_columns
        self._key_span = max((c + 1 for c, name in enumerate(self._names) if name in key_columns), default=0)
        self._finishers: list[Finisher | None] = [None] * len(places)
        self._members: dict[str, tuple[str, ...]] = {}
        for c, column in enumerate(columns):
            if column.name in places:
                self._finishers[places[column.name]] = finisher(column, table_map.types[c], table_map.metadata[c], place)
                self._members[column.name] = _exact_members(column, table_map.members[c], schema, place)
        self._slots = [
            slot_for(column, names_as_text=False, finished_later=made is not None)
            for column, made in zip(self.schema.columns, self._finishers, strict=True)
        ]

    def decode(self, buf: npt.NDArray[np.uint8], events: npt.NDArray[np.int64], version_base: int, place: str) -> Iterator[ChangeBlock]:
        """Yield blocks of the given row events (rows of an index, in log order)."""
        cursor = np.zeros(row_images.ZEROS + len(self._names), dtype=np.int64)
        volume = int((events[:, 1] - events[:, 0]).sum())
        data_bytes = min(max(volume, 4096), _MAX_DATA_BYTES)
        rows = min(max(volume // 4, 16), MAX_BLOCK_ROWS)
        zero_code = ZERO_CODES[self._options.zero_dates]
        settings = self._table, self._keys, self._key_span, np.uint64(version_base), self._every_before, zero_code
        while cursor[row_images.EVENT] < len(events):
            first = f"{place}:{int(events[cursor[row_images.EVENT], _PLACE])}"
            arena = Arena(self._slots, rows, data_bytes)
            labels = np.empty(rows, dtype=np.uint8), np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.int64)
            row_images.decode_images(buf, events, *settings, arena.a1, arena.layout, rows, *labels, cursor)
            status, done = int(cursor[row_images.STATUS]), int(cursor[row_images.ROWS])
            if status > row_images.FULL:
                raise self._error(
                    status, int(cursor[row_images.ERROR_COLUMN]), f"{place}:{int(events[cursor[row_images.ERROR_AT], _PLACE])}"
                )
            if done == 0 and status == row_images.FULL:
                # A single change larger than the arena.
                if data_bytes == _LARGEST_DATA_BYTES:
                    raise DefiniteError(
                        f"a row of {self.schema.name} holds more than {_LARGEST_DATA_BYTES >> 20} MiB in one column",
                        place=f"{place}:{int(events[cursor[row_images.EVENT], _PLACE])}, table {self.schema.name}",
                        hint="leave the table out with --exclude",
                    )
                data_bytes = min(data_bytes * 4, _LARGEST_DATA_BYTES)
                rows = max(rows, 16)
                continue
            check_key_dates(self.schema, self._names, cursor[row_images.ZEROS :], f"{first} or after, table {self.schema.name}")
            if done:
                yield self._block(arena, done, [pa.array(label[:done]) for label in labels], first)
        warn_of_zero_dates(self.schema, self._names, cursor[row_images.ZEROS :])

    def _block(self, arena: Arena, rows: int, labels: Sequence[pa.Array], place: str) -> ChangeBlock:
        """Return a block; `labels` are operations, versions and commit times."""
        # Columns are finished a block at a time, so an error is located by the block's first event.
        where = f"{place} or after, table {self.schema.name}"
        arrays = [
            self._finished(column, finish, array, where)
            for column, finish, array in zip(self.schema.columns, self._finishers, arena.to_arrays(rows), strict=True)
        ]
        check_values(self.schema, arrays, _UNVALIDATED, where, self._options.zero_dates)
        return ChangeBlock(self.schema, pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow_schema), *labels)

    def _finished(self, column: Column, finish: Finisher | None, raw: pa.Array, place: str) -> pa.Array:
        if column.form is ValueForm.MEMBERS:
            return _named(column, raw, self._members[column.name], place)
        return finish_column(column, finish, raw, place)

    def _error(self, status: int, column: int, place: str) -> DefiniteError:
        where = f"{place}, table {self.schema.name}"
        if status == row_images.ZERO_DATE:
            return logged_zero_date(self.schema, self._names[column], where)
        if status == row_images.PARTIAL_IMAGE:
            return DefiniteError(
                f"a row event of {self.schema.name} does not hold all columns",
                place=where,
                hint="SET GLOBAL binlog_row_image = FULL on the source, for its sessions too",
            )
        if status == row_images.WRONG_WIDTH:
            return DefiniteError(f"a row event of {self.schema.name} has another number of columns than its table map", place=where)
        if status == row_images.BAD_VALUE:
            name = self._names[column]
            return DefiniteError(
                f"column {name} of {self.schema.name} holds bytes that are not a value of its type: the log is damaged",
                place=f"{where}, column {name}",
                hint=DAMAGE_HINT,
            )
        if status == row_images.BAD_JSON:
            return DefiniteError(f"column {self._names[column]} of {self.schema.name} holds damaged JSON", place=where)
        return truncated("row", where)


def _column_order(schema: TableSchema, table_map: TableMap, place: str) -> list[int]:
    """Return, for each column of the event, its index in the schema: by name if the server wrote names, otherwise by position."""
    mine = [column.name for column in schema.columns]
    if table_map.names is None:
        if len(table_map.types) != len(mine):
            raise _schema_mismatch(schema, f"it had {len(table_map.types)} columns then and has {len(mine)} now", place)
        return list(range(len(mine)))
    if sorted(table_map.names) != sorted(mine):
        differing = ", ".join(sorted(set(table_map.names) ^ set(mine)))
        raise _schema_mismatch(schema, f"columns {differing} are not in both", place)
    return [mine.index(name) for name in table_map.names]


def _as_logged(column: Column, collation: int, schema: TableSchema, place: str) -> Column:
    """Return a column with the character set in the log: it was fixed when the bytes were written."""
    if column.form not in _COLLATED or collation == 0:
        return column
    if column.form is not ValueForm.MEMBERS and (column.form is ValueForm.BYTES) != (collation == _BINARY_COLLATION):
        was = "bytes" if column.form is ValueForm.TEXT else "text"
        raise _schema_mismatch(schema, f"column {column.name} ({column.source_type}) was {was} then", place)
    try:
        return replace(column, charset=charset_of_collation(collation))
    except UnknownCharset:
        # A newer server's unknown collation; the schema names its character set.
        return column


def _schema_mismatch(schema: TableSchema, what: str, place: str) -> DefiniteError:
    return DefiniteError(
        f"table {schema.name} in the log differs from the schema it is replicated with: {what}",
        place=place,
        hint=f"have the table read again as it is now: headrace resync {schema.name}",
    )


def _encode(column: Column, stored: int, metadata: int, schema: TableSchema, place: str) -> tuple[int, int, int, int]:
    """Return the encoding, its two parameters, and the width of the output (in bytes; for decimals in 8-byte words)."""
    layout = column_layout(stored, column.precision if stored in OLD_TEMPORAL else metadata)
    if layout is None or not _matches_form(column, stored, metadata):
        stored_name = TYPE_NAMES.get(stored, str(stored))
        raise _schema_mismatch(schema, f"column {column.name} ({column.source_type}) is stored as {stored_name}({metadata})", place)
    encoding, a, b = layout
    if encoding == row_images.INT and column.form is ValueForm.INTEGER and not column.type.signed:
        encoding = row_images.UINT
    if stored == tablemap.STRING and column.form in _PADDED:
        # The log omits trailing zero bytes of a BINARY, and of types that MariaDB stores as one.
        b = metadata
    width = slot_for(column, names_as_text=False).width
    return encoding, a, b, width // 8 if column.form is ValueForm.DECIMAL else width


def _matches_form(column: Column, stored: int, metadata: int) -> bool:
    match column.form:
        case ValueForm.INTEGER:
            return stored in _INTEGER_STORAGE[column.type.bits]
        case ValueForm.FLOAT:
            return stored == (tablemap.FLOAT if column.type.bits == 32 else tablemap.DOUBLE)
        case ValueForm.DECIMAL:
            return stored == tablemap.NEWDECIMAL and (metadata >> 8, metadata & 255) == (column.precision, column.scale)
        case ValueForm.TEXT | ValueForm.BYTES:
            return stored in _TEXT_STORAGE
        case ValueForm.JSON:
            return stored in _TEXT_STORAGE or stored == tablemap.JSON
        case ValueForm.MEMBERS:
            return stored == (tablemap.SET if column.type.multiple else tablemap.ENUM)
        case ValueForm.FIXED_BYTES:
            return stored == tablemap.STRING
        case ValueForm.GEOMETRY:
            return stored == tablemap.GEOMETRY
        case ValueForm.VECTOR:
            # MariaDB logs a vector as a VARBINARY.
            return stored in (tablemap.VECTOR, tablemap.VARCHAR)
        case ValueForm.DATE:
            return stored == tablemap.DATE
        case ValueForm.YEAR:
            return stored == tablemap.YEAR
        case ValueForm.BITS:
            return stored == tablemap.BIT
        case ValueForm.TIMESTAMP if column.type.zoned:
            return stored == tablemap.TIMESTAMP or (stored == tablemap.TIMESTAMP2 and metadata == column.precision)
        case ValueForm.TIMESTAMP:
            return stored == tablemap.DATETIME or (stored == tablemap.DATETIME2 and metadata == column.precision)
        case ValueForm.TIME:
            return stored == tablemap.TIME or (stored == tablemap.TIME2 and metadata == column.precision)
        case unknown:
            assert_never(unknown)


def _check_sign(column: Column, unsigned: bool | None, schema: TableSchema, place: str) -> None:
    if column.form is ValueForm.INTEGER and unsigned is not None and unsigned == column.type.signed:
        raise _schema_mismatch(
            schema, f"column {column.name} ({column.source_type}) is stored {'unsigned' if unsigned else 'signed'}", place
        )


def _exact_members(column: Column, stored: tuple[bytes, ...] | None, schema: TableSchema, place: str) -> tuple[str, ...]:
    """Return the member names of an ENUM or SET, checked against those in the log.

    A server describes its tables in three-byte UTF-8: a longer character is a question mark in the schema, and complete only in the log.
    """
    if column.form is not ValueForm.MEMBERS:
        return ()
    if stored is None:
        beyond = column.charset in UTF8 | _BEYOND_THREE_BYTES
        doubtful = next((member for member in column.members if beyond and "?" in member), None)
        if doubtful is not None:
            raise DefiniteError(
                f"column {column.name} of {schema.name} has a member {doubtful!r}, which may stand for another character that the"
                " server cannot show",
                place=place,
                hint="SET GLOBAL binlog_row_metadata = FULL on the source, then remove the state directory and replicate again",
            )
        return column.members
    if len(stored) != len(column.members):
        raise _schema_mismatch(schema, f"column {column.name} had {len(stored)} members then and has {len(column.members)} now", place)
    return tuple(_exact_member(column, *pair, schema, place) for pair in zip(column.members, stored, strict=True))


def _exact_member(column: Column, member: str, stored: bytes, schema: TableSchema, place: str) -> str:
    """Return one member's name: from the schema, or from the log where the schema's may have lost characters."""
    name = decode_text(column.charset or "utf8mb4", stored)
    if member not in (name, "".join("?" if ord(char) > 0xFFFF else char for char in name)):
        raise _schema_mismatch(schema, f"member {member!r} of column {column.name} was {name!r} then", place)
    return name


def _named(column: Column, numbers: pa.Array, members: tuple[str, ...], place: str) -> pa.DictionaryArray:
    if not column.type.multiple:
        names = ["", *members]
        highest = pc.max(numbers).as_py()
        if highest is not None and highest >= len(names):
            raise DefiniteError(f"column {column.name} holds enum member {highest}, the table knows {len(members)}", place=place)
        return pa.DictionaryArray.from_arrays(numbers, pa.array(names))
    encoded = numbers.dictionary_encode()
    labels = []
    for mask in encoded.dictionary.to_pylist():
        if mask >> len(members):
            raise DefiniteError(f"column {column.name} holds set members beyond the {len(members)} the table knows", place=place)
        labels.append(",".join(name for bit, name in enumerate(members) if mask >> bit & 1))
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(labels, pa.string()))
