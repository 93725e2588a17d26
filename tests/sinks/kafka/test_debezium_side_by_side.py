"""The same log, read by the real Debezium and by Headrace, gives the same events.

The recordings hold Debezium's events and the log that it read. Known differences are listed here with their reasons, and in docs/kafka.md.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.model.change_block import Op
from headrace.sinks.kafka.delivery import Messages
from headrace.sources.debezium.events.records import KnownTable
from headrace.sources.debezium.reader import DebeziumReader
from testkit.oracles.binlogs import Image, images_of
from testkit.recordings.debezium_encoded import as_records, blocks_since_snapshot, encoded
from testkit.recordings.debezium_recordings import KafkaRecord, as_batches, load_log, load_records

FLAVOURS = ("mysql", "mariadb")
BACKSLASHED = 'd"\\\\x'
Event = tuple[Any, Any, dict[str, Any]]
"""Key, value, and the headers for changed keys."""


def _ours(messages: list[Messages]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for one in messages:
        assert one.value.type == one.key.type == "binary"
        headers = one.headers or ((),) * len(one.value)
        for key, value, header in zip(one.key.to_pylist(), one.value.to_pylist(), headers, strict=True):
            found.setdefault(one.topic, []).append((_json(key), _json(value), {name: json.loads(other) for name, other in header}))
    return found


def _theirs(records: list[KafkaRecord], topics: set[str]) -> dict[str, list[Event]]:
    """The events after the snapshot, of all partitions of a topic, in the order of the log."""
    found: dict[str, list[tuple[Any, Event]]] = {}
    for topic in topics:
        last: Any = None
        for record in (record for record in records if record.topic == topic):
            value = _json(record.value)
            payload = value and value.get("payload", value)
            if payload is not None:
                source = payload["source"]
                last = (payload["op"] != "r", source["pos"], source["row"], {"d": 0, "c": 2}.get(payload["op"], 0))
            order = last if payload is not None else (*last[:3], 1)
            headers = {name: json.loads(other or b"") for name, other in record.headers if name.endswith("key")}
            found.setdefault(topic, []).append((order, (_json(record.key), value, headers)))
    return {topic: [event for order, event in sorted(events, key=lambda pair: pair[0]) if order[0]] for topic, events in found.items()}


def _op(event: Event) -> str:
    return str((event[1].get("payload") or event[1])["op"]) if event[1] else ""


def _json(raw: bytes | None) -> Any:
    return None if raw is None else json.loads(raw)


def _alike(event: Event, table: str) -> Event:
    """Return an event without the known differences."""
    key, value, headers = event
    if value is None:
        return event
    value = json.loads(json.dumps(value))
    payload = value.get("payload", value)
    for row in filter(None, (payload["before"], payload["after"])):
        _normalise(row, table)
    for part in value["schema"]["fields"][:2] if "schema" in value else ():
        for column in part["fields"]:
            if column.get("default") == BACKSLASHED:
                # Debezium keeps a default's backslashes as in the statement.
                column["default"] = BACKSLASHED.replace("\\\\", "\\")
            if column.get("parameters") == {"__debezium.source.column.type": "BIGINT UNSIGNED"}:
                # Debezium sends it only if configured, Headrace always.
                del column["parameters"]
    source = payload["source"]
    # Debezium's version; a block has no thread; transaction counts only if Debezium was configured; the current time.
    for name in ("version", "thread"):
        source[name] = None
    payload["transaction"] = None
    for name in ("ts_ms", "ts_us", "ts_ns"):
        assert payload[name] > 0
        payload[name] = None
    return key, value, headers


def _normalise(row: dict[str, Any], table: str) -> None:
    if table == "texts":
        # Headrace sends the server's text; Debezium formats MySQL's documents without spaces.
        row["j"] = None if row["j"] is None else json.loads(row["j"])
        # Kafka Connect's converter writes a column's default for NULL; Headrace writes NULL.
        row["def"] = None if row["def"] == BACKSLASHED else row["def"]
    if table == "numbers":
        # Debezium reads the year 0000 as 1900.
        row["y"] = 0 if row["y"] == 1900 else row["y"]
        row["f"] = None if row["f"] is None else np.float32(row["f"]).item()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("variant", ["schema", "plain"])
def test_every_event_is_debeziums(flavour: str, variant: str, tmp_path: Path) -> None:
    ours = _ours(encoded(flavour, tmp_path, schemas=variant == "schema"))
    theirs = _theirs(load_records(f"{flavour}-{variant}"), set(ours))
    assert len(ours) == len(load_log(flavour).schemas)
    compared = 0
    for topic, events in ours.items():
        table = topic.rpartition(".")[2]
        # Debezium sends a tombstone without a key after a deletion in a table without a key: it has no effect.
        expected = [event for event in theirs[topic] if event[:2] != (None, None) and _op(event) != "t"]
        assert len(events) == len(expected), topic
        for mine, real in zip(events, expected, strict=True):
            assert _alike(mine, table) == _alike(real, table), topic
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("variant", ["schema", "plain"])
def test_keys_are_debeziums_byte_for_byte(flavour: str, variant: str, tmp_path: Path) -> None:
    """A row's messages must have Debezium's partition and key, for compacted topics."""
    sent = encoded(flavour, tmp_path, schemas=variant == "schema")
    ours = {(one.topic, key) for one in sent for key in one.key.to_pylist()}
    theirs = {(record.topic, record.key) for record in load_records(f"{flavour}-{variant}")}
    assert ours <= theirs
    assert len(ours) > 20


def test_numbers_have_the_digits_that_give_the_same_bits(tmp_path: Path) -> None:
    events = _ours(encoded("mysql", tmp_path, schemas=False))["plain.shop.numbers"]
    [deleted] = [value for _, value, _ in events if value and value["op"] == "d"]
    assert deleted["before"]["d"] == -1.7976931348623157e308
    assert math.isfinite(deleted["before"]["f"])
    assert b'"d":0.1,' in b"".join(value for one in encoded("mysql", tmp_path, schemas=False) for value in one.value.to_pylist() if value)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("schemas", [True, False])
def test_read_back_by_the_debezium_source_the_events_are_the_changes(flavour: str, schemas: bool, tmp_path: Path) -> None:
    known = {schema.name: KnownTable(schema, keys=()) for schema in load_log(flavour).schemas}
    reader = DebeziumReader(tables=known)
    decoded = [reader.read(batch) for batch in as_batches(as_records(encoded(flavour, tmp_path, schemas=schemas)))]
    assert [(one.found, one.refused) for one in decoded] == [((), ())] * len(decoded)
    for name in known:
        before = [_image(image) for image in images_of(blocks_since_snapshot(flavour, tmp_path)) if image.table == name]
        after = [_image(image) for image in images_of([block for one in decoded for block in one.blocks]) if image.table == name]
        # In the order of the versions that the reader derives from the events' positions.
        assert after == before, name
        assert before


def _image(image: Image) -> tuple[bool, Any]:
    """Whether the image is a deletion, and its row: a changed key is read back as a deletion and an insertion."""
    return image.op in (Op.BEFORE, Op.DELETE), image.row
