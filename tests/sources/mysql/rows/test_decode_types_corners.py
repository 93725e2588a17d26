"""Corner cases of ordinary types, compared with the server's SELECT: from the log, by protocol, and through ClickHouse and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.change_block import Op
from headrace.model.table_selection import Selection
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.rows.row_decoder import ReadOptions
from headrace.sources.mysql.server.connection import connect
from headrace.sources.mysql.snapshot.table_scan import scan_table
from headrace.verify import verifier
from headrace.verify.row_compare import compare
from testkit.oracles.binlogs import Logbook, Row, images_of, new_logbook, open_logbook
from testkit.pipelines.embedded_access import target_of
from testkit.servers.servers import build, execute


@pytest.fixture(scope="module")
def sink(clickhouse: EmbeddedServer) -> Iterator[ClickHouseSink]:
    target = target_of(clickhouse, database="corners")
    yield ClickHouseSink(target)
    disconnect(target)


def filled(book: Logbook, columns: str, *rows: str) -> tuple[list[Row], list[Row]]:
    """A table `t` of an id and the columns, filled: its rows from the log and by protocol."""
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    start = book.place()
    book.run("INSERT INTO t VALUES " + ", ".join(f"({n}, {row})" for n, row in enumerate(rows)))
    return [image.row for image in images_of(book.read(start, "t"))], book.scanned(book.schema("t"))


def test_zerofill_pads_only_what_is_shown(book: Logbook) -> None:
    columns = ", ".join(f"{kind.lower()}_ {kind}(20) ZEROFILL" for kind in ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"))
    most = ", ".join(str((1 << bits) - 1) for bits in (8, 16, 24, 32, 64))
    logged, scanned = filled(book, columns + ", d DECIMAL(9,2) ZEROFILL", f"{most}, 1.5", "1, 2, 3, 4, 5, 0")
    assert logged == scanned == book.fetch("SELECT id, tinyint_ + 0, smallint_ + 0, mediumint_ + 0, int_ + 0, bigint_ + 0, d + 0 FROM t")
    assert book.fetch("SELECT bigint_ FROM t WHERE id = 1") == [("0" * 19 + "5",)]


def test_bits_of_every_width(book: Logbook) -> None:
    widths = range(1, 65)
    values = [[0 for _ in widths], [(1 << n) - 1 for n in widths], [1 << (n - 1) for n in widths], [n % 2 for n in widths]]
    lines = [", ".join(map(str, line)) for line in values]
    logged, scanned = filled(book, ", ".join(f"b{n} BIT({n})" for n in widths), *lines)
    shown = ", ".join(f"b{n} + 0" for n in widths)
    assert logged == scanned == book.fetch(f"SELECT id, {shown} FROM t ORDER BY id")


DECIMALS = [(65, 30), (65, 0), (64, 30), (39, 30), (38, 19), (30, 30), (1, 0)]


def test_decimals_without_sign(book: Logbook) -> None:
    columns = ", ".join(f"d{p}_{s} DECIMAL({p},{s}) UNSIGNED" for p, s in DECIMALS)
    most = ", ".join(f"'{'9' * (p - s)}.{'9' * s}'" for p, s in DECIMALS)
    least = ", ".join(f"'0.{'0' * (s - 1)}1'" if s else "1" for _, s in DECIMALS)
    logged, scanned = filled(book, columns, most, least, ", ".join("0" for _ in DECIMALS))
    assert logged == scanned == book.select(book.schema("t"))


def test_floats_with_digits_are_what_is_stored(book: Logbook) -> None:
    """FLOAT(M,D) and DOUBLE(M,D) are rounded when they are stored; SELECT prints the stored value with D digits."""
    columns = "a FLOAT(7,4), b FLOAT(10,2), c FLOAT(5,0) UNSIGNED, d DOUBLE(16,4), e DOUBLE(53,10), f REAL, g FLOAT(24), h FLOAT(25)"
    rows = [
        "999.00009, 12345678.125, 12345, 123456789012.34565, 1.23456789012345, 0.1, 0.1, 0.1",
        "-1.00005, -0.005, 0, -0.00005, 0, -0.0, -0.0, 5",
    ]
    logged, scanned = filled(book, columns, *rows)
    assert logged == scanned == book.select(book.schema("t"))
    shown = book.fetch("SELECT a, d, e FROM t ORDER BY id")
    for (_, a, _, _, d, e, *_), texts in zip(logged, shown, strict=True):
        assert (f"{a:.4f}", f"{d:.4f}", f"{e:.10f}") == texts


def test_trailing_spaces_and_zeros(book: Logbook) -> None:
    """A CHAR has no trailing spaces, in every SQL mode; a BINARY has all its zeros."""
    book.run("SET SESSION sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
    columns = "c CHAR(5), n CHAR(5) NOT NULL, v VARCHAR(5), b BINARY(5), vb VARBINARY(5), t TEXT"
    rows = ["'a  ', '  ', 'a  ', 'a ', 'a ', 'a  '", "' a', '', '   ', x'6100', x'6100', '  '", "NULL, 'ab\\t', NULL, NULL, x'00', NULL"]
    logged, scanned = filled(book, columns, *rows)
    book.run("SET SESSION sql_mode = ''")
    assert logged == scanned == book.select(book.schema("t"))
    assert logged[0] == ("0", "a", "", "a  ", b"a \0\0\0", b"a ", "a  ")
    assert logged[1][4:6] == (b"a\0\0\0\0", b"a\0")


SUMMER, WINTER = 1_711_846_800, 1_729_990_800
"""When Berlin's clocks were changed in 2024."""


@contextmanager
def time_zone(book: Logbook) -> Iterator[str]:
    """A zone with summer time, loaded only for the test; the server's time zone tables are empty."""
    name, number = f"Test/{book.database}", 900 + abs(hash(book.database)) % 10_000
    rows = [
        f"INSERT INTO mysql.time_zone VALUES ({number}, 'N')",
        f"INSERT INTO mysql.time_zone_name VALUES ('{name}', {number})",
        f"INSERT INTO mysql.time_zone_transition_type VALUES ({number}, 0, 3600, 0, 'CET'), ({number}, 1, 7200, 1, 'CEST')",
        f"INSERT INTO mysql.time_zone_transition VALUES ({number}, -2000000000, 0), ({number}, {SUMMER}, 1), ({number}, {WINTER}, 0)",
    ]
    tables = ("time_zone", "time_zone_name", "time_zone_transition", "time_zone_transition_type")
    book.run("SET SESSION sql_log_bin = 0", *rows, "SET SESSION sql_log_bin = 1")
    try:
        yield name
    finally:
        forget = [f"DELETE FROM mysql.{table} WHERE Time_zone_id = {number}" for table in tables]
        book.run("SET SESSION sql_log_bin = 0", *forget, "SET SESSION sql_log_bin = 1")


def test_timestamps_are_instants_in_any_time_zone(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, dt DATETIME(3))")
    schema, start = book.schema("t"), book.place()
    with time_zone(book) as zone:
        for n, (where, when) in enumerate(
            [
                ("+00:00", "2024-07-01 12:00:00.5"),
                ("+13:00", "2024-07-01 12:00:00.5"),
                ("-12:59", "2024-07-01 12:00:00.5"),
                (zone, "2024-01-01 12:00:00.5"),
                (zone, "2024-07-01 12:00:00.5"),
                (zone, "2024-10-27 01:59:59.999"),
                (zone, "2024-10-27 03:00:00"),
            ]
        ):
            book.run(f"SET SESSION time_zone = '{where}'", f"INSERT INTO t VALUES ({n}, '{when}', '{when}')")
        # The hour that the clocks show twice: two instants, one text.
        for n, instant in enumerate((WINTER - 1800, WINTER + 1800), 10):
            book.run("SET SESSION time_zone = '+00:00'", f"INSERT INTO t VALUES ({n}, FROM_UNIXTIME({instant}), '2024-10-27 02:30:00')")
        book.run(f"SET SESSION time_zone = '{zone}'")
        assert {ts for (ts,) in book.fetch("SELECT ts FROM t WHERE id >= 10")} == {"2024-10-27 02:30:00.000"}
        book.run("SET SESSION time_zone = '+00:00'")
    selected = book.select(schema)
    assert [image.row for image in images_of(book.read(start, "t"))] == book.scanned(schema) == selected
    assert [row[1] for row in selected[-2:]] == ["2024-10-27 00:30:00.000", "2024-10-27 01:30:00.000"]
    assert [row[1] for row in selected[3:5]] == ["2024-01-01 11:00:00.500", "2024-07-01 10:00:00.500"]


ODD_NAMES = [
    "select",
    "two words",
    "it's",
    'say "hi"',
    "back`tick",
    "back\\slash",
    "dotted.name",
    "ünïcödé 漢字",
    "%s %% {x}",
    "CamelCase",
    "camelcase2",
    " lead",
    "a/b",
    "_",
    "1",
    "null",
]


def test_odd_names_generated_and_invisible_columns_go_to_clickhouse_and_back(book: Logbook, sink: ClickHouseSink) -> None:
    names = ["`" + name.replace("`", "``") + "`" for name in ODD_NAMES]
    book.run(
        f"CREATE TABLE t (`the key` INT, {', '.join(f'{name} VARCHAR(30)' for name in names)},"
        " `virtual one` INT AS (`the key` + 1) VIRTUAL, `stored one` INT AS (`the key` * 2) STORED, hidden INT INVISIBLE DEFAULT 9,"
        " PRIMARY KEY (`the key`))"
    )
    start = book.place()
    visible = f"`the key`, {', '.join(names)}"
    for n in range(3):
        texts = ", ".join(f"'{n} of {place}'" for place, _ in enumerate(names))
        book.run(f"INSERT INTO t ({visible}) VALUES ({n}, {texts})")
    book.run("UPDATE t SET `select` = 'changed', hidden = 10 WHERE `the key` = 1", "UPDATE t SET `the key` = 7 WHERE `the key` = 2")
    book.run("DELETE FROM t WHERE `the key` = 0")
    schema, blocks = book.schema("t"), book.read(start, "t")
    selected = book.select(schema)
    last = [image.row for image in images_of(blocks) if image.op is Op.UPDATE]
    assert last == selected
    assert [row[-3:] for row in selected] == [("2", "2", "10"), ("8", "14", "9")]
    assert differences(book, sink, blocks) == 0


SPECIAL = {
    "mariadb": ("u UUID, a INET4, i INET6, c TEXT COMPRESSED", "UUID(), '1.2.3.4', '::1', REPEAT('x', 500)", "NULL, NULL, NULL, NULL"),
    "mysql": (
        "v VECTOR(4), w VECTOR(2) NOT NULL, j JSON",
        "STRING_TO_VECTOR('[1,2.5]'), STRING_TO_VECTOR('[0,0]'), '{\"a\": [1]}'",
        "NULL, STRING_TO_VECTOR('[1,1]'), NULL",
    ),
}


def test_special_types_go_to_clickhouse_and_back(book: Logbook, sink: ClickHouseSink) -> None:
    columns, values, nulls = SPECIAL[book.server.flavour]
    book.run(f"CREATE TABLE t (id INT PRIMARY KEY, g GEOMETRY, {columns})")
    start = book.place()
    book.run(f"INSERT INTO t VALUES (1, POINT(1, 2), {values}), (2, NULL, {nulls}), (3, POINT(3, 4), {values})")
    book.run("UPDATE t SET g = NULL WHERE id = 1", "DELETE FROM t WHERE id = 3")
    assert differences(book, sink, book.read(start, "t")) == 0


@pytest.mark.parametrize("key", [", PRIMARY KEY (id)", ""])
def test_generated_columns_are_in_every_image(book: Logbook, key: str) -> None:
    """Also in the before image: without a key a row is identified by all its values."""
    book.run(f"CREATE TABLE t (id INT NOT NULL, v INT, w INT AS (v + 1) VIRTUAL, s INT AS (v * 2) STORED, h INT INVISIBLE DEFAULT 5{key})")
    schema, start = book.schema("t"), book.place()
    book.run("INSERT INTO t (id, v) VALUES (1, 10), (2, NULL), (3, 30)")
    inserted = book.select(schema)
    book.run("UPDATE t SET h = h + 1 WHERE id < 3", "UPDATE t SET v = 7 WHERE id = 3")
    updated = book.select(schema)
    book.run("DELETE FROM t")
    images = images_of(book.read(start, "t", options=ReadOptions(every_before=True)))
    found = {op: sorted(image.row for image in images if image.op is op) for op in (Op.INSERT, Op.BEFORE, Op.UPDATE, Op.DELETE)}
    assert found == {Op.INSERT: inserted, Op.BEFORE: inserted, Op.UPDATE: updated, Op.DELETE: updated}


@pytest.mark.parametrize("key", [", PRIMARY KEY (u, a, i)", ""])
def test_special_types_as_keys_go_to_clickhouse_and_back(mariadb_server: PrivateServer, sink: ClickHouseSink, key: str) -> None:
    """Also if the key is the whole row."""
    with new_logbook(mariadb_server, f"special_keys_{len(key)}") as book:
        book.run(f"CREATE TABLE t (u UUID NOT NULL, a INET4 NOT NULL, i INET6 NOT NULL, v INT, g GEOMETRY{key})")
        start = book.place()
        values = [f"(UUID(), '10.0.{n % 3}.{n}', '2001:db8::{n:x}', {n}, IF({n % 2}, POINT({n}, 0), NULL))" for n in range(60)]
        book.run("INSERT INTO t VALUES " + ", ".join(values), "UPDATE t SET a = '1.1.1.1', v = v + 1 WHERE v % 5 = 0")
        book.run("UPDATE t SET v = -v WHERE v > 50", "DELETE FROM t WHERE v % 7 = 0")
        assert differences(book, sink, book.read(start, "t")) == 0


@pytest.mark.parametrize("key", ["PRIMARY KEY (id)", "KEY (id)"])
def test_vectors_that_come_and_go_in_clickhouse(mysql_server: PrivateServer, sink: ClickHouseSink, key: str) -> None:
    with new_logbook(mysql_server, f"special_vectors_{len(key)}") as book:
        book.run(f"CREATE TABLE t (id INT, v VECTOR(4), {key})")
        start = book.place()
        values = [f"({n}, {'NULL' if n % 3 else f'STRING_TO_VECTOR({chr(39)}[{n},{n / 7}]{chr(39)})'})" for n in range(30)]
        book.run("INSERT INTO t VALUES " + ", ".join(values), "UPDATE t SET v = NULL WHERE id < 10")
        book.run("UPDATE t SET v = STRING_TO_VECTOR('[1,2,3,4]') WHERE id > 20", "DELETE FROM t WHERE id % 2")
        assert differences(book, sink, book.read(start, "t")) == 0


@pytest.mark.parametrize("kind", ["VARCHAR(20) CHARACTER SET latin1", "VARCHAR(20) CHARACTER SET utf16", "VARBINARY(20)"])
def test_large_tables_are_verified_in_parts_that_both_sides_cut_alike(book: Logbook, sink: ClickHouseSink, kind: str) -> None:
    book.run(f"CREATE TABLE t (k {kind} PRIMARY KEY, v INT)")
    start = book.place()
    book.insert("t", [(f"é{n}", n) for n in range(100)])
    book.run("ANALYZE TABLE t")
    assert differences(book, sink, book.read(start, "t")) == 0
    target = ClickHouseSink(replace(sink.target, database=book.database))
    options = verifier.VerifyOptions(chunk_rows=10, recheck=False)
    [result] = verifier.verify_tables(book.address, target, Selection((f"{book.database}.t",)), options)
    assert (result.comparison.rows, result.comparison.total) == (100, 0)


def differences(book: Logbook, sink: ClickHouseSink, blocks: Any) -> int:
    """Write the blocks to ClickHouse; return the number of values that differ from the source, as `headrace verify` counts."""
    schema = book.schema("t")
    target = ClickHouseSink(replace(sink.target, database=book.database))
    target.prepare([schema])
    writer = target.writer()
    for block in blocks:
        writer.write(block)
    writer.close()
    with closing(connect(book.address)) as connection:
        source = pa.Table.from_batches(list(scan_table(connection, book.address, schema)), schema=schema.arrow_schema)
    found = compare(schema, source, target.reader().read_range(schema))
    disconnect(target.target)
    assert found.rows == source.num_rows > 0
    return found.total


def test_a_blob_of_64_megabytes(flavour: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    request.getfixturevalue(f"{flavour}_server")
    server = build(flavour, tmp_path_factory.mktemp("blob") / "server", max_allowed_packet="128M")
    try:
        execute(server.start(), "CREATE DATABASE big")
        with open_logbook(server, "big") as book:
            book.run("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB)")
            start = book.place()
            book.run(f"INSERT INTO t VALUES (1, REPEAT(x'00ff10', {(64 << 20) // 3})), (2, x'01')")
            [(length, digest)] = book.fetch("SELECT LENGTH(b), SHA2(b, 256) FROM t WHERE id = 1")
            for rows in ([image.row for image in images_of(book.read(start, "t"))], book.scanned(book.schema("t"))):
                blob = rows[0][1]
                assert isinstance(blob, bytes)
                assert (str(len(blob)), sha256(blob).hexdigest(), rows[1]) == (length, digest, ("2", b"\1"))
    finally:
        server.remove()
