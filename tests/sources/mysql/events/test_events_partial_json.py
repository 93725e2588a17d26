"""Partial updates of JSON columns: the documents rebuilt from the log equal the server's SELECT. (Only MySQL has them.)"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.sources.mysql.segments.event_expander import EventExpander
from headrace.sources.mysql.segments.partial_json_update import apply_change, parse_document, parse_path, write_document
from testkit.oracles.binlogs import Logbook, Place, images_of, kinds_of, open_logbook
from testkit.oracles.planned import PlannedLog, replayed

PARTIAL = 39
SCALARS = [
    "'text'",
    "''",
    "REPEAT('long ', 9000)",
    "'\"quoted\" \\\\ \\n \\u0001 é 😀'",
    "1",
    "-32768",
    "65535",
    "-2147483648",
    "4294967295",
    "9223372036854775807",
    "18446744073709551615",
    "1.5e300",
    "0.1e0",
    "-12345.678901",
    "CAST('true' AS JSON)",
    "CAST('null' AS JSON)",
    "CAST('false' AS JSON)",
    "CAST('2024-05-06 07:08:09.123456' AS DATETIME(6))",
    "CAST('2024-05-06' AS DATE)",
    "CAST('-838:59:59' AS TIME(6))",
    "CAST(x'00ff10' AS BINARY)",
    "CAST('[1, [2, {\"deep\": [3]}]]' AS JSON)",
    'CAST(\'{"bb": 1, "a": 2, "ccc": {}}\' AS JSON)',
    "CAST('[]' AS JSON)",
    "CAST('{}' AS JSON)",
]
CHANGES = [
    "JSON_SET({c}, '$.a', {v})",
    "JSON_SET({c}, '$.new', {v})",
    "JSON_SET({c}, '$.o.inner', {v}, '$.o.new', {v})",
    "JSON_REPLACE({c}, '$.l[1]', {v})",
    "JSON_SET({c}, '$.l[99]', {v})",
    "JSON_SET({c}, '$.l[last]', {v})",
    "JSON_REMOVE({c}, '$.a')",
    "JSON_REMOVE({c}, '$.l[0]', '$.o.inner')",
    "JSON_SET(JSON_REMOVE({c}, '$.l[1]'), '$.\"odd key \\\\\" . [x] é\"', {v})",
    "JSON_SET({c}, '$.o', {v})",
    "JSON_SET({c}, '$', {v})",
]


@pytest.fixture
def book(mysql_server: PrivateServer) -> Iterator[Logbook]:
    with open_logbook(mysql_server, "mysql") as book:
        book.run("CREATE DATABASE partial_json CHARACTER SET utf8mb4", "USE partial_json")
        book.database = "partial_json"
        book.run("CREATE TABLE t (id INT PRIMARY KEY, one JSON, b BIT(3), two JSON, d DECIMAL(10,3), s VARCHAR(300), three JSON)")
        book.run("SET SESSION binlog_row_value_options = PARTIAL_JSON")
        yield book
        book.run("DROP DATABASE partial_json")


DOCUMENT = '\'{"a": 1, "l": [1, "two", [3]], "o": {"inner": null, "x": 2.5}, "pad": "%s"}\'' % ("p" * 400)


def test_every_change_of_every_kind_of_value(book: Logbook) -> None:
    """Several rows per event, several JSON columns: changed partially, completely, not at all, or NULL."""
    start = book.place()
    book.run("BEGIN")
    for i in range(4):
        third = "NULL" if i == 2 else DOCUMENT
        book.run(f"INSERT INTO t VALUES ({i}, {DOCUMENT}, b'101', {DOCUMENT}, 1.5, REPEAT('s', 290), {third})")
    book.run("COMMIT")
    for n, change in enumerate(CHANGES):
        for value in SCALARS:
            one = change.format(c="one", v=value)
            two = CHANGES[(n + 3) % len(CHANGES)].format(c="two", v=value) if n % 2 else "two"
            book.run("BEGIN", f"UPDATE t SET one = {one}, two = {two}, d = d + 1, three = IF(id = 3, '[0]', three)", "COMMIT")
        book.run(f"UPDATE t SET one = {DOCUMENT}, two = {DOCUMENT}")
    assert kinds_of(book.bytes_of(book.segment(start))).count(PARTIAL) > 100
    check(book, start)


def check(book: Logbook, start: Place) -> None:
    images = PlannedLog(book, start).images("t")
    schema = book.schema("t")
    assert replayed(images) == book.select(schema)
    assert any(image.op is Op.UPDATE for image in images)


def test_random_walks_through_documents(book: Logbook) -> None:
    """Compare every intermediate document with a second table that is logged completely."""
    book.run("CREATE TABLE w (id INT PRIMARY KEY, one JSON)")
    chooser = random.Random(11)
    start = book.place()
    book.run(f"INSERT INTO t VALUES (1, {DOCUMENT}, b'1', NULL, 0, '', NULL)")
    paths = ["$.a", "$.l[0]", "$.l[1]", "$.l[5]", "$.o.x", "$.o.y", "$.o.y.z", '$."k 1"', "$.l[last-1]", "$.pad2"]
    for step in range(150):
        value, path = chooser.choice(SCALARS[:3] + SCALARS[4:]), chooser.choice(paths)
        call = chooser.choice(["JSON_SET(one, '{p}', {v})", "JSON_REPLACE(one, '{p}', {v})", "JSON_REMOVE(one, '{p}')"])
        changed = call.format(p=path, v=value if len(value) < 100 else "'v'")
        book.run(f"UPDATE t SET one = {changed}, s = '{step}'", f"INSERT INTO w SELECT {step}, one FROM t")
    images = PlannedLog(book, start).images("t", "w")
    updates = {image.row[5]: image.row[1] for image in images if image.op is Op.UPDATE}
    whole = {image.row[0]: image.row[1] for image in images if image.table.table == "w"}
    assert updates == whole
    assert len(whole) == 150
    book.run("DROP TABLE w")


def test_in_a_compressed_transaction_too(book: Logbook) -> None:
    start = book.place()
    book.run("SET SESSION binlog_transaction_compression = ON", f"INSERT INTO t VALUES (1, {DOCUMENT}, b'1', NULL, 0, '', NULL)")
    book.run("UPDATE t SET one = JSON_SET(one, '$.a', 'changed'), s = 'x'", "SET SESSION binlog_transaction_compression = OFF")
    check(book, start)


def test_damaged_changes_are_definite_errors(book: Logbook, tmp_path: Path) -> None:
    book.run(f"INSERT INTO t VALUES (1, {DOCUMENT}, b'1', {DOCUMENT}, 0, '', NULL)")
    start = book.place()
    book.run("UPDATE t SET one = JSON_SET(one, '$.a', 'changed', '$.l[1]', 5), two = JSON_REMOVE(two, '$.o.x')")
    segment = book.segment(start)
    data = book.bytes_of(segment)
    [begin] = [at for at, kind in starts_of(data) if kind == PARTIAL]
    whole = [(image.op, image.row) for image in images_of(book.read(start, "t"))]
    outcomes = {"error": 0, "rows": 0}
    for at in range(begin + 19, begin + int.from_bytes(data[begin + 9 : begin + 13], "little") - 4):
        broken = bytearray(data)
        broken[at] ^= 0x41
        path = tmp_path / "damaged"
        with path.open("wb") as file:
            file.seek(segment.start)
            file.write(broken)
        try:
            list(EventExpander(str(path), segment.file, segment.start, segment.end, True, 0).pieces())
            outcomes["rows"] += 1
        except DefiniteError:
            outcomes["error"] += 1
    assert outcomes["error"] > 30
    assert whole[0][0] is Op.UPDATE


def starts_of(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        yield at, data[at + 4]
        at += int.from_bytes(data[at + 9 : at + 13], "little")


def test_paths_are_read_as_the_server_writes_them() -> None:
    assert parse_path("$") == ()
    assert parse_path('$.a."b c"[3].$x[last][last-2]') == (b"a", b"b c", 3, b"$x", -1, -3)
    assert parse_path('$."\\"\\\\ \\u00e9 . [0]"') == ('"\\ é . [0]'.encode(),)
    for wrong in ("", "a", "$.", "$[", "$[x]", "$.a[", "$ .a b", "$**.a"):
        with pytest.raises(ValueError, match="path"):
            parse_path(wrong)


def test_a_tree_of_many_members_is_written_and_read() -> None:
    tree = parse_document(b"")
    for _ in range(50):
        tree = {f"k{i}".encode(): tree if i == 0 else parse_document(b"") for i in range(20)}
    assert parse_document(write_document(tree)) == tree
    with pytest.raises(ValueError, match="path"):
        apply_change(tree, 0, (b"missing",), parse_document(b""))
