"""Converts rows of ScyllaDB's log to JSON documents: the effect of a write on a row, by column and element.

A delta lists the atomic columns that were `set` and `deleted`, and for every other column the `elements` that were `added` and `removed`,
and whether it was `cleared` (before the additions). It does not list unchanged columns. An image is a `row`. The two rows of a range
deletion are one document with its bounds. A row of the base table itself is a `read`, with the write times of its cells.

The `position` of a document is the same at each replay, and rises with every document of a partition. It is compared as plain bytes. Whole
columns only: no Python runs per row.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.cql.blocks import LogBlock, RowBlock, fixed_bytes
from headrace.cql.decode.arrow_arrays import to_arrow
from headrace.cql.log import END, SEQUENCE, STREAM, TIME, TTL, Operation, added_type, deleted, deleted_elements, key_type
from headrace.cql.tables import CqlColumn, CqlTable
from headrace.cql.timeuuid import bulk_order_keys
from headrace.cql.types import CqlType
from headrace.errors import DefiniteError
from headrace.model.text_values import format_uuids
from headrace.sinks.kafka.debezium.json_fragments import join, or_null, quoted

Texts = Any  # pa.StringArray, which pyarrow's stubs cannot narrow
_TEXTS: Final = frozenset(("ascii", "text", "varint", "decimal", "inet"))
_UUIDS: Final = frozenset(("uuid", "timeuuid"))
_FLOATS: Final = frozenset(("float", "double"))
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
_EARLIEST: Final = "-292275055-05-16T16:47:04.192"
"""The timestamp that numpy treats as null."""
Flags = NDArray[np.bool_]
POSITION_BYTES: Final = 20
_STARTS: Final = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS: Final = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)
_IMAGES: Final = (Operation.PREIMAGE, Operation.POSTIMAGE)
_FIRST, _LAST = min(Operation), max(Operation)
_WORDS: Final = {operation: "range_delete" if operation in _STARTS else operation.name.lower() for operation in Operation}
_BY_NUMBER: Final = pa.array(
    [json.dumps(_WORDS.get(Operation(number)) if number in set(Operation) else "") for number in range(_FIRST, _LAST + 1)]
)


def json_of(kind: CqlType, array: Any) -> Texts:
    """Encode each value of an array of `headrace.cql.decode.arrow_arrays.arrow_type(kind)` as JSON.

    As CQL's own `toJson` has them (a map is an object, a set, list, tuple or vector an array, a user type an object, a blob `"0x…"`), but
    for what a reader of JSON would round or could not read: `varint` and `decimal` are strings, a duration is an object of its three
    numbers, and `NaN` and `Infinity` are strings. A null value stays NULL, so that the caller can leave it out.
    """
    name = kind.name
    if name in _TEXTS:
        return quoted(array)
    if name in _UUIDS:
        return _in_quotes(format_uuids(array))
    if name in _FLOATS:
        return _floats(array)
    match name:
        case "blob":
            return _in_quotes(_hex(array))
        case "date":
            return _in_quotes(_days(array))
        case "timestamp":
            return _in_quotes(_moments(array))
        case "time":
            return _in_quotes(array.cast(pa.string()))
        case "duration":
            fields = [array.field(place).cast(pa.string()) for place in range(3)]
            return with_nulls_of(array, in_object([f.name for f in array.type], fields))
        case "list" | "set" | "vector":
            return with_nulls_of(array, in_lists(array.offsets, json_of(kind.args[0], array.values)))
        case "map":
            pairs = join(member_names(kind.args[0], array.keys), ":", or_null(json_of(kind.args[1], array.items)))
            return with_nulls_of(array, in_lists(array.offsets, pairs, "{", "}"))
        case "tuple":
            parts = [or_null(json_of(part, array.field(place))) for place, part in enumerate(kind.args)]
            return with_nulls_of(array, join("[", pc.binary_join_element_wise(*parts, ","), "]"))
        case "udt":
            fields = [or_null(json_of(part, array.field(place))) for place, part in enumerate(kind.args)]
            return with_nulls_of(array, in_object(kind.fields, fields))
    return array.cast(pa.string())


def member_names(kind: CqlType, keys: Any) -> Texts:
    """Encode keys of a map as JSON member names; other types become strings."""
    texts = json_of(kind, keys)
    if kind.name in _TEXTS or kind.name in _UUIDS or kind.name in ("blob", "date", "timestamp", "time"):
        return texts
    if kind.name in _FLOATS:
        return pc.if_else(pc.starts_with(texts, '"'), texts, _in_quotes(texts))
    return quoted(texts)


def in_lists(offsets: Any, texts: Texts, opening: str = "[", closing: str = "]") -> Texts:
    """Join lists of texts to JSON arrays."""
    lists = pa.ListArray.from_arrays(offsets, or_null(texts))
    return join(opening, pc.binary_join(lists, ","), closing)


def in_object(names: Sequence[str], texts: Sequence[Texts]) -> Texts:
    """Return JSON objects with all members."""
    members = [join(f"{json.dumps(name, ensure_ascii=False)}:", text) for name, text in zip(names, texts, strict=True)]
    return join("{", pc.binary_join_element_wise(*members, ","), "}")


def object_of(names: Sequence[str], texts: Sequence[Texts], rows: int) -> Texts:
    """Return JSON objects with the members that are not NULL."""
    if not names:
        return pa.array(["{}"] * rows, pa.string())
    members = [join(f",{json.dumps(name, ensure_ascii=False)}:", text) for name, text in zip(names, texts, strict=True)]
    found = join(*(pc.fill_null(member, "") for member in members))
    return pc.replace_substring(join("{", found, "}"), "{,", "{", max_replacements=1)


def list_of(texts: Sequence[Texts], rows: int) -> Texts:
    """Return JSON arrays of the texts that are not NULL."""
    if not texts:
        return pa.array(["[]"] * rows, pa.string())
    found = join(*(pc.fill_null(join(",", text), "") for text in texts))
    return pc.replace_substring(join("[", found, "]"), "[,", "[", max_replacements=1)


def only_where(condition: Any, texts: Texts) -> Texts:
    """Set NULL where a condition is false."""
    return pc.if_else(condition, texts, pa.scalar(None, pa.string()))


def with_nulls_of(array: Any, texts: Texts) -> Texts:
    return only_where(array.is_valid(), texts) if array.null_count else texts


def _in_quotes(texts: Texts) -> Texts:
    return join('"', texts, '"')


def _floats(array: Any) -> Texts:
    """Return the shortest digits that give the same bits, always with a point."""
    digits = array.cast(pa.string())
    finite = pc.if_else(pc.match_substring_regex(digits, "[.e]"), digits, join(digits, ".0"))
    if pc.all(pc.is_finite(array)).as_py() in (True, None):
        return finite
    named = pc.if_else(pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0.0), '"Infinity"', '"-Infinity"'))
    return pc.if_else(pc.is_finite(array), finite, named)


def _hex(array: Any) -> Texts:
    rows = len(array)
    _, starts, content = array.buffers()
    if not rows or starts is None:
        return array.cast(pa.string())
    offsets = np.frombuffer(starts, np.int32)[array.offset : array.offset + rows + 1]
    data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content is not None else np.empty(0, np.uint8)
    places = ((offsets - offsets[0]) * 2).astype(np.int32)
    digits = pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(places), pa.py_buffer(_HEX[data])])
    return with_nulls_of(array, join("0x", digits))


def _days(array: Any) -> Texts:
    # Arrow spells no year above 32767.
    days = pc.fill_null(array.view(pa.int32()), 0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    return with_nulls_of(array, pa.array(np.datetime_as_string(days)))


def _moments(array: Any) -> Texts:
    millis = pc.fill_null(array.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    texts = np.datetime_as_string(millis.astype("datetime64[ms]"))
    if (texts == "NaT").any():
        texts = np.where(texts == "NaT", _EARLIEST, texts)
    return with_nulls_of(array, join(pa.array(texts), "Z"))


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of one table, in the order of its log within each partition."""

    key: Texts
    """The row's partition key as JSON; determines the order."""
    value: Texts
    position: Any
    """Bytes of one width that sort by time and index in the batch. None: not from the log."""
    micros: NDArray[np.int64]
    """The documents' timestamps."""

    def in_order(self) -> Documents:
        order = pc.sort_indices(self.position.cast(pa.binary()))
        return Documents(self.key.take(order), self.value.take(order), self.position.take(order), self.micros[order.to_numpy()])


def log_documents(block: LogBlock) -> Documents:
    return _Log(block).documents()


class _Log:
    def __init__(self, block: LogBlock) -> None:
        self.table = block.table
        operations = block.operations
        strange = np.flatnonzero(~np.isin(operations, list(Operation)))
        if len(strange):
            raise DefiniteError(
                f"a log row has the operation {operations[strange[0]]}, which is not known",
                place=f"log of {block.table.name}, cdc$time {UUID(bytes=block.rows.column(TIME)[int(strange[0])].as_py())}",
                hint="use a newer Headrace, which knows it; or leave the table out",
            )
        last = _ends_of_ranges(block, operations)
        kept = np.flatnonzero(~np.isin(operations, _ENDS))
        self.rows = block.rows if len(kept) == len(operations) else block.rows.take(pa.array(kept))
        self.count = len(kept)
        self.operations, self.micros = operations[kept], block.times[kept]
        self.is_range: Flags = np.isin(self.operations, _STARTS)
        self.is_image: Flags = np.isin(self.operations, _IMAGES)
        self.ends = block.rows.take(pa.array(last))
        """The end rows of ranges, one per start row."""
        self.end_operations = operations[last]

    def documents(self) -> Documents:
        members: dict[str, Texts] = {
            "table": _repeated(json.dumps(str(self.table.name), ensure_ascii=False), self.count),
            "operation": _BY_NUMBER.take(pa.array(self.operations.astype(np.int64) - _FIRST)),
            "timestamp": pa.array(self.micros).cast(pa.string()),
            "time": self._json(CqlType("timeuuid"), TIME),
            "sequence": self._json(CqlType("int"), SEQUENCE),
            "end_of_batch": only_where(self._is_last(), "true"),
            "stream": self._json(CqlType("blob"), STREAM),
            "ttl": self._json(CqlType("bigint"), TTL),
            "key": self._key((*self.table.partition_key, *self.table.clustering), pa.array(~self.is_range)),
        }
        if self.is_range.any():
            starts = self.rows.filter(pa.array(self.is_range))
            inclusive = self.operations[self.is_range] == Operation.RANGE_START_INCLUSIVE
            members["from"] = self._spread(_bounds(self.table.clustering, starts, inclusive))
            inclusive = self.end_operations == Operation.RANGE_END_INCLUSIVE
            members["to"] = self._spread(_bounds(self.table.clustering, self.ends, inclusive))
        members |= self._columns()
        value = object_of(tuple(members), tuple(members.values()), self.count)
        return Documents(self._key(self.table.partition_key), value, self._position(), self.micros)

    def _columns(self) -> dict[str, Texts]:
        found: dict[str, Texts] = {}
        atomic = [column for column in self.table.cells if column.type.is_atomic]
        others = [column for column in self.table.cells if not column.type.is_atomic]
        if not self.is_image.all():
            delta = pa.array(~self.is_image)
            values = [only_where(delta, self._json(column.type, column.name)) for column in atomic]
            gone = [only_where(pc.and_(delta, self._flag(column)), json.dumps(column.name, ensure_ascii=False)) for column in atomic]
            elements = [only_where(delta, self._elements(column)) for column in others]
            found["set"] = _if_any(values, object_of([column.name for column in atomic], values, self.count))
            found["deleted"] = _if_any(gone, list_of(gone, self.count))
            found["elements"] = _if_any(elements, object_of([column.name for column in others], elements, self.count))
        if self.is_image.any():
            image = pa.array(self.is_image)
            values = [self._in_image(column) for column in (*atomic, *others)]
            found["row"] = only_where(image, object_of([column.name for column in (*atomic, *others)], values, self.count))
        return found

    def _elements(self, column: CqlColumn) -> Texts:
        """Return the changes of a column's elements; NULL where nothing changed."""
        cleared = only_where(self._flag(column), "true")
        added = self._added(column)
        removed = self._removed(column)
        return _if_any([cleared, added, removed], object_of(("cleared", "added", "removed"), (cleared, added, removed), self.count))

    def _added(self, column: CqlColumn) -> Texts:
        kind = added_type(column.type)
        array = self._array(kind, column.name)
        if kind.name != "udt":
            return json_of(kind, array)
        # A field that is null here was not written.
        fields = [with_nulls_of(array, json_of(part, array.field(place))) for place, part in enumerate(kind.args)]
        return _if_any(fields, object_of(kind.fields, fields, self.count))

    def _removed(self, column: CqlColumn) -> Texts:
        name = deleted_elements(column.name)
        kind = CqlType("set", (key_type(column.type),), frozen=True)
        array = self._array(kind, name)
        if column.type.name != "udt":
            return json_of(kind, array)
        indices = array.values
        if len(indices) and pc.max(indices).as_py() >= len(column.type.fields):
            raise DefiniteError(
                f"a field was removed that the type {column.type.udt} has not",
                place=f"log of {self.table.name}, column {name}",
                hint="the type was altered; the next attempt reads the new definition",
            )
        names = pa.array([json.dumps(field, ensure_ascii=False) for field in column.type.fields])
        return with_nulls_of(array, in_lists(array.offsets, names.take(indices)))

    def _in_image(self, column: CqlColumn) -> Texts:
        """Return a column of an image: null where the image has null, absent where it has no value."""
        kind = added_type(column.type)
        array = self._array(kind, column.name)
        if column.type.name == "list" and not column.type.is_atomic:
            texts = with_nulls_of(array, in_lists(array.offsets, json_of(kind.args[1], array.items)))
        else:
            texts = json_of(kind, array)
        return pc.if_else(pc.and_(self._flag(column), texts.is_null()), "null", texts)

    def _array(self, kind: CqlType, name: str) -> Any:
        return to_arrow(kind, self.rows.column(name), name)

    def _json(self, kind: CqlType, name: str) -> Texts:
        return json_of(kind, self._array(kind, name))

    def _flag(self, column: CqlColumn) -> Any:
        return pc.fill_null(self._array(CqlType("boolean"), deleted(column.name)), False)

    def _is_last(self) -> Any:
        """Return whether a row ends its batch; for a range, by its end row."""
        own = pc.fill_null(self._array(CqlType("boolean"), END), False)
        if not self.is_range.any():
            return own
        ends = to_arrow(CqlType("boolean"), self.ends.column(END), END).cast(pa.int8()).cast(pa.string())
        return pc.or_(own, pc.fill_null(pc.equal(self._spread(ends), "1"), False))

    def _key(self, columns: Sequence[CqlColumn], with_clustering: Any = None) -> Texts:
        texts = []
        for column in columns:
            found = self._json(column.type, column.name)
            texts.append(only_where(with_clustering, found) if with_clustering is not None and column in self.table.clustering else found)
        return object_of([column.name for column in columns], texts, self.count)

    def _spread(self, texts: Texts) -> Texts:
        """Scatter the texts of ranges to their rows; NULL elsewhere."""
        places = np.cumsum(self.is_range) - 1
        return texts.take(pa.array(places, pa.int64(), mask=~self.is_range))

    def _position(self) -> Any:
        times = bulk_order_keys(fixed_bytes(self.rows.column(TIME), 16))
        whole = np.concatenate([times, fixed_bytes(self.rows.column(SEQUENCE), 4)], axis=1)
        return pa.Array.from_buffers(pa.binary(POSITION_BYTES), self.count, [None, pa.py_buffer(np.ascontiguousarray(whole))])


def row_documents(block: RowBlock) -> Documents:
    """Return documents of base table rows, and of missing rows."""
    table, rows, count = block.table, block.rows, block.rows.num_rows
    arrays = {column.name: to_arrow(column.type, rows.column(column.name), column.name) for column in table.columns}
    texts = {column.name: json_of(column.type, arrays[column.name]) for column in table.columns}
    names = [column.name for column in table.cells]
    members = _read_members(table, "read", block.as_of, count)
    members["key"] = _object([column.name for column in (*table.partition_key, *table.clustering)], texts, count)
    members["row"] = _object(names, texts, count)
    for member, cell_times in (("written", block.times), ("expires", block.expiries)):
        found = {column.name: _cell_times(column, cell_times.column(column.name), arrays[column.name]) for column in table.cells}
        members[member] = _if_any(list(found.values()), _object(names, found, count))
    key = _object([column.name for column in table.partition_key], texts, count)
    read = Documents(key, object_of(tuple(members), tuple(members.values()), count), None, np.full(count, block.as_of, np.int64))
    return read if block.gone is None or not block.gone.num_rows else _both(read, _absent(block, block.gone))


def _absent(block: RowBlock, gone: pa.RecordBatch) -> Documents:
    table, count = block.table, gone.num_rows
    columns = (*table.partition_key, *table.clustering)
    texts = {column.name: json_of(column.type, to_arrow(column.type, gone.column(column.name), column.name)) for column in columns}
    members = _read_members(table, "absent", block.as_of, count)
    members["key"] = _object([column.name for column in columns], texts, count)
    key = _object([column.name for column in table.partition_key], texts, count)
    return Documents(key, object_of(tuple(members), tuple(members.values()), count), None, np.full(count, block.as_of, np.int64))


def _both(one: Documents, other: Documents) -> Documents:
    micros = np.concatenate([one.micros, other.micros])
    return Documents(pa.concat_arrays([one.key, other.key]), pa.concat_arrays([one.value, other.value]), None, micros)


def _read_members(table: CqlTable, operation: str, as_of: int, count: int) -> dict[str, Texts]:
    return {
        "table": _repeated(json.dumps(str(table.name), ensure_ascii=False), count),
        "operation": _repeated(f'"{operation}"', count),
        "as_of": _repeated(str(as_of), count),
    }


def _cell_times(column: CqlColumn, cell_times: Any, values: Any) -> Texts:
    """Return the write times or expiries of a column's cells: a number, or one per element; NULL if unknown."""
    numbers = cell_times.values.cast(pa.string())
    lists = pc.binary_join(pa.ListArray.from_arrays(cell_times.offsets, or_null(numbers)), ",")
    if column.type.is_atomic:
        return only_where(pc.and_(cell_times.is_valid(), pc.and_(values.is_valid(), pc.not_equal(lists, "null"))), lists)
    some = pc.greater(pc.list_value_length(cell_times), 0)
    known = pc.match_substring_regex(lists, "[0-9]")
    return only_where(pc.and_(pc.and_(cell_times.is_valid(), some), known), join("[", lists, "]"))


def _ends_of_ranges(block: LogBlock, operations: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the end rows of ranges: each directly follows its start row."""
    starts, ends = np.flatnonzero(np.isin(operations, _STARTS)), np.flatnonzero(np.isin(operations, _ENDS))
    if len(starts) != len(ends) or (starts + 1 != ends).any():
        raise DefiniteError(
            "a range deletion has a beginning without an end, or an end without a beginning",
            place=f"log of {block.table.name}",
            hint="check its rows with cdc$operation 5 to 8 in the log table: were some deleted by hand?",
        )
    return ends


def _bounds(clustering: Sequence[CqlColumn], rows: pa.RecordBatch, inclusive: Flags) -> Texts:
    texts = [json_of(column.type, to_arrow(column.type, rows.column(column.name), column.name)) for column in clustering]
    bound = object_of([column.name for column in clustering], texts, rows.num_rows)
    words = pc.if_else(pa.array(inclusive), "true", "false")
    return _if_any(texts, join('{"bound":', bound, ',"inclusive":', words, "}"))


def _object(names: Sequence[str], texts: Mapping[str, Texts], count: int) -> Texts:
    return object_of(names, [texts[name] for name in names], count)


def _repeated(text: str, count: int) -> Texts:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int32)))


def _if_any(parts: Sequence[Texts], made: Texts) -> Texts:
    """Keep the text only where a part is not NULL."""
    known = functools.reduce(pc.or_, (part.is_valid() for part in parts)) if parts else pa.array(np.zeros(len(made), np.bool_))
    return only_where(known, made)
