"""Readers of Debezium's topics can read Headrace's: Kafka Connect's converter and Debezium's transformation are the references.

A sink connector reads two sets of topics, one with Debezium's events of a log, one with Headrace's, and writes each row as Connect
understood it, typed by the schema in the message.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from testkit.recordings.debezium_encoded import as_records, encoded
from testkit.recordings.debezium_recordings import KafkaRecord, load_records
from testkit.servers.broker import PrivateBroker
from testkit.servers.debezium import Worker, flattened, json_converters

TABLES = ("sbtest1", "pairs", "numbers", "texts", "times", "spans", "nokey")
PATIENCE_S = 60.0


def test_connect_and_debeziums_own_transformation_read_our_events_as_they_read_debeziums(
    broker: PrivateBroker, connect_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    ours = as_records(encoded("mysql", tmp_path, schemas=True))
    real = [record for record in load_records("mysql-schema") if _is_followed(record)]
    worker = connect_worker(broker)
    read = {}
    for name, records in {"ours": ours, "real": real}.items():
        chosen = [record for record in records if record.topic.rpartition(".")[2] in TABLES and (record.key or record.value)]
        for table in TABLES:
            mine = [record for record in chosen if record.topic.endswith(f".{table}")]
            topic = broker.create_topic(f"{name}.shop.{table}")
            broker.produce(topic, [{"key": record.key, "value": record.value, "headers": list(record.headers)} for record in mine])
        file = tmp_path / f"{name}.txt"
        topics = ",".join(f"{name}.shop.{table}" for table in TABLES)
        sink = {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "topics": topics, "file": str(file)}
        unwrap = flattened("rewrite", "op,db,table,source.file,source.pos,source.row,source.ts_us,source.gtid,source.server_id")
        earliest = {"consumer.override.auto.offset.reset": "earliest"}
        worker.add(name, {**sink, **json_converters(schemas=True), **unwrap, **earliest})
        # Deletions are rewritten, tombstones are dropped.
        read[name] = sorted(map(_alike, _lines(file, sum(record.value is not None for record in chosen))))
    assert read["ours"] == read["real"]
    assert len(read["ours"]) > 40


def _is_followed(record: KafkaRecord) -> bool:
    """Whether the record is a change, not a snapshot row."""
    return record.value is None or json.loads(record.value)["payload"].get("op") in ("c", "u", "d")


def _lines(file: Path, count: int) -> list[str]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lines = re.split(r"\n(?=Struct\{)", file.read_text()) if file.exists() else []
        if len(lines) >= count or time.monotonic() > deadline:
            assert len(lines) == count, lines[-3:]
            return lines
        time.sleep(0.1)


def _alike(line: str) -> str:
    """Without the known differences (docs/kafka.md): spaces of documents, the year 0000, a default with a backslash."""
    # Java prints the address of bytes; tests/golden compares their content.
    line = re.sub(r"\[B@[0-9a-f]+", "bytes", line)
    line = re.sub(r",j=(.*?),g=|,j=(.*?),def=", lambda found: found[0].replace(" ", ""), line)
    return re.sub(r',y=(1900|0)(?=,)|,def=d"\\{1,2}x', "", line).rstrip("\n")
