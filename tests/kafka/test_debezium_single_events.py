"""Debezium's records one by one: each is a change or a known other record; together they give the tables' rows."""

from __future__ import annotations

import json

import pytest

from headrace.kafka.avro.schema import AvroSchema, parse_schema
from headrace.kafka.consumers.row_changes import EventReader, What
from headrace.kafka.schema_repository import RegisteredSchema
from testkit.recordings.debezium_recordings import GOLDEN, load_records, load_truth, recording_names


class Recorded:
    """The registry of the recording."""

    def __init__(self, name: str) -> None:
        path = GOLDEN / f"{name}.schemas.json"
        self._texts: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def by_id(self, number: int) -> AvroSchema:
        return parse_schema(self._texts[str(number)], strict=False)

    def register(self, subject: str, schema: AvroSchema) -> int:
        raise NotImplementedError

    def latest(self, subject: str) -> RegisteredSchema | None:
        raise NotImplementedError

    def check(self, subject: str, schema: AvroSchema) -> tuple[str, ...]:
        raise NotImplementedError


@pytest.mark.parametrize("name", recording_names())
def test_every_record_is_read(name: str) -> None:
    reader = EventReader(Recorded(name))
    truth = load_truth(name.partition("-")[0])
    rows: dict[str, dict[bytes | None, int]] = {}
    changes = 0
    for record in load_records(name):
        if record.value is None:
            continue
        event = reader.event(record.value)
        if event is None:
            tree = reader.tree(record.value) or {}
            assert tree.get("op") in ("t", "m") or not {"before", "after", "__op", "__deleted"} & set(tree)
            continue
        changes += 1
        mine = rows.setdefault(record.topic, {})
        if event.what is What.DELETE:
            assert event.old is not None or "flat" in name
            mine.pop(record.key, None)
        else:
            assert event.new
            mine[record.key] = mine.get(record.key, 0) + 1
    assert changes
    if name.partition("-")[2] in ("plain", "schema", "avro"):
        counted = {topic.rpartition(".")[2]: len(found) for topic, found in rows.items()}
        # (a truncation is in one partition, without an order relative to rows of others)
        wanted = {table: len(one.rows) for table, one in truth.items() if one.key and table != "emptied"}
        assert {table: counted[table] for table in wanted} == wanted
