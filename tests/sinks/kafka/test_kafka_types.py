"""Every type of both servers, from the log through the sink and the broker: fastavro reads the values of the server's SELECT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.kafka.address import parse_kafka_url
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat, TextAs
from headrace.sinks.kafka.sink import KafkaSink
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from testkit.generators.server_types import ROWS, TYPES
from testkit.oracles.binlogs import Logbook, Row, Value, as_text, new_logbook
from testkit.oracles.topics import Kept, avro_record, read_topic
from testkit.servers.broker import PrivateBroker

POINT = "ST_GeomFromText('POINT(-1.5 2.5)')"
SPECIAL = {
    "mysql": {"vec": ("VECTOR(3)", ["STRING_TO_VECTOR('[1,-0.0,1.5e-38]')", "STRING_TO_VECTOR('[3.4028234e38]')"])},
    "mariadb": {
        "uu": ("UUID", ["'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426655440000'"]),
        "v4": ("INET4", ["'0.0.0.0'", "'255.1.2.3'"]),
        "v6": ("INET6", ["'::'", "'::ffff:1.2.3.4'", "'2001:db8::ff00:42:8329'"]),
    },
}
WIDE = Context(prec=100)


class Life:
    """A table of all types that is filled, changed and emptied: its rows by SELECT, and its changes as blocks."""

    def __init__(self, book: Logbook, flavour: str) -> None:
        types = {**TYPES, "geo": ("GEOMETRY", [POINT]), **SPECIAL[flavour]}
        columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in types.items())
        book.run(f"CREATE TABLE every_type (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        start = book.place()

        def values(row: int) -> list[str]:
            return [found[row % len(found)] for _, found in types.values()]

        book.run(*(f"INSERT INTO every_type VALUES ({row}, {', '.join(values(row))})" for row in range(ROWS)))
        book.run("INSERT INTO every_type (id) VALUES (1000)")
        self.schema = book.schema("every_type")
        self.inserted = book.select(self.schema)
        for row in range(ROWS):
            changes = ", ".join(f"`{name}` = {value}" for name, value in zip(types, values(row + 1), strict=True))
            book.run(f"UPDATE every_type SET {changes} WHERE id = {row}")
        self.updated = book.select(self.schema)
        book.run("DELETE FROM every_type")
        self.blocks = book.read_by(start, self.schema, ReadOptions(every_before=True, transactions=True))


@pytest.fixture(scope="module")
def life(server: PrivateServer) -> Iterator[Life]:
    with new_logbook(server, "kafka_types") as book:
        yield Life(book, server.flavour)


def sent(life: Life, broker: PrivateBroker, choices: KafkaOptions) -> list[Kept]:
    """The messages of the table's changes, from the broker."""
    settings = (("message.max.bytes", "20000000"),)
    pattern = f"{choices.format}.{choices.text}.{id(life)}.${{db}}.${{table}}"
    topic = pattern.replace("${db}", "kafka_types").replace("${table}", "every_type")
    broker.create_topic(topic, max_message_bytes=20_000_000)
    sink = KafkaSink(parse_kafka_url(broker.url()), replace(choices, topic=pattern, properties=settings))
    sink.prepare([life.schema])
    writer = sink.writer()
    for block in life.blocks:
        writer.write(block)
    writer.close()
    return read_topic(broker, topic)


def schema_by_id(directory: Path, number: int) -> Any:
    """The schema in the repository's folder."""
    [path] = directory.glob(f"*/*.{number}.avsc")
    return json.loads(path.read_text())


def split(message: Kept, directory: Path) -> tuple[int, dict[str, Any]]:
    assert message.value is not None
    assert message.value[0] == 0
    return message.value[1], avro_record(message.value, schema_by_id(directory, int.from_bytes(message.value[2:4], "big", signed=True)))


def compare(life: Life, changes: list[tuple[int, list[Row]]]) -> None:
    """Check that the changes and their rows equal those of the table."""
    stays = [row for row in life.inserted if row[0] == "1000"]
    expected = [(1, [row]) for row in life.inserted]
    by_id = {row[0]: row for row in life.inserted}
    expected += [(2, [by_id[row[0]], row]) for row in life.updated if row not in stays]
    expected += [(3, [row]) for row in life.updated]
    assert [kind for kind, _ in changes] == [kind for kind, _ in expected]
    names = [column.name for column in life.schema.columns]
    wrong = [
        (kind, name, repr(mine)[:80], repr(theirs)[:80])
        for (kind, ours), (_, expected_values) in zip(changes, expected, strict=True)
        for one, other in zip(ours, expected_values, strict=True)
        for name, mine, theirs in zip(names, one, other, strict=True)
        if mine != theirs
    ]
    assert wrong == []


@pytest.mark.parametrize("text", TextAs)
def test_generic_messages_hold_what_the_server_selects(life: Life, broker: PrivateBroker, text: TextAs, tmp_path: Path) -> None:
    changes = []
    for message in sent(life, broker, KafkaOptions(registry=str(tmp_path), text=text)):
        kind, record = split(message, tmp_path)
        described = schema_by_id(tmp_path, int.from_bytes(message.headers["headrace.columns"], "big"))
        assert [column["name"] for column in described["headrace.columns"]] == [column.name for column in life.schema.columns]
        sides = [("old_", "headrace.old_nulls"), ("new_", "headrace.nulls")] if kind == 2 else [("", "headrace.nulls")]
        changes.append((kind, [generic_row(life.schema, record, prefix, message.headers.get(header)) for prefix, header in sides]))
    compare(life, changes)


def generic_row(schema: TableSchema, record: dict[str, Any], prefix: str, nulls: bytes | None) -> Row:
    named = set(json.loads(nulls)) if nulls else set()
    found = []
    for column in schema.columns:
        values = [
            record[prefix + name][column.name] for name in ("bytes", "integers", "strings", "longs") if column.name in record[prefix + name]
        ]
        # Either in one map or marked as NULL.
        assert len(values) == (column.name not in named), column
        found.append(None if not values else printed(column, values[0]))
    return tuple(found)


def printed(column: Column, value: Any) -> Value:
    """A value of a message as the server's text."""
    match column.kind, value:
        case Kind.BIT, bytes():
            return str(int.from_bytes(value, "big"))
        case ((Kind.GEOMETRY | Kind.VECTOR), bytes()):
            return value.hex().upper()
        case Kind.FLOAT32, _:
            # As many digits as a float needs: read as one.
            return float(np.float32(value))
        case Kind.FLOAT64, _:
            return float(value)
        case ((Kind.DECIMAL | Kind.UINT64), bytes()):
            return as_text(column, Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-column.scale, WIDE))
        case ((Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME | Kind.YEAR), int()):
            return as_text(column, value)
        case Kind.STRING, bytes():
            return value.decode()
        case Kind.BYTES, bytes():
            return value
    return str(value)


def test_specific_messages_hold_what_the_server_selects(life: Life, broker: PrivateBroker, tmp_path: Path) -> None:
    changes = []
    for message in sent(life, broker, KafkaOptions(format=MessageFormat.SPECIFIC, registry=str(tmp_path))):
        kind, record = split(message, tmp_path)
        assert (record["database"], record["table"], len(record["txid"])) == ("kafka_types", "every_type", 16)
        rows = [specific_row(life.schema, record, prefix) for prefix in (("old_", "new_") if kind == 2 else ("",))]
        changes.append((kind, rows))
    compare(life, changes)


def specific_row(schema: TableSchema, record: dict[str, Any], prefix: str) -> Row:
    values = [(column, record[prefix + column.name]) for column in schema.columns]
    return tuple(None if value is None else printed(column, value) for column, value in values)
