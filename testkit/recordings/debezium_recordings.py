"""Records of real connectors in files, and the rows of the servers' tables that a decoder must read from them.

`tests/golden/debezium/CONNECTOR-VARIANT.jsonl` has a Kafka record per line; `CONNECTOR.truth.json` the tables at the end, by the server's
SELECT. `make record` writes them from `testkit.recordings.debezium_cases`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.model.schema import TableSchema
from headrace.sources.debezium.events.records import Records

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "debezium"
_SCHEMA, _PAYLOAD = '{"schema":', ',"payload":'
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record as it lay in its topic."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """A table as its server shows it."""

    columns: tuple[tuple[str, str], ...]
    """Names, and types as the server spells them."""
    key: tuple[str, ...]
    rows: tuple[tuple[str | bytes | float | None, ...], ...]
    """The server's text of each value; floats as numbers, binary values as bytes; MySQL's geometries and vectors as hexadecimal text."""


@dataclass(frozen=True, slots=True)
class RecordedLog:
    """The binary log that the connectors read, from its first byte on."""

    file: str
    start: int
    """Where the connectors' stream begins; changes before it are in their snapshot."""
    checksum: bool
    schemas: tuple[TableSchema, ...]
    """The schemas of the tables that no statement altered."""
    data: bytes


def recording_names(connector: str = "") -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob(f"{connector}*.jsonl"))


def load_records(name: str) -> list[KafkaRecord]:
    """A recording's records, by topic, partition and offset."""
    lines = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    schemas = [line["schema"] for line in lines if "schema" in line]
    return [_loaded(line, schemas) for line in lines if "schema" not in line]


def save_records(name: str, records: Iterable[KafkaRecord]) -> None:
    """A schema that comes with many records is written once, first."""
    ordered = sorted(records, key=lambda record: (record.topic, record.partition, record.offset))
    schemas: dict[str, int] = {}
    lines: list[dict[str, Any]] = [_kept(record, schemas) for record in ordered]
    lines = [*({"schema": schema} for schema in schemas), *lines]
    (GOLDEN / f"{name}.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    assert load_records(name) == ordered, name


def load_truth(connector: str) -> dict[str, Truth]:
    """The tables of a connector's recordings, as they were in the end."""
    raw = json.loads((GOLDEN / f"{connector}.truth.json").read_text())
    return {
        table: Truth(
            tuple((name, kind) for name, kind in one["columns"]),
            tuple(one["key"]),
            tuple(tuple(_unpacked(value) for value in row) for row in one["rows"]),
        )
        for table, one in raw.items()
    }


def save_truth(connector: str, tables: dict[str, Truth]) -> None:
    raw = {
        table: {"columns": truth.columns, "key": truth.key, "rows": [[_packed(value) for value in row] for row in truth.rows]}
        for table, truth in tables.items()
    }
    (GOLDEN / f"{connector}.truth.json").write_text(json.dumps(raw, ensure_ascii=False, indent=1) + "\n")


def load_log(connector: str) -> RecordedLog:
    """Return the log of MySQL or MariaDB of the time of the recording."""
    raw = json.loads((GOLDEN / f"{connector}.log.json").read_text())
    schemas = tuple(TableSchema.from_json(one) for one in raw["schemas"])
    return RecordedLog(raw["file"], raw["start"], raw["checksum"], schemas, base64.b64decode(raw["data"]))


def save_log(connector: str, log: RecordedLog) -> None:
    raw = {"file": log.file, "start": log.start, "checksum": log.checksum, "schemas": [schema.to_json() for schema in log.schemas]}
    text = json.dumps({**raw, "data": base64.b64encode(log.data).decode()}, ensure_ascii=False)
    (GOLDEN / f"{connector}.log.json").write_text(text + "\n")


def load_schemas(name: str) -> dict[int, str]:
    """Of a recording in Avro, the registry's schemas by their ids."""
    return {int(number): text for number, text in json.loads((GOLDEN / f"{name}.schemas.json").read_text()).items()}


def save_schemas(name: str, schemas: dict[int, str]) -> None:
    (GOLDEN / f"{name}.schemas.json").write_text(json.dumps(schemas, indent=1) + "\n")


def as_batches(records: Iterable[KafkaRecord]) -> list[Records]:
    """Return the records as Headrace's reader expects them: per topic and partition, in the order of their offsets."""
    groups: dict[tuple[str, int], list[KafkaRecord]] = {}
    for record in records:
        groups.setdefault((record.topic, record.partition), []).append(record)
    return [_batch(topic, partition, found) for (topic, partition), found in groups.items()]


def _batch(topic: str, partition: int, records: list[KafkaRecord]) -> Records:
    headers = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
    return Records(
        topic,
        partition,
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array([record.timestamp * 1000 for record in records], pa.int64()),
        pa.array(headers, _HEADERS) if any(headers) else None,
    )


def _kept(record: KafkaRecord, schemas: dict[str, int]) -> dict[str, Any]:
    headers = [[key, _packed_text(value, schemas)] for key, value in record.headers]
    place = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}
    return {**place, "key": _packed_text(record.key, schemas), "value": _packed_text(record.value, schemas), "headers": headers}


def _loaded(raw: dict[str, Any], schemas: list[str]) -> KafkaRecord:
    headers = tuple((key, _bytes(value, schemas)) for key, value in raw["headers"])
    key, value = _bytes(raw["key"], schemas), _bytes(raw["value"], schemas)
    return KafkaRecord(raw["topic"], raw["partition"], raw["offset"], raw["timestamp"], key, value, headers)


def _packed_text(value: bytes | None, schemas: dict[str, int]) -> str | dict[str, Any] | None:
    """Text where the bytes are text, else base64; a schema by its number."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
    if not text.startswith(_SCHEMA):
        return text
    end = json.JSONDecoder().raw_decode(text, len(_SCHEMA))[1]
    assert text[end:].startswith(_PAYLOAD), text[end : end + 20]
    number = schemas.setdefault(text[len(_SCHEMA) : end], len(schemas))
    return {"schema": number, "payload": text[end + len(_PAYLOAD) : -1]}


def _bytes(value: str | dict[str, Any] | None, schemas: list[str]) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if "base64" in value:
        return base64.b64decode(value["base64"])
    return f"{_SCHEMA}{schemas[value['schema']]}{_PAYLOAD}{value['payload']}}}".encode()


def _packed(value: str | bytes | float | None) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _unpacked(value: Any) -> str | bytes | float | None:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value
