"""Folds messages of topics into rows by key: mypipe's generic messages, read by fastavro, and Debezium's change events in JSON.

It does not use Headrace's encoders, readers or consumer; the schemas are a copy of mypipe's. The types of Debezium's events are those of
the tables of `testkit.generators.workload`.
"""

from __future__ import annotations

import base64
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
from confluent_kafka import Consumer, TopicPartition

from testkit.oracles.topics import read_topic
from testkit.servers.broker import PrivateBroker

_EPOCH = datetime(1970, 1, 1)


def _decimal(value: str) -> Decimal:
    return Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)).scaleb(-2)


_READ: Mapping[str, Callable[[Any], Any]] = {"balance": _decimal, "changed": lambda micros: _EPOCH + timedelta(microseconds=micros)}


def folded_rows(broker: PrivateBroker, topic: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of a topic, as the source's SELECT gives them."""
    rows: dict[bytes | None, Mapping[str, Any]] = {}
    for message in read_topic(broker, topic):
        if message.value is None:
            rows.pop(message.key, None)
            continue
        event = json.loads(message.value)
        event = event.get("payload", event)
        if event["op"] == "d":
            rows.pop(message.key, None)
        else:
            rows[message.key] = event["after"]
    return sorted((tuple(_plain(name, row[name]) for name in columns) for row in rows.values()), key=repr)


def _plain(name: str, value: Any) -> Any:
    return _READ[name](value) if name in _READ and value is not None else value


Row = dict[str, Any]
Position = tuple[int, int]
"""Version, and the row's number in a snapshot."""

_HEAD: tuple[Any, ...] = (
    {"name": "database", "type": "string"},
    {"name": "table", "type": "string"},
    {"name": "tableId", "type": "long"},
    {"name": "txid", "type": ["null", {"type": "fixed", "size": 16, "name": "Guid"}]},
)
_MAPS = {"bytes": "bytes", "integers": "int", "strings": "string", "longs": "long"}


def _schema(name: str, *prefixes: str) -> Any:
    maps = [{"name": f"{prefix}{one}", "type": {"type": "map", "values": kind}} for prefix in prefixes for one, kind in _MAPS.items()]
    return fastavro.parse_schema({"type": "record", "name": name, "namespace": "mypipe.avro", "fields": [*_HEAD, *maps]})


_SCHEMAS = {1: _schema("InsertMutation", ""), 2: _schema("UpdateMutation", "old_", "new_"), 3: _schema("DeleteMutation", "")}
_KINDS = {1: "insert", 2: "update", 3: "delete"}


@dataclass(frozen=True)
class Sent:
    """One message."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def position(self) -> Position:
        raw = self.headers["headrace.position"]
        return int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:], "big")

    @property
    def is_snapshot(self) -> bool:
        return len(self.headers["headrace.position"]) == 16

    @property
    def kind(self) -> str:
        assert self.value is not None
        return _KINDS[self.value[1]]

    @property
    def table(self) -> str:
        return str(self._body()["table"])

    @property
    def transaction(self) -> bytes | None:
        found: bytes | None = self._body()["txid"]
        return found

    def row(self, prefix: str = "") -> Row:
        """The row that a generic message holds; `prefix`: `old_` or `new_` of an update."""
        nulls = json.loads(self.headers.get("headrace.old_nulls" if prefix == "old_" else "headrace.nulls", b"[]"))
        maps = [self._body()[f"{prefix}{one}"] for one in _MAPS]
        found = {name: value for one in maps for name, value in one.items()}
        assert sum(map(len, maps)) == len(found)
        assert not found.keys() & set(nulls)
        return {**found, **dict.fromkeys(nulls)}

    def _body(self) -> Any:
        assert self.value is not None
        assert self.value[0] == 0
        return fastavro.schemaless_reader(io.BytesIO(self.value[4:]), _SCHEMAS[self.value[1]], None)


def read_sent(broker: PrivateBroker, topic: str) -> list[Sent]:
    """All messages, partition by partition, in their order."""
    return [Sent(topic, one.partition, one.offset, one.key, one.value, one.headers) for one in read_topic(broker, topic)]


def newest_version(broker: PrivateBroker, topics: Iterable[str]) -> int:
    """The highest version among the last messages of the topics' partitions."""
    consumer = Consumer(broker.client_settings(group_id="oracle", enable_auto_commit=False))
    try:
        found = consumer.list_topics(timeout=20).topics
        places = [TopicPartition(topic, one) for topic in topics for one in found[topic].partitions]
        ends = {(place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=20)[1] for place in places}
        last = {place: end - 1 for place, end in ends.items() if end}
        consumer.assign([TopicPartition(*place, offset) for place, offset in last.items()])
        messages = consumer.consume(len(last), timeout=20) if last else []
        raw = [dict(message.headers() or ())["headrace.position"] for message in messages]
    finally:
        consumer.close()
    return max((int.from_bytes(bytes(one[:8]), "big") for one in raw), default=0)


def fold(messages: Iterable[Sent], *, by_position: bool) -> dict[bytes, Row]:
    """Return the rows by key. A message replaces a row if it is newer, or always."""
    rows: dict[bytes, Row] = {}
    newest: dict[bytes, Position] = {}
    for one in messages:
        assert one.key is not None
        if by_position and one.position <= newest.get(one.key, (-1, -1)):
            continue
        newest[one.key] = one.position
        if one.kind == "delete":
            rows.pop(one.key, None)
        else:
            rows[one.key] = one.row("new_" if one.kind == "update" else "")
    return rows


def repeats(messages: Sequence[Sent]) -> int:
    """Count repeated messages; check that each equals its first copy in partition, bytes and headers."""
    first: dict[tuple[str, bytes | None, Position, str], Sent] = {}
    count = 0
    for one in messages:
        before = first.setdefault((one.topic, one.key, one.position, one.kind), one)
        if before is not one:
            count += 1
            assert (one.partition, one.value, one.headers) == (before.partition, before.value, before.headers)
    return count


def assert_ordered(messages: Sequence[Sent]) -> None:
    """Check that, without repeated messages, positions rise in every partition, and that each key has one partition."""
    partition_of: dict[bytes | None, int] = {}
    seen: defaultdict[int, set[Any]] = defaultdict(set)
    last: dict[int, Position] = {}
    for one in messages:
        assert partition_of.setdefault(one.key, one.partition) == one.partition
        mark = one.key, one.position, one.kind
        if mark in seen[one.partition]:
            continue
        seen[one.partition].add(mark)
        assert one.position >= last.get(one.partition, (-1, -1)), one
        last[one.partition] = one.position


def as_rows(
    folded: Iterable[Row], columns: Sequence[str], read: Callable[[str, Any], Any], absent: Row | None = None
) -> list[tuple[Any, ...]]:
    """Return folded rows in the form of the source's SELECT; `absent`: values of columns that were added after a row's last message."""
    default = absent or {}
    return sorted((tuple(read(name, row[name] if name in row else default[name]) for name in columns) for row in folded), key=repr)
