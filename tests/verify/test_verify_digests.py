"""Both servers compute the same digest for equal rows of every type, and another one for rows that differ.

Row r of the table holds value r of every type; the server's rows are written to the real engine. Then every column is changed at the source
to every other value of its type, one at a time: each change must be found. The reference is the comparison of whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import TableSchema
from headrace.sources.mysql.server.connection import connect, parse_mysql_url
from headrace.sources.mysql.snapshot.row_digests import read_buckets, read_digest
from testkit.oracles.pairs import Pair, open_pair

NINES = "9" * 65
MOMENTS = ["0000-01-01 00:00:00", "1969-12-31 23:59:59", "1970-01-01 00:00:00", "9999-12-31 23:59:59", "2024-02-29 12:34:56"]
INSTANTS = ["1970-01-01 00:00:01", "2038-01-19 03:14:07", "2024-03-31 01:30:00", "2024-03-31 02:30:00", "2024-10-27 00:30:00"]
DURATIONS = ["838:59:59", "-838:59:59", "00:00:00", "-00:00:01", "24:00:00", "100:00:00"]
TEXTS = ["''", "'a'", "'A'", "'a '", "'é'", "_utf8mb4 x'65cc81'", "','", "'N'", "'1,a'", r"'nul \0'"]


def moments(values: list[str], digits: int) -> list[str]:
    ends = "" if not digits else "." + "0" * (digits - 1) + "1"
    last = "" if not digits else "." + "9" * digits
    return [f"'{value}'" for value in values] + [f"'{values[-1]}{end}'" for end in (ends, last) if end]


TYPES: dict[str, tuple[str, list[str]]] = {
    **{f"i{bits}": (kind, [str(-(1 << bits - 1)), str((1 << bits - 1) - 1), "0", "-1", "1"]) for kind, bits in (
        ("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))},
    **{f"u{bits}": (f"{kind} UNSIGNED", ["0", str((1 << bits) - 1), str(1 << bits - 1), "1"]) for kind, bits in (
        ("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))},
    "filled": ("INT(9) ZEROFILL", ["0", "7", "123456789", "4294967295"]),
    "filled_d": ("DECIMAL(9,3) ZEROFILL", ["0", "7.5", "123456.789"]),
    "filled_f": ("DOUBLE ZEROFILL", ["0", "7.5", "0.1"]),
    "yr": ("YEAR", ["0", "1901", "2155", "2000"]),
    **{f"bit{n}": (f"BIT({n})", ["0", str((1 << n) - 1), str(1 << n - 1)]) for n in (1, 9, 64)},
    # Values that differ in the last bit, and the two zeros.
    "f32": ("FLOAT", ["0", "-0e0", "0.1", "0.10000000149011612 + 7.450580596923828e-9", "3.4028234e38", "1.4e-45", "16777216"]),
    "f32d": ("FLOAT(7,3)", ["0", "1234.567", "0.001"]),
    "f64": ("DOUBLE", ["0", "-0e0", "0.1e0", "0.1e0 + 1.3877787807814457e-17", "1.7976931348623157e308", "5e-324", "1e22", "123456.75e0"]),
    "f64d": ("DOUBLE(12,3)", ["0", "123456.789", "-0.001"]),
    **{f"d{p}_{s}": (f"DECIMAL({p},{s})", ["0", "-0.0", NINES[: p - s] + "." + NINES[:s], "-" + NINES[: p - s] + "." + NINES[:s],
        ("0." + "0" * (s - 1) + "1") if s else "1"]) for p, s in ((1, 1), (9, 2), (18, 5), (38, 10), (39, 0), (65, 0), (65, 30))},
    "c": ("CHAR(20)", TEXTS),
    "v": ("VARCHAR(300)", [*TEXTS, "'漢字😀'", "REPEAT('é', 300)"]),
    "bin": ("VARCHAR(30) COLLATE utf8mb4_bin", TEXTS),
    "ascii": ("VARCHAR(30) CHARACTER SET ascii", ["''", "'a'", "'A'", "','"]),
    "utf3": ("VARCHAR(30) CHARACTER SET utf8mb3", ["''", "'漢'", "'a'"]),
    "latin": ("VARCHAR(30) CHARACTER SET latin1", ["''", "'é'", "'€'", "x'81'", "'a'"]),
    "sjis": ("VARCHAR(30) CHARACTER SET sjis", ["''", "'漢字'", "'a'"]),
    "ucs": ("VARCHAR(30) CHARACTER SET ucs2", ["''", "'漢'", "'é'"]),
    "u16": ("VARCHAR(30) CHARACTER SET utf16", ["''", "'😀'", "'a'"]),
    "t": ("TEXT", [*TEXTS, "REPEAT('x', 65535)"]),
    "tl": ("LONGTEXT", [*TEXTS, "REPEAT('漢', 100000)"]),
    "tm_latin": ("MEDIUMTEXT CHARACTER SET latin1", ["''", "'é'", "'a'"]),
    "b": ("BINARY(4)", ["''", "x'00'", "x'ff'", "x'61'", "x'6100'"]),
    "vb": ("VARBINARY(300)", ["''", "x'00'", "x'0000'", "x'ff'", "x'c328'", "','", "REPEAT(x'ff', 300)"]),
    "bl": ("BLOB", ["''", "x'00'", "REPEAT(x'00', 65535)"]),
    "bll": ("LONGBLOB", ["''", "x'00'", "REPEAT(x'00ff', 100000)"]),
    "en": ("ENUM('a', 'B', '', 'c,d', 'ünï', 'N') CHARACTER SET latin1", ["'a'", "'B'", "''", "'c,d'", "'ünï'", "0", "'N'"]),
    "st": ("SET('a', 'b', 'c', '漢')", ["''", "'a'", "'a,b'", "'a,b,c'", "'漢'"]),
    "day": ("DATE", ["'0000-01-01'", "'1969-12-31'", "'9999-12-31'", "'2024-02-29'", "'2024-03-01'"]),
    **{f"dt{n}": (f"DATETIME({n})", moments(MOMENTS, n)) for n in (0, 1, 3, 6)},
    **{f"ts{n}": (f"TIMESTAMP({n}) NULL", moments(INSTANTS, n)) for n in (0, 2, 6)},
    **{f"tm{n}": (f"TIME({n})", [*moments(DURATIONS[:-1], n), "'-00:00:00.999999'", "'100:00:00'"]) for n in (0, 3, 6)},
    "js": ("JSON", ["'{}'", "'[]'", "'null'", "'1'", "'1.0'", "'{\"a\": [1, 2.5, \"é😀\", null], \"b\": 1e100}'", "'\"x\"'"]),
    "geo": ("GEOMETRY", ["ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(2 1)')", "ST_GeomFromText('POINT(1 2)', 4326)",
        "ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))')", "ST_GeomFromText('LINESTRING(0 0,1 0.1)')"]),
}  # fmt: skip
MARIADB = {
    "uuid": ("UUID", ["'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"]),
    "ip4": ("INET4", ["'0.0.0.0'", "'255.255.255.255'", "'1.2.3.4'"]),
    "ip6": ("INET6", ["'::'", "'::1'", "'::ffff:1.2.3.4'", "'2001:db8::1'"]),
    "packed": ("TEXT COMPRESSED", ["''", "'a'", "REPEAT('abc', 1000)"]),
}
MYSQL = {"vec": ("VECTOR(3)", ["TO_VECTOR('[1,2,3]')", "TO_VECTOR('[1,2,3.5]')", "TO_VECTOR('[0,0,0]')", "TO_VECTOR('[-0.0,0,0]')"])}


@pytest.fixture
def pair(server: PrivateServer, database: str, clickhouse: EmbeddedServer) -> Iterator[Pair]:
    with open_pair(parse_mysql_url(server.url(database)), clickhouse) as opened:
        yield opened


def types_of(server: PrivateServer) -> dict[str, tuple[str, list[str]]]:
    return {**TYPES, **(MARIADB if server.flavour == "mariadb" else MYSQL)}


def make_every_type(pair: Pair, types: dict[str, tuple[str, list[str]]]) -> TableSchema:
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in types.items())
    pair.run("SET SESSION innodb_strict_mode = OFF", f"CREATE TABLE every_type (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    for row in range(max(len(values) for _, values in types.values())):
        pair.run(f"INSERT INTO every_type VALUES ({row}, {', '.join(values[row % len(values)] for _, values in types.values())})")
    pair.run("INSERT INTO every_type (id) VALUES (1000)")
    return pair.schema("every_type")


def test_equal_rows_of_every_type_have_equal_digests_and_no_difference_is_missed(server: PrivateServer, pair: Pair) -> None:
    types = types_of(server)
    schema = make_every_type(pair, types)
    pair.copy(schema)
    digests = pair.sink.digests()
    assert digests.undigested(schema) == ()
    expected = pair.source(schema)
    assert expected == pair.target(schema)
    assert expected.rows == pair.rows(schema).num_rows > 5
    assert pair.is_equal(schema)
    for buckets in (1, 7, 1000):
        assert read_buckets(pair.connection, pair.address, schema, "", buckets) == digests.buckets(schema, "1", buckets)
    target = {row: pair.target(schema, f"id = {row}") for row in range(expected.rows)}
    missed = []
    for name, (_, values) in types.items():
        for row, new in enumerate([*values[1:], "NULL"]):
            pair.run("START TRANSACTION", f"UPDATE every_type SET `{name}` = {new} WHERE id = {row}")
            # Some values change when they are stored (-0.0 in a decimal): the comparison of rows decides.
            if pair.source(schema, f"id = {row}") == target[row] and not pair.is_equal(schema):
                missed.append((name, values[row], new))
            pair.run("ROLLBACK")
    assert missed == []


def test_values_that_change_places_change_the_digest(pair: Pair) -> None:
    """Differences that an XOR of CRCs, or texts joined without lengths, would miss."""
    pair.run(
        "CREATE TABLE swapped (id INT PRIMARY KEY, a VARCHAR(20), b VARCHAR(20), n INT, m INT)",
        "INSERT INTO swapped VALUES (1, 'abc', 'xyz', 1, 2), (2, 'abd', 'xyy', 3, 4), (3, NULL, '', 5, NULL), (4, 'p,', 'q', 1, 23)",
    )
    schema = pair.schema("swapped")
    pair.copy(schema)
    assert pair.source(schema) == pair.target(schema)
    for change in (
        "UPDATE swapped SET a = IF(id = 1, 'abd', 'abc') WHERE id IN (1, 2)",
        "UPDATE swapped SET a = IF(id = 1, 'xyz', a), b = IF(id = 1, 'abc', b)",
        "UPDATE swapped SET a = '', b = NULL WHERE id = 3",
        "UPDATE swapped SET n = NULL, m = 5 WHERE id = 3",
        "UPDATE swapped SET a = 'p', b = ',q' WHERE id = 4",
        "UPDATE swapped SET n = 12, m = 3 WHERE id = 4",
        "UPDATE swapped SET id = 10 WHERE id = 1",
        "DELETE FROM swapped WHERE id = 1",
        "INSERT INTO swapped VALUES (5, NULL, NULL, NULL, NULL)",
    ):
        pair.run("START TRANSACTION", change)
        assert pair.source(schema) != pair.target(schema), change
        assert not pair.is_equal(schema)
        pair.run("ROLLBACK")


def test_dates_that_no_calendar_has_are_null(pair: Pair) -> None:
    pair.run(
        "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE unreal (id INT PRIMARY KEY, d DATE NOT NULL, t DATETIME(3) NOT NULL, s TIMESTAMP NULL)",
        "INSERT INTO unreal VALUES (1, '0000-00-00', '0000-00-00', 0), (2, '2024-00-10', '2024-10-00 01:02:03.004', NULL), "
        "(3, '2024-02-31', '2023-02-29 10:00:00', '2024-01-01'), (4, '2024-02-29', '0000-01-01', '2024-01-01')",
        "SET SESSION sql_mode = ''",
    )
    schema = pair.schema("unreal")
    pair.copy(schema)
    assert [row["d"] is None for row in pair.rows(schema).select(["d"]).to_pylist()] == [True, True, True, False]
    assert pair.source(schema) == pair.target(schema)


def test_rows_without_a_key_count_as_often_as_they_occur(pair: Pair) -> None:
    pair.run("CREATE TABLE keyless (a INT, b VARCHAR(9))", "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL), (2, 'y')")
    schema = pair.schema("keyless")
    pair.copy(schema)
    assert pair.source(schema) == pair.target(schema)
    assert read_buckets(pair.connection, pair.address, schema, "", 5) == pair.sink.digests().buckets(schema, "1", 5)
    for change in ("INSERT INTO keyless VALUES (1, 'x')", "DELETE FROM keyless WHERE a = 1 LIMIT 1"):
        pair.run("START TRANSACTION", change)
        assert pair.source(schema) != pair.target(schema)
        pair.run("ROLLBACK")


def test_a_row_too_long_for_the_server_s_packet_is_not_taken_for_equal(server: PrivateServer, pair: Pair) -> None:
    columns = ", ".join(f"t{n} TEXT" for n in range(20))
    pair.run(f"CREATE TABLE wide (id INT PRIMARY KEY, {columns})")
    filled = ", ".join(["REPEAT('x', 65535)"] * 20)
    pair.run(f"INSERT INTO wide VALUES (1, {filled})", "INSERT INTO wide (id) VALUES (2)")
    schema = pair.schema("wide")
    pair.copy(schema)
    assert pair.source(schema) == pair.target(schema)
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute("SELECT @@global.max_allowed_packet")
        [normal] = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            with closing(connect(pair.address)) as narrow:
                assert read_digest(narrow, pair.address, schema) != pair.target(schema)
        finally:
            cursor.execute(f"SET GLOBAL max_allowed_packet = {normal}")
