"""An update that changes the key gives a before and an after image; versions rise strictly along the log, over all tables."""

from __future__ import annotations

import time

from headrace.model.change_block import Op
from headrace.model.version import unpack_version
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import read_segment
from headrace.sources.mysql.server.position import BinlogPosition, file_number
from testkit.oracles.binlogs import Image, Logbook, images_of


def named_rows(images: list[Image]) -> list[tuple[str, tuple[object, ...]]]:
    return [(image.op.name, image.row) for image in images]


def test_an_update_of_the_key_is_a_before_and_an_after(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20), (3, NULL)")
    start = book.place()
    book.run("UPDATE t SET v = 11 WHERE id = 1", "UPDATE t SET id = 9 WHERE id = 2", "UPDATE t SET id = id + 100 ORDER BY id DESC")
    images = images_of(book.read(start, "t"))
    assert named_rows(images) == [
        ("UPDATE", ("1", "11")),
        ("BEFORE", ("2", "20")),
        ("UPDATE", ("9", "20")),
        ("BEFORE", ("9", "20")),
        ("UPDATE", ("109", "20")),
        ("BEFORE", ("3", None)),
        ("UPDATE", ("103", None)),
        ("BEFORE", ("1", "11")),
        ("UPDATE", ("101", "11")),
    ]
    assert len({image.version for image in images}) == len(images)


def test_blocks_count_a_before_image_with_its_update(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    start = book.place()
    book.run("UPDATE t SET id = id + 10 ORDER BY id", "UPDATE t SET v = 0")
    [block] = book.read(start, "t")
    assert (block.rows, block.changes) == (6, 4)


def test_a_composite_key_in_another_order_than_its_columns(book: Logbook) -> None:
    book.run("CREATE TABLE t (a INT, v INT, b VARCHAR(20), c DATE, PRIMARY KEY (c, a, b))")
    book.run("INSERT INTO t VALUES (1, 0, 'x', '2024-01-01'), (2, 0, 'y', '2024-01-02')")
    assert book.schema("t").primary_key == ("c", "a", "b")
    start = book.place()
    book.run("UPDATE t SET v = 1 WHERE a = 1", "UPDATE t SET b = 'xx' WHERE a = 1", "UPDATE t SET c = '2025-01-01' WHERE a = 2")
    book.run("UPDATE t SET a = 3, v = 7 WHERE a = 2")
    assert [image.op for image in images_of(book.read(start, "t"))] == [Op.UPDATE, *[Op.BEFORE, Op.UPDATE] * 3]


def test_a_key_that_changes_only_its_case_or_its_length_moves(book: Logbook) -> None:
    """They are equal for the source; the sink's key compares bytes."""
    book.run("CREATE TABLE t (k VARCHAR(20) PRIMARY KEY, v INT)", "INSERT INTO t VALUES ('Key', 1), ('other', 2), ('é', 3)")
    start = book.place()
    book.run("UPDATE t SET k = 'KEY' WHERE k = 'Key'", "UPDATE t SET k = 'e' WHERE v = 3", "UPDATE t SET k = 'other', v = 4 WHERE v = 2")
    assert named_rows(images_of(book.read(start, "t"))) == [
        ("BEFORE", ("Key", "1")),
        ("UPDATE", ("KEY", "1")),
        ("BEFORE", ("é", "3")),
        ("UPDATE", ("e", "3")),
        ("UPDATE", ("other", "4")),
    ]


def test_a_nullable_sort_key_moves_to_and_from_null(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, k INT NULL, v INT)", "INSERT INTO t VALUES (1, NULL, 0), (2, 0, 0)")
    start = book.place()
    book.run("UPDATE t SET k = 0 WHERE id = 1", "UPDATE t SET k = NULL WHERE id = 2", "UPDATE t SET v = 5 WHERE id = 2")
    blocks = read_segment(book.segment(start), book.catalog("t", keys=("k", "id")))
    assert named_rows(images_of(list(blocks))) == [
        ("BEFORE", ("1", None, "0")),
        ("UPDATE", ("1", "0", "0")),
        ("BEFORE", ("2", "0", "0")),
        ("UPDATE", ("2", None, "0")),
        ("UPDATE", ("2", None, "5")),
    ]


def test_every_before_image_on_demand(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 10), (2, 20)")
    start = book.place()
    book.run("UPDATE t SET v = v + 1", "UPDATE t SET id = 3 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    few = images_of(book.read(start, "t"))
    every = images_of(book.read(start, "t", options=ReadOptions(every_before=True)))
    assert [image.op.name for image in every] == ["BEFORE", "UPDATE", "BEFORE", "UPDATE", "BEFORE", "UPDATE", "DELETE"]
    # Requesting more images does not change versions.
    assert [image for image in every if image in few] == few


def test_every_update_of_a_table_without_a_key_moves_its_row(book: Logbook) -> None:
    """Its rows are identified by all their values."""
    book.run("CREATE TABLE t (a INT, b INT)", "INSERT INTO t VALUES (1, 1), (1, 1)")
    start = book.place()
    book.run("UPDATE t SET a = 2 LIMIT 1", "DELETE FROM t")
    assert [image.op.name for image in images_of(book.read(start, "t"))] == ["BEFORE", "UPDATE", "DELETE", "DELETE"]


def test_versions_rise_along_the_log_across_tables_and_statements(book: Logbook) -> None:
    book.run("CREATE TABLE one (id INT PRIMARY KEY, v BIT(1))", "CREATE TABLE two (id TINYINT PRIMARY KEY)")
    start = book.place()
    expected = []
    for n in range(20):
        book.run("BEGIN", f"INSERT INTO one VALUES ({n}, b'1'), ({n + 100}, NULL)", f"INSERT INTO two VALUES ({n})")
        book.run(f"UPDATE one SET id = id + 1000 WHERE id = {n}", f"DELETE FROM two WHERE id = {n}", "COMMIT")
        expected += [("one", "INSERT"), ("one", "INSERT"), ("two", "INSERT"), ("one", "BEFORE"), ("one", "UPDATE"), ("two", "DELETE")]
    end = book.place()
    blocks = book.read(start, "one", "two")
    for block in blocks:
        versions = block.version.to_pylist()
        assert versions == sorted(set(versions))
    images = images_of(blocks)
    assert [(image.table.table, image.op.name) for image in images] == expected
    assert len({image.version for image in images}) == len(images)
    # A snapshot taken before has a lower version than every change, one taken after a higher.
    assert BinlogPosition(start.file, start.offset).version < images[0].version
    assert images[-1].version < BinlogPosition(end.file, end.offset).version
    assert {unpack_version(image.version)[:2] for image in images} == {(0, file_number(start.file))}


def test_commit_times_are_the_server_s(book: Logbook) -> None:
    """MySQL logs the commit time in microseconds; MariaDB the time of the statements in seconds."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY)")
    start, before = book.place(), time.time_ns() // 1000
    book.run("SET SESSION timestamp = 1700000000", "BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT")
    after = time.time_ns() // 1000
    book.run("SET SESSION timestamp = DEFAULT")
    found = [image.commit_ts for image in images_of(book.read(start, "t"))]
    assert len(found) == 2
    if book.server.flavour == "mariadb":
        assert set(found) == {1_700_000_000_000_000}
    else:
        assert before <= found[0] == found[1] <= after


def test_only_mysql_logs_what_a_foreign_key_cascades(book: Logbook) -> None:
    """MariaDB's storage engine changes the child's rows without logging them: no reader of the log can see them."""
    book.run("CREATE TABLE parent (id INT PRIMARY KEY)", "INSERT INTO parent VALUES (1), (2)")
    rule = "FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE"
    book.run(f"CREATE TABLE child (id INT PRIMARY KEY, parent INT, {rule})", "INSERT INTO child VALUES (10, 1), (20, 2)")
    start = book.place()
    book.run("UPDATE parent SET id = 3 WHERE id = 2", "DELETE FROM parent WHERE id = 1")
    assert book.select(book.schema("child")) == [("20", "3")]
    cascaded = [(image.op.name, image.row) for image in images_of(book.read(start, "parent", "child")) if image.table.table == "child"]
    assert cascaded == ([] if book.server.flavour == "mariadb" else [("UPDATE", ("20", "3")), ("DELETE", ("10", "1"))])
