"""Projection: globs over columns to the table that a sink sees."""

from __future__ import annotations

import pytest

from headrace.errors import DefiniteError
from headrace.model.projection import Projection
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema

ORDERS = TableSchema(
    TableName("shop", "orders"),
    tuple(Column(name, Kind.INT32, nullable=False) for name in ("region", "id", "total", "note", "note_draft")),
    ("region", "id"),
    (Index("by_note", ("note",), unique=False), Index("by_total", ("total",), unique=False)),
)


def names(projection: Projection, schema: TableSchema = ORDERS) -> list[str]:
    return [column.name for column in projection.project(schema).columns]


def test_without_globs_nothing_changes() -> None:
    assert Projection().project(ORDERS) is ORDERS
    assert Projection(exclude=("shop.customers.*", "other.orders.note")).project(ORDERS) is ORDERS


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ((), ("shop.orders.note",), "region id total note_draft"),
        ((), ("shop.*.note*",), "region id total"),
        ((), ("*.*.n?te",), "region id total note_draft"),
        (("shop.orders.total",), (), "region id total"),
        (("shop.orders.id", "shop.orders.note*"), ("*.*.*_draft",), "region id note"),
        (("shop.customers.name",), (), "region id total note note_draft"),
        (("shop.orders.NOTE",), (), "region id"),
    ],
)
def test_projected_columns(include: tuple[str, ...], exclude: tuple[str, ...], left: str) -> None:
    assert names(Projection(include, exclude)) == left.split()


def test_an_index_is_dropped_with_its_columns() -> None:
    projected = Projection(exclude=("shop.orders.note",)).project(ORDERS)
    assert [index.name for index in projected.indexes] == ["by_total"]
    assert (projected.primary_key, projected.name) == (ORDERS.primary_key, ORDERS.name)


def test_the_key_stays() -> None:
    with pytest.raises(DefiniteError, match=r"column id of shop\.orders is part of the key") as caught:
        Projection(exclude=("shop.*.i*",)).project(ORDERS)
    assert caught.value.place == "shop.orders, column id"
    unique = TableSchema(ORDERS.name, ORDERS.columns, (), (Index("one", ("total",), unique=True),))
    with pytest.raises(DefiniteError, match="column total"):
        Projection(exclude=("shop.orders.total",)).project(unique)
    keyless = TableSchema(ORDERS.name, ORDERS.columns, ())
    assert names(Projection(exclude=("shop.orders.id",)), keyless) == ["region", "total", "note", "note_draft"]
    with pytest.raises(DefiniteError, match="no column"):
        Projection(exclude=("*.*.*",)).project(keyless)


@pytest.mark.parametrize("pattern", ["note", "orders.note", "shop.orders.", ".note", ""])
def test_a_glob_that_is_not_about_columns(pattern: str) -> None:
    with pytest.raises(DefiniteError, match="does not name columns"):
        Projection(exclude=(pattern,))


def test_globs_that_match_nothing_are_reported() -> None:
    projection = Projection(("shop.orders.totl", "shop.orders.*"), ("shop.order.note", "*.*.note"))
    assert projection.unmatched([ORDERS]) == ("shop.orders.totl", "shop.order.note")
