"""The recordings of Debezium are complete, and replayed they give the servers' final rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.recordings.debezium_recordings import KafkaRecord, as_batches, load_records, load_schemas, load_truth, recording_names

CONNECTORS = ("mysql", "mariadb", "postgres")


def _payload(raw: bytes | None) -> Any:
    if raw is None:
        return None
    found = json.loads(raw)
    return found["payload"] if "schema" in found else found


def _place(value: dict[str, Any]) -> tuple[Any, ...]:
    """The position of a change in the source's log; the deletion of a changed key comes before its insertion."""
    source = value["source"]
    order = source["lsn"] if source["connector"] == "postgresql" else (source["file"], source["pos"], source["row"])
    return value["op"] != "r", order, value["op"] == "c"


def _replayed(records: list[KafkaRecord]) -> list[dict[str, Any]]:
    rows: dict[bytes | None, dict[str, Any]] = {}
    for value, key in sorted(((_payload(r.value), r.key) for r in records if r.value), key=lambda pair: _place(pair[0])):
        if value["op"] == "d":
            del rows[key]
        else:
            rows[key] = value["after"]
    return list(rows.values())


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("variant", ["schema", "plain"])
def test_replayed_in_the_order_of_the_log_the_records_lead_to_the_truth(connector: str, variant: str) -> None:
    records = load_records(f"{connector}-{variant}")
    truth = load_truth(connector)["sbtest1"]
    rows = _replayed([record for record in records if record.topic.endswith(".sbtest1")])
    assert sorted(tuple(str(value) for value in row.values()) for row in rows) == sorted(truth.rows)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_key_change_is_three_records_that_name_each_other(connector: str) -> None:
    records = [record for record in load_records(f"{connector}-plain") if record.topic.endswith(".sbtest1")]
    old, new = {"id": 2317, "k": 3737}, {"id": 2317, "k": 3738}
    [delete, tombstone] = [record for record in records if _payload(record.key) == old and record.headers[0][0] == "__debezium.newkey"]
    assert (_payload(delete.value)["op"], tombstone.value) == ("d", None)
    assert _payload(delete.headers[0][1]) == _payload(tombstone.headers[0][1]) == new
    [create] = [record for record in records if _payload(record.key) == new]
    assert (_payload(create.value)["op"], create.headers[0][0], _payload(create.headers[0][1])) == ("c", "__debezium.oldkey", old)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_each_variant_is_there_with_what_it_is_about(connector: str) -> None:
    found = {name.removeprefix(f"{connector}-") for name in recording_names(connector)}
    assert found >= {"schema", "plain", "flat", "texts", "doubles"}
    plain = load_records(f"{connector}-plain")
    operations = {_payload(record.value)["op"] for record in plain if record.value and b'"op"' in record.value}
    assert operations == {"r", "c", "u", "d", "t"} | ({"m"} if connector == "postgres" else set())
    assert any(record.value is None for record in plain)
    assert any(record.topic.startswith("__debezium-heartbeat.") for record in plain)
    assert {record.partition for record in plain} == {0, 1}
    flat = [_payload(record.value) for record in load_records(f"{connector}-flat") if record.value and record.topic.endswith("sbtest1")]
    assert {(row["__op"], row["__deleted"]) for row in flat} == {("r", "false"), ("c", "false"), ("u", "false"), ("d", "true")}


def test_avro_records_name_schemas_that_are_kept() -> None:
    for name in [name for name in recording_names() if name.endswith("avro")]:
        schemas = load_schemas(name)
        for record in load_records(name):
            for payload in filter(None, (record.key, record.value)):
                assert payload[0] == 0
                assert int.from_bytes(payload[1:5], "big") in schemas


def test_the_recordings_are_given_as_the_reader_takes_them() -> None:
    for name in recording_names():
        records = load_records(name)
        batches = as_batches(records)
        assert sum(batch.rows for batch in batches) == len(records)
        for batch in batches:
            offsets = batch.offset.to_pylist()
            assert offsets == sorted(set(offsets))
