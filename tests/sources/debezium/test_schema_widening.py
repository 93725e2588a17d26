"""Tables that grow with what their events say."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from headrace.errors import DefiniteError
from headrace.model.alter_effects import Filled, Kept
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.schema_change import AddColumn, ModifyColumn
from headrace.sources.debezium.events.fields import Field, RowFields
from headrace.sources.debezium.types.column_mapping import column_of, table_schema
from headrace.sources.debezium.types.schema_widening import absent, grow, holds
from headrace.sources.debezium.types.values import default_text

TABLE = TableName("shop", "orders")
ID = Field("id", "int64", optional=False)
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def _told(*fields: Field, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return table_schema(TABLE, RowFields((ID, *fields), key), default_text)


def _one(known: Field | Column, told: Field) -> Column:
    """A column after events came that say otherwise."""
    column = known if isinstance(known, Column) else column_of(known)
    before = TableSchema(TABLE, (column_of(ID), column), ("id",))
    return grow(before, _told(told)).schema.column("c")


def _decimal(precision: int, scale: int) -> Field:
    return Field("c", "bytes", DECIMAL, {"scale": str(scale), "connect.decimal.precision": str(precision)})


def test_the_same_events_change_nothing() -> None:
    known = _told(Field("c", "string"), Field("d", "bytes", DECIMAL, {"scale": "2"}))
    assert grow(known, known).alteration is None
    assert holds(known, known)


def test_a_new_column_is_added_where_it_stands_with_what_older_rows_hold() -> None:
    known = _told(Field("a", "int32"))
    told = _told(Field("n", "int32"), Field("a", "int32"), Field("d", "int32", optional=False, default=7), Field("t", "string"))
    grown = grow(known, told)
    assert [column.name for column in grown.schema.columns] == ["id", "n", "a", "d", "t"]
    assert all(isinstance(change, AddColumn) for change in grown.changes)
    assert grown.alteration is not None
    fates = {fate.column.name: fate for fate in grown.alteration.fates}
    assert fates["n"].effect == Filled(None)
    assert fates["d"].effect == Filled(7)
    assert fates["a"].effect == Kept()
    assert (fates["d"].origin, fates["a"].origin) == (None, "a")
    assert not holds(known, told)
    assert holds(grown.schema, told)
    assert holds(grown.schema, known)


def test_a_new_column_whose_older_values_nobody_tells_takes_nulls() -> None:
    grown = grow(_told(), _told(Field("t", "int64", "io.debezium.time.MicroTimestamp", optional=False, default=0)))
    assert grown.schema.column("t").nullable
    assert "column t is new" in grown.notes[0]


def test_a_column_that_events_no_longer_have_stays() -> None:
    known = _told(Field("a", "int32", optional=False), Field("b", "int32", "io.debezium.time.Date", optional=False), Field("c", "string"))
    grown = grow(known, _told(), zeroes=True)
    assert [column.name for column in grown.schema.columns] == ["id", "a", "b", "c"]
    # A whole number that is not there is 0, as it was when the column was added; a required date has no such value.
    assert [column.nullable for column in grown.schema.columns] == [False, False, True, True]
    assert absent(grown.schema.column("a"), 2, zeroes=True).to_pylist() == [0, 0]
    assert absent(grown.schema.column("b"), 2).to_pylist() == [None, None]
    with pytest.raises(DefiniteError, match="no NULLs and no default"):
        absent(known.column("b"), 1, zeroes=True)
    # Not so in PostgreSQL, which takes no such column into a table that has rows: what they hold, a default put there that went since.
    assert [column.nullable for column in grow(known, _told()).schema.columns] == [False, True, True, True]


def test_events_from_before_a_column_was_added_hold_its_default() -> None:
    told = _told(Field("c", "int32", default=7), Field("t", "int64", "io.debezium.time.MicroTimestamp", default=0))
    assert absent(told.column("c"), 2).to_pylist() == [7, 7]
    assert absent(told.column("t"), 2).to_pylist() == [None, None]


def test_absent_values_are_of_the_columns_types() -> None:
    for field, value in (
        (Field("c", "string", "io.debezium.data.Enum", {"allowed": "a,b"}, optional=False), "a"),
        (Field("c", "int32", "io.debezium.time.Date", optional=False, default=1), None),
        (Field("c", "int64", "io.debezium.time.MicroTime", optional=False), None),
        (Field("c", "bytes", DECIMAL, {"scale": "2", "connect.decimal.precision": "5"}, optional=False), None),
        (Field("c", "bytes", optional=False), b""),
    ):
        column = _told(field).column("c")
        array = absent(column, 2, zeroes=True)
        assert (array.type, len(array), array.null_count) == (column.arrow_type, 2, 0)
        assert value is None or array.to_pylist() == [value, value]


@pytest.mark.parametrize(
    ("known", "told", "kind", "precision", "scale"),
    [
        (Field("c", "int32"), Field("c", "int64"), Kind.INT64, 0, 0),
        (Field("c", "int64"), Field("c", "int16"), Kind.INT64, 0, 0),
        (Field("c", "float32"), Field("c", "float64"), Kind.FLOAT64, 0, 0),
        (_decimal(12, 2), _decimal(14, 2), Kind.DECIMAL, 14, 2),
        (_decimal(12, 2), _decimal(12, 4), Kind.DECIMAL, 14, 4),
        (_decimal(12, 2), _decimal(5, 1), Kind.DECIMAL, 12, 2),
        (Field("c", "int32"), _decimal(12, 2), Kind.DECIMAL, 12, 2),
        (_decimal(5, 2), Field("c", "int32"), Kind.DECIMAL, 12, 2),
        (Field("c", "int64", "io.debezium.time.Timestamp"), Field("c", "int64", "io.debezium.time.MicroTimestamp"), Kind.DATETIME, 6, 0),
        (Field("c", "string", "io.debezium.data.Enum", {"allowed": "a"}), Field("c", "string"), Kind.STRING, 0, 0),
        (Field("c", "string"), Field("c", "string", "io.debezium.data.Json"), Kind.STRING, 0, 0),
        # What is known from the source itself is not forgotten for what its events say.
        (Column("c", Kind.UINT8, source_type="tinyint unsigned"), Field("c", "int16"), Kind.UINT8, 0, 0),
        (Column("c", Kind.UINT64, source_type="bigint unsigned"), Field("c", "int64"), Kind.UINT64, 0, 0),
        (
            Column("c", Kind.DATETIME, precision=0, source_type="datetime"),
            Field("c", "int64", "io.debezium.time.Timestamp"),
            Kind.DATETIME,
            0,
            0,
        ),
        (Column("c", Kind.DECIMAL, precision=9, scale=1, source_type="decimal(9,1)"), Field("c", "string"), Kind.DECIMAL, 9, 1),
        (Column("c", Kind.INT32, source_type="int"), Field("c", "int64"), Kind.INT64, 0, 0),
        (Column("c", Kind.UINT8, source_type="tinyint unsigned"), Field("c", "int32"), Kind.INT32, 0, 0),
    ],
)
def test_what_a_column_becomes(known: Field | Column, told: Field, kind: Kind, precision: int, scale: int) -> None:
    grown = _one(known, told)
    assert (grown.kind, grown.precision, grown.scale) == (kind, precision, scale)


def test_members_are_added_and_none_goes() -> None:
    def named(*members: str) -> Field:
        return Field("c", "string", "io.debezium.data.Enum", {"allowed": ",".join(members)})

    assert _one(named("a", "b"), named("b", "c", "a")).members == ("a", "b", "c")


def test_nulls_are_let_in_and_stay() -> None:
    required, optional = Field("c", "int32", optional=False), Field("c", "int32")
    assert _one(required, optional).nullable
    assert _one(optional, required).nullable


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (Field("c", "int32"), Field("c", "string")),
        (Field("c", "string"), Field("c", "bytes")),
        (Field("c", "int32", "io.debezium.time.Date"), Field("c", "int64", "io.debezium.time.MicroTimestamp")),
        (_decimal(76, 0), _decimal(76, 38)),
        (Column("c", Kind.UINT64, source_type="uint64"), Field("c", "int64", "", {"__debezium.source.column.type": "BIGINT"})),
    ],
)
def test_what_would_alter_values_is_refused_with_what_to_do(known: Field | Column, told: Field) -> None:
    with pytest.raises(DefiniteError, match=r"column c of shop\.orders was") as refused:
        _one(known, told)
    assert refused.value.hint
    assert "column c" in refused.value.place


def test_another_key_is_refused() -> None:
    known = _told(Field("k", "int32", optional=False))
    with pytest.raises(DefiniteError, match=r"was \(id\).*\(id, k\)"):
        grow(known, _told(Field("k", "int32", optional=False), key=("id", "k")))
    swapped = replace(_told(Field("k", "int32", optional=False), key=("id", "k")), primary_key=("k", "id"))
    assert grow(swapped, _told(Field("k", "int32", optional=False), key=("id", "k"))).alteration is None


def test_a_wider_key_is_still_without_nulls() -> None:
    known = TableSchema(TABLE, (Column("id", Kind.INT32, nullable=False, source_type="int32"),), ("id",))
    grown = grow(known, _told())
    assert grown.changes == (ModifyColumn(TABLE, known.columns[0], grown.schema.columns[0]),)
    assert (grown.schema.columns[0].kind, grown.schema.columns[0].nullable) == (Kind.INT64, False)


def test_any_order_of_schemas_gives_the_same_columns() -> None:
    versions = [
        _told(Field("a", "int32"), _decimal(10, 2)),
        _told(Field("a", "int64", optional=False), _decimal(12, 2), Field("b", "string")),
        _told(Field("b", "string"), Field("a", "int16"), _decimal(8, 4)),
    ]
    results = set()
    for order in permutations(versions):
        schema = order[0]
        for told in (*order, *order):
            schema = grow(schema, told).schema
        results.add(frozenset((column.name, column.kind, column.precision, column.scale, column.nullable) for column in schema.columns))
        assert all(holds(schema, told) for told in versions)
    assert len(results) == 1
