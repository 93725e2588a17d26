"""Every column type at its extremes: what Headrace decodes is what the server's own SELECT prints and what mysql-replication reads.

Each type has a column and a list of SQL values; row r of the table holds value r of every type (lists are repeated to the longest), the
last row is NULL throughout. The rows are inserted, each is updated to the next one's values, and all are deleted.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from headrace.demo.server import PrivateServer
from headrace.model.change import Op
from headrace.model.schema import Column, Kind, TableSchema
from headrace.sources.mysql.decoder import ReadOptions
from testkit.binlogs import Logbook, Row, Value, fraction_text, images_of, open_logbook, time_text

NINES = "9" * 65
BIG_ENUM = tuple(f"member {n}" for n in range(300))
ODD_ENUM = ("it''s", "a,b", 'say "hi"', "back\\\\slash", "ünïcödé 🚰", "new\\nline", "", "%s", "tab\\t", "(")
BIG_SET = tuple(f"s{n}" for n in range(64))


def quote(*names: str) -> str:
    return ",".join(f"'{name}'" for name in names)


def hexes(*values: bytes) -> list[str]:
    return [f"x'{value.hex()}'" for value in values]


def integers(bits: int) -> list[str]:
    return [str(-(1 << bits - 1)), str((1 << bits - 1) - 1), "0", "-1", "1", str(-(1 << bits - 2) - 1)]


def unsigneds(bits: int) -> list[str]:
    return ["0", str((1 << bits) - 1), str(1 << bits - 1), "1", str((1 << bits - 1) - 1)]


def decimals(precision: int, scale: int) -> list[str]:
    top = NINES[: precision - scale] + ("." + NINES[:scale] if scale else "")
    top = top if precision > scale else "0" + top
    least = "0." + "0" * (scale - 1) + "1" if scale else "1"
    middle = ("123456789" * 8)[: precision - scale] or "0"
    return [f"'{text}'" for text in (top, f"-{top}", least, f"-{least}", "0", f"-{middle}", middle)]


def moments(low: str, high: str, digits: int) -> list[str]:
    ends = "" if not digits else "." + "9" * digits
    one = "" if not digits else "." + "0" * (digits - 1) + "1"
    return [f"'{low}'", f"'{high}{ends}'", f"'2024-02-29 12:34:56{one}'", f"'2000-12-31 23:59:59{ends}'", f"'1999-01-01 00:00:00{one}'"]


def durations(digits: int) -> list[str]:
    ends = "" if not digits else "." + "9" * digits
    one = "" if not digits else "." + "0" * (digits - 1) + "1"
    edges = ("838:59:59", "-838:59:59", "00:00:00", f"-00:00:00{one}", f"00:00:00{one}", f"-00:00:01{ends}", f"-838:59:58{ends}")
    return [f"'{text}'" for text in (*edges, f"23:59:59{ends}", f"24:00:00{one}", f"-99:59:59{ends}")]


def texts(longest: int) -> list[str]:
    edges = [n for n in (0, 1, 250, 251, 255, 256, 65535, 65536) if n <= longest]
    return [*(f"REPEAT('x', {n})" for n in edges), "'ünïcödé 🚰 漢字'", "'  both ends'", r"'nul \0 in it'", r"'\\ \' \" \n'"]


def blobs(longest: int) -> list[str]:
    edges = [n for n in (0, 1, 250, 251, 255, 256, 65535, 65536) if n <= longest]
    return [*(f"REPEAT(x'00', {n})" for n in edges), *hexes(bytes(range(min(256, longest + 1)))[:longest], b"\xff\xfe\x00 \x00")]


INTEGERS = (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
DECIMALS = (
    *((1, 0), (1, 1), (9, 9), (10, 2), (18, 0), (18, 9), (19, 0)),
    *((19, 10), (30, 30), (38, 10), (39, 1), (56, 11), (65, 0), (65, 30)),
)
BITS = (1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 57, 63, 64)
DATES = ["1000-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2024-02-29", "1900-02-28", "0001-01-01", "0000-12-31"]
JSON = ["{}", "[]", "null", "true", '{"a": [1, 2.5, "x", null], "b": {"c": "🚰"}}', "18446744073709551615", '"text"', "[1e100]"]

TYPES: dict[str, tuple[str, list[str]]] = {
    **{f"i{bits}": (name, integers(bits)) for name, bits in INTEGERS},
    **{f"u{bits}": (f"{name} UNSIGNED", unsigneds(bits)) for name, bits in INTEGERS},
    "flag": ("BOOLEAN", ["TRUE", "FALSE"]),
    "f32": ("FLOAT", ["3.4028234e38", "-3.4028234e38", "1.17549435e-38", "1.4e-45", "0", "0.1", "-16777217", "1e10"]),
    "f64": ("DOUBLE", ["1.7976931348623157e308", "-1.7976931348623157e308", "2.2250738585072014e-308", "5e-324", "0", "0.1", "-1e-7"]),
    "f64p": ("DOUBLE(12,3)", ["123456789.125", "-0.001", "0"]),
    **{f"d{precision}_{scale}": (f"DECIMAL({precision},{scale})", decimals(precision, scale)) for precision, scale in DECIMALS},
    "du": ("DECIMAL(20,4) UNSIGNED", ["0", "9999999999999999.9999", "1.5"]),
    "c0": ("CHAR(0)", ["''"]),
    "c1": ("CHAR(1)", ["''", "'x'", "'🚰'", "'漢'"]),
    "c255": ("CHAR(255)", ["''", "'x'", "REPEAT('🚰', 255)", "REPEAT('y', 255)", "' lead'", r"'\0'"]),
    "ca": ("CHAR(40) CHARACTER SET ascii", ["''", "'ascii'", "REPEAT('z', 40)"]),
    "v0": ("VARCHAR(0)", ["''"]),
    "v63": ("VARCHAR(63)", texts(63)),
    "v64": ("VARCHAR(64)", [*texts(64), "REPEAT('🚰', 64)", "'trail  '"]),
    "v3": ("VARCHAR(255) CHARACTER SET utf8mb3", ["''", "'漢字'", "REPEAT('漢', 255)"]),
    "v9k": ("VARCHAR(500)", [*texts(256), "REPEAT('🚰', 500)"]),
    "t8": ("TINYTEXT", texts(255)),
    "t16": ("TEXT", texts(65535)),
    "t24": ("MEDIUMTEXT", texts(65536)),
    "t32": ("LONGTEXT", [*texts(65536), "REPEAT('漢', 100000)"]),
    "b1": ("BINARY(1)", hexes(b"\0", b"\xff", b" ")),
    "b255": ("BINARY(255)", hexes(b"\0" * 255, b"\xff" * 255, b"a", b"a\0b\0", b"trail  ", b"")),
    "vb0": ("VARBINARY(0)", ["''"]),
    "vb255": ("VARBINARY(255)", blobs(255)),
    "vb256": ("VARBINARY(256)", blobs(256)),
    "bl8": ("TINYBLOB", blobs(255)),
    "bl16": ("BLOB", blobs(65535)),
    "bl24": ("MEDIUMBLOB", blobs(65536)),
    "bl32": ("LONGBLOB", [*blobs(65536), "REPEAT(x'ff00', 100000)"]),
    "day": ("DATE", [f"'{date}'" for date in DATES]),
    **{f"dt{n}": (f"DATETIME({n})", [*moments("0001-01-01 00:00:00", "9999-12-31 23:59:59", n), "'0000-01-01'"]) for n in range(7)},
    **{f"ts{n}": (f"TIMESTAMP({n}) NULL", moments("1970-01-01 00:00:01", "2038-01-19 03:14:07", n)) for n in range(7)},
    **{f"tm{n}": (f"TIME({n})", durations(n)) for n in range(7)},
    "yr": ("YEAR", ["1901", "2155", "0", "2000", "'0000'"]),
    "en": (f"ENUM({quote('a', 'B', 'c')})", quote("a", "B", "c").split(",")),
    "enbig": (f"ENUM({quote(*BIG_ENUM)})", quote("member 0", "member 254", "member 255", "member 256", "member 299").split(",")),
    "enodd": (f"ENUM({quote(*ODD_ENUM)})", [f"'{name}'" for name in ODD_ENUM]),
    "st": (f"SET({quote('a', 'b', 'c')})", ["''", "'a'", "'a,c'", "'a,b,c'"]),
    "st9": (f"SET({quote(*BIG_SET[:9])})", ["''", "'s8'", "'s0,s8'"]),
    "st20": (f"SET({quote(*BIG_SET[:20])})", ["''", "'s19'", "'s0,s7,s15,s16,s19'"]),
    "st64": (f"SET({quote(*BIG_SET)})", ["''", "'s63'", f"'{','.join(BIG_SET)}'", "'s0,s31,s32,s63'"]),
    "stodd": (r"SET('it''s', 'back\\slash', 'é🚰')", ["'it''s'", r"'back\\slash,é🚰'", "''"]),
    **{f"bit{n}": (f"BIT({n})", ["0", str((1 << n) - 1), "1", str(1 << n - 1)]) for n in BITS},
    "js": ("JSON", [f"'{text}'" for text in JSON]),
}
ROWS = max(len(values) for _, values in TYPES.values())


def literals(row: int) -> str:
    return ", ".join(values[row % len(values)] for _, values in TYPES.values())


class Story:
    """The table's life, told once per server."""

    def __init__(self, book: Logbook) -> None:
        self.book = book
        columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
        # 90 columns of a few kilobytes exceed a page's row; most of it is stored off the page.
        book.run(f"CREATE TABLE every_type (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        self.start = book.place()
        book.run(*(f"INSERT INTO every_type VALUES ({row}, {literals(row)})" for row in range(ROWS)))
        book.run("INSERT INTO every_type (id) VALUES (1000)")
        self.schema = book.schema("every_type")
        self.inserted = book.select(self.schema)
        self.scanned = book.scanned(self.schema)
        for row in range(ROWS):
            values = [values[(row + 1) % len(values)] for _, values in TYPES.values()]
            book.run(f"UPDATE every_type SET {', '.join(f'`{n}` = {v}' for n, v in zip(TYPES, values, strict=True))} WHERE id = {row}")
        self.updated = book.select(self.schema)
        book.run("DELETE FROM every_type")
        self.images = images_of(book.read_by(self.start, self.schema, ReadOptions(every_before=True)))

    def rows(self, op: Op) -> list[Row]:
        return sorted((image.row for image in self.images if image.op is op), key=lambda row: int(str(row[0])))


@pytest.fixture(scope="module")
def story(server: PrivateServer) -> Iterator[Story]:
    with server.root_connection() as root, root.cursor() as cursor:
        cursor.execute("CREATE DATABASE decode_types CHARACTER SET utf8mb4")
        with open_logbook(server, "decode_types") as book:
            yield Story(book)
        cursor.execute("DROP DATABASE decode_types")


def differences(schema: TableSchema, found: list[Row], expected: list[Row]) -> list[tuple[str, str, str]]:
    """Column, our value, the witness's: short enough to read in a failed test."""
    assert len(found) == len(expected)
    return [
        (column.name, repr(mine)[:80], repr(theirs)[:80])
        for ours, witness in zip(found, expected, strict=True)
        for column, mine, theirs in zip(schema.columns, ours, witness, strict=True)
        if mine != theirs
    ]


def test_inserted_images_are_what_the_server_selects(story: Story) -> None:
    assert len(story.inserted) == ROWS + 1
    assert differences(story.schema, story.rows(Op.INSERT), story.inserted) == []


def test_protocol_rows_are_what_the_server_selects(story: Story) -> None:
    assert differences(story.schema, story.scanned, story.inserted) == []


def test_updates_hold_the_rows_before_and_after(story: Story) -> None:
    changed = [row for row in story.inserted if row[0] != "1000"]
    assert differences(story.schema, story.rows(Op.BEFORE), changed) == []
    assert differences(story.schema, story.rows(Op.UPDATE), [row for row in story.updated if row[0] != "1000"]) == []


def test_deleted_images_are_the_last_rows(story: Story) -> None:
    assert differences(story.schema, story.rows(Op.DELETE), story.updated) == []


def test_a_row_of_nulls_is_null_in_every_column(story: Story) -> None:
    [nulls] = [row for row in story.rows(Op.INSERT) if row[0] == "1000"]
    assert set(nulls[1:]) == {None}


def test_the_schema_that_the_log_tells_decodes_the_same_rows(story: Story) -> None:
    told = story.book.told(story.start, "every_type")
    assert (told.name, told.primary_key) == (story.schema.name, story.schema.primary_key)
    for mine, theirs in zip(told.columns, story.schema.columns, strict=True):
        assert (mine.name, mine.kind, mine.nullable, mine.precision, mine.scale, mine.charset, mine.arrow_type) == (
            *(theirs.name, theirs.kind, theirs.nullable, theirs.precision, theirs.scale, theirs.charset, theirs.arrow_type),
        )
    assert images_of(story.book.read_by(story.start, told, ReadOptions(every_before=True))) == story.images


OPS = {"insert": Op.INSERT, "before": Op.BEFORE, "update": Op.UPDATE, "delete": Op.DELETE}


def test_mysql_replication_reads_the_same_rows(story: Story) -> None:
    read = story.book.replicated(story.start, "every_type")
    assert [OPS[kind] for kind, _ in read] == [image.op for image in story.images]
    wrong = []
    for (_, values), image in zip(read, story.images, strict=True):
        for column, mine in zip(story.schema.columns, image.row, strict=True):
            theirs = witnessed(column, values[column.name])
            if theirs is not UNSURE and not agrees(column, mine, theirs):
                wrong.append((column.name, repr(mine)[:80], repr(values[column.name])[:80]))
    assert wrong == []


UNSURE: Any = object()


def witnessed(column: Column, value: Any) -> Any:
    """A value of mysql-replication as the server's text; UNSURE where the package is known to be wrong or to lose what we compare."""
    match column.kind, value:
        case Kind.SET, None:
            return UNSURE  # an empty set and NULL are both None there
        case Kind.DATE | Kind.DATETIME, None:
            return UNSURE  # dates of year 0 are None there
        case Kind.YEAR, 1900:
            return "0000"  # it adds 1900 to the year 0000 as well
        case _, None:
            return None
        case Kind.SET, set():
            return value
        case Kind.BIT, str():
            return str(int(value, 2))
        case Kind.DECIMAL, Decimal():
            return f"{value:f}"
        case Kind.DATE, datetime.date():
            return value.isoformat()
        case ((Kind.DATETIME | Kind.TIMESTAMP), datetime.datetime()):
            return value.replace(microsecond=0, tzinfo=None).isoformat(" ") + fraction_text(value.microsecond, column.precision)
        case Kind.TIME, datetime.timedelta():
            micros = value // datetime.timedelta(microseconds=1)
            if micros < 0 and value.microseconds:
                # It adds the fraction of a negative time to the second below instead of taking it from the one above.
                micros += 1_000_000 - 2 * value.microseconds
            return time_text(micros, column.precision)
        case Kind.YEAR, int():
            return f"{value:04d}"
        case Kind.JSON, _:
            return plain(value)
        case Kind.BYTES, _:
            # It drops what BINARY(n) pads, and gives ASCII-only bytes as text.
            stored = value.encode() if isinstance(value, str) else bytes(value)
            return stored.ljust(int(column.source_type[7:-1]), b"\0") if column.source_type.startswith("binary(") else stored
        case ((Kind.FLOAT32 | Kind.FLOAT64), float()):
            return value
        case _:
            return str(value)


def plain(value: Any) -> Any:
    """A JSON value of the package, which gives texts and keys as bytes."""
    match value:
        case bytes():
            return value.decode()
        case dict():
            return {plain(key): plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case _:
            return value


def agrees(column: Column, mine: Value, theirs: Any) -> bool:
    if column.kind is Kind.JSON and mine is not None:
        return bool(json.loads(str(mine)) == theirs)
    if column.kind is Kind.SET and mine is not None:
        return bool(set(str(mine).split(",")) == theirs)
    return bool(mine == theirs)
