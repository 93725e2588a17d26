"""A schema from a table map equals the server's description of the table."""

from __future__ import annotations

import pytest

from headrace.model.schema import Kind
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.rows.table_map_schema import schema_of
from testkit.oracles.binlogs import Logbook, images_of

TEXTS = ("latin1", "gbk", "utf16", "cp1251", "utf8mb3")


@pytest.mark.parametrize("usual", ["utf8mb4", "latin1"])
@pytest.mark.parametrize("geometry", [True, False])
def test_character_sets_keys_and_visibility(book: Logbook, usual: str, geometry: bool) -> None:
    """Listed one by one or as a default with exceptions; MariaDB lists geometry with the texts, MySQL does not."""
    mixed = ", ".join(f"{charset}_{n} VARCHAR(5) CHARACTER SET {charset}" for n in range(2) for charset in TEXTS)
    named = "e ENUM('a','é') CHARACTER SET latin1, s SET('ж','д') CHARACTER SET cp1251, e2 ENUM('я') CHARACTER SET koi8r"
    shapes = "g GEOMETRY, p POINT, " if geometry else ""
    plain = ", ".join(f"plain_{n} CHAR(3)" for n in range(4))
    book.run(
        f"CREATE TABLE t (a INT NOT NULL, b VARBINARY(9) NOT NULL, {shapes}{mixed}, {named}, {plain}, hidden INT INVISIBLE,"
        f" last_ VARCHAR(9) CHARACTER SET ascii NOT NULL, PRIMARY KEY (last_(3), a, b)) CHARACTER SET {usual}",
        f"CREATE TABLE u (id INT, {shapes}{plain}, one VARCHAR(5) CHARACTER SET gbk, f ENUM('x')) CHARACTER SET {usual}",
    )
    start = book.place()
    book.run(
        "INSERT INTO t (a, b, last_, e, s, e2, gbk_0) VALUES (1, x'00', 'end', 'é', 'ж,д', 'я', '漢')",
        "INSERT INTO u (id, one) VALUES (1, '漢')",
    )
    for name in ("t", "u"):
        told, captured = book.told(start, name), book.schema(name)
        assert told.primary_key == captured.primary_key
        for mine, theirs in zip(told.columns, captured.columns, strict=True):
            assert (mine.name, mine.kind, mine.nullable, mine.charset, mine.members) == (
                *(theirs.name, theirs.kind, theirs.nullable, theirs.charset, theirs.members),
            )
            assert mine.invisible == (theirs.invisible and book.server.flavour == "mysql")
        assert images_of(book.read_by(start, told)) == images_of(book.read(start, name))


def test_a_map_without_names_is_no_schema() -> None:
    assert schema_of(parse_table_map(b"\x02db\x00\x01t\x00\x02\x03\x0f\x02\x90\x01\x02", "log:1")) is None


def test_signs_and_sizes(book: Logbook) -> None:
    book.run("CREATE TABLE t (a TINYINT UNSIGNED, b BIGINT, c MEDIUMINT UNSIGNED, d DECIMAL(20,5), e BIT(9), f TIME(2), y YEAR)")
    start = book.place()
    book.run("INSERT INTO t VALUES (255, -1, 16777215, -1.5, 511, '-00:00:01.25', 2024)")
    told = book.told(start, "t")
    assert [column.kind for column in told.columns] == [
        *(Kind.UINT8, Kind.INT64, Kind.UINT32, Kind.DECIMAL, Kind.BIT, Kind.TIME, Kind.YEAR),
    ]
    assert [column.source_type for column in told.columns[:6]] == [
        *("tinyint unsigned", "bigint", "mediumint unsigned", "decimal(20,5)", "bit(9)", "time(2)"),
    ]
    assert [image.row for image in images_of(book.read_by(start, told))] == book.select(book.schema("t"))
