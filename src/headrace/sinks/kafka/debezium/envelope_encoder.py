"""Encodes blocks as Debezium's change events in JSON, as its MySQL and MariaDB connectors write them by default.

Invariant: an event equals Debezium's event of the same change in key, before, after, op, and log position. A key change is the old row's
deletion (with a tombstone after it, if there are tombstones) and the new row's creation, which refer to each other in headers. Fields that
a block does not contain (the thread, the server's id, the statement unless it is logged) are null or 0. A replayed message differs only in
the time of processing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column, TableSchema
from headrace.model.version import OFFSET_BITS
from headrace.sinks.event_positions import EventPlaces, Places, event_places, file_name, file_numbers
from headrace.sinks.kafka.debezium.json_fragments import MARIADB, NULL, field_of, join, or_null, shown
from headrace.sinks.kafka.delivery import Messages
from headrace.sinks.kafka.options import KafkaOptions

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
_MOST_BYTES: Final = 128 << 20
"""Maximum bytes encoded at once: text may be several times as long as the values, and an array holds 2 GiB."""
_ENVELOPE_BYTES: Final = 600
_GTID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+:.*|\d+-\d+-\d+")
_CREATE, _UPDATE, _DELETE, _READ, _TOMBSTONE, _TRUNCATE = range(6)
_WORDS: Final = pa.array(["c", "u", "d", "r", "", "t"])

Clock = Callable[[], int]
_SOURCE_TYPE: Final = "__debezium.source.column.type"
_MOST_INT64: Final = (1 << 63) - 1
_SNAPSHOT: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"


@dataclass(frozen=True, slots=True)
class Origin:
    """Properties of the source that events contain and blocks do not."""

    connector: str = "mysql"
    """`mysql` or `mariadb`."""
    log: str = "binlog"
    """The base name of the log files."""
    server_id: int = 0
    version: str = "headrace"
    """Value of the field for Debezium's version."""


class DebeziumEncoder:
    """Encodes blocks of any tables. Belongs to one task."""

    def __init__(self, choices: KafkaOptions, origin: Origin | None = None, clock: Clock = time.time_ns) -> None:
        self._choices, self._origin, self._clock = choices, origin or Origin(), clock
        self._tables: dict[TableSchema, _EnvelopeTableEncoder] = {}

    def encode(self, block: ChangeBlock) -> list[Messages]:
        if not block.rows:
            return []
        table = self._of(block.schema)
        events = event_places(block)
        return [table.encode(block, events, piece, self._clock()) for piece in block.pieces(_MOST_BYTES, table.overhead)]

    def emptied(self, schema: TableSchema, version: int) -> Messages:
        return self._of(schema).emptied(version, self._clock())

    def _of(self, schema: TableSchema) -> _EnvelopeTableEncoder:
        table = self._tables.get(schema)
        if table is None:
            table = self._tables[schema] = _EnvelopeTableEncoder(self._choices, self._origin, schema)
        return table


@dataclass(frozen=True, slots=True)
class _Plan:
    """The messages of some images: what each is, its image before and after (-1 for none), and the image whose place and key it has."""

    kind: npt.NDArray[np.int8]
    before: Places
    after: Places
    at: Places
    other: Places
    """For messages of a key change: the image with the other key; else -1."""


class _EnvelopeTableEncoder:
    def __init__(self, choices: KafkaOptions, origin: Origin, schema: TableSchema) -> None:
        self._origin, self._schema = origin, schema
        self._topic = choices.topic_of(schema.name)
        self._tombstones = choices.has_tombstones
        self._shown = {column.name: shown(column, origin.connector) for column in schema.columns}
        self._head, self._tail = self._ends(choices, value_schema)
        self._key_head, self._key_tail = self._ends(choices, key_schema)
        words = {"version": origin.version, "connector": origin.connector, "name": choices.prefix}
        self._source_head = json.dumps(words, ensure_ascii=False, separators=(",", ":"))[:-1]
        self._db, self._table = (json.dumps(name, ensure_ascii=False) for name in (schema.name.database, schema.name.table))

    @property
    def overhead(self) -> int:
        """The size of an event without its row; mostly the schema, if it is included."""
        return len(self._head) + len(self._key_head) + _ENVELOPE_BYTES

    def encode(self, block: ChangeBlock, events: EventPlaces, piece: slice, now: int) -> Messages:
        images = block.images.slice(piece.start, piece.stop - piece.start)
        ops = block.op.to_numpy()[piece]
        fragments = {name: or_null(how.render(images.column(name))) for name, how in self._shown.items()}
        rows = _object(fragments)
        keys = _object({name: fragments[name] for name in self._schema.row_key}) if self._schema.row_key else None
        plan = _plan(ops, keys, self._schema, tombstones=self._tombstones)
        at = pa.array(plan.at + piece.start)
        value = self._values(block, events, rows, plan, at, now)
        key = pa.nulls(len(plan.kind), pa.binary()) if keys is None else join(self._key_head, keys, self._key_tail).take(pa.array(plan.at))
        return Messages(
            topic=self._topic,
            key=key.cast(pa.binary()),
            value=value,
            version=block.version.take(at),
            timestamp_ms=pc.divide(block.commit_ts.take(at), 1000),
            headers=_headers(plan, keys),
            row=block.order.take(at) if block.order is not None and ops[0] == Op.SNAPSHOT else None,
        )

    def emptied(self, version: int, now: int) -> Messages:
        """Return the event of a statement. Its transaction is unknown here, and its time is the clock's."""
        place = pa.array([version & ((1 << OFFSET_BITS) - 1)], pa.int64()), pa.array([0], pa.int64())
        block = ChangeBlock(
            self._schema,
            pa.RecordBatch.from_arrays(
                [pa.nulls(1, field.type) for field in self._schema.arrow_schema], names=self._schema.arrow_schema.names
            ),
            pa.array([Op.DELETE], pa.uint8()),
            pa.array([version], pa.uint64()),
            pa.array([now // 1000], pa.int64()),
        )
        first = np.zeros(1, np.int64)
        plan = _Plan(np.array([_TRUNCATE], np.int8), first - 1, first - 1, first, first - 1)
        events = EventPlaces(*(column.to_numpy() for column in place))
        value = self._values(block, events, pa.array([NULL]), plan, pa.array([0]), now)
        return Messages(self._topic, pa.nulls(1, pa.binary()), value, block.version, pc.divide(block.commit_ts, 1000))

    def _values(self, block: ChangeBlock, events: EventPlaces, rows: Any, plan: _Plan, at: Any, now: int) -> Any:
        source = self._source(block, events, at, snapshot=plan.kind[0] == _READ)
        times = f'","ts_ms":{now // 1_000_000},"ts_us":{now // 1000},"ts_ns":{now}}}{self._tail}'
        before, after = (or_null(rows.take(pa.array(places, mask=places < 0))) for places in (plan.before, plan.after))
        ops = _WORDS.take(pa.array(plan.kind))
        text = join(f'{self._head}{{"before":', before, ',"after":', after, ',"source":', source, ',"transaction":null,"op":"', ops, times)
        return pc.if_else(pa.array(plan.kind == _TOMBSTONE), pa.scalar(None, pa.string()), text).cast(pa.binary())

    def _source(self, block: ChangeBlock, events: EventPlaces, at: Any, *, snapshot: bool) -> Any:
        micros = block.commit_ts.take(at)
        files = file_numbers(block.version)[at.to_numpy()]
        numbers, which = np.unique(files, return_inverse=True)
        names = pa.array([json.dumps(file_name(self._origin.log, number)) for number in numbers.tolist()]).take(pa.array(which))
        gtid = _named(block.transaction, at, lambda name: bool(_GTID.fullmatch(name))) if not snapshot else NULL
        pos, row = (pa.array(column).take(at).cast(pa.string()) for column in (events.pos, events.row))
        return join(
            f'{self._source_head},"ts_ms":',
            pc.divide(micros, 1000).cast(pa.string()),
            f',"snapshot":"{"true" if snapshot else "false"}","db":{self._db},"sequence":null,"ts_us":',
            micros.cast(pa.string()),
            ',"ts_ns":',
            pc.multiply(micros, 1000).cast(pa.string()),
            f',"table":{self._table},"server_id":',
            str(0) if snapshot else self._server_ids(block, at),
            ',"gtid":',
            gtid,
            ',"file":',
            names,
            ',"pos":',
            pos,
            ',"row":',
            row,
            ',"thread":null,"query":',
            _named(block.query, at, lambda _: True),
            "}",
        )

    def _server_ids(self, block: ChangeBlock, at: Any) -> Any:
        """MariaDB's transaction ids contain the server's id; for MySQL it comes from the source."""
        known = str(self._origin.server_id)
        if block.transaction is None or self._origin.connector != MARIADB:
            return known
        taken = block.transaction.take(at)
        names = taken.dictionary.to_pylist()
        found = [name.split("-")[1] if name is not None and _GTID.fullmatch(name) else known for name in names]
        return pc.fill_null(pa.array(found, pa.string()).take(taken.indices), known)

    def _ends(self, choices: KafkaOptions, describe: Callable[[TableSchema, str, str], dict[str, Any]]) -> tuple[str, str]:
        """Return the text before and after every payload."""
        if not choices.schemas:
            return "", ""
        text = json.dumps(describe(self._schema, choices.prefix, self._origin.connector), ensure_ascii=False, separators=(",", ":"))
        return f'{{"schema":{text},"payload":', "}"


def _plan(ops: npt.NDArray[np.uint8], keys: Any, schema: TableSchema, *, tombstones: bool) -> _Plan:
    befores, updates = np.flatnonzero(ops == Op.BEFORE), np.flatnonzero(ops == Op.UPDATE)
    if not np.array_equal(befores + 1, updates):
        raise DefiniteError(
            "an update came without the row before it", place=f"table {schema.name}", hint="please report it: the sink requires all of them"
        )
    count = np.ones(len(ops), dtype=np.int64)
    kind = np.select([ops == Op.SNAPSHOT, ops == Op.INSERT, ops == Op.UPDATE], [_READ, _CREATE, _UPDATE], _DELETE).astype(np.int8)
    count[befores] = 0
    moved = _moved(keys, befores, updates)
    kind[updates[moved]] = _CREATE
    count[befores[moved]] = 1
    if tombstones and keys is not None:
        count[(kind == _DELETE) & (count == 1)] = 2
    at = np.repeat(np.arange(len(ops)), count)
    second = np.concatenate(([False], at[1:] == at[:-1]))
    kinds = np.where(second, _TOMBSTONE, kind[at]).astype(np.int8)
    other = np.full(len(ops), -1, dtype=np.int64)
    other[befores[moved]], other[updates[moved]] = updates[moved], befores[moved]
    before = np.select([kinds == _DELETE, kinds == _UPDATE], [at, at - 1], -1)
    after = np.where(np.isin(kinds, (_CREATE, _UPDATE, _READ)), at, -1)
    return _Plan(kinds, before, after, at, other[at])


def _moved(keys: Any, befores: Places, updates: Places) -> npt.NDArray[np.bool_]:
    if keys is None or not updates.size:
        return np.zeros(updates.size, dtype=bool)
    unlike = pc.not_equal(keys.take(pa.array(befores)), keys.take(pa.array(updates)))
    return np.asarray(unlike.to_numpy(zero_copy_only=False), dtype=bool)


def _headers(plan: _Plan, keys: Any) -> tuple[tuple[tuple[str, bytes], ...], ...]:
    """Return the other key of key-change messages (there are few)."""
    moved = np.flatnonzero(plan.other >= 0)
    if keys is None or not moved.size:
        return ()
    found: list[tuple[tuple[str, bytes], ...]] = [()] * len(plan.kind)
    others = keys.take(pa.array(plan.other[moved])).to_pylist()
    for place, kind, other in zip(moved.tolist(), plan.kind[moved].tolist(), others, strict=True):
        found[place] = ((OLD_KEY if kind == _CREATE else NEW_KEY, other.encode()),)
    return tuple(found)


def _object(fragments: dict[str, Any]) -> Any:
    parts: list[Any] = []
    for place, (name, values) in enumerate(fragments.items()):
        parts += [f"{',' if place else '{'}{json.dumps(name, ensure_ascii=False)}:", values]
    return join(*parts, "}")


def _named(array: Any, at: Any, wanted: Callable[[str], bool]) -> Any:
    """Return a column of few distinct texts as JSON; null where not requested."""
    if array is None:
        return NULL
    taken = array.take(at)
    names = taken.dictionary.to_pylist()
    texts = [json.dumps(name, ensure_ascii=False) if name is not None and wanted(name) else NULL for name in names]
    return or_null(pa.array(texts, pa.string()).take(taken.indices))


def key_schema(schema: TableSchema, prefix: str, connector: str) -> dict[str, Any]:
    fields = [field_of(schema.column(name), connector) for name in schema.row_key]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{_base(schema, prefix)}.Key"}


def value_schema(schema: TableSchema, prefix: str, connector: str) -> dict[str, Any]:
    base = _base(schema, prefix)
    row = {"fields": [_row_field(column, connector) for column in schema.columns], "optional": True, "name": f"{base}.Value"}
    source = {"fields": _source_fields(), "optional": False, "name": f"io.debezium.connector.{connector}.Source", "version": 1}
    order = [_plain("string", "id"), _plain("int64", "total_order"), _plain("int64", "data_collection_order")]
    fields = [
        {"type": "struct", **row, "field": "before"},
        {"type": "struct", **row, "field": "after"},
        {"type": "struct", **source, "field": "source"},
        {"type": "struct", "fields": order, "optional": True, "name": "event.block", "version": 1, "field": "transaction"},
        _plain("string", "op"),
        *(_plain("int64", name, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{base}.Envelope", "version": 2}


def _row_field(column: Column, connector: str) -> dict[str, Any]:
    """Return the schema of a column in a row.

    A BIGINT UNSIGNED is marked, as Debezium does with `column.propagate.source.type`: otherwise readers could not distinguish its
    numbers above 9223372036854775807 from negative ones. Keys stay as they are: partitions depend on their bytes.
    """
    field = field_of(column, connector)
    if column.form is not ValueForm.INTEGER or column.type.value_range[1] <= _MOST_INT64:
        return field
    head = {name: field.pop(name) for name in ("type", "optional")}
    return {**head, "parameters": {_SOURCE_TYPE: "BIGINT UNSIGNED"}, **field}


def _source_fields() -> list[dict[str, Any]]:
    snapshot = {
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": _SNAPSHOT},
        "default": "false",
        "field": "snapshot",
    }
    return [
        *(_plain("string", name) for name in ("version", "connector", "name")),
        _plain("int64", "ts_ms"),
        {"type": "string", "optional": True, **snapshot},
        _plain("string", "db"),
        _plain("string", "sequence", optional=True),
        _plain("int64", "ts_us", optional=True),
        _plain("int64", "ts_ns", optional=True),
        _plain("string", "table", optional=True),
        _plain("int64", "server_id"),
        _plain("string", "gtid", optional=True),
        _plain("string", "file"),
        _plain("int64", "pos"),
        _plain("int32", "row"),
        _plain("int64", "thread", optional=True),
        _plain("string", "query", optional=True),
    ]


def _plain(kind: str, name: str, *, optional: bool = False) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _base(schema: TableSchema, prefix: str) -> str:
    return f"{prefix}.{schema.name.database}.{schema.name.table}"
