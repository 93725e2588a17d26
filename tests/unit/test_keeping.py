"""Which alterations leave the values that are there as they are: only what surely does may pass without reading the table again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model.evolution import AddColumn, ChangeOptions, DropColumn, ModifyColumn, RenameColumn
from headrace.model.schema import Column, Kind, TableName
from headrace.sources.mysql.events import Query
from headrace.sources.mysql.keeping import columns_of, keeps_values
from headrace.sources.mysql.planner import Statement
from headrace.sources.mysql.position import BinlogPosition

T = TableName("shop", "t")
TEXT = Column("c", Kind.STRING, source_type="varchar(20)", charset="utf8mb4")
BYTES = Column("c", Kind.BYTES, source_type="varbinary(20)")
ENUM = Column("c", Kind.ENUM, members=("a", "b"), source_type="enum('a','b')", charset="latin1")
NUMBER = Column("c", Kind.INT32, source_type="int(11)")
REAL = Column("c", Kind.FLOAT64, source_type="double")


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        (TEXT, replace(TEXT, source_type="varchar(30)", comment="x", default="y"), True),
        (TEXT, replace(TEXT, source_type="varchar(19)"), False),
        (TEXT, replace(TEXT, source_type="mediumtext"), True),
        (TEXT, replace(TEXT, source_type="char(20)"), False),
        (replace(TEXT, source_type="char(20)"), replace(TEXT, source_type="char(30)"), True),
        (replace(TEXT, source_type="text"), replace(TEXT, source_type="varchar(300)"), False),
        (TEXT, replace(TEXT, charset="latin1"), False),
        (replace(TEXT, charset="latin1"), TEXT, True),
        (TEXT, replace(TEXT, generated="stored"), False),
        (TEXT, replace(TEXT, nullable=False), False),
        (TEXT, replace(TEXT, kind=Kind.BYTES), False),
        (BYTES, replace(BYTES, source_type="varbinary(40)"), True),
        (BYTES, replace(BYTES, source_type="blob"), True),
        (replace(BYTES, source_type="binary(4)"), replace(BYTES, source_type="binary(8)"), False),
        (ENUM, replace(ENUM, members=("a", "b", "c")), True),
        (ENUM, replace(ENUM, members=("b", "a")), False),
        (ENUM, replace(ENUM, members=("a",)), False),
        (ENUM, replace(ENUM, charset="utf8mb4"), True),
        (NUMBER, replace(NUMBER, source_type="int(5) zerofill"), True),
        (NUMBER, replace(NUMBER, kind=Kind.INT64), False),
        (REAL, replace(REAL, source_type="double(10,1)"), False),
        (REAL, replace(REAL, comment="x"), True),
    ],
)
def test_modified_columns(old: Column, new: Column, keeps: bool) -> None:
    assert keeps_values(ModifyColumn(T, old, new)) is keeps


def test_other_changes() -> None:
    assert keeps_values(ChangeOptions(T, "utf8mb4", "a comment"))
    for change in (AddColumn(T, TEXT), DropColumn(T, "c"), RenameColumn(T, "b", "c")):
        assert not keeps_values(change)
        assert "c" in columns_of(change)


@pytest.mark.parametrize(
    ("statement", "made"),
    [
        ("CREATE TABLE `t` (\n  `id` int NOT NULL\n) START TRANSACTION", ("db", "t")),
        ("CREATE OR REPLACE TABLE other.`odd ``name` (id INT)", ("other", "odd `name")),
        ("create table if not exists T2 (id INT)", ("db", "T2")),
        ("CREATE TEMPORARY TABLE t (id INT)", None),
        ("INSERT INTO t VALUES (1)", None),
    ],
)
def test_what_a_statement_makes(statement: str, made: tuple[str, str] | None) -> None:
    place = BinlogPosition("binlog.000001", 4)
    assert Statement(Query("db", statement), place, with_rows=True).made_with_rows == made
    assert Statement(Query("db", statement), place).made_with_rows is None
