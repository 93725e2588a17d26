"""ClickHouse's type names are parsed and printed without loss; an Enum grows without renumbering its members."""

from __future__ import annotations

import pytest

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.types.type_mapping import enum_type, merge_enum_types
from headrace.sinks.clickhouse.types.type_names import parse_stored_type, parse_type


@pytest.mark.parametrize(
    "text",
    [
        "Int8",
        "Nullable(Decimal(65, 30))",
        "LowCardinality(Nullable(String))",
        "DateTime64(3, 'Europe/Berlin')",
        "Enum8('' = 0, 'a' = -1, 'b\\'c' = 2, 'd\\\\e' = 3, '漢' = 4, '(,)' = 5)",
        "Array(Tuple(Float64, Float64))",
        "FixedString(16)",
        "SimpleAggregateFunction(anyLast, Nullable(Int64))",
    ],
)
def test_a_type_is_spelled_as_it_was_read(text: str) -> None:
    assert parse_type(text).sql_name == text
    assert parse_stored_type(text).sql_name == text


def test_spaces_and_missing_numbers_do_not_matter() -> None:
    assert parse_type(" Decimal( 10,2 ) ").sql_name == "Decimal(10, 2)"
    assert parse_type("Enum8('a','b'=5,'c')").members == {"a": 1, "b": 5, "c": 6}
    assert parse_type("Enum8('it''s' = 1)").members == {"it's": 1}


@pytest.mark.parametrize("text", ["", "Int8)", "Int8 Int8", "Nullable(Int8", "Enum8('a = 1)", "8", "Decimal(,)", "Int8 -- x"])
def test_unknown_types_are_rejected(text: str) -> None:
    with pytest.raises(DefiniteError, match="is not a type of ClickHouse"):
        parse_type(text)


def test_an_enum_has_the_source_s_numbers() -> None:
    assert enum_type(("a", "b")) == "Enum8('' = 0, 'a' = 1, 'b' = 2)"
    assert enum_type(("", "b")) == "Enum8('' = 0, 'b' = 2)"
    assert enum_type(tuple(f"m{n}" for n in range(1, 128))).startswith("Enum8(")
    assert enum_type(tuple(f"m{n}" for n in range(1, 129))).startswith("Enum16(")


def test_an_enum_grows_without_moving_its_members() -> None:
    before = enum_type(("a", "b"))
    assert merge_enum_types(before, enum_type(("a", "b", "c"))) == "Enum8('' = 0, 'a' = 1, 'b' = 2, 'c' = 3)"
    assert merge_enum_types(before, f"Nullable({enum_type(('a', 'new', 'b'))})") == "Nullable(Enum8('' = 0, 'a' = 1, 'b' = 2, 'new' = 3))"
    assert merge_enum_types(f"Nullable({before})", enum_type(("b",))) == before
    assert merge_enum_types(before, "String") == ""
    assert merge_enum_types("Enum8('x' = -5)", enum_type(("x", "y"))) == "Enum8('x' = -5, 'y' = 2)"
