"""The consumers read what the Kafka sink writes: extreme values of every kind of column, in both of mypipe's formats."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headrace.kafka
from headrace.kafka.address import parse_kafka_url
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.sinks.kafka.options import KafkaOptions, MessageFormat
from headrace.sinks.kafka.sink import KafkaSink
from testkit.generators.kind_values import COLUMNS, VALUES, array_of, plain_of
from testkit.servers.broker import PrivateBroker

ROWS = 2 * max(len(values) for values in VALUES.values())


def _table(name: str) -> TableSchema:
    return TableSchema(TableName("shop", name), (Column("id", Kind.INT32, nullable=False, source_type="int"), *COLUMNS), ("id",))


def _images(schema: TableSchema) -> pa.RecordBatch:
    """Rows of all extremes and of NULLs."""
    arrays = [pa.array(range(ROWS), pa.int32())]
    for number, column in enumerate(COLUMNS):
        values = VALUES[column.kind]
        arrays.append(array_of(column, [None if (row + number) % 5 == 4 else values[row % len(values)] for row in range(ROWS)]))
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema.arrow_schema, strict=True)], schema=schema.arrow_schema
    )


def _block(schema: TableSchema) -> ChangeBlock:
    """Insertions of all rows, then updates of the first half (each to the values of the row after it), then deletions of the second."""
    images, half = _images(schema), ROWS // 2
    first = np.arange(ROWS)
    before, deleted = np.arange(half), np.arange(half, ROWS)
    after = before + 1
    pairs = np.stack([before, after], axis=1).reshape(-1)
    taken = images.take(pa.array(np.concatenate([first, pairs, deleted])))
    # An update keeps its key.
    keys = np.concatenate([first, np.repeat(before, 2), deleted]).astype(np.int32)
    ops = [Op.INSERT] * ROWS + [Op.BEFORE, Op.UPDATE] * half + [Op.DELETE] * (ROWS - half)
    count = len(ops)
    return ChangeBlock(
        schema,
        pa.RecordBatch.from_arrays([pa.array(keys), *taken.columns[1:]], schema=schema.arrow_schema),
        pa.array(ops, pa.uint8()),
        pa.array(np.arange(5000, 5000 + count), pa.uint64()),
        pa.array(np.arange(count) // 2 + 1_700_000_000_000_000, pa.int64()),
        pa.array([f"0-1-{number // 10}" for number in range(count)]).dictionary_encode(),
    )


@pytest.mark.parametrize("form", [MessageFormat.GENERIC, MessageFormat.SPECIFIC])
def test_a_consumer_reads_the_written_messages(broker: PrivateBroker, tmp_path: Path, form: MessageFormat) -> None:
    schema = _table(f"round_{form.value}")
    block = _block(schema)
    folder = str(tmp_path / "schemas")
    sink = KafkaSink(parse_kafka_url(broker.url()), KafkaOptions(format=form, registry=folder, partitions=1))
    sink.prepare([schema])
    writer = sink.writer()
    writer.write(block)
    writer.close()
    topic = f"shop_{schema.name.table}_{form.value}"
    (read,) = headrace.kafka.blocks(topic, servers=broker.servers, registry=folder, until_end=True)
    assert read.schema.arrow_schema == schema.arrow_schema
    assert read.schema.row_key == schema.row_key
    assert read.op.to_pylist() == block.op.to_pylist()
    assert read.version.to_pylist() == block.version.to_pylist()
    for column in schema.columns:
        wrote, got = block.images.column(column.name), read.images.column(column.name)
        assert plain_of(got) == plain_of(wrote), column.name
    # (an update's message has one commit time for both of its images)
    after = [at for at, op in enumerate(read.op.to_pylist()) if op != Op.BEFORE]
    assert read.commit_ts.take(after).to_pylist() == block.commit_ts.take(after).to_pylist()
    assert read.transaction is not None
    assert block.transaction is not None
    names = dict(zip(read.transaction.take(after).to_pylist(), block.transaction.take(after).to_pylist(), strict=True))
    assert sorted(names.values()) == sorted(set(block.transaction.take(after).to_pylist()))

    rows = list(headrace.kafka.changes(topic, servers=broker.servers, registry=folder, until_end=True))
    assert len(rows) == block.changes
    assert all(set(change.row) == {column.name for column in schema.columns} for change in rows)
    known = {name: [change.row[name] for change in rows[:ROWS]] for name in ("c_date", "c_time", "c_uuid", "c_inet6", "c_decimal", "c_set")}
    assert {"0000-01-01", dt.date(9999, 12, 31), dt.date(1970, 1, 1), dt.date(1969, 12, 31)} <= set(known["c_date"])
    assert -dt.timedelta(hours=838, minutes=59, seconds=59) in known["c_time"]
    assert "00010203-0405-0607-0809-0a0b0c0d0e0f" in known["c_uuid"]
    assert "::ffff:1.2.3.4" in known["c_inet6"]
    assert Decimal("0.000000000000000000000000000001") in known["c_decimal"]
    assert {"a,b", "", None} <= set(known["c_set"])
