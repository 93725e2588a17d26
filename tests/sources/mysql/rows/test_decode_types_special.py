"""Types of one family only, or with a special log format: geometry, vectors, UUIDs, addresses, compressed columns, times in the format
before MySQL 5.6. Compared with the server's SELECT, from the log and by protocol."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from uuid import UUID

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.model.schema import Kind, ZeroDates
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from testkit.oracles.binlogs import Logbook, Row, images_of, new_logbook
from testkit.servers.servers import build

PLAIN_BYTES = {Kind.UUID, Kind.INET4, Kind.INET6}
"""Kinds that the log shows only as the BINARY columns that store them."""
DICE = random.Random(20)


@pytest.fixture
def mariadb_book(mariadb_server: PrivateServer) -> Iterator[Logbook]:
    with new_logbook(mariadb_server, "special_mariadb") as book:
        yield book


@pytest.fixture
def mysql_book(mysql_server: PrivateServer) -> Iterator[Logbook]:
    with new_logbook(mysql_server, "special_mysql") as book:
        yield book


def follow(book: Logbook, columns: str, values: list[str], *changes: str) -> list[Row]:
    """Create, fill and change a table `t` of an id and the columns; all three readers must agree. Return the inserted rows."""
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    schema = book.schema("t")
    start = book.place()
    book.run("INSERT INTO t VALUES " + ", ".join(f"({n}, {value})" for n, value in enumerate(values)))
    inserted = book.select(schema)
    assert book.scanned(schema) == inserted
    book.run(*changes)
    changed = book.select(schema)
    book.run("DELETE FROM t")
    images = images_of(book.read(start, "t", options=ReadOptions(every_before=True)))
    assert [image.row for image in images if image.op is Op.INSERT] == inserted
    assert sorted(image.row for image in images if image.op is Op.DELETE) == sorted(changed)
    if not PLAIN_BYTES & {column.kind for column in schema.columns} and "mariadb-5.3" not in schema.columns[1].source_type:
        of_log = book.logged_schema(start, "t")
        assert [column.kind for column in of_log.columns] == [column.kind for column in schema.columns]
        assert images_of(book.read_by(start, of_log, ReadOptions(every_before=True))) == images
    if changes:
        assert {image.row for image in images if image.op is Op.BEFORE} <= set(inserted)
        assert {image.row for image in images if image.op is Op.UPDATE} >= set(changed) - set(inserted)
    return inserted


SHAPES = {
    "geometry": ["POINT(1 2)", "GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))"],
    "point": ["POINT(0 0)", "POINT(-1.5e300 2.5e-300)"],
    "linestring": ["LINESTRING(0 0,1 1,2 2)"],
    "polygon": ["POLYGON((0 0,0 3,3 3,3 0,0 0),(1 1,1 2,2 2,2 1,1 1))"],
    "multipoint": ["MULTIPOINT((0 0),(1 1))"],
    "multilinestring": ["MULTILINESTRING((0 0,1 1),(2 2,3 3))"],
    "multipolygon": ["MULTIPOLYGON(((0 0,0 3,3 3,3 0,0 0)),((5 5,5 6,6 6,5 5)))"],
    "geometrycollection": ["GEOMETRYCOLLECTION EMPTY", "GEOMETRYCOLLECTION(GEOMETRYCOLLECTION(POINT(1 1)))"],
}


def test_geometry_is_its_reference_system_and_its_well_known_binary(book: Logbook) -> None:
    rows = max(len(texts) for texts in SHAPES.values())
    lines = [
        ", ".join(f"ST_GeomFromText('{texts[row % len(texts)]}', {srid})" for texts in SHAPES.values())
        for row, srid in product(range(rows), (0, 4326))
        if srid == 0 or "e300" not in SHAPES["point"][row % 2]
    ]
    lines.append(", ".join(["NULL"] * len(SHAPES)))
    points = 20_000
    long_line = "LINESTRING(" + ",".join(f"{n} {n}" for n in range(points)) + ")"
    lines.append(f"ST_GeomFromText('{long_line}'), " + ", ".join(["NULL"] * (len(SHAPES) - 1)))
    found = follow(book, ", ".join(f"{kind}_ {kind}" for kind in SHAPES), lines, "UPDATE t SET geometry_ = point_ WHERE id = 0")
    assert {column.kind for column in book.schema("t").columns[1:]} == {Kind.GEOMETRY}
    assert found[0][1] == "00000000" + "0101000000" + "000000000000F03F" + "0000000000000040"
    assert found[1][1] is not None
    assert str(found[1][1]).startswith("E6100000" + "0101000000")
    assert found[-2][1:] == (None,) * len(SHAPES)
    assert len(str(found[-1][1])) == 2 * (4 + 1 + 4 + 4 + 16 * points)


def test_vectors(mysql_book: Logbook) -> None:
    big = ",".join(str(n / 7) for n in range(16383))
    values = ["STRING_TO_VECTOR('[1,-0.0,1.5e-38]')", "NULL", "STRING_TO_VECTOR('[3.4028234e38]')", "x'0000803f00000040'"]
    long_values = [f"STRING_TO_VECTOR('[{big}]')", "STRING_TO_VECTOR('[7]')"]
    lines = [f"{value}, {long_values[n % 2]}" for n, value in enumerate(values)]
    found = follow(mysql_book, "v VECTOR(3), w VECTOR(16383) NOT NULL", lines, "UPDATE t SET v = NULL WHERE id = 0")
    assert found[3][1] == "0000803F00000040"
    assert [row[1] is None for row in found] == [False, True, False, False]
    assert len(str(found[0][2])) == 16383 * 8


def random_uuids(count: int) -> list[str]:
    """UUIDs of every version and variant: MariaDB stores some of them with their parts in another order."""
    texts = []
    for n in range(count):
        raw = bytearray(DICE.randbytes(16))
        # The server refuses some values of the versions from 8 on.
        raw[6] = n % 8 << 4 | raw[6] & 15
        raw[8] = n // 8 % 16 << 4 | raw[8] & 15
        raw[-1] = DICE.choice((0, 32, raw[-1]))
        texts.append(str(UUID(bytes=bytes(raw))))
    return [
        *texts,
        str(UUID(int=0)),
        str(UUID(int=(1 << 128) - 1)),
        "00112233-4455-1677-8899-aabbccddee00",
        "20" * 4 + "-2020" * 3 + "-" + "20" * 6,
    ]


def test_uuids_and_addresses(mariadb_book: Logbook) -> None:
    uuids = random_uuids(300)
    fours = ["0.0.0.0", "255.255.255.255", "1.2.3.0", "32.32.32.32", "10.0.0.1"]
    sixes = ["::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1", "1::", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "2020::2020"]
    lines = [f"'{one}', '{fours[n % len(fours)]}', '{sixes[n % len(sixes)]}'" for n, one in enumerate(uuids)]
    lines.append("NULL, NULL, NULL")
    found = follow(mariadb_book, "u UUID, a INET4, i INET6", lines, "UPDATE t SET u = NULL, a = '9.9.9.9' WHERE id % 3 = 0")
    assert [row[1] for row in found] == [*uuids, None]
    assert {row[2] for row in found} == {*fours, None}
    assert {row[3] for row in found} == {*sixes, None}


def test_keys_of_uuids_and_addresses(mariadb_book: Logbook) -> None:
    """An update that moves a row to another key yields the row before it."""
    mariadb_book.run("CREATE TABLE k (u UUID, a INET4, i INET6, v INT, PRIMARY KEY (u, a, i))")
    start = mariadb_book.place()
    uuids = random_uuids(40)
    mariadb_book.run("INSERT INTO k VALUES " + ", ".join(f"('{one}', '1.0.0.{n}', '::{n}', {n})" for n, one in enumerate(uuids)))
    mariadb_book.run("UPDATE k SET v = v + 1", "UPDATE k SET i = '1::' WHERE v = 7")
    schema = mariadb_book.schema("k")
    images = images_of(mariadb_book.read(start, "k"))
    assert [image.op for image in images].count(Op.BEFORE) == 1
    assert [image.op for image in images].count(Op.UPDATE) == len(uuids) + 1
    assert sorted(mariadb_book.scanned(schema)) == sorted(mariadb_book.select(schema))


def test_the_log_shows_uuids_and_addresses_as_bytes(mariadb_book: Logbook) -> None:
    mariadb_book.run("CREATE TABLE b (id INT PRIMARY KEY, u UUID, a INET4, i INET6)")
    start = mariadb_book.place()
    mariadb_book.run("INSERT INTO b VALUES (1, '00112233-4455-1677-8899-aabbccddee00', '1.2.3.0', '1::'), (2, NULL, NULL, NULL)")
    [one, two] = images_of(mariadb_book.read_by(start, mariadb_book.logged_schema(start, "b")))
    assert one.row == ("1", bytes.fromhex("00112233445516778899aabbccddee00"), b"\1\2\3\0", b"\0\1" + bytes(14))
    assert two.row == ("2", None, None, None)


@pytest.mark.parametrize("wrap", [False, True])
def test_compressed_columns(mariadb_book: Logbook, wrap: bool) -> None:
    columns = (
        "v VARCHAR(100) COMPRESSED, w VARCHAR(4000) COMPRESSED, vb VARBINARY(500) COMPRESSED, tt TINYTEXT COMPRESSED, t_ TEXT COMPRESSED,"
    )
    columns += " m MEDIUMTEXT COMPRESSED, b BLOB COMPRESSED, l LONGBLOB COMPRESSED, d INT"
    mariadb_book.run(f"SET SESSION column_compression_zlib_wrap = {int(wrap)}")
    texts = ["''", "'x'", "REPEAT('ab', 50)", "REPEAT('漢', 100)", "' \\0 '"]
    lines = [f"{x}, REPEAT({x}, 20), {x}, IF(LENGTH({x}) > 255, '', {x}), REPEAT({x}, 60), {x}, {x}, REPEAT({x}, 1000), 1" for x in texts]
    lines.append(", ".join(["NULL"] * 9))
    found = follow(mariadb_book, columns, lines, "UPDATE t SET v = 'changed', l = REPEAT('z', 200000)")
    assert len(found[3][8] or "") == 300_000
    assert "COMPRESSED" in mariadb_book.schema("t").columns[1].source_type


def test_a_compressed_value_is_read_by_its_table_map(mariadb_book: Logbook) -> None:
    """The log has the storage format of its time; the current table does not matter."""
    mariadb_book.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100) COMPRESSED)")
    start = mariadb_book.place()
    mariadb_book.run(
        "INSERT INTO t VALUES (1, REPEAT('a', 100))", "ALTER TABLE t MODIFY v VARCHAR(100)", "INSERT INTO t VALUES (2, 'plain')"
    )
    assert [image.row for image in images_of(mariadb_book.read(start, "t"))] == [("1", "a" * 100), ("2", "plain")]


OLD_MOMENTS = [
    "'2024-02-29 12:34:56.789654'",
    "'9999-12-31 23:59:59.999999'",
    "'0001-01-01 00:00:00'",
    "'1999-12-31 00:00:01.000001'",
    "NULL",
]
OLD_STAMPS = [
    "'2024-02-29 12:34:56.789654'",
    "'2038-01-19 03:14:07.999999'",
    "'1970-01-01 00:00:01'",
    "'1970-01-01 00:00:01.000001'",
    "NULL",
]
OLD_TIMES = ["'-838:59:59'", "'838:59:59'", "'-00:00:00.999999'", "'00:00:00'", "'-12:34:56.789654'", "'23:59:59.999999'", "NULL"]


@pytest.fixture(scope="module")
def old_book(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logbook]:
    """A server that creates temporal columns in the format of MariaDB 5.3."""
    request.getfixturevalue("mariadb_server")
    server = build("mariadb", tmp_path_factory.mktemp("old") / "server", mysql56_temporal_format="OFF")
    try:
        with new_logbook(server.start(), "old_times") as book:
            yield book
    finally:
        server.remove()


def test_times_in_the_form_before_mysql_5_6(old_book: Logbook) -> None:
    kinds = [("TIME", OLD_TIMES), ("DATETIME", OLD_MOMENTS), ("TIMESTAMP", OLD_STAMPS)]
    columns = ", ".join(f"{kind.lower()}{digits} {kind}({digits}) NULL" for kind, _ in kinds for digits in range(7))
    lines = [", ".join(values[n % len(values)] for _, values in kinds for _ in range(7)) for n in range(35)]
    found = follow(
        old_book, columns, lines, "UPDATE t SET time0 = '00:00:01', datetime3 = '2000-01-01', timestamp6 = '2001-01-01 00:00:00.5'"
    )
    assert "mariadb-5.3" in old_book.schema("t").columns[1].source_type
    assert found[0][1:8] == ("-838:59:59", *("-838:59:59." + "0" * digits for digits in range(1, 7)))
    assert found[0][11] == "2024-02-29 12:34:56.789"


def test_the_log_does_not_have_the_digits_of_the_old_format(old_book: Logbook) -> None:
    old_book.run("CREATE TABLE o (id INT PRIMARY KEY, at_ DATETIME(3))")
    start = old_book.place()
    old_book.run("INSERT INTO o VALUES (1, '2024-01-01')")
    with pytest.raises(DefiniteError, match=r"column at_ of old_times\.o is stored in a form older than MySQL 5.6") as caught:
        old_book.logged_schema(start, "o")
    assert "ALTER TABLE old_times.o FORCE" in caught.value.hint


def test_zero_dates_in_the_old_form(old_book: Logbook) -> None:
    old_book.run("CREATE TABLE z (id INT PRIMARY KEY, a DATETIME, b DATETIME(2), c TIMESTAMP NULL, d TIMESTAMP(4) NULL)")
    start = old_book.place()
    old_book.run("SET SESSION sql_mode = ''")
    zero, fine = "'0000-00-00 00:00:00'", "'2024-01-01 00:00:00'"
    for n in range(4):
        old_book.run(f"INSERT INTO z VALUES ({n}, {', '.join(zero if i == n else fine for i in range(4))})")
    images = images_of(old_book.read(start, "z", options=ReadOptions(zero_dates=ZeroDates.NULL)))
    assert [image.row.index(None) - 1 for image in images] == [0, 1, 2, 3]
    with pytest.raises(DefiniteError, match=r"column a of old_times\.z holds a date that does not exist"):
        old_book.read(start, "z")
