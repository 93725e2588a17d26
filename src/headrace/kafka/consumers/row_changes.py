"""Single row changes, for programs that process them one by one."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, assert_never

import numpy as np
import orjson
import pyarrow as pa

from headrace.errors import DefiniteError
from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.consumers.message_source import MessageBatch
from headrace.kafka.mypipe.reader import ReadBlock
from headrace.kafka.mypipe.values import to_map
from headrace.kafka.schema_repository import SchemaRepository
from headrace.model.change_block import Op
from headrace.model.column_types import ValueForm
from headrace.model.schema import Column

Row = Mapping[str, Any]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPS: Final = {int(op): op for op in Op}
CONFLUENT_HEAD: Final = 5
_NO_ROWS: Final = ({"status", "id"}, {"ddl", "databaseName"})
"""Fields of messages that describe no rows: transaction boundaries and schema changes."""
_FLAT: Final = ("__op", "__deleted", "__table", "__db", "__source_ts_ms")


class What(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RowChange:
    what: What
    database: str
    table: str
    old: Row | None
    """The row before an update or a delete. A column that the message does not contain is absent; a NULL is None."""
    new: Row | None
    """The row after an insertion or an update."""
    transaction: str | None
    """The transaction, as the message names it."""
    position: int | None
    """The position of the change in the source's log; equal when the message is sent again. None if the message has none."""
    snapshot_row: int | None
    """The row's number in a snapshot; None for changes."""
    committed: datetime | None
    """Commit time; if the message has none, the time at which the message was made."""
    topic: str
    partition: int
    offset: int
    key: bytes | None

    @property
    def row(self) -> Row:
        """The newest known version of the row."""
        found = self.new if self.new is not None else self.old
        return {} if found is None else found

    @property
    def place(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


_WHAT_BY_OP: Final = {Op.INSERT: What.INSERT, Op.SNAPSHOT: What.INSERT, Op.UPDATE: What.UPDATE, Op.DELETE: What.DELETE}


def changes_of_block(read: ReadBlock, batch: MessageBatch, rows: Sequence[int]) -> dict[int, RowChange]:
    """Return a block's changes by their messages' numbers in the batch; an update's before image is part of its change.

    `rows`: the messages of the batch that the block's messages are.
    """
    block, name = read.block, read.block.schema.name
    columns = (
        map(_OPS.__getitem__, block.op.to_pylist()),
        _rows(read),
        block.transaction.to_pylist() if block.transaction is not None else [None] * block.rows,
        block.commit_ts.to_pylist(),
        [found if has else None for found, has in zip(read.position.tolist(), read.has_position.tolist(), strict=True)],
        [None if number < 0 else number for number in read.row_number.tolist()],
        read.message.tolist(),
    )
    changes: dict[int, RowChange] = {}
    before: Row | None = None
    for op, row, transaction, commit_us, position, number, message in zip(*columns, strict=True):
        if op is Op.BEFORE:
            before = row
            continue
        at = rows[message]
        changes[at] = RowChange(
            _WHAT_BY_OP[op],
            name.database,
            name.table,
            row if op is Op.DELETE else before,
            None if op is Op.DELETE else row,
            transaction,
            position,
            number,
            EPOCH + timedelta(microseconds=commit_us),
            batch.topic,
            batch.partition,
            batch.offset(at),
            batch.messages[at].key(),
        )
        before = None
    return changes


def _rows(read: ReadBlock) -> list[dict[str, Any]]:
    images = read.block.images
    columns = [_plain(column, array) for column, array in zip(read.block.schema.columns, images.columns, strict=True)]
    names = images.schema.names
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] if columns else [{} for _ in range(len(images))]
    for name, missing in read.absent.items():
        for at in np.flatnonzero(missing):
            del rows[at][name]
    return rows


def _plain(column: Column, array: pa.Array) -> list[Any]:
    """A column's values as Python has them; what Python has no type for is text, as the source shows it."""
    match column.form:
        case ValueForm.TIME:
            # Times of MySQL go below zero and past a day: spans, not times of a day.
            return list(array.view(pa.int64()).cast(pa.duration("us")).to_pylist())
        case ValueForm.FIXED_BYTES:
            return list(to_map(column, array, "strings").to_pylist())
        case ValueForm.DATE | ValueForm.TIMESTAMP:
            try:
                return list(array.to_pylist())
            except (OverflowError, ValueError):
                # Python's calendar begins with the year 1, MySQL's with 0.
                texts = to_map(column, array, "strings").to_pylist()
                return [_in_calendar(value, text) for value, text in zip(array, texts, strict=True)]
        case ValueForm.INTEGER | ValueForm.YEAR | ValueForm.BITS | ValueForm.FLOAT | ValueForm.DECIMAL | ValueForm.TEXT:
            return list(array.to_pylist())
        case ValueForm.JSON | ValueForm.MEMBERS | ValueForm.BYTES | ValueForm.GEOMETRY | ValueForm.VECTOR:
            return list(array.to_pylist())
        case unknown:
            assert_never(unknown)


def _in_calendar(value: pa.Scalar, text: str | None) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return text


_WHAT: Final = {"c": What.INSERT, "r": What.INSERT, "u": What.UPDATE, "d": What.DELETE}


@dataclass(frozen=True, slots=True)
class Event:
    what: What
    database: str
    table: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    is_snapshot: bool
    transaction: str | None
    committed_ms: int | None
    source_ms: int | None = None
    """The source's commit time; equal when the event is sent again."""


class EventReader:
    """Reads Debezium's events: JSON (with or without a schema) and Avro with registry ids; caches schemas.

    Values stay as the event has them: a base64 decimal stays base64. (`headrace replicate` converts columns to their types.)
    """

    def __init__(self, repository: SchemaRepository | None = None) -> None:
        self._repository = repository
        self._decoders: dict[int, Decoder] = {}

    def tree(self, value: bytes) -> Any:
        """Return the event as plain values; raise `DefiniteError` if the bytes are not an event."""
        if value[:1] != b"\0":
            try:
                found = orjson.loads(value)
            except orjson.JSONDecodeError as error:
                raise DefiniteError(f"it is neither JSON nor Avro: {error}") from error
            return found["payload"] if isinstance(found, dict) and found.keys() == {"schema", "payload"} else found
        if len(value) < CONFLUENT_HEAD:
            raise DefiniteError("it is too short for a message in Avro")
        if self._repository is None:
            raise DefiniteError("it is Avro, and no registry is given", hint="give the address of the registry: registry=http://…")
        (number,) = struct.unpack(">i", value[1:CONFLUENT_HEAD])
        if number not in self._decoders:
            self._decoders[number] = Decoder(self._repository.by_id(number))
        decoded = self._decoders[number].decode(pa.array([value], pa.binary()), skip=CONFLUENT_HEAD)
        if decoded.bad:
            raise DefiniteError(f"its Avro body cannot be read: {decoded.bad[0].reason}")
        return decoded.values[0].as_py()

    def event(self, value: bytes) -> Event | None:
        """Return the change of a row; None for other events: truncation, message, heartbeat, transaction boundary, schema change."""
        found = self.tree(value)
        if found is None:
            # Connect's JSON converter writes some tombstones like this.
            return None
        if not isinstance(found, dict):
            raise DefiniteError("it is not a change event")
        if "op" in found and ("after" in found or "before" in found):
            return _from_envelope(found)
        if any(name in found for name in ("__op", "__deleted")):
            return _from_flat(found)
        if "op" in found or {"ts_ms"} == found.keys() or any(names <= found.keys() for names in _NO_ROWS):
            return None
        raise DefiniteError("it is not a change event: it has neither `op` nor `__op` nor `__deleted`")


def _from_envelope(found: Mapping[str, Any]) -> Event | None:
    what = _WHAT.get(found["op"])
    if what is None:
        return None
    source = found.get("source") or {}
    transaction = (found.get("transaction") or {}).get("id")
    return Event(
        what,
        source.get("db") or "",
        source.get("table") or source.get("collection") or "",
        found.get("before"),
        found.get("after"),
        found["op"] == "r",
        transaction if transaction is not None else source.get("gtid"),
        source.get("ts_ms") or found.get("ts_ms"),
        source.get("ts_ms"),
    )


def _from_flat(found: Mapping[str, Any]) -> Event | None:
    op = found.get("__op") or ("d" if str(found.get("__deleted")).lower() == "true" else "u")
    what = _WHAT.get(op)
    if what is None:
        return None
    row = {name: value for name, value in found.items() if name not in _FLAT}
    is_deletion = what is What.DELETE
    return Event(
        what,
        found.get("__db") or "",
        found.get("__table") or "",
        row if is_deletion else None,
        None if is_deletion else row,
        op == "r",
        None,
        found.get("__source_ts_ms"),
        found.get("__source_ts_ms"),
    )
