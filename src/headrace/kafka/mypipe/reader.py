"""Bulk reader of mypipe's generic and specific messages into change blocks.

Invariant: every message becomes its images (an update: before and after), or is reported as unreadable. After a bad header, images of other
messages may be missing too: callers read the messages before the first unreadable one again. Images of one table keep the order of their
messages. Column types come from the schema repository: a specific message has its own schema, a generic one names a schema in its header. A
generic message without either (from mypipe itself, or with a repository in memory) has the types of its maps: int, long, text and bytes.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import DecodedColumns, Decoder
from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.mypipe.values import MapName, from_field, from_map
from headrace.kafka.mypipe.wire_format import (
    COLUMNS_HEADER,
    COMMITTED_HEADER,
    HEAD_BYTES,
    MAPS,
    NULLS_HEADER,
    OLD_NULLS_HEADER,
    POSITION_HEADER,
    DescribedTable,
    Mutation,
    generic_schema,
    kind_of_avro,
    read_described_columns,
    read_described_record,
    read_heads,
    read_position,
)
from headrace.kafka.schema_repository import SchemaRepository
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, Kind, TableName, TableSchema

_ID_BYTES, _TIME_BYTES = 2, 8
Places = npt.NDArray[np.int64]
Headers = Sequence[tuple[str, bytes | None]]
_GENERIC: Final = frozenset(f"{mutation.word.capitalize()}Mutation" for mutation in Mutation)
_OPS: Final = {Mutation.INSERT: Op.INSERT, Mutation.UPDATE: Op.UPDATE, Mutation.DELETE: Op.DELETE}
_REPOSITORY: Final = "give the schema repository of its messages: registry=… (a folder, or the http address of a registry)"


@dataclass(frozen=True, slots=True)
class MypipeMessages:
    """Messages of one partition in their order, as columns; none of them without a value."""

    value: pa.BinaryArray
    headers: Sequence[Headers]
    timestamp_us: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    key: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class UnreadableMessage:
    row: int
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Images of one table, and the message of each."""

    block: ChangeBlock
    message: Places
    position: npt.NDArray[np.uint64]
    """The log position that each image's message names."""
    has_position: npt.NDArray[np.bool_]
    row_number: npt.NDArray[np.int64]
    """Row number in a snapshot; -1 for changes."""
    source_commit_us: npt.NDArray[np.int64]
    """Commit time of each change by its message; -1 if the message has none."""
    absent: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Columns that some images' messages do not contain (not even as NULL), with a mask of those images."""


@dataclass(frozen=True, slots=True)
class ReadMessages:
    blocks: tuple[ReadBlock, ...] = ()
    unreadable: tuple[UnreadableMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class _TableDecoders:
    """The decoders of bodies with one head, tried in order."""

    decoders: tuple[Decoder, ...]
    told: DescribedTable | None = None
    """The table of specific messages."""


@dataclass(frozen=True, slots=True)
class _MutationGroup:
    """Images under one head and of one table version, before their columns are made."""

    table: TableName
    told: DescribedTable | None
    rows: Places
    op: Op
    columns: Mapping[str, Mapping[str, pa.Array]]
    """Values by the column's name, by the map (or `field`) they come from."""
    transaction: pa.Array
    nulls: Sequence[frozenset[str]] | None
    """The columns that a generic message lists as NULL."""


class _BadHeader(Exception):
    def __init__(self, row: int, name: str, why: str) -> None:
        super().__init__(row, name, why)
        self.found = UnreadableMessage(
            row, f"its header {name} cannot be read: {why}", "the message was not written by Headrace, or was changed since"
        )


class MutationReader:
    """Reads messages; caches schemas. Not thread-safe."""

    def __init__(self, repository: SchemaRepository | None = None) -> None:
        """Without a repository, only generic messages can be read."""
        self._repository = repository
        self._forms: dict[tuple[Mutation, int], _TableDecoders] = {}
        self._told: dict[int, DescribedTable] = {}

    def read(self, incoming: MypipeMessages) -> ReadMessages:
        """Read all messages; errors of the repository are raised."""
        heads = read_heads(incoming.value)
        unreadable = [UnreadableMessage(int(row), "it is no message of mypipe's") for row in np.flatnonzero(~heads.is_good)]
        parts: list[_MutationGroup] = []
        codes = heads.kind.astype(np.int64) << 16 | heads.schema_id.astype(np.uint16)
        for code in np.unique(codes[heads.is_good]):
            rows = np.flatnonzero(heads.is_good & (codes == code))
            mutation, number = Mutation(int(code) >> 16), int(np.uint16(code & 0xFFFF).astype(np.int16))
            try:
                form = self._form(mutation, number)
            except DefiniteError as error:
                unreadable += [UnreadableMessage(int(row), error.message, error.hint) for row in rows]
                continue
            decoded, kept, refused = _decode(form, incoming.value, rows)
            unreadable += refused
            try:
                parts += self._parts(mutation, form, decoded, kept, incoming.headers) if len(kept) else []
            except _BadHeader as bad:
                unreadable.append(bad.found)
        try:
            blocks = _blocks(parts, incoming)
        except _BadHeader as bad:
            blocks, unreadable = [], [*unreadable, bad.found]
        return ReadMessages(tuple(blocks), tuple(sorted(unreadable, key=lambda one: one.row)))

    def _form(self, mutation: Mutation, number: int) -> _TableDecoders:
        found = self._forms.get((mutation, number))
        if found is None:
            found = self._forms[mutation, number] = self._new_form(mutation, number)
        return found

    def _new_form(self, mutation: Mutation, number: int) -> _TableDecoders:
        wanted = _generic(mutation, old_shape=False)
        if self._repository is None:
            return _TableDecoders((Decoder(wanted), Decoder(_generic(mutation, old_shape=True), wanted)))
        schema = self._repository.by_id(number)
        if schema.root.short_name in _GENERIC:
            return _TableDecoders((Decoder(schema, wanted),))
        return _TableDecoders((Decoder(schema),), read_described_record(json.loads(schema.text), mutation))

    def _parts(
        self, mutation: Mutation, form: _TableDecoders, decoded: pa.StructArray, rows: Places, headers: Sequence[Headers]
    ) -> list[_MutationGroup]:
        names = pc.binary_join_element_wise(decoded.field("database"), decoded.field("table"), "\0").dictionary_encode()
        described = [dict(headers[row]).get(COLUMNS_HEADER) for row in rows] if form.told is None else [None] * len(rows)
        wrong = next((at for at, one in enumerate(described) if one and len(one) != _ID_BYTES), None)
        if wrong is not None:
            raise _BadHeader(int(rows[wrong]), COLUMNS_HEADER, f"it has {len(described[wrong] or b'')} bytes")
        ids = np.array([int.from_bytes(one, "big", signed=True) if one else -1 for one in described], np.int64)
        codes = names.indices.to_numpy().astype(np.int64) << 32 | (ids + 1)
        found = []
        for code in np.unique(codes):
            mine = np.flatnonzero(codes == code)
            table = TableName(*names.dictionary[int(code) >> 32].as_py().split("\0", 1))
            try:
                told = form.told if form.told is not None else self._described_by_header(int(code & 0xFFFFFFFF) - 1)
            except DefiniteError as error:
                raise _BadHeader(int(rows[mine[0]]), COLUMNS_HEADER, error.message) from error
            found += _images(mutation, table, told, decoded.take(pa.array(mine)), rows[mine], headers, is_generic=form.told is None)
        return found

    def _described_by_header(self, number: int) -> DescribedTable | None:
        if number < 0 or self._repository is None:
            return None
        if number not in self._told:
            self._told[number] = read_described_columns(json.loads(self._repository.by_id(number).text))
        return self._told[number]


@functools.cache
def _generic(mutation: Mutation, *, old_shape: bool) -> AvroSchema:
    return parse_schema(json.dumps(generic_schema(mutation, old_shape=old_shape)))


def _decode(form: _TableDecoders, values: pa.BinaryArray, rows: Places) -> tuple[pa.StructArray, Places, list[UnreadableMessage]]:
    first: DecodedColumns = form.decoders[0].decode(values.take(pa.array(rows)), skip=HEAD_BYTES)
    if not first.bad:
        return first.values, rows, []
    bad = {one.row: one.reason for one in first.bad}
    good = np.array([at for at in range(len(rows)) if at not in bad], np.int64)
    decoded, kept = [first.values.take(pa.array(good))], [rows[good]]
    for decoder in form.decoders[1:]:
        at = np.array(sorted(bad), np.int64)
        again = decoder.decode(values.take(pa.array(rows[at])), skip=HEAD_BYTES)
        still = {int(at[one.row]) for one in again.bad}
        fine = np.array([place for place, row in enumerate(at) if int(row) not in still], np.int64)
        decoded.append(again.values.take(pa.array(fine)))
        kept.append(rows[at[fine]])
        bad = {row: reason for row, reason in bad.items() if row in still}
    hint = _REPOSITORY if len(form.decoders) > 1 else ""
    refused = [UnreadableMessage(int(rows[row]), f"its Avro body cannot be read: {reason}", hint) for row, reason in bad.items()]
    return pa.concat_arrays(decoded), np.concatenate(kept), refused


def _images(
    mutation: Mutation,
    table: TableName,
    told: DescribedTable | None,
    decoded: pa.StructArray,
    rows: Places,
    headers: Sequence[Headers],
    *,
    is_generic: bool,
) -> list[_MutationGroup]:
    transaction = decoded.field("txid") if decoded.type.get_field_index("txid") >= 0 else pa.nulls(len(rows), pa.binary(16))
    sides = [("old_", Op.BEFORE, OLD_NULLS_HEADER), ("new_", Op.UPDATE, NULLS_HEADER)]
    found = []
    for prefix, op, header in sides if mutation is Mutation.UPDATE else [("", _OPS[mutation], NULLS_HEADER)]:
        if is_generic:
            columns: dict[str, dict[str, pa.Array]] = {}
            for name in MAPS:
                for column, array in _map_columns(decoded.field(prefix + name)).items():
                    columns.setdefault(column, {})[name] = array
            nulls: list[frozenset[str]] | None = [_nulls_of(int(row), header, dict(headers[row]).get(header)) for row in rows]
        else:
            assert told is not None
            pairs = zip(told.columns, told.fields, strict=True)
            columns = {column.name: {"field": decoded.field(prefix + name)} for column, name in pairs}
            nulls = None
        found.append(_MutationGroup(table, told, rows, op, columns, transaction, nulls))
    return found


def _nulls_of(row: int, name: str, header: bytes | None) -> frozenset[str]:
    try:
        return _null_names(header)
    except (ValueError, TypeError) as error:
        raise _BadHeader(row, name, f"it is no list of names ({error})") from error


@functools.lru_cache(maxsize=4096)
def _null_names(header: bytes | None) -> frozenset[str]:
    found = json.loads(header) if header else []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"it is {str(found)[:60]!r}")
    return frozenset(found)


def _blocks(parts: Sequence[_MutationGroup], incoming: MypipeMessages) -> list[ReadBlock]:
    """Build blocks per table, in the order of first messages; a change of a table's columns starts a new block."""
    by_table: dict[TableName, list[_MutationGroup]] = {}
    for part in parts:
        by_table.setdefault(part.table, []).append(part)
    heads = _HeaderReader(incoming)
    found: list[ReadBlock] = []
    for mine in by_table.values():
        versions = list(dict.fromkeys(part.told for part in mine))
        rows = np.concatenate([part.rows for part in mine])
        version = np.concatenate([np.full(len(part.rows), versions.index(part.told)) for part in mine])
        order = np.argsort(rows, kind="stable")
        # The number of the run of messages of one version that each message is in.
        runs = np.concatenate(([0], np.cumsum(np.diff(version[order]) != 0)))
        starts = rows[order][np.concatenate(([True], np.diff(runs) != 0))]
        for run, start in enumerate(starts):
            end = starts[run + 1] if run + 1 < len(starts) else np.iinfo(np.int64).max
            found.append(_block([_between(part, start, end) for part in mine], heads))
    return sorted(found, key=lambda one: int(one.message[0]))


def _between(part: _MutationGroup, start: int, end: int) -> _MutationGroup:
    at = np.flatnonzero((part.rows >= start) & (part.rows < end))
    if len(at) == len(part.rows):
        return part
    taken = pa.array(at)
    columns = {name: {source: array.take(taken) for source, array in values.items()} for name, values in part.columns.items()}
    nulls = None if part.nulls is None else [part.nulls[row] for row in at.tolist()]
    return _MutationGroup(part.table, part.told, part.rows[at], part.op, columns, part.transaction.take(taken), nulls)


def _block(cut: Sequence[_MutationGroup], heads: _HeaderReader) -> ReadBlock:
    parts = [part for part in cut if len(part.rows)]
    told = parts[0].told
    schema = told.schema(parts[0].table) if told is not None else _schema_of_maps(parts, heads)
    message = np.concatenate([part.rows for part in parts])
    ops = np.concatenate([np.full(len(part.rows), part.op, np.uint8) for part in parts])
    # The before image of an update precedes its after image.
    order = np.argsort(message * 2 + (ops != Op.BEFORE), kind="stable")
    taken = pa.array(order)
    arrays = [pa.concat_arrays([_values(part, column) for part in parts]).take(taken) for column in schema.columns]
    images = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow_schema)
    message, ops = message[order], ops[order]
    version, row_number, commit_us = heads.version[message], heads.row_number[message], heads.commit_us[message]
    ops = np.where((ops == Op.INSERT) & (row_number >= 0), np.uint8(Op.SNAPSHOT), ops)
    # Positions of images differ by one byte or more, so the position just before an update's is free for its before image.
    version = version - ((ops == Op.BEFORE) & (version > 0))
    transaction = _transactions(pa.concat_arrays([part.transaction for part in parts]).take(taken))
    block = ChangeBlock(
        schema,
        images,
        pa.array(ops, pa.uint8()),
        pa.array(version, pa.uint64()),
        pa.array(commit_us, pa.int64()),
        transaction,
        pa.array(row_number, pa.uint64()) if (row_number >= 0).all() else None,
    )
    position, has_position = heads.version[message], heads.has_position[message]
    return ReadBlock(block, message, position, has_position, row_number, heads.source_commit_us[message], _absent(parts, schema, order))


def _values(part: _MutationGroup, column: Column) -> pa.Array:
    """Return a column's values; NULL where a message has none."""
    found = part.columns.get(column.name)
    if not found:
        return pa.nulls(len(part.rows), column.arrow_type)
    made = []
    for source, array in found.items():
        if part.told is not None:
            own = from_field(column, array) if source == "field" else from_map(column, array, cast("MapName", source))
        else:
            # Only the maps are known; numbers and text in a bytes column become the bytes of their text.
            own = array.cast(pa.string()) if column.form is ValueForm.BYTES and pa.types.is_integer(array.type) else array
        made.append(own.cast(column.arrow_type))
    return made[0] if len(made) == 1 else pc.coalesce(*made)


def _schema_of_maps(parts: Sequence[_MutationGroup], heads: _HeaderReader) -> TableSchema:
    maps: dict[str, set[str]] = {}
    for part in parts:
        for name, found in part.columns.items():
            maps.setdefault(name, set()).update(found)
        for names in part.nulls or ():
            for name in names:
                maps.setdefault(name, set())
    kinds = {name: _kind_in(found) for name, found in maps.items()}
    key = heads.key_names(int(parts[0].rows[0]))
    return TableSchema(
        parts[0].table,
        tuple(Column(name, kind) for name, kind in kinds.items()),
        key if all(name in kinds for name in key) else (),
    )


def _kind_in(maps: set[str]) -> Kind:
    """Return the type of a column that occurs in several maps: text, which holds numbers too, or bytes, which hold everything."""
    if len(maps) == 1:
        return kind_of_avro(MAPS[next(iter(maps))])
    return kind_of_avro("bytes" if "bytes" in maps else "string")


def _absent(parts: Sequence[_MutationGroup], schema: TableSchema, order: Places) -> dict[str, npt.NDArray[np.bool_]]:
    found = {}
    if parts[0].nulls is None:
        return {}
    for column in schema.columns:
        missing = np.concatenate([_is_missing(part, column.name) for part in parts])[order]
        if missing.any():
            found[column.name] = missing
    return found


def _is_missing(part: _MutationGroup, name: str) -> npt.NDArray[np.bool_]:
    there = np.zeros(len(part.rows), bool)
    for array in part.columns.get(name, {}).values():
        there |= array.is_valid().to_numpy(zero_copy_only=False)
    if part.nulls is not None:
        there |= np.fromiter((name in names for names in part.nulls), bool, len(part.rows))
    return ~there


def _transactions(guids: pa.Array) -> pa.DictionaryArray | None:
    if guids.null_count == len(guids):
        return None
    coded = guids.dictionary_encode()
    names = [str(uuid.UUID(bytes=one)) for one in coded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(names, pa.string()))


class _HeaderReader:
    def __init__(self, incoming: MypipeMessages) -> None:
        count = len(incoming.headers)
        self._incoming = incoming
        # Without a position, the offset gives the order.
        self.version = incoming.offset.astype(np.uint64)
        self.has_position = np.zeros(count, bool)
        self.row_number = np.full(count, -1, np.int64)
        self.commit_us = incoming.timestamp_us.copy()
        self.source_commit_us = np.full(count, -1, np.int64)
        for at, headers in enumerate(incoming.headers):
            for name, value in headers:
                if name == POSITION_HEADER and value:
                    if len(value) not in (8, 16) or value[8:9] > b"\x7f":
                        raise _BadHeader(at, name, f"it is no position: {value[:20].hex()}")
                    self.version[at], row = read_position(value)
                    self.has_position[at] = True
                    if row is not None:
                        self.row_number[at] = row
                elif name == COMMITTED_HEADER and value:
                    if len(value) != _TIME_BYTES:
                        raise _BadHeader(at, name, f"it has {len(value)} bytes")
                    self.commit_us[at] = self.source_commit_us[at] = int.from_bytes(value, "big", signed=True)

    def key_names(self, row: int) -> tuple[str, ...]:
        """Return the key columns of a table from the message's key."""
        key = self._incoming.key[row]
        try:
            found: Any = json.loads(key) if key else None
        except ValueError:
            return ()
        return tuple(found) if isinstance(found, dict) else ()


def _map_columns(maps: pa.MapArray) -> dict[str, pa.Array]:
    """Return each key's values as a column; NULL where a row's map lacks the key. Of a duplicate key, the last entry counts."""
    offsets = np.frombuffer(maps.buffers()[1], dtype=np.int32, count=len(maps) + 1 + maps.offset)[maps.offset :]
    keys, items = maps.keys, maps.items
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return {}
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(maps)), lengths)
    coded = keys[first:last].dictionary_encode()
    codes = coded.indices.to_numpy()
    found = {}
    for code, name in enumerate(coded.dictionary.to_pylist()):
        at = np.flatnonzero(codes == code)
        indexes = np.full(len(maps), -1, dtype=np.int64)
        indexes[rows[at]] = at + first
        found[name] = items.take(pa.array(indexes, mask=indexes < 0))
    return found
