"""Excluded columns are not read from the log or in a snapshot, and may hold unreadable values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.projection import Projection
from headrace.model.schema import ZeroDates
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.snapshot.lock_free_snapshot import Chunk, read_chunk
from testkit.oracles.binlogs import Logbook, images_of, open_logbook, rows_of

COLUMNS = """
  zero DATE, id INT, huge LONGBLOB, name VARCHAR(20) CHARACTER SET cp1251, odd VARCHAR(9) CHARACTER SET ucs2, flags SET('a','b'),
  doc JSON, part INT, price DECIMAL(40,5), e ENUM('x','y'), stamp DATETIME(3), PRIMARY KEY (part, id)"""
WITHOUT = ("*.t.zero", "*.t.huge", "*.t.odd", "*.t.flags", "*.t.doc", "*.t.stamp")
KEPT = ["id", "name", "part", "price", "e"]


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    with open_logbook(server, database, sql_mode="NO_ENGINE_SUBSTITUTION") as book:
        book.run(f"CREATE TABLE t ({COLUMNS})")
        yield book


def fill(book: Logbook) -> None:
    """Rows that cannot be read with all columns: zero dates, half a surrogate pair; and a value of megabytes."""
    book.run(
        "INSERT INTO t VALUES ('0000-00-00', 1, REPEAT('x', 4000000), 'вода', x'd800', 'a,b', '{\"k\": [1, 2]}', 1, 1.5, 'x', NULL),"
        " ('2024-00-00', 2, NULL, NULL, 'fine', NULL, NULL, 1, NULL, NULL, '0000-00-00'),"
        " ('2024-01-01', 3, '', 'желоб', '', '', '[]', 2, -0.00001, 'y', '2024-01-01 01:02:03.004')"
    )


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_excluded_columns_are_not_read(book: Logbook, metadata: str) -> None:
    options = ReadOptions(projection=Projection(exclude=WITHOUT))
    schema = options.projection.project(book.schema("t"))
    assert [column.name for column in schema.columns] == KEPT
    book.run(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        start = book.place()
        fill(book)
        first = book.select(schema, "part, id")
        book.run("UPDATE t SET doc = '{}', zero = NULL, name = 'я' WHERE id = 1", "UPDATE t SET id = 9, huge = 'h' WHERE id = 3")
        second = book.select(schema, "part, id")
        book.run("DELETE FROM t")
        blocks = book.read(start, "t", options=options)
    finally:
        book.run("SET GLOBAL binlog_row_metadata = FULL")
    assert {block.schema for block in blocks} == {schema}
    images = images_of(blocks)
    assert [image.row for image in images if image.op is Op.INSERT] == first
    assert [image.row for image in images if image.op is Op.BEFORE] == [first[2]]
    assert [image.row for image in images if image.op is Op.UPDATE] == [second[0], second[2]]
    assert sorted(image.row for image in images if image.op is Op.DELETE) == sorted(second)


def test_the_unprojected_table_cannot_be_read(book: Logbook) -> None:
    start = book.place()
    fill(book)
    with pytest.raises(DefiniteError, match="column zero"):
        book.read(start, "t")
    with pytest.raises(DefiniteError, match="column odd"):
        book.read(start, "t", options=ReadOptions(zero_dates=ZeroDates.NULL))


def test_a_snapshot_asks_for_what_is_wanted(book: Logbook) -> None:
    fill(book)
    options = ReadOptions(projection=Projection(include=("*.t.name", "*.t.price")))
    whole = book.schema("t")
    schema = options.projection.project(whole)
    assert [column.name for column in schema.columns] == ["id", "name", "part", "price"]
    chunk = Chunk(book.database, "t", 0, "part < 2", 2)
    blocks = list(read_chunk(book.address, whole, chunk, 0, options))
    assert {block.schema for block in blocks} == {schema}
    assert sorted(rows_of(schema, [block.images for block in blocks]), key=str) == sorted(book.select(schema)[:2], key=str)


def test_a_key_cannot_be_left_out(book: Logbook) -> None:
    start = book.place()
    fill(book)
    with pytest.raises(DefiniteError, match=r"column part of .* is part of the key"):
        book.read(start, "t", options=ReadOptions(projection=Projection(exclude=("*.*.part",))))
