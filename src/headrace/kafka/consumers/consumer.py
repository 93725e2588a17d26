"""Consumers of topics: callbacks for changes, or blocks of changes.

Invariant: offsets are committed after the callbacks of a batch have returned, or when the next batch is requested, so every message is
delivered at least once. A message that cannot be read ends the consumer with its topic, partition and offset. Only messages without row
changes are skipped: tombstones, and Debezium's truncations, heartbeats and transaction boundaries.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

import numpy as np
import orjson
import pyarrow as pa
from confluent_kafka import Message

from headrace.errors import DefiniteError
from headrace.kafka.address import SCHEME, KafkaAddress, parse_kafka_url
from headrace.kafka.consumers.message_source import EARLIEST, Marks, MessageBatch, TopicConsumer
from headrace.kafka.consumers.row_changes import EPOCH, EventReader, RowChange, What, changes_of_block
from headrace.kafka.mypipe.reader import Headers, MutationReader, MypipeMessages, Places, ReadBlock
from headrace.kafka.mypipe.wire_format import MAGIC, POSITION_HEADER, Mutation, read_position
from headrace.kafka.registry import open_repository
from headrace.kafka.schema_repository import SchemaRepository
from headrace.model.change_block import ChangeBlock, Op

BATCH: Final = 5000
_TICK_S: Final = 0.5
_HEADS: Final = frozenset(bytes((MAGIC, mutation)) for mutation in Mutation)
"""The first bytes of mypipe's messages; with a registry id of four bytes, the second one is zero too."""
_NO_BLOCKS: Final = "take headrace.kafka.consume for Debezium's events, or `headrace replicate kafka://… clickhouse://…`"
Callback = Callable[[RowChange], object]


class _Unreadable(Exception):
    def __init__(self, row: int, reason: str, hint: str = "") -> None:
        super().__init__(row, reason, hint)
        self.row, self.reason, self.hint = row, reason, hint


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    topic: str | Sequence[str]
    """`kafka://host:port/topic`, or names of topics at `servers`; a name that begins with ^ is a pattern."""
    servers: str = ""
    group: str = ""
    registry: str | SchemaRepository | None = None
    start: str = EARLIEST
    drop_duplicates: bool = False
    batch: int = BATCH
    properties: Mapping[str, str] | None = None

    def address(self) -> tuple[KafkaAddress, list[str]]:
        if isinstance(self.topic, str) and self.topic.startswith(SCHEME):
            address = parse_kafka_url(self.topic)
            topics = [name for name in address.topic.split(",") if name]
        else:
            if not self.servers:
                raise DefiniteError("the address of the topic is missing", hint='give servers="host:9092", or kafka://host:9092/topic')
            address = parse_kafka_url(self.servers if self.servers.startswith(SCHEME) else f"{SCHEME}{self.servers}")
            topics = [self.topic] if isinstance(self.topic, str) else list(self.topic)
        if not topics:
            raise DefiniteError("no topic is named", place=str(address), hint="write kafka://host:port/topic")
        return address, topics


class ChangeConsumer:
    """An open consumer; close it, or use it as a context manager."""

    def __init__(self, reading: ConsumerSettings) -> None:
        address, topics = reading.address()
        repository = open_repository(reading.registry) if isinstance(reading.registry, str) and reading.registry else reading.registry
        self._repository = None if isinstance(repository, str) else repository
        self._reading = reading
        self._halts: dict[tuple[str, int], tuple[MessageBatch, DefiniteError]] = {}
        self._mutations, self._events = MutationReader(self._repository), EventReader(self._repository)
        self.source = TopicConsumer(address, topics, group=reading.group, start=reading.start, properties=reading.properties)

    def batches(
        self, *, until_end: bool = False, limit: int | None = None, stop: threading.Event | None = None
    ) -> Iterator[list[MessageBatch]]:
        """Yield batches; a batch is committed when the next one is requested. `limit`: at most this many messages."""
        left = limit
        while (left is None or left > 0) and not (stop is not None and stop.is_set()):
            most = self._reading.batch if left is None else min(left, self._reading.batch)
            found = self.source.poll(most, _TICK_S)
            if found:
                yield found
                done = [self._halts.get((one.topic, one.partition), (one,))[0] for one in found]
                self.source.commit([one for one in done if one.messages])
                if self._halts:
                    raise next(iter(self._halts.values()))[1]
                left = None if left is None else left - sum(len(batch.messages) for batch in found)
            elif until_end and self.source.is_at_end:
                return

    def changes(self, batch: MessageBatch) -> list[RowChange]:
        """Return the batch's changes in the order of their messages, up to the first unreadable one."""
        while True:
            try:
                return self._changes(batch)
            except _Unreadable as bad:
                batch = self._cut(batch, bad)

    def blocks(self, batch: MessageBatch) -> list[ChangeBlock]:
        """Return the batch's changes as blocks, up to the first unreadable one; only for mypipe's messages."""
        while True:
            try:
                return self._blocks(batch)
            except _Unreadable as bad:
                batch = self._cut(batch, bad)

    def _changes(self, batch: MessageBatch) -> list[RowChange]:
        found: dict[int, RowChange] = {}
        mypipe, others = _by_format(batch)
        events = [(row, row_event) for row in others if (row_event := self._event(batch, row)) is not None]
        for read in self._read(batch, mypipe):
            found |= changes_of_block(read, batch, mypipe)
        found |= {row: change for row, (change, source_commit_us) in events if self._is_new(batch, change, source_commit_us)}
        return [found[row] for row in sorted(found)]

    def _blocks(self, batch: MessageBatch) -> list[ChangeBlock]:
        mypipe, others = _by_format(batch)
        if others:
            raise _Unreadable(others[0], "it is none of mypipe's messages, and only those are read as blocks", _NO_BLOCKS)
        return [one.block for one in self._read(batch, mypipe)]

    def _cut(self, batch: MessageBatch, bad: _Unreadable) -> MessageBatch:
        """Commit the messages before an unreadable one after they are delivered, then raise."""
        error = DefiniteError(
            f"a message cannot be read: {bad.reason}", place=batch.place(bad.row), hint=bad.hint or "see what writes to this topic"
        )
        left = MessageBatch(batch.topic, batch.partition, batch.messages[: bad.row], batch.marks)
        self._halts[batch.topic, batch.partition] = left, error
        return left

    def readable(self, batch: MessageBatch) -> list[RowChange]:
        """Return the batch's changes without the unreadable ones, for callers that report those separately."""
        found: list[RowChange] = []
        rest = batch
        while rest.messages:
            try:
                return found + self._changes(rest)
            except _Unreadable as bad:
                found += self._changes(MessageBatch(batch.topic, batch.partition, rest.messages[: bad.row], batch.marks))
                rest = MessageBatch(batch.topic, batch.partition, rest.messages[bad.row + 1 :], batch.marks)
        return found

    def other(self, batch: MessageBatch, row: int) -> str:
        """Return the text of a message that is no change; raise `DefiniteError` with the reason if it cannot be read."""
        try:
            self._changes(MessageBatch(batch.topic, batch.partition, [batch.messages[row]], {}))
        except _Unreadable as bad:
            raise DefiniteError(bad.reason, place=batch.place(row), hint=bad.hint) from bad
        return orjson.dumps(self._events.tree(_value(batch.messages[row])), default=str).decode()

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _read(self, batch: MessageBatch, rows: Sequence[int]) -> list[ReadBlock]:
        if not rows:
            return []
        messages = [batch.messages[row] for row in rows]
        incoming = MypipeMessages(
            pa.array(map(_value, messages), pa.binary()),
            list(map(_headers, messages)),
            np.array([message.timestamp()[1] * 1000 for message in messages], np.int64),
            np.array([message.offset() for message in messages], np.int64),
            [message.key() for message in messages],
        )
        read = self._mutations.read(incoming)
        if read.unreadable:
            bad = read.unreadable[0]
            raise _Unreadable(rows[bad.row], bad.reason, bad.hint)
        if not self._reading.drop_duplicates:
            return list(read.blocks)
        return [left for one in read.blocks if (left := _without_duplicates(one, batch.marks)).block.rows]

    def _event(self, batch: MessageBatch, row: int) -> tuple[RowChange, int] | None:
        """Return a change and the source's commit time; -1 if the message has none."""
        message = batch.messages[row]
        try:
            event = self._events.event(_value(message))
            position, number = _position(_headers(message))
        except DefiniteError as error:
            raise _Unreadable(row, error.message, error.hint) from error
        if event is None:
            return None
        committed_ms = message.timestamp()[1] if event.committed_ms is None else event.committed_ms
        change = RowChange(
            event.what,
            event.database,
            event.table,
            event.old,
            event.new,
            event.transaction,
            position,
            number,
            EPOCH + timedelta(milliseconds=committed_ms),
            batch.topic,
            batch.partition,
            batch.offset(row),
            message.key(),
        )
        return change, -1 if event.source_ms is None else event.source_ms * 1000

    def _is_new(self, batch: MessageBatch, change: RowChange, source_commit_us: int) -> bool:
        if not self._reading.drop_duplicates or change.position is None:
            return True
        table = f"{change.database}.{change.table}"
        if change.snapshot_row is not None:
            _see_snapshot(batch.marks, table, change.position)
            return True
        return _passes(batch.marks, table, change.position, source_commit_us)


def consume(
    topic: str | Sequence[str],
    on_insert: Callback | None = None,
    on_update: Callback | None = None,
    on_delete: Callback | None = None,
    *,
    servers: str = "",
    group: str = "",
    registry: str | SchemaRepository | None = None,
    start: str = EARLIEST,
    drop_duplicates: bool = False,
    until_end: bool = False,
    limit: int | None = None,
    stop: threading.Event | None = None,
    batch: int = BATCH,
    properties: Mapping[str, str] | None = None,
) -> int:
    """Call back for every change in a topic of mypipe's messages or of Debezium's events; return the number of changes.

    With a `group`, offsets are committed after the callbacks of a batch have returned. An exception of a callback is passed on, and the
    group's next consumer gets the batch again. It ends by `stop`, after `limit` messages, or (`until_end`) at the current end of the topic.
    """
    callbacks = {What.INSERT: on_insert, What.UPDATE: on_update, What.DELETE: on_delete}
    count = 0
    with ChangeConsumer(ConsumerSettings(topic, servers, group, registry, start, drop_duplicates, batch, properties)) as consumption:
        for batches in consumption.batches(until_end=until_end, limit=limit, stop=stop):
            for one in batches:
                for change in consumption.changes(one):
                    callback = callbacks[change.what]
                    if callback is not None:
                        callback(change)
                    count += 1
    return count


def changes(
    topic: str | Sequence[str],
    *,
    servers: str = "",
    group: str = "",
    registry: str | SchemaRepository | None = None,
    start: str = EARLIEST,
    drop_duplicates: bool = False,
    until_end: bool = False,
    limit: int | None = None,
    stop: threading.Event | None = None,
    batch: int = BATCH,
    properties: Mapping[str, str] | None = None,
) -> Iterator[RowChange]:
    """Yield changes; a batch is committed when the first change after it is requested."""
    with ChangeConsumer(ConsumerSettings(topic, servers, group, registry, start, drop_duplicates, batch, properties)) as consumption:
        for batches in consumption.batches(until_end=until_end, limit=limit, stop=stop):
            for one in batches:
                yield from consumption.changes(one)


def blocks(
    topic: str | Sequence[str],
    *,
    servers: str = "",
    group: str = "",
    registry: str | SchemaRepository | None = None,
    start: str = EARLIEST,
    drop_duplicates: bool = False,
    until_end: bool = False,
    limit: int | None = None,
    stop: threading.Event | None = None,
    batch: int = BATCH,
    properties: Mapping[str, str] | None = None,
) -> Iterator[ChangeBlock]:
    """Yield change blocks of mypipe's messages, generic or specific: each of one table and one partition, in the partition's order."""
    with ChangeConsumer(ConsumerSettings(topic, servers, group, registry, start, drop_duplicates, batch, properties)) as consumption:
        for batches in consumption.batches(until_end=until_end, limit=limit, stop=stop):
            for one in batches:
                yield from consumption.blocks(one)


def _by_format(batch: MessageBatch) -> tuple[list[int], list[int]]:
    """Return the indexes of mypipe's messages and of others; messages without a value contain no change."""
    mypipe: list[int] = []
    others: list[int] = []
    for row, message in enumerate(batch.messages):
        value = message.value()
        if value is not None:
            (mypipe if value[:2] in _HEADS else others).append(row)
    return mypipe, others


def _value(message: Message) -> bytes:
    value = message.value()
    assert value is not None
    return value


def _headers(message: Message) -> Headers:
    return message.headers() or ()  # type: ignore[return-value]


def _position(headers: Headers) -> tuple[int | None, int | None]:
    found = next((value for name, value in headers if name == POSITION_HEADER and value), None)
    return (None, None) if found is None else read_position(found)


def _passes(marks: Marks, table: str, position: int, committed_us: int) -> bool:
    """Whether a change is new for its table in this partition; if so, remember it.

    A change was seen if it is not after the last position and was not committed after everything seen. If it was committed later, the log
    is a new one, whose positions start again. `committed_us`: -1 if unknown.
    """
    last, newest_us = marks.pop(table, (-1, -1))
    is_new_log = position <= last and newest_us >= 0 and committed_us > newest_us
    marks[table] = (position if is_new_log else max(last, position), max(newest_us, committed_us))
    return is_new_log or position > last


def _see_snapshot(marks: Marks, table: str, position: int) -> None:
    """A snapshot's position is never before changes that its pipe sent. If it is, the log is a new one and the mark is void."""
    if position < marks.get(table, (-1, -1))[0]:
        del marks[table]


def _without_duplicates(read: ReadBlock, marks: Marks) -> ReadBlock:
    """Remove changes that were seen before. Snapshot rows stay: they share one position and come in any order."""
    block = read.block
    table = str(block.schema.name)
    ops = block.op.to_numpy()
    kept = np.ones(len(ops), bool)
    for at in np.flatnonzero((ops != Op.BEFORE) & read.has_position):
        if ops[at] == Op.SNAPSHOT:
            _see_snapshot(marks, table, int(read.position[at]))
        elif not _passes(marks, table, int(read.position[at]), int(read.source_commit_us[at])):
            kept[at] = False
            # The before image of an update is removed with it.
            kept[at - 1] &= ops[at] != Op.UPDATE
    return read if kept.all() else _taken(read, np.flatnonzero(kept))


def _taken(read: ReadBlock, at: Places) -> ReadBlock:
    absent = {name: missing[at] for name, missing in read.absent.items()}
    return ReadBlock(
        read.block.taken(at),
        read.message[at],
        read.position[at],
        read.has_position[at],
        read.row_number[at],
        read.source_commit_us[at],
        absent,
    )
