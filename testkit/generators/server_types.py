"""The column types that both families of servers have, each with SQL literals at its extremes.

Row r of a table of them holds value r of every type; lists are repeated to the longest.
"""

from __future__ import annotations

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
