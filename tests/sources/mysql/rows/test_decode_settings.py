"""The log under different server settings: row metadata, checksums, row images, odd names and hidden columns."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import Kind, TableName, TableSchema, ZeroDates
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.segments.segment_reader import ReadCatalog, plan_tables, read_segment
from testkit.oracles.binlogs import Logbook, Place, images_of, open_logbook, scan_log
from testkit.servers.servers import build


@pytest.fixture(scope="module")
def server(flavour: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A server whose global settings these tests may change."""
    request.getfixturevalue(f"{flavour}_server")
    own = build(flavour, tmp_path_factory.mktemp("settings") / "server", max_allowed_packet="128M")
    try:
        yield own.start()
    finally:
        own.remove()


def event_types(book: Logbook, start: Place) -> set[int]:
    data, at, found = book.bytes_of(book.segment(start)), 0, set()
    while at < len(data):
        found.add(data[at + 4])
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return found


WORKLOAD = (
    "INSERT INTO t VALUES (1, 'a', 250, -1, 'x', 1.5), (2, NULL, NULL, NULL, NULL, NULL)",
    "UPDATE t SET n = 255, s = 'ü' WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
)
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, s VARCHAR(10), n TINYINT UNSIGNED, m TINYINT, e ENUM('x','y'), d DECIMAL(5,2))"
EXPECTED = [
    (Op.INSERT, ("1", "a", "250", "-1", "x", "1.50")),
    (Op.INSERT, ("2", None, None, None, None, None)),
    (Op.UPDATE, ("1", "ü", "255", "-1", "x", "1.50")),
    (Op.DELETE, ("2", None, None, None, None, None)),
]


@pytest.mark.parametrize(("metadata", "checksum"), [("MINIMAL", "NONE"), ("MINIMAL", "CRC32"), ("FULL", "NONE"), ("NO_LOG", "CRC32")])
def test_metadata_and_checksum_settings(book: Logbook, metadata: str, checksum: str) -> None:
    """Without names in the log they come from the schema. (MariaDB has a third setting: no metadata.)"""
    if metadata == "NO_LOG" and book.server.flavour == "mysql":
        metadata = "MINIMAL"
    book.run(TABLE)
    before = book.fetch("SELECT @@GLOBAL.binlog_row_metadata, @@GLOBAL.binlog_checksum")[0]
    book.run(f"SET GLOBAL binlog_row_metadata = {metadata}", f"SET GLOBAL binlog_checksum = {checksum}")
    try:
        start = book.place()
        book.run(*WORKLOAD)
        segment = book.segment(start)
        assert segment.checksum == (checksum == "CRC32")
        assert [(image.op, image.row) for image in images_of(book.read(start, "t"))] == EXPECTED
        status, groups, _, _ = scan_log(book.bytes_of(segment), segment.start, checksum=segment.checksum)
        assert (status, len(groups)) == (scan.OK, 3)
    finally:
        book.run(f"SET GLOBAL binlog_row_metadata = {before[0]}", f"SET GLOBAL binlog_checksum = {before[1]}")


def test_row_events_of_both_versions(book: Logbook) -> None:
    """MariaDB writes version 1, MySQL 9 only version 2."""
    book.run(TABLE)
    start = book.place()
    book.run(*WORKLOAD)
    rows = event_types(book, start) & {23, 24, 25, 30, 31, 32}
    assert rows == ({23, 24, 25} if book.server.flavour == "mariadb" else {30, 31, 32})
    assert [(image.op, image.row) for image in images_of(book.read(start, "t"))] == EXPECTED


def test_row_events_with_extra_data(book: Logbook) -> None:
    """MySQL writes a partitioned table's partition before the columns."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT) PARTITION BY HASH (id) PARTITIONS 3")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)", "UPDATE t SET id = 7 WHERE id = 2", "DELETE FROM t WHERE id = 3")
    images = images_of(book.read(start, "t"))
    assert sorted(image.row for image in images if image.op is Op.INSERT) == [("1", "1"), ("2", "2"), ("3", "3")]
    assert [(image.op.name, image.row) for image in images[3:]] == [("BEFORE", ("2", "2")), ("UPDATE", ("7", "2")), ("DELETE", ("3", "3"))]


def test_statement_texts_in_the_log_are_stepped_over(book: Logbook) -> None:
    book.run(TABLE)
    setting = "binlog_annotate_row_events" if book.server.flavour == "mariadb" else "binlog_rows_query_log_events"
    book.run(f"SET SESSION {setting} = ON")
    start = book.place()
    book.run(*WORKLOAD)
    assert event_types(book, start) & {29, 160}
    assert [(image.op, image.row) for image in images_of(book.read(start, "t"))] == EXPECTED


def test_columns_in_another_order_are_found_by_name(book: Logbook) -> None:
    book.run(TABLE)
    start = book.place()
    book.run(*WORKLOAD)
    schema = book.schema("t")
    turned = TableSchema(schema.name, tuple(reversed(schema.columns)), schema.primary_key)
    catalog = ReadCatalog(plan_tables({schema.name: turned}, {schema.name: ("id",)}), lambda name: name == schema.name)
    blocks = list(read_segment(book.segment(start), catalog))
    assert [(image.op, image.row[::-1]) for image in images_of(blocks)] == EXPECTED


ODD = "weird `name`; -- ünïcödé 漢字 '\" %s"


def test_odd_names(book: Logbook) -> None:
    odd = ODD.replace("`", "``")
    book.connection.query(f"CREATE TABLE `{odd}` (`{odd}` INT, ` x` INT, `{'c' * 64}` INT, `select` VARCHAR(9), PRIMARY KEY (`{odd}`))")
    start = book.place()
    book.connection.query(f"INSERT INTO `{odd}` VALUES (1, 2, 3, 'four')")
    schema = book.schema(ODD)
    assert schema.primary_key == (ODD,)
    assert [image.row for image in images_of(book.read(start, ODD))] == [("1", "2", "3", "four")]
    assert book.scanned(schema) == [("1", "2", "3", "four")]


def test_a_table_wider_than_a_byte_counts(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, " + ", ".join(f"c{n} TINYINT" for n in range(400)) + ")")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, " + ", ".join(str(n % 100) if n % 3 else "NULL" for n in range(400)) + ")")
    book.run("UPDATE t SET c399 = 77, c250 = NULL")
    schema = book.schema("t")
    inserted, updated = images_of(book.read(start, "t"))
    assert inserted.row == ("1", *(str(n % 100) if n % 3 else None for n in range(400)))
    assert [updated.row] == book.select(schema) == book.scanned(schema)


def test_generated_invisible_and_hidden_columns(book: Logbook) -> None:
    """A generated column is in the log like any other; the hidden column of a functional index is not."""
    index = "" if book.server.flavour == "mariadb" else ", INDEX ((v * 3)), INDEX ((CAST(j AS UNSIGNED ARRAY)))"
    book.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT AS (v + 1) VIRTUAL, s INT AS (v * 2) STORED, h INT INVISIBLE DEFAULT 5, j JSON"
        f"{index})"
    )
    start = book.place()
    book.run("INSERT INTO t (id, v, j) VALUES (1, 10, '[1, 2]'), (2, NULL, NULL)", "UPDATE t SET v = 20, h = 6 WHERE id = 1")
    schema = book.schema("t")
    assert [column.name for column in schema.columns] == ["id", "v", "w", "s", "h", "j"]
    images = images_of(book.read(start, "t"))
    assert [images[2].row, images[1].row] == book.select(schema) == book.scanned(schema)


def test_an_unselected_table_may_have_any_column(book: Logbook) -> None:
    odd = "VARCHAR(100) COMPRESSED, u UUID, i INET6" if book.server.flavour == "mariadb" else "VECTOR(3)"
    book.run(f"CREATE TABLE other (id INT PRIMARY KEY, g GEOMETRY, l VARCHAR(10) CHARACTER SET latin1, o {odd})")
    book.run(TABLE)
    start = book.place()
    book.run("INSERT INTO other (id, l) VALUES (1, 'é')", *WORKLOAD)
    assert [(image.op, image.row) for image in images_of(book.read(start, "t"))] == EXPECTED


def test_enum_names_beyond_what_the_server_can_show(book: Logbook) -> None:
    """The server's description of a table shows four-byte characters as question marks; the log does not."""
    emoji = "e ENUM('🚰', '💧', '?', 'é') COLLATE utf8mb4_bin, s SET('🚰', '?') COLLATE utf8mb4_bin"
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {emoji}, l ENUM('é', 'ÿ') CHARACTER SET latin1)")
    assert book.schema("t").column("e").members == ("?", "?", "?", "é")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, '🚰', '🚰', 'é'), (2, '💧', '?', 'ÿ'), (3, '?', '🚰,?', NULL), (4, 'é', '', NULL)")
    schema = book.schema("t")
    assert [image.row for image in images_of(book.read(start, "t"))] == book.select(schema) == book.scanned(schema)
    book.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        start = book.place()
        book.run("DELETE FROM t")
        with pytest.raises(DefiniteError, match="may stand for another character") as caught:
            book.read(start, "t")
        assert "binlog_row_metadata = FULL" in caught.value.hint
    finally:
        book.run("SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        ("ADD COLUMN x INT", "x"),
        ("DROP COLUMN m", "m"),
        ("CHANGE s renamed VARCHAR(10)", "renamed, s"),
        ("MODIFY n TINYINT", "column n"),
        ("MODIFY n SMALLINT UNSIGNED", "column n"),
        ("MODIFY d DECIMAL(6,2)", "column d"),
        ("MODIFY d DECIMAL(5,3)", "column d"),
        ("MODIFY e ENUM('y','x')", "column e"),
        ("MODIFY e ENUM('x','y','z')", "column e"),
        ("MODIFY e SET('x','y')", "column e"),
        ("MODIFY s DATETIME(3)", "column s"),
        ("MODIFY s INT", "column s"),
    ],
)
def test_a_schema_that_is_not_the_log_s_is_refused(book: Logbook, alter: str, named: str) -> None:
    book.run(TABLE)
    start = book.place()
    book.run("INSERT INTO t (id) VALUES (1)")
    end = book.place()
    book.run(f"ALTER TABLE t {alter}")
    with pytest.raises(DefiniteError, match=f"differs from the schema it is replicated with: .*{named}") as caught:
        list(read_segment(book.segment(start, end), book.catalog("t")))
    assert caught.value.place.startswith(f"{start.file}:")


def test_a_table_that_was_not_captured_is_named(book: Logbook) -> None:
    start = book.place()
    book.run("CREATE TABLE fresh (id INT PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
    with pytest.raises(DefiniteError, match=rf"{book.database}\.fresh, which did not exist"):
        list(read_segment(book.segment(start), ReadCatalog(plan_tables({}, {}), lambda name: name.database == book.database)))


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_a_partial_row_image_is_refused(book: Logbook, image: str) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v INT, b BLOB)", "INSERT INTO t VALUES (1, 1, 'x')")
    book.run(f"SET SESSION binlog_row_image = {image}")
    start = book.place()
    book.run("UPDATE t SET v = 2")
    with pytest.raises(DefiniteError, match="does not hold all columns") as caught:
        book.read(start, "t")
    assert "binlog_row_image = FULL" in caught.value.hint


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("DATE", "0000-00-00"),
        ("DATE", "2024-00-01"),
        ("DATETIME(2)", "0000-00-00"),
        ("DATETIME", "2024-01-00"),
        ("TIMESTAMP(6) NULL", "0000-00-00"),
    ],
)
def test_a_zero_date_is_named_or_null(server: PrivateServer, database: str, column: str, value: str) -> None:
    with open_logbook(server, database, sql_mode="") as book:
        book.run(f"CREATE TABLE t (id INT PRIMARY KEY, `when` {column}, other INT)")
        start = book.place()
        book.run(f"INSERT INTO t VALUES (1, '2024-01-01', 7), (2, '{value}', 8), (3, '2025-01-01', 9)")
        with pytest.raises(DefiniteError, match=r"column when of .* holds a date that does not exist") as caught:
            book.read(start, "t")
        assert "column when" in caught.value.place
        assert caught.value.place.startswith(f"{start.file}:")
        images = images_of(book.read(start, "t", options=ReadOptions(zero_dates=ZeroDates.NULL)))
        values = [(image.row[0], image.row[1] is None, image.row[2]) for image in images]
        assert values == [("1", False, "7"), ("2", True, "8"), ("3", False, "9")]


def test_zero_dates_as_the_epoch_differ_from_null_and_are_reported_once(
    server: PrivateServer, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logbook(server, database, sql_mode="") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, d DATE, dt DATETIME(3) NOT NULL, ts TIMESTAMP(6) NULL, n INT)")
        start = book.place()
        book.run(
            "INSERT INTO t VALUES (1, '0000-00-00', '2024-00-10', '0000-00-00', 0), (2, NULL, '1969-12-31 23:59:59.5', NULL, NULL),"
            " (3, '2024-02-00', '0000-00-00', '2024-01-01', 3)"
        )
        rows = [
            ("1", "1970-01-01", "1970-01-01 00:00:00.000", "1970-01-01 00:00:00.000000", "0"),
            ("2", None, "1969-12-31 23:59:59.500", None, None),
            ("3", "1970-01-01", "1970-01-01 00:00:00.000", "2024-01-01 00:00:00.000000", "3"),
        ]
        options = ReadOptions(zero_dates=ZeroDates.EPOCH)
        for _ in range(2):
            assert [image.row for image in images_of(book.read(start, "t", options=options))] == rows
            assert book.scanned(book.schema("t"), zero_dates=ZeroDates.EPOCH) == rows
        messages = [record.getMessage() for record in caplog.records if "do not exist" in record.getMessage()]
        assert [message.split(" (such")[0] for message in messages] == [
            f"{database}.t: 2 dates in column d do not exist",
            f"{database}.t: 2 dates in column dt do not exist",
            f"{database}.t: 1 dates in column ts do not exist",
        ]


def test_dates_that_no_calendar_has(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database, sql_mode="ALLOW_INVALID_DATES") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, d DATE)")
        start = book.place()
        book.run("INSERT INTO t VALUES (1, '2023-02-29'), (2, '2024-04-31')")
        with pytest.raises(DefiniteError, match="column d"):
            book.read(start, "t")
        images = images_of(book.read(start, "t", options=ReadOptions(zero_dates=ZeroDates.NULL)))
        assert [image.row for image in images] == [("1", None), ("2", None)]


def test_the_first_second_of_the_epoch(server: PrivateServer, database: str) -> None:
    """MariaDB accepts fractions of it; MySQL converts them to zero dates."""
    with open_logbook(server, database, sql_mode="") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL)")
        start = book.place()
        book.run("INSERT INTO t VALUES (1, '1970-01-01 00:00:00.000001'), (2, '1970-01-01 00:00:00.5'), (3, '1970-01-01 00:00:01')")
        schema = book.schema("t")
        selected = [(number, None if str(when).startswith("0000") else when) for number, when in book.select(schema)]
        options = ReadOptions(zero_dates=ZeroDates.NULL)
        assert [image.row for image in images_of(book.read(start, "t", options=options))] == selected
        assert book.scanned(schema, zero_dates=ZeroDates.NULL) == selected


def test_the_enum_value_that_is_no_member(server: PrivateServer, database: str) -> None:
    with open_logbook(server, database, sql_mode="") as book:
        book.run("CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a','b') NOT NULL, s SET('a','b') NOT NULL)")
        start = book.place()
        book.connection.query("INSERT INTO t VALUES (1, 'wrong', 'wrong'), (2, 'b', 'a,b')")
        schema = book.schema("t")
        selected = book.select(schema)
        assert selected[0] == ("1", "", "")
        assert [image.row for image in images_of(book.read(start, "t"))] == selected == book.scanned(schema)


def test_a_schema_survives_its_json(book: Logbook) -> None:
    book.run(TABLE)
    schema = book.schema("t")
    assert TableSchema.from_json(schema.to_json()) == schema
    assert schema.name == TableName(book.database, "t")
    assert [column.kind for column in schema.columns] == [Kind.INT32, Kind.STRING, Kind.UINT8, Kind.INT8, Kind.ENUM, Kind.DECIMAL]


MAX_PACKET = (1 << 24) - 1
"""A payload of this many bytes continues in another packet, even an empty one."""


def test_rows_beyond_sixteen_mebibytes(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB, s VARCHAR(10))")
    # Header, NULL bitmap, id, a four-byte length and the text `tail` make up 15 bytes around the blob.
    lengths = [5, *(MAX_PACKET - 15 + n for n in (-1, 0, 1)), 7, 2 * MAX_PACKET - 15, 0]
    start = book.place()
    book.run(*(f"INSERT INTO t VALUES ({i}, RPAD(x'', {length}, x'a70{i}'), 'tail')" for i, length in enumerate(lengths)))
    schema = book.schema("t")
    selected = book.fetch("SELECT id, LENGTH(b), SHA2(b, 256), s FROM t ORDER BY id")
    for rows in (book.scanned(schema), [image.row for image in images_of(book.read(start, "t"))]):
        blobs = [row[1] for row in rows if isinstance(row[1], bytes)]
        found = [(row[0], str(len(blob)), sha256(blob).hexdigest(), row[2]) for row, blob in zip(rows, blobs, strict=True)]
        assert found == selected
