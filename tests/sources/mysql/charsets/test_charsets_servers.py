"""Text in every character set of the servers: decoded from the log, it equals the server's SELECT.

The server, which converts the same stored bytes to utf8mb4, is the reference.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import Op
from headrace.sources.mysql.charsets import FOUR_BYTES, MALFORMED, charset_of_collation, load_tables
from headrace.sources.mysql.segments.segment_reader import plan_tables, read_segment
from testkit.oracles.binlogs import Logbook, images_of, open_logbook, rows_of

WIDE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "utf8mb3": "utf8", "utf8mb4": "utf8"}
TEXT_LENGTH = 60


def charsets(book: Logbook) -> list[str]:
    return sorted(row[0] for row in book.fetch("SHOW CHARACTER SET") if row[0] != "binary")


def characters(charset: str) -> list[bytes]:
    """Every character of the set, also unassigned ones; of Unicode's 17 planes the first, and parts of the others."""
    if charset in WIDE:
        plane = [point for point in range(0x10000) if not 0xD800 <= point < 0xE000]
        beyond = [] if charset in ("ucs2", "utf8mb3") else [0x10000, *range(0x10007, 0x110000, 331), 0x10FFFF]
        return [chr(point).encode(WIDE[charset]) for point in plane + beyond]
    found = []
    for page in load_tables().pages(charset):
        for last, point in enumerate(page.points, page.first):
            if page.prefix == FOUR_BYTES:
                found.append(four_bytes(last))
            elif point != MALFORMED:
                found.append(page.prefix + bytes([last]))
    if charset == "gb18030":
        found += [four_bytes(number) for number in (39_420, 188_999, *range(189_000, 1_587_600, 331), 1_237_575, 1_237_576, 1_587_599)]
    return found


def four_bytes(number: int) -> bytes:
    number, four = divmod(number, 10)
    number, three = divmod(number, 126)
    one, two = divmod(number, 10)
    return bytes([0x81 + one, 0x30 + two, 0x81 + three, 0x30 + four])


def test_every_character_of_every_set(book: Logbook) -> None:
    names = charsets(book)
    assert len(names) == (39 if book.server.flavour == "mariadb" else 40)
    for charset in names:
        known = characters(charset)
        if charset == "ascii" and book.server.flavour == "mysql":
            known = known[:128]
        texts = [b"".join(known[at : at + TEXT_LENGTH]) for at in range(0, len(known), TEXT_LENGTH)]
        book.run(f"CREATE TABLE t_{charset} (id INT PRIMARY KEY, v VARCHAR({TEXT_LENGTH}), c CHAR(1), t TEXT) CHARACTER SET {charset}")
        start = book.place()
        book.insert(f"t_{charset}", [(n, text, known[n * TEXT_LENGTH], text) for n, text in enumerate(texts)])
        schema = book.schema(f"t_{charset}")
        assert {column.charset for column in schema.columns[1:]} == {charset}
        expected = book.select(schema)
        assert sum(len(str(row[1])) for row in expected) >= len(known), charset
        assert [image.row for image in images_of(book.read(start, f"t_{charset}"))] == expected, charset
        assert book.scanned(schema, "1=1 ORDER BY id") == expected, charset


def test_any_bytes_that_a_server_takes(server: PrivateServer, database: str) -> None:
    """A server in non-strict mode stores a part of every string; five sets in one table, updated and deleted."""
    chance = random.Random(17)
    sets = ["latin1", "sjis", "gb18030" if server.flavour == "mysql" else "gbk", "utf16", "eucjpms"]
    with open_logbook(server, database, sql_mode="") as book:
        columns = ", ".join(f"c{n} VARCHAR(40) CHARACTER SET {charset}" for n, charset in enumerate(sets))
        book.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, e TEXT CHARACTER SET big5)")

        def text() -> bytes | None:
            alphabet = chance.choice([bytes(range(256)), bytes(range(0x20, 0x7F)), bytes(range(0x81, 0xFF)), b"a\x81\x8f\x8e0\xa1 "])
            return None if chance.random() < 0.05 else bytes(chance.choices(alphabet, k=chance.randrange(40)))

        start = book.place()
        book.insert("t", [(n, *(text() for _ in sets), text()) for n in range(1500)])
        schema = book.schema("t")
        first = book.select(schema)
        book.run("UPDATE t SET c0 = c1, c1 = c2, c2 = c3, c3 = c4, c4 = c0, e = c1")
        second = book.select(schema)
        book.run("DELETE FROM t")
        found = images_of(book.read(start, "t"))
        assert [image.row for image in found if image.op is Op.INSERT] == first
        assert [image.row for image in found if image.op is Op.DELETE] == second
        updated = {row[0]: row for row in first} | {image.row[0]: image.row for image in found if image.op is Op.UPDATE}
        assert list(updated.values()) == second


@pytest.mark.parametrize("charset", ["latin1", "cp1251", "gbk", "sjis", "ucs2", "utf16le", "utf32", "utf8mb3", "utf8mb4"])
def test_names_of_members_columns_and_comments(book: Logbook, charset: str) -> None:
    words = {"cp1251": ("вода", "желоб"), "gbk": ("水渠", "磨坊"), "sjis": ("水車", "ソ表"), "latin1": ("Mühle", "€uro")}
    one, two = words.get(charset, ("Mühle 水車", "水渠" if charset != "utf8mb4" else "🚰"))
    book.run(
        f"CREATE TABLE t (id INT PRIMARY KEY, `{one}` ENUM('{one}', '?', '{two}') COMMENT '{two}',"
        f" s SET('{one}', '{two}', 'x') COMMENT '{one}') CHARACTER SET {charset} COMMENT '{one}'"
    )
    start = book.place()
    book.run(f"INSERT INTO t VALUES (1, '{one}', '{two},x'), (2, '{two}', '{one},{two}'), (3, '?', ''), (4, NULL, NULL)")
    schema = book.schema("t")
    assert schema.columns[1].name == one
    assert [image.row for image in images_of(book.read(start, "t"))] == book.select(schema) == book.scanned(schema)
    assert book.select(schema)[0] == ("1", one, f"{two},x")


def test_an_update_of_a_key_in_another_character_set(book: Logbook) -> None:
    book.run("CREATE TABLE t (k VARCHAR(20) CHARACTER SET cp1251 COLLATE cp1251_bin, u CHAR(9) CHARACTER SET ucs2, PRIMARY KEY (k, u))")
    book.run("INSERT INTO t VALUES ('мельница', 'вода')")
    start = book.place()
    book.run("UPDATE t SET k = 'МЕЛЬНИЦА'", "UPDATE t SET u = '水'")
    assert [(image.op, image.row) for image in images_of(book.read(start, "t"))] == [
        (Op.BEFORE, ("мельница", "вода")),
        (Op.UPDATE, ("МЕЛЬНИЦА", "вода")),
        (Op.BEFORE, ("МЕЛЬНИЦА", "вода")),
        (Op.UPDATE, ("МЕЛЬНИЦА", "水")),
    ]


def test_bytes_are_read_as_the_log_says_they_were_written(book: Logbook) -> None:
    """A schema that was captured after a conversion does not change the decoding of older events."""
    book.run("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), b BINARY(3), c VARCHAR(9)) CHARACTER SET latin1")
    book.run("ALTER TABLE t MODIFY c VARCHAR(9) CHARACTER SET cp850")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 'é€', 'x', 'é')")
    old = book.schema("t")
    rows = book.select(old)
    book.run("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4")
    assert [column.charset for column in book.schema("t").columns] == ["", "utf8mb4", "", "utf8mb4"]
    assert [image.row for image in images_of(book.read(start, "t"))] == rows == [("1", "é€", b"x\0\0", "é")]


def test_invalid_text_is_rejected_with_its_position(book: Logbook) -> None:
    """Both servers store halves of surrogate pairs in ucs2, and MariaDB in UTF-8; no string can hold them."""
    kinds = ["ucs2"] if book.server.flavour == "mysql" else ["ucs2", "utf8mb4"]
    for charset in kinds:
        half = b"\xd8\x00" if charset == "ucs2" else b"\xed\xa0\x80"
        book.run(f"CREATE TABLE t_{charset} (id INT PRIMARY KEY, good VARCHAR(5), bad VARCHAR(5)) CHARACTER SET {charset}")
        start = book.place()
        book.insert(f"t_{charset}", [(1, "ä", "ä"), (2, "ä", half)])
        message = r"column bad \(varchar\(5\)\) holds bytes that are not text"
        with pytest.raises(DefiniteError, match=message) as caught:
            book.read(start, f"t_{charset}")
        assert re.fullmatch(rf"{start.file}:\d+ or after, table {book.database}.t_{charset}, column bad", str(caught.value.place))
        with pytest.raises(DefiniteError, match=message):
            book.scanned(book.schema(f"t_{charset}"))


def test_every_collation_is_of_its_set(book: Logbook) -> None:
    table = "collation_character_set_applicability" if book.server.flavour == "mariadb" else "collations"
    rows = book.fetch(f"SELECT id, character_set_name FROM information_schema.{table}")
    assert len(rows) > 250
    assert [charset_of_collation(int(number)) for number, _ in rows] == [charset for _, charset in rows]


def test_the_log_counts_only_columns_that_have_a_collation(book: Logbook) -> None:
    """Columns of every kind next to each other, also with a schema that names another character set for each column."""
    odd = (
        "u UUID, z VARCHAR(20) COMPRESSED CHARACTER SET koi8r, i INET6"
        if book.server.flavour == "mariadb"
        else "u VECTOR(2), z CHAR, i JSON"
    )
    text = "a VARCHAR(20) CHARACTER SET cp1251, b BLOB, g GEOMETRY, c TEXT CHARACTER SET koi8r, d CHAR(9) CHARACTER SET cp866"
    names = "e ENUM('ж', 'x') CHARACTER SET cp1251, s SET('ж', 'x') CHARACTER SET koi8r"
    # Enough columns of one set that the log has it as the default and lists the others.
    most = ", ".join(f"m{n} CHAR(9)" for n in range(9))
    for table, more in (("few", ""), ("many", f", {most}")):
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, {odd}, {text}, {names}{more}) CHARACTER SET cp1251")
        start = book.place()
        book.run(f"INSERT INTO {table} (id, z, a, b, c, d, e, s) VALUES (1, 'ж', 'мельница', 'ж', 'вода', 'желоб', 'ж', 'ж,x')")
        if more:
            book.run("UPDATE many SET m0 = 'ж', m8 = 'вода'")
        catalog = book.catalog(table)
        schema = book.schema(table)
        misled = replace(schema, columns=tuple(replace(column, charset=column.charset and "latin1") for column in schema.columns))
        [block] = read_segment(
            book.segment(start), replace(catalog, tables=plan_tables({schema.name: misled}, {schema.name: schema.primary_key}))
        )
        assert rows_of(schema, [block.images])[-1:] == book.select(schema)


def test_bytes_that_were_text_then_are_another_table(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT CHARACTER SET latin1, g GEOMETRY)")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 'é', NULL)", "ALTER TABLE t MODIFY v BLOB")
    with pytest.raises(DefiniteError, match=r"column v \(blob\) was text then"):
        book.read(start, "t")
