"""Random rows of every type: the log's images, replayed by version, and the table scan both equal the server's SELECT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.private_server import PrivateServer
from headrace.model.change_block import Op
from testkit.oracles.binlogs import Image, Logbook, Row, fraction_text, images_of, open_logbook, time_text

pytestmark = pytest.mark.scaled

Values = st.SearchStrategy[Any]


def integers(bits: int, *, signed: bool) -> Values:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0])


def decimals(precision: int, scale: int) -> Values:
    top = 10**precision - 1
    return (st.integers(-top, top) | st.integers(-100, 100) | st.sampled_from([top, -top])).map(lambda n: Decimal(f"{n}e-{scale}"))


def texts(longest: int) -> Values:
    plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=min(longest, 40))
    return plain | st.integers(0, longest).map(lambda size: "ab🚰"[: max(size % 4, 1)] * (size // 4))


def moments(low: datetime, high: datetime, digits: int) -> Values:
    def text(moment: datetime) -> str:
        whole = moment.replace(microsecond=0).isoformat(" ")
        return whole + fraction_text(moment.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits), digits)

    return st.datetimes(low, high).map(text)


def durations(digits: int) -> Values:
    unit = 10 ** (6 - digits)
    top = 3_020_399_000_000 // unit
    return (st.integers(-top, top) | st.integers(-5000, 5000)).map(lambda n: time_text(n * unit, digits))


def documents() -> Values:
    leaves = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    return st.recursive(
        leaves | text, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
    ).map(json.dumps)


MEMBERS = [f"m{n}" for n in range(40)]
COLUMNS: dict[str, tuple[str, Values]] = {
    "i8": ("TINYINT", integers(8, signed=True)),
    "u8": ("TINYINT UNSIGNED", integers(8, signed=False)),
    "i16": ("SMALLINT", integers(16, signed=True)),
    "u16": ("SMALLINT UNSIGNED", integers(16, signed=False)),
    "i24": ("MEDIUMINT", integers(24, signed=True)),
    "u24": ("MEDIUMINT UNSIGNED", integers(24, signed=False)),
    "i32": ("INT", integers(32, signed=True)),
    "u32": ("INT UNSIGNED", integers(32, signed=False)),
    "i64": ("BIGINT", integers(64, signed=True)),
    "u64": ("BIGINT UNSIGNED", integers(64, signed=False)),
    "f32": ("FLOAT", st.floats(-(2.0**127), 2.0**127, width=32)),
    "f64": ("DOUBLE", st.floats(allow_nan=False, allow_infinity=False)),
    "d4_4": ("DECIMAL(4,4)", decimals(4, 4)),
    "d12_2": ("DECIMAL(12,2)", decimals(12, 2)),
    "d18_7": ("DECIMAL(18,7)", decimals(18, 7)),
    "d38_19": ("DECIMAL(38,19)", decimals(38, 19)),
    "d65_30": ("DECIMAL(65,30)", decimals(65, 30)),
    "c": ("CHAR(20)", texts(20)),
    "v": ("VARCHAR(100)", texts(100)),
    "t": ("MEDIUMTEXT", texts(70_000)),
    "b": ("BINARY(10)", st.binary(max_size=10)),
    "vb": ("VARBINARY(300)", st.binary(max_size=300)),
    "bl": ("BLOB", st.binary(max_size=100)),
    "day": ("DATE", st.dates(date(1, 1, 1)).map(date.isoformat)),
    "dt0": ("DATETIME", moments(datetime(1, 1, 1), datetime(9999, 12, 31), 0)),
    "dt3": ("DATETIME(3)", moments(datetime(1, 1, 1), datetime(9999, 12, 31), 3)),
    "dt6": ("DATETIME(6)", moments(datetime(1, 1, 1), datetime(9999, 12, 31), 6)),
    "ts2": ("TIMESTAMP(2) NULL", moments(datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19), 2)),
    "ts6": ("TIMESTAMP(6) NULL", moments(datetime(1970, 1, 1, 0, 0, 1), datetime(2038, 1, 19), 6)),
    "tm0": ("TIME", durations(0)),
    "tm1": ("TIME(1)", durations(1)),
    "tm4": ("TIME(4)", durations(4)),
    "tm6": ("TIME(6)", durations(6)),
    "yr": ("YEAR", st.sampled_from([0]) | st.integers(1901, 2155)),
    "e": (f"ENUM({','.join(map(repr, MEMBERS))})", st.sampled_from(MEMBERS)),
    "s": (f"SET({','.join(map(repr, MEMBERS))})", st.sets(st.sampled_from(MEMBERS)).map(",".join)),
    "bit": ("BIT(64)", integers(64, signed=False)),
    "bit11": ("BIT(11)", integers(11, signed=False)),
    "j": ("JSON", documents()),
}
ROWS = st.lists(st.tuples(*(st.none() | values for _, values in COLUMNS.values())), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def book(server: PrivateServer) -> Iterator[Logbook]:
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE decode_random CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        with open_logbook(server, "decode_random") as book:
            columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
            book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
            yield book
        cursor.execute("DROP DATABASE decode_random")


def replay(images: list[Image]) -> list[Row]:
    table: dict[object, Row] = {}
    for image in images:
        if image.op in (Op.DELETE, Op.BEFORE):
            del table[image.row[0]]
        else:
            table[image.row[0]] = image.row
    return sorted(table.values(), key=lambda row: int(str(row[0])))


@settings(max_examples=max(12, settings.default.max_examples // 4) if settings.default else 12)
@given(first=ROWS, second=ROWS)
def test_random_rows_arrive_as_the_server_shows_them(book: Logbook, first: list[Any], second: list[Any]) -> None:
    book.run("DELETE FROM t")
    schema = book.schema("t")
    start = book.place()
    book.insert("t", [(n, *row) for n, row in enumerate(first)])
    inserted = book.select(schema)
    halfway = book.place()
    assert replay(images_of(book.read(start, "t"))) == inserted
    assert book.scanned(schema) == inserted
    with book.connection.cursor() as cursor:
        marks = ", ".join(f"{name} = %s" for name in COLUMNS)
        cursor.executemany(f"UPDATE t SET id = id + 50, {marks} WHERE id = %s", [(*row, n) for n, row in enumerate(second)])
    final = book.select(schema)
    assert halfway != book.place()
    assert replay(images_of(book.read(start, "t"))) == final
    assert book.scanned(schema) == final
