"""Schema changes: the effect of each on a catalogue, and its JSON form."""

from __future__ import annotations

import json

import pytest

from headrace.errors import DefiniteError
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.model.schema_change import (
    FIRST,
    AddColumn,
    AlterDatabase,
    ChangeIndexes,
    ChangeOptions,
    ChangePrimaryKey,
    CreateDatabase,
    CreateTable,
    DropColumn,
    DropDatabase,
    DropTable,
    ModifyColumn,
    RenameColumn,
    RenameTable,
    SchemaCatalog,
    SchemaChange,
    TruncateTable,
    apply,
    apply_all,
    change_from_json,
    change_to_json,
    tables_of,
)

T, U, V = (TableName("shop", name) for name in "tuv")
A, B, C = (Column(name, Kind.INT32, source_type="int") for name in "abc")
TABLE = TableSchema(T, (A, B, C), ("a",), (Index("ab", ("a", "b"), True), Index("c", ("c",), False)), "utf8mb4", "x")
SHOP = SchemaCatalog({T: TABLE}, {"shop": "utf8mb4"})


def after(*changes: SchemaChange) -> TableSchema:
    return apply_all(changes, SHOP).tables[T]


def names(schema: TableSchema) -> str:
    return " ".join(column.name for column in schema.columns)


@pytest.mark.parametrize(("place", "columns"), [(None, "a b c d"), (FIRST, "d a b c"), ("a", "a d b c"), ("c", "a b c d")])
def test_a_column_is_added_at_its_position(place: str | None, columns: str) -> None:
    assert names(after(AddColumn(T, Column("d", Kind.DATE), place))) == columns


@pytest.mark.parametrize(("place", "columns"), [(None, "a b c"), (FIRST, "b a c"), ("c", "a c b")])
def test_a_column_is_modified_and_moved(place: str | None, columns: str) -> None:
    new = Column("b", Kind.STRING, source_type="text")
    schema = after(ModifyColumn(T, B, new, place))
    assert (names(schema), schema.column("b")) == (columns, new)


def test_a_dropped_column_is_removed_from_the_keys() -> None:
    schema = after(DropColumn(T, "a"))
    assert (names(schema), schema.primary_key, schema.indexes) == ("b c", (), (Index("ab", ("b",), True), Index("c", ("c",), False)))
    assert [index.name for index in after(DropColumn(T, "c")).indexes] == ["ab"]


def test_a_column_is_renamed_in_the_keys_too() -> None:
    schema = after(RenameColumn(T, "a", "z"))
    assert (names(schema), schema.primary_key, schema.indexes[0].columns) == ("z b c", ("z",), ("z", "b"))


def test_keys_and_options() -> None:
    schema = after(ChangePrimaryKey(T, ("a",), ("b",)), ChangeIndexes(T, TABLE.indexes, ()), ChangeOptions(T, "latin1", "y"))
    assert (schema.primary_key, schema.indexes, schema.charset, schema.comment) == (("b",), (), "latin1", "y")


def test_tables_swap_through_a_third_name() -> None:
    other = TableSchema(U, (C,), ())
    catalog = apply_all([CreateTable(other), RenameTable(T, V), RenameTable(U, T), RenameTable(V, U)], SHOP)
    assert {name: names(schema) for name, schema in catalog.tables.items()} == {T: "c", U: "a b c"}
    assert all(name == schema.name for name, schema in catalog.tables.items())


def test_tables_and_databases_are_dropped() -> None:
    assert apply(DropTable(T), SHOP).tables == {}
    assert apply(TruncateTable(T), SHOP) == SHOP
    assert apply(DropDatabase("shop"), SHOP) == SchemaCatalog()
    catalog = apply_all([CreateDatabase("x", "latin1"), AlterDatabase("shop", "ascii")], SHOP)
    assert catalog.charsets == {"shop": "ascii", "x": "latin1"}


@pytest.mark.parametrize(
    "change",
    [
        AddColumn(T, A),
        AddColumn(T, Column("d", Kind.DATE), "z"),
        DropColumn(T, "z"),
        RenameColumn(T, "a", "b"),
        RenameColumn(T, "z", "y"),
        ModifyColumn(T, Column("z", Kind.DATE), A),
        RenameTable(U, V),
        DropColumn(U, "a"),
    ],
)
def test_values_that_do_not_fit_are_rejected(change: SchemaChange) -> None:
    with pytest.raises(DefiniteError, match="does not fit what is known of shop"):
        apply(change, SHOP)


@pytest.mark.parametrize(
    "change",
    [
        CreateDatabase("d", "latin1"),
        AlterDatabase("d", "latin1"),
        DropDatabase("d"),
        CreateTable(TABLE),
        DropTable(T),
        RenameTable(T, U),
        TruncateTable(T),
        AddColumn(T, A, "b"),
        DropColumn(T, "a"),
        RenameColumn(T, "a", "b"),
        ModifyColumn(T, A, B, FIRST),
        ChangePrimaryKey(T, ("a",), ()),
        ChangeIndexes(T, TABLE.indexes, ()),
        ChangeOptions(T, "latin1", "y"),
    ],
)
def test_json_round_trip(change: SchemaChange) -> None:
    assert change_from_json(json.loads(json.dumps(change_to_json(change)))) == change
    assert all(isinstance(name, TableName) for name in tables_of(change))
