"""Tables that are widened by their events."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from headrace.errors import DefiniteError
from headrace.model.alter_effects import BackfillValue, Unchanged
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import AddColumn, ModifyColumn
from headrace.sources.debezium.events.parsed_events import ConnectField, RowFields
from headrace.sources.debezium.types.column_mapping import column_of, table_schema
from headrace.sources.debezium.types.schema_widening import absent, can_hold, widen_schema
from headrace.sources.debezium.types.values import default_text

TABLE = TableName("shop", "orders")
ID = ConnectField("id", "int64", optional=False)
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def _described(*fields: ConnectField, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return table_schema(TABLE, RowFields((ID, *fields), key), default_text)


def _one(known: ConnectField | Column, described: ConnectField) -> Column:
    """A column after events with another type."""
    column = known if isinstance(known, Column) else column_of(known)
    before = TableSchema(TABLE, (column_of(ID), column), ("id",))
    return widen_schema(before, _described(described)).schema.column("c")


def _decimal(precision: int, scale: int) -> ConnectField:
    return ConnectField("c", "bytes", DECIMAL, {"scale": str(scale), "connect.decimal.precision": str(precision)})


def test_the_same_events_change_nothing() -> None:
    known = _described(ConnectField("c", "string"), ConnectField("d", "bytes", DECIMAL, {"scale": "2"}))
    assert widen_schema(known, known).alteration is None
    assert can_hold(known, known)


def test_a_new_column_is_added_where_it_stands_with_what_older_rows_hold() -> None:
    known = _described(ConnectField("a", "int32"))
    described = _described(
        ConnectField("n", "int32"),
        ConnectField("a", "int32"),
        ConnectField("d", "int32", optional=False, default=7),
        ConnectField("t", "string"),
    )
    grown = widen_schema(known, described)
    assert [column.name for column in grown.schema.columns] == ["id", "n", "a", "d", "t"]
    assert all(isinstance(change, AddColumn) for change in grown.changes)
    assert grown.alteration is not None
    altered_columns = {altered_column.column.name: altered_column for altered_column in grown.alteration.altered_columns}
    assert altered_columns["n"].effect == BackfillValue(None)
    assert altered_columns["d"].effect == BackfillValue(7)
    assert altered_columns["a"].effect == Unchanged()
    assert (altered_columns["d"].origin, altered_columns["a"].origin) == (None, "a")
    assert not can_hold(known, described)
    assert can_hold(grown.schema, described)
    assert can_hold(grown.schema, known)


def test_a_new_column_with_unknown_older_values_is_nullable() -> None:
    grown = widen_schema(_described(), _described(ConnectField("t", "int64", "io.debezium.time.MicroTimestamp", optional=False, default=0)))
    assert grown.schema.column("t").nullable
    assert "column t is new" in grown.notes[0]


def test_a_column_that_events_no_longer_have_stays() -> None:
    known = _described(
        ConnectField("a", "int32", optional=False),
        ConnectField("b", "int32", "io.debezium.time.Date", optional=False),
        ConnectField("c", "string"),
    )
    grown = widen_schema(known, _described(), zeroes=True)
    assert [column.name for column in grown.schema.columns] == ["id", "a", "b", "c"]
    # A missing integer is 0, as when the column was added; a required date has no such value.
    assert [column.nullable for column in grown.schema.columns] == [False, False, True, True]
    assert absent(grown.schema.column("a"), 2, zeroes=True).to_pylist() == [0, 0]
    assert absent(grown.schema.column("b"), 2).to_pylist() == [None, None]
    with pytest.raises(DefiniteError, match="no NULLs and no default"):
        absent(known.column("b"), 1, zeroes=True)
    # Not in PostgreSQL, which adds such a column to a table with rows only with a default, which may have been dropped later.
    assert [column.nullable for column in widen_schema(known, _described()).schema.columns] == [False, True, True, True]


def test_events_from_before_a_column_was_added_hold_its_default() -> None:
    described = _described(ConnectField("c", "int32", default=7), ConnectField("t", "int64", "io.debezium.time.MicroTimestamp", default=0))
    assert absent(described.column("c"), 2).to_pylist() == [7, 7]
    assert absent(described.column("t"), 2).to_pylist() == [None, None]


def test_absent_values_are_of_the_columns_types() -> None:
    for field, value in (
        (ConnectField("c", "string", "io.debezium.data.Enum", {"allowed": "a,b"}, optional=False), "a"),
        (ConnectField("c", "int32", "io.debezium.time.Date", optional=False, default=1), None),
        (ConnectField("c", "int64", "io.debezium.time.MicroTime", optional=False), None),
        (ConnectField("c", "bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "5"}, optional=False), None),
        (ConnectField("c", "bytes", optional=False), b""),
    ):
        column = _described(field).column("c")
        array = absent(column, 2, zeroes=True)
        assert (array.type, len(array), array.null_count) == (column.arrow_type, 2, 0)
        assert value is None or array.to_pylist() == [value, value]


@pytest.mark.parametrize(
    ("known", "described", "kind", "precision", "scale"),
    [
        (ConnectField("c", "int32"), ConnectField("c", "int64"), Kind.INT64, 0, 0),
        (ConnectField("c", "int64"), ConnectField("c", "int16"), Kind.INT64, 0, 0),
        (ConnectField("c", "float32"), ConnectField("c", "float64"), Kind.FLOAT64, 0, 0),
        (_decimal(12, 2), _decimal(14, 2), Kind.DECIMAL, 14, 2),
        (_decimal(12, 2), _decimal(12, 4), Kind.DECIMAL, 14, 4),
        (_decimal(12, 2), _decimal(5, 1), Kind.DECIMAL, 12, 2),
        (ConnectField("c", "int32"), _decimal(12, 2), Kind.DECIMAL, 12, 2),
        (_decimal(5, 2), ConnectField("c", "int32"), Kind.DECIMAL, 12, 2),
        (
            ConnectField("c", "int64", "io.debezium.time.Timestamp"),
            ConnectField("c", "int64", "io.debezium.time.MicroTimestamp"),
            Kind.DATETIME,
            6,
            0,
        ),
        (ConnectField("c", "string", "io.debezium.data.Enum", {"allowed": "a"}), ConnectField("c", "string"), Kind.STRING, 0, 0),
        (ConnectField("c", "string"), ConnectField("c", "string", "io.debezium.data.Json"), Kind.STRING, 0, 0),
        # Types from the source itself take precedence over those of events.
        (Column("c", Kind.UINT8, source_type="tinyint unsigned"), ConnectField("c", "int16"), Kind.UINT8, 0, 0),
        (Column("c", Kind.UINT64, source_type="bigint unsigned"), ConnectField("c", "int64"), Kind.UINT64, 0, 0),
        (
            Column("c", Kind.DATETIME, precision=0, source_type="datetime"),
            ConnectField("c", "int64", "io.debezium.time.Timestamp"),
            Kind.DATETIME,
            0,
            0,
        ),
        (Column("c", Kind.DECIMAL, precision=9, scale=1, source_type="decimal(9,1)"), ConnectField("c", "string"), Kind.DECIMAL, 9, 1),
        (Column("c", Kind.INT32, source_type="int"), ConnectField("c", "int64"), Kind.INT64, 0, 0),
        (Column("c", Kind.UINT8, source_type="tinyint unsigned"), ConnectField("c", "int32"), Kind.INT32, 0, 0),
    ],
)
def test_widened_column_types(known: ConnectField | Column, described: ConnectField, kind: Kind, precision: int, scale: int) -> None:
    grown = _one(known, described)
    assert (grown.kind, grown.precision, grown.scale) == (kind, precision, scale)


def test_members_are_added_and_none_goes() -> None:
    def named(*members: str) -> ConnectField:
        return ConnectField("c", "string", "io.debezium.data.Enum", {"allowed": ",".join(members)})

    assert _one(named("a", "b"), named("b", "c", "a")).members == ("a", "b", "c")


def test_nulls_are_let_in_and_stay() -> None:
    required, optional = ConnectField("c", "int32", optional=False), ConnectField("c", "int32")
    assert _one(required, optional).nullable
    assert _one(optional, required).nullable


@pytest.mark.parametrize(
    ("known", "described"),
    [
        (ConnectField("c", "int32"), ConnectField("c", "string")),
        (ConnectField("c", "string"), ConnectField("c", "bytes")),
        (ConnectField("c", "int32", "io.debezium.time.Date"), ConnectField("c", "int64", "io.debezium.time.MicroTimestamp")),
        (_decimal(76, 0), _decimal(76, 38)),
        (Column("c", Kind.UINT64, source_type="uint64"), ConnectField("c", "int64", "", {"__debezium.source.column.type": "BIGINT"})),
    ],
)
def test_what_would_alter_values_is_refused_with_what_to_do(known: ConnectField | Column, described: ConnectField) -> None:
    with pytest.raises(DefiniteError, match=r"column c of shop\.orders was") as refused:
        _one(known, described)
    assert refused.value.hint
    assert "column c" in refused.value.place


def test_another_key_is_refused() -> None:
    known = _described(ConnectField("k", "int32", optional=False))
    with pytest.raises(DefiniteError, match=r"was \(id\).*\(id, k\)"):
        widen_schema(known, _described(ConnectField("k", "int32", optional=False), key=("id", "k")))
    swapped = replace(_described(ConnectField("k", "int32", optional=False), key=("id", "k")), primary_key=("k", "id"))
    assert widen_schema(swapped, _described(ConnectField("k", "int32", optional=False), key=("id", "k"))).alteration is None


def test_a_wider_key_is_still_without_nulls() -> None:
    known = TableSchema(TABLE, (Column("id", Kind.INT32, nullable=False, source_type="int32"),), ("id",))
    grown = widen_schema(known, _described())
    assert grown.changes == (ModifyColumn(TABLE, known.columns[0], grown.schema.columns[0]),)
    assert (grown.schema.columns[0].kind, grown.schema.columns[0].nullable) == (Kind.INT64, False)


def test_any_order_of_schemas_gives_the_same_columns() -> None:
    versions = [
        _described(ConnectField("a", "int32"), _decimal(10, 2)),
        _described(ConnectField("a", "int64", optional=False), _decimal(12, 2), ConnectField("b", "string")),
        _described(ConnectField("b", "string"), ConnectField("a", "int16"), _decimal(8, 4)),
    ]
    results = set()
    for order in permutations(versions):
        schema = order[0]
        for described in (*order, *order):
            schema = widen_schema(schema, described).schema
        results.add(frozenset((column.name, column.kind, column.precision, column.scale, column.nullable) for column in schema.columns))
        assert all(can_hold(schema, described) for described in versions)
    assert len(results) == 1
