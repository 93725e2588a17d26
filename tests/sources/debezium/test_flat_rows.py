"""Rows of `ExtractNewRecordState`: their fields about the event, and what orders them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import TableName
from headrace.sources.debezium.events.event_versions import TableVersioning, VersionRule
from headrace.sources.debezium.events.options import DebeziumOptions, VersionSource
from headrace.sources.debezium.events.records import DecodedRecords, KnownTable, Records
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


def versions(decoded: DecodedRecords) -> list[int]:
    return [version for block in decoded.blocks for version in block.version.to_pylist()]


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


def flat_lsn(at: int, op: str | None = None) -> dict[str, Any]:
    row = {"id": 1, "name": "a", "__source_lsn": at, "__deleted": "false"}
    return row if op is None else {**row, "__op": op}


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize("rows", [[flat_lsn(90), flat_lsn(80)], [flat_lsn(90), flat_lsn(80, "u")], [flat_lsn(90, "r"), flat_lsn(80, "u")]])
def test_flat_rows_are_ordered_by_lsn_only_if_they_name_their_operation(rows: list[dict[str, Any]], with_schema: bool) -> None:
    """A row of a snapshot has a higher LSN than a change of a transaction that was open during the snapshot."""
    values = [described(row) if with_schema else row for row in rows]
    (found,) = DebeziumReader().read(keyed(values[:1])).found
    decoded = DebeziumReader(tables={NAME: KnownTable(found.schema, ("id",))}).read(keyed(values))
    named = all("__op" in row for row in rows)
    assert decoded.orders[NAME].rule is (VersionRule.LSN if named else VersionRule.OFFSET)
    assert sorted(versions(decoded)) == versions(decoded)
    asked = DebeziumReader(DebeziumOptions(versions=VersionSource.SOURCE), tables={NAME: KnownTable(found.schema, ("id",))})
    if not named:
        with pytest.raises(DefiniteError, match="do not contain whether they are rows of a snapshot") as halted:
            asked.read(keyed(values))
        assert "add.fields" in halted.value.hint
        assert "op,source.lsn" in halted.value.hint
    else:
        assert asked.read(keyed(values)).orders[NAME].rule is VersionRule.LSN


def test_a_table_keeps_its_rule_if_flat_rows_do_not_name_their_operation() -> None:
    """Versions of two rules cannot be compared."""
    (found,) = DebeziumReader().read(records([flat_lsn(90)])).found
    known = {NAME: KnownTable(found.schema, ("id",), TableVersioning(VersionRule.LSN))}
    assert [version & 2**58 - 1 for version in versions(DebeziumReader(tables=known).read(records([flat_lsn(90)], first=5)))] == [
        1 << 57 | 181
    ]
