"""`json_to_text` of the documents in MySQL's binary log equals MySQL's SELECT, byte for byte."""

from __future__ import annotations

import json
import math
import os
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pymysql.connections import Connection
from pymysql.err import OperationalError

from headrace.demo.private_server import PrivateServer
from headrace.sources.mysql.kernels.jsonb import json_to_text, text_room

FIXTURE = Path(__file__).with_name("jsonb_documents.json")
WRITE_ROWS, UPDATE_ROWS = 30, 31


class Shelf:
    """A table `(id INT, j JSON)` whose documents are read from the log."""

    def __init__(self, server: PrivateServer, connection: Connection[Any]) -> None:
        self._server = server
        self._connection = connection

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def place(self) -> tuple[str, int]:
        file, position = self.fetch("SHOW BINARY LOG STATUS")[0][:2]
        return str(file), int(position)

    def logged_since(self, start: tuple[str, int]) -> list[tuple[int, bytes]]:
        file, end = self.place()
        assert file == start[0], "the log was rotated during the test"
        with (self._server.binlog_dir / file).open("rb") as log:
            log.seek(start[1])
            return list(read_images(log.read(end - start[1])))

    def store(self, expressions: Sequence[str]) -> list[tuple[str, bytes, bytes]]:
        """Insert every SQL expression; return each with its document in the log and its text by SELECT."""
        self.fetch("TRUNCATE shelf")
        start = self.place()
        for number, expression in enumerate(expressions):
            self.fetch(f"INSERT INTO shelf VALUES ({number}, {expression})")
        documents = dict(self.logged_since(start))
        texts = {number: text.encode() for number, text in self.fetch("SELECT id, j FROM shelf")}
        assert len(documents) == len(texts) == len(expressions)
        return [(expression, documents[number], texts[number]) for number, expression in enumerate(expressions)]

    def check(self, expressions: Sequence[str]) -> None:
        wrong = [(sql[:200], document[:200], text[:200]) for sql, document, text in self.store(expressions) if render(document) != text]
        assert wrong == []


def read_images(log: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse the row images of a table `(INT, JSON)` in plain Python."""
    at = 0
    while at < len(log):
        kind, size = log[at + 4], struct.unpack_from("<I", log, at + 9)[0]
        if kind in (WRITE_ROWS, UPDATE_ROWS):
            yield from _read_rows(log[at + 19 : at + size - 4], bitmaps=2 if kind == UPDATE_ROWS else 1)
        at += size


def _read_rows(body: bytes, bitmaps: int) -> Iterator[tuple[int, bytes]]:
    at = 8 + struct.unpack_from("<H", body, 8)[0]
    assert body[at] == 2, "not a row of the two-column table"
    at += 1 + bitmaps
    while at < len(body):
        _, number, size = struct.unpack_from("<Bii", body, at)
        yield number, body[at + 9 : at + 9 + size]
        at += 9 + size


def render(document: bytes) -> bytes | int:
    out = np.zeros(text_room(len(document)), np.uint8)
    end = json_to_text(np.array(bytearray(document), np.uint8), 0, len(document), out, 0)
    return out[:end].tobytes() if end >= 0 else end


def literal(value: Any) -> str:
    """A JSON text as an SQL literal."""
    return literal_text(json.dumps(value))


def literal_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.fixture(scope="module")
def shelf(mysql_server: PrivateServer) -> Iterator[Shelf]:
    with mysql_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE jsonb CHARACTER SET utf8mb4")
        cursor.execute("USE jsonb")
        cursor.execute("CREATE TABLE shelf (id INT, j JSON)")
        yield Shelf(mysql_server, connection)
        cursor.execute("DROP DATABASE jsonb")


def test_the_unit_fixture_is_what_this_server_writes(shelf: Shelf) -> None:
    """With HEADRACE_WRITE_FIXTURES=1 the fixture is written from the server."""
    fixture = json.loads(FIXTURE.read_text())
    stored = shelf.store([case["sql"] for case in fixture["documents"]])
    now = [{"sql": sql, "document": document.hex(), "text": text.decode()} for sql, document, text in stored]
    if os.environ.get("HEADRACE_WRITE_FIXTURES"):
        [(version,)] = shelf.fetch("SELECT VERSION()")
        FIXTURE.write_text(json.dumps({"server": f"MySQL {version}", "documents": now}, indent=1, ensure_ascii=True) + "\n")
    else:
        assert now == fixture["documents"]


def test_scalars_at_their_extremes(shelf: Shelf) -> None:
    edges = [edge + step for bits in (7, 8, 15, 16, 31, 32, 63, 64) for edge in (1 << bits, -(1 << bits)) for step in (-1, 0, 1)]
    numbers = [number for number in edges if -(1 << 63) <= number < 1 << 64]
    values = [None, True, False, 0, "", [], {}, *numbers]
    shelf.check([literal(value) for value in values] + [literal([value, {"k": value}]) for value in values])


def test_integers_beyond_64_bits_are_doubles(shelf: Shelf) -> None:
    shelf.check([literal_text(str(number)) for number in (1 << 64, -(1 << 63) - 1, 10**30)])


def test_every_ascii_character_and_many_others_in_values_and_keys(shelf: Shelf) -> None:
    characters = [
        *map(chr, range(0x180)),
        "\u07ff",
        "\u0800",
        "\u2028",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        "\U0010ffff",
        "漢",
        "😀",
    ]
    shelf.check([literal({character: f"{character}{character * 9}x"}) for character in characters])
    shelf.check([literal_text(json.dumps({f"ключ {n}": characters[n : n + 40]}, ensure_ascii=False)) for n in range(0x20, 0x180, 9)])


def test_strings_of_every_length_around_the_sizes_of_words_and_lengths(shelf: Shelf) -> None:
    lengths = [*range(40), 126, 127, 128, 129, 16382, 16383, 16384, 16385]
    shelf.check([literal("é" * (n % 2) + "s" * n) for n in lengths] + [literal({"k" * n: "\n" * n}) for n in lengths])


def test_doubles_as_the_server_prints_them(shelf: Shelf) -> None:
    near = [
        float(f"{digits}e{exponent}") for digits in ("1", "1.5", "9.999999999999999", "1.2345678901234567") for exponent in range(-20, 25)
    ]
    edges = [0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1 + 0.2]
    values = [signed for value in near + edges for signed in (value, -value)]
    shelf.check([literal(value) for value in values] + [f"JSON_ARRAY({value!r}e0)" for value in values if "e" not in repr(value)])


def test_100_000_random_doubles_as_the_server_prints_them(shelf: Shelf) -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 64, 101_000, dtype=np.uint64).view(np.float64).tolist()
    everyday = np.random.default_rng(4).normal(0, 1e6, 20_000).round(3).tolist()
    values = [value for value in bits if math.isfinite(value)] + everyday
    assert len(values) > 100_000
    shelf.check([literal(values[at : at + 8_000]) for at in range(0, len(values), 8_000)])


def test_every_power_of_two_as_the_server_prints_it(shelf: Shelf) -> None:
    shelf.check([literal([math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)])])


@pytest.mark.parametrize("wrap", ["JSON_ARRAY({})", "JSON_OBJECT('k', {})", "CAST({} AS JSON)"])
def test_sql_values_inside_json(shelf: Shelf, wrap: str) -> None:
    values = [
        "DATE'1000-01-01'",
        "DATE'9999-12-31'",
        "TIMESTAMP'2015-01-15 23:24:25'",
        "TIMESTAMP'2015-01-15 23:24:25.000001'",
        "CAST('9999-12-31 23:59:59.999999' AS DATETIME(6))",
        "FROM_UNIXTIME(1)",
        "TIME'00:00:00'",
        "TIME'838:59:59'",
        "TIME'-838:59:59'",
        "TIME'-00:00:00.000001'",
        "TIME'12:34:56.5'",
        "b'101'",
        "x'00ff'",
        "CAST(2015 AS YEAR)",
        "POINT(1, 2.5)",
        "CAST(0.1 AS FLOAT)",
        "CAST(1e30 AS FLOAT)",
        "1/3",
        "POW(2, 0.5)",
        "TRUE",
        "18446744073709551615",
    ]
    shelf.check([wrap.format(value) for value in values])


def test_decimals_of_every_shape(shelf: Shelf) -> None:
    nines = "9" * 65
    shapes = [
        f"CAST({sign}{nines[: precision - scale] or '0'}.{nines[:scale] or '0'} AS DECIMAL({precision}, {scale}))"
        for precision in (1, 2, 8, 9, 10, 17, 18, 19, 27, 28, 38, 64, 65)
        for scale in (0, 1, 5, 8, 9, 10, 18, 19, 27, 30)
        if scale <= precision
        for sign in ("", "-")
    ]
    literals = [f"{sign}{whole}.{'0' * zeros}1" for sign in ("", "-") for whole in (0, 7, 10**9, 10**20) for zeros in range(20)]
    arithmetic = ["CAST(0 AS DECIMAL(10, 2))", "-0.0", "0.0 * -1", f"{nines[:35]}.{nines[:30]} * 7", "CAST(1 AS DECIMAL(65, 30)) / 3"]
    shelf.check([f"JSON_ARRAY({value})" for value in shapes + literals + arithmetic])


def test_binary_strings_around_the_line_length_of_base64(shelf: Shelf) -> None:
    sizes = [*range(10), 55, 56, 57, 58, 59, 113, 114, 115, 1000, 100_000]
    shelf.check([f"JSON_ARRAY(LEFT(REPEAT(x'fe3c', {size}), {size}))" for size in sizes])


def test_columns_of_every_type_inside_json(shelf: Shelf) -> None:
    columns = {
        "BIT(13)": "b'1010101010101'",
        "YEAR": "2024",
        "ENUM('a', 'b')": "'b'",
        "SET('x', 'y')": "'x,y'",
        "TINYBLOB": "x'02'",
        "BLOB": "x'0001'",
        "MEDIUMBLOB": "x'03'",
        "LONGBLOB": "REPEAT(x'04', 70000)",
        "VARBINARY(20)": "x'0506'",
        "BINARY(4)": "x'07'",
        "TIMESTAMP(6) NULL": "'2020-02-03 04:05:06.123456'",
        "DATETIME(3)": "'2021-01-01 00:00:00.5'",
        "DATE": "'2022-03-04'",
        "TIME(2)": "'-12:34:56.78'",
        "DECIMAL(65, 30)": "-0.000000000000000000000000000001",
        "DECIMAL(5, 5)": "0.00001",
        "FLOAT": "0.1",
        "DOUBLE": "0.1",
        "TEXT": "'text\\n'",
        "VARCHAR(20) CHARACTER SET latin1": "'é'",
        "GEOMETRY": "POINT(1, 2)",
        "TINYINT UNSIGNED": "255",
        "BIGINT": "-9223372036854775808",
    }
    shelf.fetch("CREATE TABLE typed (" + ", ".join(f"c{n} {kind}" for n, kind in enumerate(columns)) + ")")
    shelf.fetch(f"INSERT INTO typed VALUES ({', '.join(columns.values())})")
    shelf.check([f"(SELECT JSON_ARRAY(c{n}, JSON_OBJECT('c', c{n})) FROM typed)" for n in range(len(columns))])


def test_large_objects_and_arrays(shelf: Shelf) -> None:
    values = [
        list(range(70_000)),
        [n * 1_000_003 for n in range(20_000)],
        {f"key {n}": n for n in range(20_000)},
        {"a": ["x" * 70_000, 70_000, -70_000, 4_000_000_000], "b": {"c": {"d": "é" * 70_000}}, "e": [None] * 9},
        [[f"{n}", n, {"k": n / 7}] for n in range(20_000)],
        "s" * 3_000_000,
        *({"k": "x" * size, "n": [1, 70_000]} for size in range(65_500, 65_545, 3)),
    ]
    shelf.check([literal(value) for value in values])


def test_nesting_to_the_servers_limit(shelf: Shelf) -> None:
    shelf.check([literal_text(opening + "1" + closing) for opening, closing in (("[" * 100, "]" * 100), ('[{"a": ' * 50, "}]" * 50))])
    with pytest.raises(OperationalError, match="maximum depth"):
        shelf.store([literal_text("[" * 101 + "]" * 101)])


def test_random_documents(shelf: Shelf) -> None:
    rng = random.Random(11)
    shelf.check([literal_text(json.dumps(random_value(rng, 5), ensure_ascii=rng.random() < 0.5)) for _ in range(1_500)])


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(9 if depth > 0 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.randint(-(1 << rng.randrange(1, 64)), 1 << rng.randrange(1, 64))
    if kind == 2:
        return rng.choice([rng.random(), rng.uniform(-1e9, 1e9), rng.random() * 10 ** rng.randint(-300, 300), round(rng.random() * 100, 2)])
    if kind < 6:
        return random_text(rng)
    if kind < 8:
        return {random_text(rng): random_value(rng, depth - 1) for _ in range(rng.randrange(8))}
    return [random_value(rng, depth - 1) for _ in range(rng.randrange(8))]


def random_text(rng: random.Random) -> str:
    alphabet = rng.choice(["abc", "abcdefgh 0123456789", "aé漢😀", 'a"\\/\n\t\x00\x1f\x7f'])
    return "".join(rng.choices(alphabet, k=rng.choice([0, 1, 3, 8, 20, 200])))


def test_documents_changed_in_place(shelf: Shelf) -> None:
    """The server overwrites parts of a stored document in place, which leaves gaps and values out of order."""
    value = {
        "name": "a rather long name",
        "tags": ["one", "two", "three"],
        "n": 123456789012,
        "deep": {"x": [1, 2, {"y": "zzzzzzzz"}]},
        "f": 1.5,
    }
    shelf.store([literal(value)] * 3 + [literal({**value, "big": "b" * 70_000})] * 3)
    start = shelf.place()
    changes = [
        "JSON_SET(j, '$.name', 'short')",
        "JSON_REPLACE(j, '$.tags[1]', 'dos', '$.n', 7, '$.f', 2.25)",
        "JSON_REMOVE(j, '$.tags[0]', '$.deep.x[2].y')",
        "JSON_SET(j, '$.name', 'a rather long nam', '$.deep', JSON_ARRAY(1))",
        "JSON_REMOVE(j, '$.n')",
        "JSON_REPLACE(j, '$.tags', CAST('[]' AS JSON), '$.f', 'text')",
    ]
    states = []
    gaps = 0
    for change in changes:
        shelf.fetch(f"UPDATE shelf SET j = {change}")
        gaps += sum(free for (free,) in shelf.fetch("SELECT JSON_STORAGE_FREE(j) FROM shelf"))
        states.append({number: text.encode() for number, text in shelf.fetch("SELECT id, j FROM shelf")})
    images = shelf.logged_since(start)
    sizes = shelf.fetch("SELECT id, JSON_STORAGE_SIZE(j) FROM shelf")
    assert gaps > 0
    assert [(number, len(document)) for number, document in images[-11::2]] == sizes, "the log does not hold the documents with their gaps"
    after = [(number, render(document)) for number, document in images[1::2]]
    assert after == [(number, text) for state in states for number, text in sorted(state.items())]
    assert all(isinstance(render(document), bytes) for _, document in images)


def test_the_empty_value_of_a_lax_insert_is_null(shelf: Shelf) -> None:
    shelf.fetch("CREATE TABLE strict_shelf (id INT, j JSON NOT NULL)")
    start = shelf.place()
    shelf.fetch("INSERT IGNORE INTO strict_shelf (id) VALUES (1)")
    assert shelf.fetch("SELECT id, j FROM strict_shelf") == [(1, "null")]
    assert shelf.logged_since(start) == [(1, b"")]
    assert render(b"") == b"null"
