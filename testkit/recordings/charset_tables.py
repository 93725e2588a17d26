"""Writes the tables of character sets that Headrace ships, from both servers: `python -m testkit.recordings.charset_tables`.

The servers define what a byte sequence means in a character set: conversion libraries differ from them in hundreds of places. Every
sequence that may be a character is converted by both servers in a few statements. A sequence counts as a character where all servers that
know the set accept it; they must all convert it to the same code point, otherwise nothing is written.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
from pymysql.connections import Connection

from headrace.sources.mysql.charsets import MALFORMED, TABLES, UNASSIGNED, CodePage
from testkit.servers.servers import FLAVOURS, build

Characters = dict[bytes, int]
"""From a character's bytes to its code point, or UNASSIGNED."""

_ALGORITHMIC: Final = frozenset({"utf8mb4", "utf8mb3", "ucs2", "utf16", "utf16le", "utf32", "binary"})
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 1, "pb": 1}]
_LINEAR_FIRST: Final = 0x81
_COLLATIONS: Final = {
    "mariadb": "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability",
    "mysql": "SELECT id, character_set_name FROM information_schema.collations",
}


def main() -> None:
    found: dict[str, list[Characters]] = {}
    collations: dict[int, str] = {}
    versions = []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        for flavour in FLAVOURS:
            server = stack.enter_context(build(flavour, Path(scratch) / flavour))
            connection = stack.enter_context(server.root_connection())
            versions.append(f"{flavour} {ask(connection, 'SELECT version()')[0][0]}")
            for number, charset in ask(connection, _COLLATIONS[flavour]):
                if collations.setdefault(int(number), charset) != charset:
                    raise SystemExit(f"collation {number} is of {charset} on {flavour} and of {collations[int(number)]} elsewhere")
            list_codes(connection)
            for charset, _, _, longest in ask(connection, "SHOW CHARACTER SET"):
                if charset not in _ALGORITHMIC:
                    found.setdefault(charset, []).append(read_characters(connection, charset, int(longest)))
    pages = {charset: list(pages_of(agreed(charset, answers))) for charset, answers in sorted(found.items())}
    TABLES.write_bytes(pack_tables(versions, collations, pages))
    print(f"{TABLES.name}: {len(pages)} character sets, {TABLES.stat().st_size:,} bytes, from {', '.join(versions)}")


def ask(connection: Connection[Any], sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def list_codes(connection: Connection[Any]) -> None:
    """A table of all sequences of one byte and of two."""
    singles = [bytes([one]) for one in range(256)]
    codes = singles + [one + two for one in singles for two in singles]
    ask(connection, "SET sql_mode = '', sql_log_bin = 0")
    ask(connection, "CREATE DATABASE characters")
    ask(connection, "USE characters")
    ask(connection, "CREATE TABLE codes (b VARBINARY(2) PRIMARY KEY, size INT AS (LENGTH(b)) STORED)")
    for at in range(0, len(codes), 8192):
        ask(connection, "INSERT INTO codes (b) VALUES " + ",".join(f"(x'{code.hex()}')" for code in codes[at : at + 8192]))


def read_characters(connection: Connection[Any], charset: str, longest: int) -> Characters:
    """Return the sequences that are one character each on the server."""
    found = converted(connection, charset, "b", "codes WHERE size <= 2" if longest > 1 else "codes WHERE size = 1")
    if longest == 3:
        leads = ",".join(f"x'{lead:02x}'" for lead in range(128, 256) if not any(code[0] == lead for code in found))
        # If the server reads each byte as one character, no sequence would be left to query: query the known lead as well.
        leads = f"{leads},x'8f'" if leads else "x'8f'"
        found |= converted(connection, charset, "CONCAT(one.b, two.b)", f"codes one, codes two WHERE one.b IN ({leads}) AND two.size = 2")
    if longest == 4:
        digit = "SUBSTR({0}.b, 2) BETWEEN x'30' AND x'39' AND {0}.b >= x'8130' AND {0}.b <= x'FE39' AND {0}.size = 2"
        where = f"{digit.format('one')} AND {digit.format('two')}"
        found |= converted(connection, charset, "CONCAT(one.b, two.b)", f"codes one, codes two WHERE {where}")
    return found


def converted(connection: Connection[Any], charset: str, code: str, source: str) -> Characters:
    text = f"CONVERT({code} USING {charset})"
    rows = ask(
        connection,
        f"SELECT {code}, CAST(CONVERT({text} USING utf8mb4) AS BINARY) FROM {source}"
        f" AND CHAR_LENGTH({text}) = 1 AND CAST({text} AS BINARY) = {code}",
    )
    return {raw: code_point(raw, text) for raw, text in rows}


def code_point(raw: bytes, text: bytes) -> int:
    # The server converts an unknown character to a question mark.
    return UNASSIGNED if (text == b"?" and raw != b"?") or not text else ord(text.decode())


def agreed(charset: str, answers: list[Characters]) -> Characters:
    """Return the characters of all servers; they must convert each to the same code point."""
    common = set.intersection(*map(set, answers))
    for code in common:
        if len({answer[code] for answer in answers}) > 1:
            raise SystemExit(f"the servers disagree on {charset} {code.hex()}: {[hex(answer[code]) for answer in answers]}")
    return {code: answers[0][code] for code in common}


def pages_of(characters: Characters) -> Iterator[CodePage]:
    """Code points by last byte, for every prefix; the four-byte characters of gb18030 by their number."""
    four = {linear_number(code): point for code, point in characters.items() if len(code) == 4}
    if four:
        yield four_byte_page(four)
    prefixes: dict[bytes, dict[int, int]] = {}
    for code, point in characters.items():
        if len(code) < 4:
            prefixes.setdefault(code[:-1], {})[code[-1]] = point
    for prefix, row in sorted(prefixes.items()):
        low, high = min(row), max(row)
        yield CodePage(prefix, low, tuple(row.get(last, MALFORMED) for last in range(low, high + 1)))


def four_byte_page(four: dict[int, int]) -> CodePage:
    """The part below U+10000; beyond it numbers and code points run in parallel, which is checked here."""
    beyond = 189_000
    plain = max(number for number, point in four.items() if number < beyond and point != UNASSIGNED)
    for number, point in four.items():
        expected = number - beyond + 0x10000 if beyond <= number < beyond + 0x100000 else UNASSIGNED
        if number > plain and point != expected:
            raise SystemExit(f"four-byte character {number} is U+{point:04X}, not U+{expected:04X}")
    return CodePage(b"\0\0\0", 0, tuple(four[number] for number in range(plain + 1)))


def linear_number(code: bytes) -> int:
    one, two, three, four = code
    return (((one - _LINEAR_FIRST) * 10 + two - 0x30) * 126 + three - _LINEAR_FIRST) * 10 + four - 0x30


def pack_tables(servers: Sequence[str], collations: Mapping[int, str], pages: Mapping[str, Sequence[CodePage]]) -> bytes:
    """Return the file's bytes. Points are stored as differences: neighbours in most sets are neighbours in Unicode."""
    header = {
        "servers": servers,
        "collations": {
            charset: ranges_of(n for n, of in collations.items() if of == charset) for charset in sorted(set(collations.values()))
        },
        "pages": {charset: [(page.prefix.hex(), page.first, len(page.points)) for page in group] for charset, group in pages.items()},
    }
    points = np.array([point for group in pages.values() for page in group for point in page.points], dtype=np.uint16)
    deltas = np.diff(points, prepend=np.uint16(0)).astype("<u2")
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (len(text) % 2)
    return lzma.compress(len(text).to_bytes(4, "little") + text + deltas.tobytes(), filters=_FILTERS)


def ranges_of(numbers: Iterator[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


if __name__ == "__main__":
    main()
