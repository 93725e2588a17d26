"""Values from real servers' logs in the types that a user may choose: ClickHouse's text equals the server's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pyarrow as pa
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.model.schema import TableSchema
from headrace.model.table_selection import Selection
from headrace.sinks.clickhouse.server.client import disconnect
from headrace.sinks.clickhouse.server.options import (
    BitAs,
    ClickHouseOptions,
    EnumAs,
    GeometryAs,
    SetAs,
    TimeAs,
    TinyintAs,
    UnsignedAs,
    YearAs,
)
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sources.mysql.server.connection import connect, parse_mysql_url
from headrace.verify.result import Verdict
from headrace.verify.row_compare import compare
from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.pairs import Pair
from testkit.pipelines.embedded_access import target_of


class Case(NamedTuple):
    """A column, two values, the server's expression and ClickHouse's for the same text."""

    declared: str
    values: tuple[str, str]
    source: str = "CAST({} AS CHAR)"
    target: str = "toString({})"
    type: str = ""


CASES = {
    "truth": Case("TINYINT(1)", ("0", "1"), "IF({}, 'true', 'false')"),
    "whole": Case("BIGINT UNSIGNED", ("0", "18446744073709551615")),
    "amount": Case("DECIMAL(65,30)", ("'-" + "9" * 35 + "." + "9" * 30 + "'", "'0." + "0" * 29 + "1'"), type="String"),
    "clock": Case("DATETIME(6)", ("'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"), type="String"),
    "coarse": Case("DATETIME(2)", ("'1000-01-01 00:00:00.01'", "'2024-02-29 12:34:56.78'"), type="String"),
    "moment": Case(
        "TIMESTAMP(6)",
        ("'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"),
        "CAST(CONVERT_TZ({}, '+00:00', '+05:30') AS CHAR)",
    ),
    "span": Case("TIME(3)", ("'-838:59:59.000'", "'838:59:58.999'")),
    "year_": Case("YEAR", ("'1901'", "'2155'")),
    "none": Case("YEAR", ("0", "'2000'")),
    "day": Case("DATE", ("'1000-01-01'", "'9999-12-31'"), type="String"),
    "named": Case(
        "ENUM('x', 'it''s', 'é')", ("'it\\'s'", "'é'"), "CONCAT({0}, '=', {0} + 0)", "concat(toString({0}), '=', toString(toInt8({0})))"
    ),
    "many": Case("SET('a', 'b', 'é')", ("'é,a'", "''"), target="arrayStringConcat({}, ',')"),
    "flags": Case("BIT(9)", ("b'100000001'", "b'0'"), "LPAD(BIN({} + 0), 9, '0')"),
    "place": Case("POINT", ("POINT(1.5, -2)", "POINT(0, 3)"), "ST_AsText({})", "wkt({})"),
    "area": Case(
        "POLYGON",
        ("ST_GeomFromText('POLYGON((0 0,0 3,3 3,3 0,0 0),(1 1,1 2,2 2,2 1,1 1))')", "ST_GeomFromText('POLYGON((5 5,5 6,6 6,5 5))')"),
        "ST_AsText({})",
        "wkt({})",
    ),
    "areas": Case(
        "MULTIPOLYGON",
        (
            "ST_GeomFromText('MULTIPOLYGON(((0 0,0 3,3 3,0 0)),((5 5,5 6,6 6,5 5)))')",
            "ST_GeomFromText('MULTIPOLYGON(((0 0,0 9,9 9,0 0),(1 2,1 3,2 3,1 2)))')",
        ),
        "ST_AsText({})",
        "wkt({})",
    ),
    # A LONGTEXT on MariaDB, hence by name.
    "document": Case(
        "JSON",
        ("""'{"b": 1, "a": "é"}'""", """'{"a": "2", "c": [1, null]}'"""),
        "JSON_UNQUOTE(JSON_EXTRACT({}, '$.a'))",
        "toString({}.a)",
        "JSON",
    ),
    "text_id": Case("CHAR(36)", ("'123e4567-e89b-12d3-a456-426655440000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"), type="UUID"),
    "raw_id": Case(
        "BINARY(16)",
        ("x'000102030405060708090a0b0c0d0e00'", "x'00000000000000000000000000000000'"),
        "HEX({})",
        "hex(UUIDStringToNum(toString({})))",
        "UUID",
    ),
    "padded": Case("CHAR(5)", ("'é'", "'abcde'"), target="trim(TRAILING '\\0' FROM {})", type="FixedString(20)"),
    "wide": Case("INT", ("-2147483648", "2147483647"), type="Int256"),
    "narrow": Case("BIGINT", ("-128", "127"), type="Int8"),
}
CHOICES = {
    "tinyint1": TinyintAs.BOOL,
    "uint64": UnsignedAs.STRING,
    "time": TimeAs.STRING,
    "year": YearAs.STRING,
    "enum": EnumAs.ENUM,
    "set": SetAs.ARRAY,
    "bit": BitAs.STRING,
    "geometry": GeometryAs.GEO,
    "zone": "Asia/Kolkata",
    "types": tuple((name, case.type) for name, case in CASES.items() if case.type),
}


@pytest.fixture(scope="module")
def sink(clickhouse: EmbeddedServer) -> Iterator[ClickHouseSink]:
    target = target_of(clickhouse)
    yield ClickHouseSink(target, ClickHouseOptions(tuple(CHOICES.items())))
    disconnect(target)


def texts_of(book: Logbook, sink: ClickHouseSink, schema: TableSchema, part: dict[str, Case]) -> tuple[list[list[str]], list[list[str]]]:
    source = ", ".join(case.source.format(name) for name, case in part.items())
    target = ", ".join(case.target.format(name) for name, case in part.items())
    source_rows = [list(map(str, row)) for row in book.fetch(f"SELECT {source} FROM t ORDER BY id")]
    _, kept = sink.reader().query(f"SELECT {target} FROM {schema.name.database}.t FINAL ORDER BY id")
    return source_rows, [list(map(str, row)) for row in kept]


def test_the_text_of_every_chosen_type_is_the_source_s_own(server: PrivateServer, database: str, sink: ClickHouseSink) -> None:
    with open_logbook(server, database, sql_mode="") as book:
        book.run("SET time_zone = '+00:00'", "SET NAMES utf8mb4")
        book.run(
            "CREATE TABLE t (id INT PRIMARY KEY, " + ", ".join(f"{name} {case.declared} NOT NULL" for name, case in CASES.items()) + ")"
        )
        start, schema = book.place(), book.schema("t")
        for number in (0, 1):
            book.run(f"INSERT INTO t VALUES ({number}, {', '.join(case.values[number] for case in CASES.values())})")
        sink.prepare([schema])
        writer = sink.writer()
        blocks = book.read(start, "t")
        for block in blocks:
            writer.write(block)
        source_rows, kept = texts_of(book, sink, schema, CASES)
        for row, other in zip(source_rows, kept, strict=True):
            assert dict(zip(CASES, other, strict=True)) == dict(zip(CASES, row, strict=True))
        images = sink.reader().kept(schema, pa.Table.from_batches([block.images for block in blocks]))
        found = compare(schema, images, sink.reader().read_range(schema))
        assert (found.rows, found.differences) == (2, ())


def test_tables_in_chosen_types_are_verified_by_value(server: PrivateServer, database: str, sink: ClickHouseSink) -> None:
    """Keys and values in types with another order and text form; documents and geometries as their types store them."""
    chosen = {**CHOICES, "types": (("a", "String"), ("b", "String"), ("f", "String"), ("document", "JSON"))}
    retyped = ClickHouseSink(sink.target, ClickHouseOptions(tuple(chosen.items())))
    address = parse_mysql_url(server.url(database))
    with closing(connect(address)) as connection:
        pair = Pair(connection, address, retyped)
        pair.run(
            f"USE {database}",
            "SET SESSION time_zone = '+00:00'",
            "CREATE TABLE k (a INT, b DATETIME(3), t TIME(3), s SET('x','y'), f DOUBLE, g POINT, document JSON, PRIMARY KEY (a, b, t))",
            *(
                f"INSERT INTO k VALUES ({n - 6}, '0001-01-{n + 1:02d} 00:00:00.{n:03d}', '-00:00:{n:02d}.5', 'y,x', {n}.1,"
                f" ST_GeomFromText('POINT({n} -{n}.5)', {4326 * (n % 2)}), '{{\"b\": {n}, \"a\": null}}')"
                for n in range(12)
            ),
        )
        schema = pair.schema("k")
        pair.copy(schema)
        selection, options = Selection((f"{database}.k",)), VerifyOptions(recheck=False, spark=SparkUse.NEVER)
        [equal] = verify_tables(pair.address, pair.sink, selection, options)
        assert (equal.comparison.rows, equal.comparison.differences, equal.verdict) == (12, (), Verdict.EQUAL)
        for value, column in (("'0.10000000000000002'", "f"), ("'{\"b\": 1.5}'", "document"), ("(0.0, 0.5)", "g"), ("['x']", "s")):
            pair.spoil(f"ALTER TABLE {database}.k UPDATE {column} = {value} WHERE a = '-6' SETTINGS mutations_sync = 2")
        [spoilt] = verify_tables(pair.address, pair.sink, selection, options)
        assert {found.column for found in spoilt.comparison.differences} == {"f", "document", "g", "s"}
        assert {found.key[0] for found in spoilt.comparison.differences} == {-6}
