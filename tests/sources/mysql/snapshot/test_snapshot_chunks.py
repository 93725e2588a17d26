"""Chunks of every kind of key: each row is in exactly one, sizes are near the requested one, and planning needs no scan.

The server counts, for every row, how many of the conditions hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.sources.mysql.server.connection import connect, parse_mysql_url, query
from headrace.sources.mysql.snapshot.lock_free_snapshot import plan_chunks

ROWS, CHUNK = 10_000, 500
MANY_ROWS, MANY_CHUNK = 300_000, 10_000


@dataclass(frozen=True)
class Shape:
    """A key: its columns in SQL, their kinds, and their values in row `n` of 0..10000."""

    columns: str
    kinds: tuple[Kind, ...]
    values: str
    one_chunk: bool = False
    flavour: str = ""


WORD = "CONCAT(ELT(n % 7 + 1, 'Apfel', 'birne', 'ÄTNA', 'zebra', 'яблоко', 'ßharp', '日本'), IF(n % 2, ' X', ' x'), n)"
SHAPES = {
    "even": Shape("a INT", (Kind.INT32,), "n - 5000"),
    "clustered with gaps": Shape("a BIGINT", (Kind.INT64,), "(n DIV 2500 - 2) * 1000000000000000 + n % 2500"),
    "ever wider": Shape("a BIGINT UNSIGNED", (Kind.UINT64,), "CAST(n AS UNSIGNED) * n * n * 20"),
    "prefix in common": Shape("a VARCHAR(80)", (Kind.STRING,), "CONCAT('https://shop.example/items/', LPAD(n * 7, 9, '0'))"),
    "words": Shape("a VARCHAR(80)", (Kind.STRING,), WORD),
    "words by bytes": Shape("a VARCHAR(80) COLLATE utf8mb4_bin", (Kind.STRING,), WORD),
    "words in general": Shape("a VARCHAR(80) COLLATE utf8mb4_general_ci", (Kind.STRING,), WORD),
    "latin": Shape(
        "a CHAR(40) CHARACTER SET latin1",
        (Kind.STRING,),
        "CONCAT(ELT(n % 4 + 1, 'é', 'E', '%s ''\\\\', 'ü'), HEX(n * 977 % 65536), '-', n)",
    ),
    "utf16": Shape("a VARCHAR(70) CHARACTER SET utf16", (Kind.STRING,), "CONCAT('k', SHA2(n, 256))"),
    "uuid text": Shape("a CHAR(36) CHARACTER SET ascii", (Kind.STRING,), "INSERT(INSERT(LEFT(SHA2(n, 256), 32), 9, 0, '-'), 14, 0, '-')"),
    "hashes": Shape("a BINARY(16)", (Kind.BYTES,), "UNHEX(LEFT(SHA2(n, 256), 32))"),
    "bytes": Shape("a VARBINARY(40)", (Kind.BYTES,), "CONCAT(REPEAT(X'FF00', n % 3), UNHEX(LPAD(HEX(n * 3), 8, '0')), X'0020')"),
    "decimals": Shape("a DECIMAL(40,12)", (Kind.DECIMAL,), "(n - 4000) * 1.000000000001 * IF(n % 5 = 0, 100000000, 1)"),
    "days": Shape("a DATE, b INT", (Kind.DATE, Kind.INT32), "IF(n < 2500, '0000-00-00', DATE '2020-01-30' + INTERVAL n DIV 100 DAY), n"),
    "moments": Shape("a DATETIME(6)", (Kind.DATETIME,), "TIMESTAMP '1999-12-31 23:59:59' + INTERVAL n * n * 9 MICROSECOND"),
    "stamps": Shape("a TIMESTAMP(3)", (Kind.TIMESTAMP,), "FROM_UNIXTIME(1700000000 + n / 8)"),
    "times": Shape("a TIME(2)", (Kind.TIME,), "SEC_TO_TIME((n - 5000) / 4)"),
    "years": Shape("a YEAR, b BIT(20)", (Kind.YEAR, Kind.BIT), "2000 + n % 3, n"),
    "one giant tenant": Shape(
        "a INT, b VARCHAR(20), c BIGINT", (Kind.INT32, Kind.STRING, Kind.INT64), "IF(n % 10, 7, n), IF(n % 3, 'main', 'Side'), n * 1000"
    ),
    "few tenants": Shape("a VARCHAR(9), b BIGINT", (Kind.STRING, Kind.INT64), "ELT(n % 2 + 1, 'left', 'right'), n"),
    "a float at the end": Shape("a INT, b DOUBLE", (Kind.INT32, Kind.FLOAT64), "n DIV 4, n / 3"),
    "a float first": Shape("a DOUBLE", (Kind.FLOAT64,), "n / 3", one_chunk=True),
    "descending": Shape("a INT, b INT", (Kind.INT32, Kind.INT32), "n DIV 100, n"),
    "uuid": Shape(
        "a UUID",
        (Kind.UUID,),
        "CONCAT(LEFT(SHA2(n, 256), 12), '4', SUBSTR(SHA2(n, 256), 14, 3), 'a', SUBSTR(SHA2(n, 256), 18, 15))",
        flavour="mariadb",
    ),
    "ordered uuid": Shape(
        "a UUID", (Kind.UUID,), "CONCAT('0190', LPAD(HEX(n * 5), 8, '0'), '7', SUBSTR(SHA2(n, 256), 1, 19))", flavour="mariadb"
    ),
    "inet6": Shape("a INET6", (Kind.INET6,), "CONCAT('2001:db8::', HEX(n))", flavour="mariadb"),
    "inet4": Shape("a INET4", (Kind.INET4,), "INET_NTOA(n * 200000)", flavour="mariadb"),
}


@pytest.fixture(scope="module")
def numbers(server: PrivateServer) -> Iterator[str]:
    """A database with the numbers from 0 to 10,000 in `numbers`, without log events."""
    with server.root_connection(init_command="SET SESSION sql_log_bin = 0, sql_mode = '', time_zone = '+00:00'") as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE chunks CHARACTER SET utf8mb4")
        cursor.execute("USE chunks")
        cursor.execute("CREATE TABLE digits (d INT PRIMARY KEY)")
        cursor.execute("INSERT INTO digits VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)")
        cursor.execute("CREATE TABLE numbers (n INT PRIMARY KEY)")
        digits = [f"digits d{i}" for i in range(4)]
        cursor.execute("INSERT INTO numbers SELECT d0.d + 10 * d1.d + 100 * d2.d + 1000 * d3.d FROM " + ", ".join(digits))
        yield "chunks"
        cursor.execute("DROP DATABASE chunks")


def make_table(server: PrivateServer, name: str, shape: Shape, key: str, select: str) -> TableSchema:
    names = [column.split()[0] for column in shape.columns.split(", ")]
    with server.root_connection("chunks", init_command="SET SESSION sql_log_bin = 0, sql_mode = '', time_zone = '+00:00'") as connection:
        cursor = connection.cursor()
        columns = ", ".join(f"{column} NOT NULL" for column in shape.columns.split(", "))
        cursor.execute(f"CREATE TABLE `{name}` ({columns}, filler CHAR(60) NOT NULL DEFAULT 'filler', {key})")
        cursor.execute(f"INSERT INTO `{name}` ({', '.join(names)}) {select}")
        cursor.execute(f"ANALYZE TABLE `{name}`")
    found = tuple(Column(column, kind, False) for column, kind in zip(names, shape.kinds, strict=True))
    return TableSchema(TableName("chunks", name), found, tuple(names))


def count_per_chunk(server: PrivateServer, schema: TableSchema, conditions: list[str]) -> list[int]:
    """Return the number of rows of each condition; fail unless every row satisfies exactly one."""
    terms = [f"({condition or '1'})" for condition in conditions]
    sums = ", ".join(f"SUM{term}" for term in terms)
    both = " + ".join(terms)
    with (
        server.root_connection(init_command="SET SESSION sql_mode = '', time_zone = '+00:00'") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT MIN({both}), MAX({both}), {sums} FROM `chunks`.`{schema.name.table}`")
        least, most, *counts = cursor.fetchone()
    assert (least, most) == (1, 1)
    return [int(count) for count in counts]


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_key(server: PrivateServer, numbers: str, name: str) -> None:
    shape = SHAPES[name]
    if shape.flavour not in ("", server.flavour):
        pytest.skip(f"a type of {shape.flavour}")
    key = "PRIMARY KEY (a DESC, b DESC)" if name == "descending" else f"PRIMARY KEY ({', '.join('abc'[: len(shape.kinds)])})"
    schema = make_table(server, f"t{name} %s`x".replace("`", ""), shape, key, f"SELECT {shape.values} FROM numbers")
    address = parse_mysql_url(server.url(numbers))
    connection = connect(address)
    chunks = plan_chunks(connection, address, schema, CHUNK)
    connection.close()
    counts = count_per_chunk(server, schema, [chunk.where for chunk in chunks])
    assert sum(counts) == ROWS
    print(f"{name}: {len(counts)} chunks of {min(counts)} to {max(counts)} rows")
    if shape.one_chunk:
        assert len(chunks) == 1
        return
    assert max(counts) <= 3 * CHUNK
    # The last one gets the rest.
    assert min(counts[:-1]) >= CHUNK / 3
    assert all(chunk.estimate / 3 <= count <= chunk.estimate * 3 for chunk, count in zip(chunks[:-1], counts, strict=False))


def test_planning_does_not_scan(server: PrivateServer, numbers: str) -> None:
    """300,000 rows, most of them one tenant's: a few thousand index look-ups at most, by the server's own count."""
    shape = Shape("a INT, b VARCHAR(20), c BIGINT", (Kind.INT32, Kind.STRING, Kind.INT64), "")
    values = "IF(n % 10, 7, n), IF(n % 3, 'main', 'Side'), n * 1000 + d1.d * 10 + d2.d"
    select = f"SELECT {values} FROM numbers, digits d1, digits d2 WHERE d1.d < 3"
    schema = make_table(server, "many", shape, "PRIMARY KEY (a, b, c)", select)
    address = parse_mysql_url(server.url(numbers))
    connection = connect(address)
    before = reads(connection, address)
    chunks = plan_chunks(connection, address, schema, MANY_CHUNK)
    cost = reads(connection, address) - before
    connection.close()
    with server.root_connection(numbers) as counting, counting.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT COUNT(*) FROM many WHERE {chunk.where}" for chunk in chunks))
        counts = [int(row[0]) for row in cursor.fetchall()]
    print(f"{len(chunks)} chunks of {min(counts)} to {max(counts)} rows, planned with {cost} reads")
    assert sum(counts) == MANY_ROWS
    assert max(counts) <= 3 * MANY_CHUNK
    assert min(counts[:-1]) >= MANY_CHUNK / 3
    assert cost < 3_000


@pytest.mark.parametrize("name", ["words", "words by bytes", "words in general", "latin", "utf16", "uuid text"])
def test_the_index_serves_each_chunk_of_texts(server: PrivateServer, numbers: str, name: str) -> None:
    schema = make_table(server, f"ranges {name}", SHAPES[name], "PRIMARY KEY (a)", f"SELECT {SHAPES[name].values} FROM numbers")
    address = parse_mysql_url(server.url(numbers))
    connection = connect(address)
    explain = "EXPLAIN" if server.flavour == "mariadb" else "EXPLAIN FORMAT=TRADITIONAL"
    chunks = plan_chunks(connection, address, schema, CHUNK)
    plans = [query(connection, address, f"{explain} SELECT * FROM `chunks`.`{schema.name.table}` WHERE {one.where}")[0] for one in chunks]
    connection.close()
    assert len(plans) > 10
    assert {tuple(plan)[3 if server.flavour == "mariadb" else 4] for plan in plans} == {"range"}


def reads(connection: object, address: object) -> int:
    rows = query(connection, address, "SHOW SESSION STATUS LIKE 'Handler_read%'")  # type: ignore[arg-type]
    return sum(int(value) for _, value in rows)


def test_a_unique_key_serves_where_there_is_no_primary_one(server: PrivateServer, numbers: str) -> None:
    schema = make_table(server, "unique", SHAPES["even"], "KEY (filler), UNIQUE KEY second (a)", "SELECT n FROM numbers")
    keyed = TableSchema(schema.name, schema.columns, (), (Index("second", ("a",), True),))
    keyless = TableSchema(schema.name, schema.columns, ())
    address = parse_mysql_url(server.url(numbers))
    connection = connect(address)
    chunks = plan_chunks(connection, address, keyed, CHUNK)
    [whole] = plan_chunks(connection, address, keyless, CHUNK)
    connection.close()
    counts = count_per_chunk(server, schema, [chunk.where for chunk in chunks])
    assert sum(counts) == ROWS
    assert max(counts) <= 3 * CHUNK
    assert (whole.where, whole.number) == ("", 0)


def test_prefixes_of_a_key_are_not_cut_by(server: PrivateServer, numbers: str) -> None:
    """A prefix index does not order the texts; ordering by them would scan and sort the table."""
    shape = Shape("a VARCHAR(90)", (Kind.STRING,), "")
    schema = make_table(server, "prefixed", shape, "PRIMARY KEY (a(20))", "SELECT SHA2(n, 256) FROM numbers WHERE n < 3000")
    address = parse_mysql_url(server.url(numbers))
    connection = connect(address)
    assert [chunk.where for chunk in plan_chunks(connection, address, schema, 100)] == [""]
    connection.close()
