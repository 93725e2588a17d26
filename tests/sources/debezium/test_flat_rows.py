"""Rows of `ExtractNewRecordState`: their fields about the event, and what orders them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.sources.debezium.events.options import DebeziumOptions
from headrace.sources.debezium.events.records import KnownTable, Records
from headrace.sources.debezium.reader import DebeziumReader

NAME = TableName("shop", "goods")
TOPIC = "srv.shop.goods"


def records(values: list[Any], *, topic: str = TOPIC, first: int = 0, keys: list[Any] | None = None) -> Records:
    def encoded(value: Any) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()

    return Records(
        topic,
        0,
        pa.array(range(first, first + len(values)), pa.int64()),
        pa.array([encoded(key) for key in keys or [{"id": 1}] * len(values)], pa.binary()),
        pa.array([encoded(value) for value in values], pa.binary()),
        pa.array([5] * len(values), pa.int64()),
    )


def described(row: dict[str, Any]) -> dict[str, Any]:
    """A flat row with its schema."""
    kinds = {int: "int32", float: "double", str: "string"}
    fields = [{"field": name, "type": kinds[type(value)], "optional": name != "id"} for name, value in row.items()]
    return {"schema": {"type": "struct", "name": "srv.shop.goods.Value", "fields": fields}, "payload": row}


def keyed(values: list[dict[str, Any]]) -> Records:
    """Records whose keys contain their schema if their values do."""
    return records(values, keys=[described({"id": 1}) if "payload" in value else {"id": 1} for value in values])


@pytest.mark.parametrize("prefix", ["__", "src_", ""])
@pytest.mark.parametrize("with_schema", [False, True])
def test_the_field_deleted_of_flat_rows_has_its_name_with_any_prefix(prefix: str, with_schema: bool) -> None:
    """The connector's `add.fields.prefix` does not apply to it."""
    rows = [{"id": 1, "name": "a", f"{prefix}op": op, "__deleted": gone} for op, gone in (("c", "false"), ("u", "true"))]
    if not prefix:
        rows = [{name: value for name, value in row.items() if name != "op"} for row in rows]
    values = [described(row) if with_schema else row for row in rows]
    options = DebeziumOptions(flat_prefix=prefix)
    (found,) = DebeziumReader(options).read(keyed(values)).found
    assert [column.name for column in found.schema.columns] == ["id", "name"]
    known = {NAME: KnownTable(found.schema, ("id",))}
    decoded = DebeziumReader(options, tables=known).read(keyed(values))
    assert [block.op.to_pylist() for block in decoded.blocks] == [[Op.INSERT if prefix else Op.UPDATE, Op.DELETE]]
    assert not decoded.orders[NAME].tombstones


def test_a_column_of_an_envelope_may_be_called_deleted() -> None:
    (found,) = DebeziumReader().read(records([{"op": "c", "source": {}, "after": {"id": 1, "__deleted": "true"}}])).found
    assert [column.name for column in found.schema.columns] == ["id", "__deleted"]
