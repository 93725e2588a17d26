"""Random schemas and values: fastavro and Headrace read each other's data, and resolve reader schemas in the same way."""

from __future__ import annotations

from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.kafka.avro.decoder import Decoder
from headrace.kafka.avro.encoder import Encoder
from headrace.kafka.avro.schema import schema_of
from testkit.generators.avro_random import RandomAvro, fields_of, narrowed, plain, read_with_fastavro, write_with_fastavro

pytestmark = pytest.mark.scaled

SEEDS = st.integers(0, 1 << 40)
ROWS = 40


def bodies_of(seed: int, *, flat: bool = False) -> tuple[RandomAvro, Any, Any, list[bytes]]:
    made = RandomAvro(seed)
    tree = made.flat_record() if flat else made.record()
    schema, theirs = schema_of(tree), fastavro.parse_schema(tree)
    values = [made.value(schema.root) for _ in range(ROWS)]
    return made, tree, theirs, [write_with_fastavro(theirs, value) for value in values]


@given(SEEDS)
def test_avro_round_trip(seed: int) -> None:
    _, tree, theirs, bodies = bodies_of(seed)
    schema = schema_of(tree)
    array = pa.array([b"xx" + body for body in [*bodies, *bodies]], pa.binary())[ROWS:]
    found = Decoder(schema).decode(array, skip=2)
    assert found.bad == ()
    found.values.validate(full=True)
    ours = [plain(schema.root, value) for value in found.values.to_pylist()]
    assert ours == [read_with_fastavro(body, theirs)[0] for body in bodies]


@given(SEEDS)
def test_columns_of_single_values(seed: int) -> None:
    _, tree, _, bodies = bodies_of(seed, flat=True)
    schema = schema_of(tree)
    found = Decoder(schema).decode(pa.array(bodies, pa.binary()))
    written = Encoder(schema).encode(fields_of(found.values), prefix=b"head")
    assert [body.removeprefix(b"head") for body in written.to_pylist()] == bodies
    half = Encoder(schema).encode({name: column[7:31] for name, column in fields_of(found.values).items()})
    assert half.to_pylist() == bodies[7:31]


@given(SEEDS)
def test_a_readers_schema(seed: int) -> None:
    made, tree, theirs, bodies = bodies_of(seed)
    reader_tree = made.evolved(tree)
    reader, their_reader = schema_of(reader_tree), fastavro.parse_schema(reader_tree)
    expected = [narrowed(reader.root, read_with_fastavro(body, theirs, their_reader)[0]) for body in bodies]
    found = Decoder(schema_of(tree), reader).decode(pa.array(bodies, pa.binary()))
    assert found.bad == ()
    found.values.validate(full=True)
    assert [plain(reader.root, value) for value in found.values.to_pylist()] == expected
