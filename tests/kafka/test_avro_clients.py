"""Confluent's Avro serializers and Headrace read each other's messages, with a real registry."""

from __future__ import annotations

import json
import secrets
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.kafka.avro.decoder import Decoder, schema_ids
from headrace.kafka.avro.encoder import Encoder
from headrace.kafka.avro.schema import schema_of
from headrace.kafka.registry import open_repository
from testkit.servers.schema_registry import PrivateRegistry


def test_avro_round_trip(schema_registry: PrivateRegistry) -> None:
    topic, name = f"topic-{secrets.token_hex(4)}", f"Row{secrets.token_hex(4)}"
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "raw", "type": "bytes"},
        {"name": "by", "type": {"type": "map", "values": "double"}},
    ]
    schema = schema_of({"type": "record", "name": name, "namespace": "shop", "fields": fields})
    rows = [
        {"id": n - 50, "note": None if n % 3 else f"né{n}", "tags": ["t"] * (n % 4), "raw": bytes([n]) * n, "by": {"k": n / 7}}
        for n in range(100)
    ]
    context = SerializationContext(topic, MessageField.VALUE)
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        write, read = AvroSerializer(client, schema.text), AvroDeserializer(client)
        theirs = pa.array([write(row, context) for row in rows], pa.binary())
        ids, framed = schema_ids(theirs)
        assert framed.all()
        (number,) = np.unique(ids).tolist()
        repository = open_repository(schema_registry.url)
        assert json.loads(repository.by_id(number).text) == json.loads(schema.text)
        found = Decoder(repository.by_id(number)).decode(theirs, skip=5)
        assert found.bad == ()
        assert [{**row, "by": dict(row["by"])} for row in found.values.to_pylist()] == rows
        single = ("id", "note", "raw")
        flat = schema_of({"type": "record", "name": f"Flat{name}", "fields": [one for one in fields if one["name"] in single]})
        header = b"\0" + repository.register(f"{topic}-flat", flat).to_bytes(4, "big")
        ours = Encoder(flat).encode({field: found.values.field(field) for field in single}, prefix=header)
        assert [read(message, context) for message in ours.to_pylist()] == [{field: row[field] for field in single} for row in rows]
