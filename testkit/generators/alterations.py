"""Test cases of schema changes: a table, an ALTER statement, and the change of the sink's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A table, an ALTER statement, and the change of the sink's table."""

    name: str
    columns: str
    rows: tuple[str, ...]
    clauses: str
    """The clauses of the ALTER TABLE statement."""
    after: tuple[str, ...] = ()
    """Rows that are inserted afterwards."""
    outcome: str = "applied"
    """The statements that the sink runs; empty if none is needed."""
    sql_mode: str = ""
    """The SQL mode of the session that alters, if it is not strict."""


AGAIN = "read again"
KEYED = "id INT PRIMARY KEY, c "
EVERY = (
    "i8 TINYINT", "u8 TINYINT UNSIGNED", "i16 SMALLINT", "i32 INT", "u32 INT UNSIGNED", "i64 BIGINT", "u64 BIGINT UNSIGNED",
    "bo BOOL", "de DECIMAL(20,5)", "fl FLOAT", "do DOUBLE", "bi BIT(9)", "ch CHAR(5)", "vc VARCHAR(20)",
    "la VARCHAR(9) CHARACTER SET latin1", "bn BINARY(4)", "vb VARBINARY(9)", "da DATE", "dt DATETIME(3)", "ti TIME(2)",
    "ye YEAR", "en ENUM('x','y z','ü')", "se SET('a','b','c')",
)  # fmt: skip
CONSTANTS = (
    "-128", "255", "-32768", "2147483647", "4294967295", "-9223372036854775808", "18446744073709551615",
    "TRUE", "-12345.67890", "0.1", "1.7976931348623157e308", "b'101010101'", "'ab '", "'it''s \\\\ é漢'", "'plain'",
    "'AB'", "0x00FF5C27", "'1969-12-31'", "'2037-01-02 03:04:05.678'", "'-838:59:59'", "1999", "'y z'", "'c,a'",
)  # fmt: skip

# A column's type, two values, its new type, and a value of that. The sink alters its table in place for all of these.
FOLLOWED = (
    ("INT", "-2147483648", "NULL", "BIGINT", "9223372036854775807"),
    ("BIGINT", "-128", "127", "TINYINT", "0"),
    ("INT", "0", "2147483647", "INT UNSIGNED", "4294967295"),
    ("INT", "0", "3", "INT NOT NULL", "5"),
    ("VARCHAR(9)", "''", "'x'", "VARCHAR(9) NOT NULL", "'y'"),
    ("ENUM('a','b')", "'a'", "'b'", "ENUM('a','b') NOT NULL", "'a'"),
    ("INT NOT NULL", "0", "1", "INT", "NULL"),
    ("ENUM('a') NOT NULL", "'a'", "'a'", "ENUM('a')", "NULL"),
    ("INT", "-2147483648", "2147483647", "DECIMAL(14,3)", "0.125"),
    ("BIGINT", "-9223372036854775808", "7", "VARCHAR(30)", "'seven'"),
    ("INT UNSIGNED", "4294967295", "0", "DOUBLE", "0.1"),
    ("DECIMAL(5,2)", "-999.99", "NULL", "DECIMAL(40,10)", "0.0000000001"),
    ("FLOAT", "0.1", "3.4028234663852886e38", "DOUBLE", "0.1"),
    ("FLOAT", "1e-40", "-0.0", "DOUBLE", "1e-40"),
    ("BIT(3)", "b'111'", "NULL", "BIT(9)", "b'111111111'"),
    ("ENUM('a','b')", "'a'", "NULL", "ENUM('a','b','c')", "'c'"),
    ("ENUM('a','b')", "'a'", "'b'", "ENUM('z','b','a')", "'z'"),
    ("ENUM('a','b','c')", "'a'", "'c'", "ENUM('c','a')", "'a'"),
    ("ENUM('a','bb')", "'a'", "'bb'", "VARCHAR(5)", "'other'"),
    ("SET('a','b')", "'a,b'", "''", "SET('a','x','b')", "'x,a'"),
    ("VARCHAR(5)", "'ab   '", "NULL", "VARCHAR(50)", "'much longer than before'"),
    ("VARCHAR(9)", "'é漢x '", "NULL", "VARCHAR(4)", "'ab'"),
    ("VARCHAR(9)", "'éx      '", "'abc'", "VARCHAR(4) CHARACTER SET latin1", "'ab'"),
    ("VARCHAR(9)", "'x   '", "' y'", "CHAR(5)", "'ab  '"),
    ("TEXT", "'x      '", "'yyy'", "VARCHAR(3)", "'ab '"),
    ("VARCHAR(9)", "'é'", "'ÿ'", "VARCHAR(9) CHARACTER SET latin1", "'ß'"),
    ("DATETIME(1)", "'2001-02-03 04:05:06.7'", "'1000-01-01'", "DATETIME(6)", "'9999-12-31 23:59:59.999999'"),
    ("TIME", "'-838:59:59'", "'838:59:59'", "TIME(3)", "'1:2:3.456'"),
)
# For these only the source knows the new values: the table is read again.
READ = (
    ("DECIMAL(9,4)", "-2.5550", "1.2345", "DECIMAL(9,2)", "1"),
    ("DOUBLE", "16777217", "-1e-300", "FLOAT", "0.1"),
    ("ENUM('a','b')", "'a'", "'b'", "ENUM('A','b')", "'A'"),
    ("VARCHAR(5)", "'a'", "'bb'", "ENUM('A','bb')", "'a'"),
    ("SET('a','b')", "'a,b'", "'b'", "SET('b','a')", "'a,b'"),
    ("VARCHAR(9) CHARACTER SET latin1", "'é'", "'e'", "VARBINARY(9)", "0xFF00"),
    ("BINARY(3)", "'ab'", "'abc'", "BINARY(6)", "'cd'"),
    ("DATETIME(3)", "'2001-02-03 04:05:06.567'", "NULL", "DATETIME", "'2001-01-01'"),
    ("VARCHAR(9)", "'17'", "NULL", "INT", "3"),
)


def modified(name: str, columns: Sequence[tuple[str, ...]], outcome: str) -> Case:
    """A table of one column for each modification, all of them in one statement."""
    defined = ", ".join(f"c{number} {column[0]}" for number, column in enumerate(columns))
    rows = tuple(f"{row}, {', '.join(column[row] for column in columns)}" for row in (1, 2))
    clauses = ", ".join(f"MODIFY c{number} {column[3]}" for number, column in enumerate(columns))
    return Case(name, f"id INT PRIMARY KEY, {defined}", rows, clauses, (f"3, {', '.join(column[4] for column in columns)}",), outcome)


CASES = (
    modified("followed", FOLLOWED, "applied"),
    modified("source_knows", READ, AGAIN),
    Case("add_first", KEYED + "INT", ("1, 5", "2, NULL"), "ADD COLUMN n INT DEFAULT 7 FIRST", ("8, 3, 4",)),
    Case(
        "add_every",
        KEYED + "INT",
        ("1, 5",),
        ", ".join(f"ADD COLUMN {column} NOT NULL DEFAULT {value}" for column, value in zip(EVERY, CONSTANTS, strict=True)),
        (f"9, 9, {', '.join(CONSTANTS)}",),
    ),
    Case(
        "add_nullable",
        KEYED + "INT",
        ("1, 5",),
        ", ".join(f"ADD COLUMN {column} AFTER id" for column in EVERY),
        (f"9, {'NULL, ' * len(EVERY)}9",),
    ),
    Case(
        "add_required",
        KEYED + "INT",
        ("1, 5",),
        ", ".join(f"ADD COLUMN {column} NOT NULL" for column in EVERY if not column.startswith(("da ", "dt ", "ye "))),
    ),
    Case(
        "add_by_row",
        KEYED + "INT",
        ("1, 5", "2, 6"),
        "ADD COLUMN n DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), ADD COLUMN g INT AS (c * 2) STORED",
        (),
        AGAIN,
    ),
    Case("made_anew", KEYED + "INT, d INT", ("1, 5, 6",), "DROP COLUMN c, ADD COLUMN c INT DEFAULT 1 AFTER id", ("3, 3, 3",)),
    Case(
        "in_a_ring",
        KEYED + "INT, d INT, e INT",
        ("1, 5, 6, 7",),
        "RENAME COLUMN c TO d, RENAME COLUMN d TO e, RENAME COLUMN e TO c",
        ("3, 3, 4, 5",),
    ),
    Case("into_a_gap", KEYED + "INT, d INT", ("1, 5, 6",), "DROP COLUMN c, RENAME COLUMN d TO c", ("3, 3",)),
    Case("narrower", KEYED + "BIGINT, d INT", ("1, -128, 1", "2, 127, 2"), "MODIFY c TINYINT, MODIFY d INT NOT NULL", ("3, 0, 0",)),
    Case("converted", KEYED + "VARCHAR(9) CHARACTER SET latin1", ("1, 'é'",), "CONVERT TO CHARACTER SET utf8mb4", ("4, '漢'",), ""),
    Case("lax", KEYED + "INT", ("1, 1000", "2, NULL"), "MODIFY c TINYINT NOT NULL", ("3, 3",), AGAIN, "NO_ENGINE_SUBSTITUTION"),
    Case("moved", KEYED + "INT, d INT, e INT", ("1, 5, 6, 7",), "MODIFY e INT FIRST, MODIFY id INT AFTER d", ("4, 3, 2, 9",)),
    Case("commented", KEYED + "INT", ("1, 5",), "MODIFY c INT COMMENT 'it''s \\\\ new', COMMENT 'of a table'", ("3, 3",)),
    Case("indexed", KEYED + "INT", ("1, 5",), "ADD INDEX (c), ALTER c SET DEFAULT 5", ("3, 3",), ""),
    Case("key_grows", KEYED + "INT NOT NULL", ("1, 5", "2, 5"), "DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)", ("1, 6", "3, 3")),
    Case(
        "key_turns",
        "id INT, c INT, d INT, PRIMARY KEY (id, c)",
        ("1, 5, 1",),
        "DROP PRIMARY KEY, ADD PRIMARY KEY (c, id)",
        ("3, 5, 3",),
    ),
    Case("key_renamed", KEYED + "INT", ("1, 5", "2, 5"), "CHANGE id k BIGINT, ADD COLUMN n INT DEFAULT 4", ("5000000000, 6, 6",)),
    Case("key_dropped", KEYED + "INT", ("1, 5", "2, 5"), "DROP PRIMARY KEY", ("1, 5", "1, 5")),
    Case("key_column_dropped", KEYED + "INT", ("1, 5", "2, 5", "3, 6"), "DROP COLUMN id", ("5",)),
    Case("key_added", "id INT, c INT", ("1, 5", "2, 5"), "ADD PRIMARY KEY (id)", ("3, 5",)),
    Case("key_by_unique", KEYED + "INT NOT NULL", ("1, 5", "2, 6"), "DROP PRIMARY KEY, ADD UNIQUE (c)", ("1, 7",)),
    Case("bare_add", "id INT, c INT, d INT", ("1, 5, 1", "1, 5, 1"), "ADD COLUMN n INT NOT NULL DEFAULT 3, DROP COLUMN d", ("1, 5, 3",)),
    Case("bare_rename", "id INT, c INT", ("1, 5", "1, 5"), "RENAME COLUMN c TO id, RENAME COLUMN id TO c", ("1, 5", "5, 1")),
    Case("bare_wider", "id INT, c INT", ("1, 5", "1, 5"), "MODIFY c BIGINT NOT NULL", ("1, 5",)),
    Case("bare_cut", "id INT, c VARCHAR(9)", ("1, 'x    '", "1, 'x  '"), "MODIFY c CHAR(3)", ("1, 'x  '",)),
    Case("bare_converted", "id INT, c VARCHAR(9)", ("1, '5'", "1, '5'"), "MODIFY c INT", ("1, 5",), AGAIN),
)
