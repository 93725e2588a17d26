"""Random DDL over a wide grammar.

The generator knows the defined tables (from the history under test) only to write statements that the server mostly accepts; a refused one
is dropped.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pymysql

from headrace.model.schema import Kind, TableName, TableSchema
from headrace.model.schema_change import SchemaCatalog
from testkit.oracles.binlogs import Logbook
from testkit.oracles.ddl import Follower

CHARSETS = ["utf8mb4", "latin1", "utf8mb3", "utf8", "ascii", "binary", "ucs2", "cp1251", "gbk", "utf16"]
CONVERTIBLE = ["utf8mb4", "latin1", "utf8mb3", "utf8", "ascii", "cp1251"]
"""Character sets that share the bytes of an ENUM's plain members."""
COLLATIONS = ["utf8mb4_bin", "latin1_general_ci", "utf8mb3_general_ci", "binary", "ascii_bin", "utf8mb4_unicode_ci", "cp1251_bin"]
NAMES = [
    "a",
    "b",
    "c",
    "D",
    "id",
    "Name",
    "x y",
    "comment",
    "date",
    "order",
    "ü",
    "q`t",
    "key",
    "first",
    "value",
    "status",
    "user_id",
    "k2",
]
TYPES: list[tuple[list[str], list[str]]] = [
    (
        ["INT", "INTEGER", "INT(5)", "INT UNSIGNED", "INT(7) ZEROFILL", "INT4", "INT SIGNED", "INT(3) UNSIGNED ZEROFILL"],
        ["7", "'2'", "0x11"],
    ),
    (["TINYINT", "TINYINT(1)", "BOOL", "BOOLEAN", "INT1", "TINYINT UNSIGNED", "TINYINT(1) UNSIGNED"], ["1", "TRUE", "b'11'"]),
    (["SMALLINT", "MEDIUMINT", "MIDDLEINT", "INT2", "INT3", "MEDIUMINT(4) UNSIGNED"], ["5", "'12'"]),
    (["BIGINT", "BIGINT UNSIGNED", "INT8", "BIGINT(30)"], ["5", "'9'"]),
    (
        ["DECIMAL", "DEC(5,1)", "NUMERIC(12)", "FIXED(9,4) UNSIGNED", "DECIMAL(65,30)", "DECIMAL(6,2) ZEROFILL", "DECIMAL(0)"],
        ["1", "'1.5'", "-2.25"],
    ),
    (
        ["FLOAT", "FLOAT(7,3)", "FLOAT(30)", "FLOAT(10)", "DOUBLE", "DOUBLE PRECISION", "REAL", "DOUBLE(9,2) UNSIGNED", "FLOAT4", "FLOAT8"],
        ["1.5", "'2.5'"],
    ),
    (["BIT", "BIT(7)", "BIT(64)"], ["b'1'", "1"]),
    (["CHAR", "CHAR(5)", "CHARACTER(3)", "NCHAR(4)", "NATIONAL CHAR(3)", "NATIONAL CHARACTER(2)"], ["'a'", "''", "5"]),
    (
        [
            "VARCHAR(20)",
            "CHARACTER VARYING(9)",
            "NATIONAL VARCHAR(8)",
            "NVARCHAR(7)",
            "NCHAR VARYING(6)",
            "NATIONAL CHAR VARYING(5)",
            "VARCHARACTER(12)",
        ],
        ["'it''s'", "''", "'x\"y'", "5", "_latin1'q'", "'a' 'b'"],
    ),
    (["VARCHAR(300)", "VARCHAR(20000)", "VARCHAR(70000)", "CHAR VARYING(11)"], ["'z'"]),
    (
        [
            "TINYTEXT",
            "TEXT",
            "TEXT(10)",
            "TEXT(100)",
            "TEXT(70000)",
            "MEDIUMTEXT",
            "LONGTEXT",
            "LONG",
            "LONG VARCHAR",
            "LONG CHAR VARYING",
            "TEXT(20000)",
        ],
        [],
    ),
    (["TINYBLOB", "BLOB", "BLOB(100)", "BLOB(70000)", "MEDIUMBLOB", "LONGBLOB", "LONG VARBINARY", "BLOB(20000000)"], []),
    (["BINARY", "BINARY(5)", "VARBINARY(9)", "CHAR(4) BYTE", "VARBINARY(70000)"], []),
    (["DATE"], ["'2001-02-03'", "'2001-2-3'"]),
    (["TIME", "TIME(3)"], ["'01:02:03'", "'-1:02:03.5'"]),
    (["DATETIME", "DATETIME(6)", "DATETIME(0)"], ["'2001-02-03 04:05:06'", "CURRENT_TIMESTAMP", "'2001-02-03'"]),
    (
        ["TIMESTAMP", "TIMESTAMP(3)", "TIMESTAMP NULL", "TIMESTAMP NOT NULL"],
        ["CURRENT_TIMESTAMP", "'2001-02-03 04:05:06'", "NOW()", "LOCALTIME"],
    ),
    (["YEAR", "YEAR(4)"], ["2001", "'1999'"]),
    (["ENUM('a','b')", "ENUM('x ','it''s',\"q\")", "SET('a','b','c')", "ENUM('A','漢') CHARACTER SET utf8mb4", "SET('one')"], ["'a'"]),
    (["JSON"], []),
    (["GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "GEOMETRYCOLLECTION", "MULTIPOLYGON"], []),
]
MARIADB_TYPES: list[tuple[list[str], list[str]]] = [
    (["UUID", "INET4", "INET6"], []),
    (["BLOB COMPRESSED", "VARCHAR(100) COMPRESSED", "TEXT COMPRESSED=zlib"], []),
    (["POINT REF_SYSTEM_ID=0"], []),
]
MYSQL_TYPES: list[tuple[list[str], list[str]]] = [
    (["VECTOR", "VECTOR(3)"], []),
    (["POINT SRID 4326", "GEOMETRY SRID 0", "GEOMCOLLECTION"], []),
]
SESSIONS = [
    "SET sql_mode = ''",
    "SET sql_mode = 'STRICT_ALL_TABLES'",
    "SET sql_mode = 'ANSI_QUOTES'",
    "SET sql_mode = 'NO_BACKSLASH_ESCAPES'",
    "SET sql_mode = 'REAL_AS_FLOAT,NO_ENGINE_SUBSTITUTION'",
]


class Generator:
    """Writes statements over the tables of one database (and a second one to move tables to)."""

    def __init__(self, seed: int, flavour: str, databases: tuple[str, str], catalog: Callable[[], SchemaCatalog]) -> None:
        self._random = random.Random(seed)
        self._mariadb = flavour == "mariadb"
        self._databases, self._catalogue = databases, catalog
        self._ansi = False

    def next(self) -> str:
        chance = self._random.random()
        tables = self._tables()
        if chance < 0.04:
            setting = self._pick(SESSIONS)
            if "sql_mode" in setting:
                self._ansi = "ANSI" in setting
            return setting
        if not tables or (len(tables) < 6 and chance < 0.2):
            return self._create()
        table = self._pick(tables)
        if chance < 0.24:
            return self._pick([self._drop, self._rename, self._truncate, self._database, self._index])(table)
        return self._alter(table)

    # -- pieces

    def _pick(self, choices: Any) -> Any:
        return self._random.choice(choices)

    def _maybe(self, text: str, chance: float = 0.5) -> str:
        return text if self._random.random() < chance else ""

    def _tables(self) -> list[TableSchema]:
        return [schema for name, schema in sorted(self._catalogue().tables.items()) if name.database in self._databases]

    def _quote(self, name: str) -> str:
        if self._ansi and self._random.random() < 0.5:
            return '"' + name.replace('"', '""') + '"'
        plain = name.isascii() and name.replace("_", "a").isalnum() and name.lower() not in ("order", "key")
        return name if plain and self._random.random() < 0.5 else "`" + name.replace("`", "``") + "`"

    def _string(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def _table(self, schema: TableSchema) -> str:
        return self._name(schema.name)

    def _name(self, name: TableName) -> str:
        if name.database == self._databases[0] and self._random.random() < 0.7:
            return self._quote(name.table)
        return f"{self._quote(name.database)}{self._pick(['.', ' . ', '.'])}{self._quote(name.table)}"

    def _new_table(self) -> TableName:
        database = self._databases[0] if self._random.random() < 0.85 else self._databases[1]
        return TableName(database, self._pick(["t1", "t2", "T3", "t 4", "t5.x", "t-6", "orders", "ü7"]))

    def _cased(self, name: str) -> str:
        return name if self._random.random() < 0.8 else self._pick([name.upper(), name.lower()])

    def _column_of(self, schema: TableSchema) -> str:
        return self._quote(self._cased(self._pick(schema.columns).name))

    def _charset(self) -> str:
        words = self._pick(["CHARACTER SET", "CHARSET", "CHARACTER SET"])
        return self._pick([f"{words} {self._pick(CHARSETS)}", f"COLLATE {self._pick(COLLATIONS)}", f"{words} latin1 COLLATE latin1_bin"])

    def _type(self) -> tuple[str, list[str]]:
        spellings, defaults = self._pick(TYPES + (MARIADB_TYPES if self._mariadb else MYSQL_TYPES))
        text = self._pick(spellings)
        if self._ansi:
            text = text.replace('"q"', "'q'")
            defaults = [default for default in defaults if '"' not in default]
        stringy = text.split("(")[0].split()[0] in ("CHAR", "VARCHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "LONG")
        if stringy and not re.search("BYTE|COMPRESSED|CHARACTER SET|BINARY", text) and self._random.random() < 0.35:
            text += " " + self._pick(
                [self._charset(), self._charset(), "ASCII", "UNICODE", "BINARY", "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"]
            )
        return self._cased(text) if "'" not in text else text, defaults

    def _definition(self, *, keys: bool = True) -> str:
        """A column's type and attributes."""
        text, defaults = self._type()
        parts = []
        if self._random.random() < 0.08:
            generated = f"{self._maybe('GENERATED ALWAYS ')}AS (1 + 2) {self._pick(['VIRTUAL', 'STORED', ''])}"
            if self._mariadb and self._random.random() < 0.3:
                generated = "AS (1 + 2) PERSISTENT"
            return f"{text} {generated} {self._maybe(self._comment(), 0.3)}"
        parts += [self._pick(["NOT NULL", "NULL", "", ""])]
        if defaults and self._random.random() < 0.5:
            parts += [f"DEFAULT {self._pick([*defaults, 'NULL'])}"]
        elif self._random.random() < 0.05:
            parts += [f"DEFAULT {self._pick(['(1 + 1)', '(uuid())', '(concat(1, 2))'])}"]
        parts += [self._maybe(self._comment(), 0.15), self._maybe("INVISIBLE", 0.05)]
        parts += [self._maybe("ON UPDATE CURRENT_TIMESTAMP", 0.3)] if text in ("DATETIME", "TIMESTAMP") else []
        parts += [self._maybe(self._pick(["CHECK (1 > 0)", "CONSTRAINT CHECK (2 > 1)"]), 0.03)]
        if keys:
            parts += [self._pick(["UNIQUE", "UNIQUE KEY", "KEY", "PRIMARY KEY"]) if self._random.random() < 0.08 else ""]
        self._random.shuffle(parts)
        return " ".join(part for part in [text, *parts] if part)

    def _comment(self) -> str:
        return f"COMMENT {self._string(self._pick(['x', 'it is', 'a, b', 'it' + chr(39) + 's', 'DROP TABLE t1', '漢字']))}"

    def _key(self, columns: list[str], name: str | None = None) -> str:
        kind = self._pick(
            ["INDEX", "KEY", "UNIQUE", "UNIQUE INDEX", "UNIQUE KEY", "FULLTEXT KEY", "PRIMARY KEY", "CONSTRAINT cu UNIQUE", "SPATIAL INDEX"]
        )
        prefix = 0.0 if "UNIQUE" in kind else 0.2
        chosen = self._random.sample(columns, min(len(columns), self._pick([1, 1, 2, 3])))
        parts = ", ".join(
            self._quote(self._cased(column))
            + self._maybe(f"({self._pick([3, 5, 9])})", prefix)
            + self._maybe(self._pick([" ASC", " DESC"]), 0.2)
            for column in chosen
        )
        named = self._quote(name or self._pick(["i1", "i2", "I3", "u 1"])) if self._random.random() < 0.5 else ""
        if kind == "PRIMARY KEY":
            named = ""
        using = self._maybe("USING BTREE ", 0.1) if kind not in ("FULLTEXT KEY", "SPATIAL INDEX") else ""
        return f"{kind} {named} {using}({parts}) {self._maybe(self._comment(), 0.1)}"

    def _options(self) -> str:
        options = [
            self._maybe(f"{self._maybe('DEFAULT ')}{self._charset()}", 0.5),
            self._maybe(self._pick(["COMMENT 'x'", "COMMENT='it''s'", "COMMENT = ''"]), 0.3),
            self._maybe(self._pick(["ENGINE=InnoDB", "ENGINE = InnoDB", "ENGINE InnoDB"]), 0.3),
            self._maybe(self._pick(["ROW_FORMAT=DYNAMIC", "STATS_PERSISTENT=1", "AUTO_INCREMENT=5", "MAX_ROWS = 10"]), 0.2),
        ]
        return self._pick([" ", ", "]).join(option for option in options if option) if any(options) else ""

    # -- statements

    def _create(self) -> str:
        name = self._name(self._new_table())
        head = f"CREATE {self._maybe('OR REPLACE ', 0.15) if self._mariadb else ''}TABLE {self._maybe('IF NOT EXISTS ', 0.2)}{name}"
        if "OR REPLACE" in head and "IF NOT" in head:
            head = head.replace("IF NOT EXISTS ", "")
        tables = self._tables()
        if tables and self._random.random() < 0.2:
            other = self._table(self._pick(tables))
            return f"{head} {self._pick([f'LIKE {other}', f'(LIKE {other})'])}"
        plain = [schema for schema in tables if not any((column.default or "").startswith("(") for column in schema.columns)]
        if plain and self._random.random() < 0.15:
            # MySQL logs an expression as the new table's default that it does not have.
            return f"{head} {self._options()} {self._pick(['AS ', ''])}SELECT * FROM {self._table(self._pick(plain))}"
        columns = self._random.sample(NAMES, self._pick([1, 2, 3, 5, 8]))
        elements = [f"{self._quote(column)} {self._definition()}" for column in columns]
        if self._random.random() < 0.3:
            elements.insert(
                0, f"pk {self._pick(['SERIAL', 'INT AUTO_INCREMENT PRIMARY KEY', 'BIGINT UNSIGNED NOT NULL AUTO_INCREMENT KEY'])}"
            )
        elements += [self._key(columns) for _ in range(self._pick([0, 0, 1, 2, 3]))]
        if self._random.random() < 0.2:
            self._random.shuffle(elements)
        return f"{head} ({', '.join(elements)}) {self._options()}"

    def _drop(self, schema: TableSchema) -> str:
        more = self._maybe(f", {self._table(self._pick(self._tables()))}", 0.2)
        return (
            f"DROP {self._pick(['TABLE', 'TABLES'])} {self._maybe('IF EXISTS ')}{self._table(schema)}{more} {self._maybe('RESTRICT', 0.2)}"
        )

    def _rename(self, schema: TableSchema) -> str:
        other = self._pick(self._tables())
        pairs = [(schema.name, self._new_table())]
        if other.name != schema.name and self._random.random() < 0.5:
            aside = TableName(self._databases[0], "aside")
            pairs = [(schema.name, aside), (other.name, schema.name), (aside, other.name)]
        return "RENAME TABLE " + ", ".join(f"{self._name(old)} TO {self._name(new)}" for old, new in pairs)

    def _truncate(self, schema: TableSchema) -> str:
        return f"TRUNCATE {self._maybe('TABLE ')}{self._table(schema)}"

    def _database(self, schema: TableSchema) -> str:
        return f"ALTER {self._pick(['DATABASE', 'SCHEMA'])} {self._quote(schema.name.database)} {self._charset()}"

    def _index(self, schema: TableSchema) -> str:
        names = [index.name for index in schema.indexes]
        if names and self._random.random() < 0.4:
            return f"DROP INDEX {self._quote(self._pick(names))} ON {self._table(schema)}"
        kind = self._pick(["", "UNIQUE ", "FULLTEXT "])
        replaces = self._maybe("OR REPLACE ", 0.2) if self._mariadb else ""
        absent = self._maybe("IF NOT EXISTS ", 0.2) if self._mariadb and not replaces else ""
        name = self._quote(self._pick([*names, "i9", "i8"]))
        prefix = self._maybe("(4)", 0.3) if kind != "UNIQUE " else ""
        return f"CREATE {replaces}{kind}INDEX {absent}{name} ON {self._table(schema)} ({self._column_of(schema)}{prefix})"

    def _alter(self, schema: TableSchema) -> str:
        clauses = [self._clause(schema) for _ in range(self._pick([1, 1, 1, 2, 2, 3, 4]))]
        about_text = [clause for clause in clauses if re.match("CONVERT|DEFAULT|CHAR|COLLATE", clause)]
        clauses = [clause for clause in clauses if clause not in about_text[1:]]
        if any(clause.startswith(("MODIFY", "CHANGE")) for clause in clauses):
            # MySQL gives a TEXT that it converts at the same time a smaller type than the statement names.
            clauses = [clause for clause in clauses if not clause.startswith("CONVERT")]
        extra = [self._pick(["ALGORITHM=DEFAULT", "LOCK=DEFAULT", "FORCE"])] if self._random.random() < 0.1 else []
        prefix = self._pick(["", "", "", "/* a, b */ ", "-- x\n"])
        head = "ALTER "
        if self._mariadb:
            head += self._maybe("ONLINE ", 0.03) + self._maybe("IGNORE ", 0.05)
        wait = self._maybe(self._pick([" WAIT 5", " NOWAIT"]), 0.05) if self._mariadb else ""
        absent = self._maybe("IF EXISTS ", 0.05) if self._mariadb else ""
        return f"{prefix}{head}TABLE {absent}{self._table(schema)}{wait} {', '.join([*clauses, *extra])}"

    def _place(self, schema: TableSchema) -> str:
        return self._pick(["", "", "", " FIRST", f" AFTER {self._column_of(schema)}"])

    def _exists(self) -> str:
        return self._maybe("IF EXISTS ", 0.2) if self._mariadb else ""

    def _absent(self) -> str:
        return self._maybe("IF NOT EXISTS ", 0.2) if self._mariadb else ""

    def _clause(self, schema: TableSchema) -> str:
        return self._pick(
            [
                self._add,
                self._add,
                self._add,
                self._drop_column,
                self._modify,
                self._modify,
                self._change,
                self._change,
                self._rename_column,
                self._alter_column,
                self._key_clause,
                self._key_clause,
                self._key_clause,
                self._whole,
            ]
        )(schema)

    def _add(self, schema: TableSchema) -> str:
        word = self._pick(["ADD", "ADD COLUMN"])
        taken = {column.name.lower() for column in schema.columns}
        free = [name for name in NAMES if name.lower() not in taken]
        if len(free) > 1 and self._random.random() < 0.2:
            first, second = self._random.sample(free, 2)
            key = self._maybe(f", KEY ({self._quote(first)})", 0.2)
            return f"{word} ({self._quote(first)} {self._definition()}, {self._quote(second)} {self._definition()}{key})"
        name = self._pick(free if free and self._random.random() < 0.85 else NAMES)
        return f"{word} {self._absent()}{self._quote(name)} {self._definition()}{self._place(schema)}"

    def _drop_column(self, schema: TableSchema) -> str:
        restrict = self._maybe(" RESTRICT", 0.1) if self._mariadb else ""
        return f"DROP {self._maybe('COLUMN ')}{self._exists()}{self._column_of(schema)}{restrict}"

    def _modify(self, schema: TableSchema) -> str:
        return f"MODIFY {self._maybe('COLUMN ')}{self._exists()}{self._column_of(schema)} {self._definition()}{self._place(schema)}"

    def _change(self, schema: TableSchema) -> str:
        old = self._column_of(schema)
        new = self._pick([old, self._quote(self._pick(NAMES))])
        return f"CHANGE {self._maybe('COLUMN ')}{self._exists()}{old} {new} {self._definition()}{self._place(schema)}"

    def _rename_column(self, schema: TableSchema) -> str:
        old, new = self._column_of(schema), self._column_of(schema)
        if self._random.random() < 0.3 and old != new:
            return f"RENAME COLUMN {old} TO {new}, RENAME COLUMN {new} TO {old}"
        return f"RENAME COLUMN {old} TO {self._quote(self._pick(NAMES))}"

    def _alter_column(self, schema: TableSchema) -> str:
        chosen = self._pick(schema.columns)
        if chosen.kind is Kind.TIMESTAMP:
            # Without explicit defaults MariaDB gives such a column another default than the statement names.
            return "FORCE"
        column = f"ALTER {self._maybe('COLUMN ')}{self._quote(self._cased(chosen.name))}"
        choices = ["DROP DEFAULT", "SET DEFAULT 5", "SET DEFAULT '1'", "SET DEFAULT NULL"]
        if not self._mariadb:
            choices += ["SET INVISIBLE", "SET VISIBLE"]
        else:
            # MySQL does not show such a default of a BLOB.
            choices += ["SET DEFAULT (1 + 2)"]
        return f"{column} {self._pick(choices)}"

    def _key_clause(self, schema: TableSchema) -> str:
        names = [index.name for index in schema.indexes]
        chance = self._random.random()
        if chance < 0.45:
            return f"ADD {self._key([column.name for column in schema.columns])}"
        if chance < 0.6:
            return self._pick(["DROP PRIMARY KEY", "DROP PRIMARY KEY", f"DROP PRIMARY KEY, ADD PRIMARY KEY ({self._column_of(schema)})"])
        if names and chance < 0.8:
            return f"DROP {self._pick(['INDEX', 'KEY', 'CONSTRAINT'])} {self._quote(self._cased(self._pick(names)))}"
        if names:
            return (
                f"RENAME {self._pick(['INDEX', 'KEY'])} {self._quote(self._pick(names))} TO {self._quote(self._pick(['r1', 'r2', *names]))}"
            )
        return f"ADD INDEX ({self._column_of(schema)})"

    def _whole(self, schema: TableSchema) -> str:
        # MariaDB leaves the old table behind, too, if its name is written in another way in its file's name.
        renames = schema.name.table.isalnum() and schema.name.table.isascii()
        return self._pick(
            [
                lambda: f"CONVERT TO CHARACTER SET {self._pick(CONVERTIBLE)}",
                lambda: "CONVERT TO CHARSET latin1 COLLATE latin1_bin",
                lambda: f"{self._maybe('DEFAULT ')}{self._charset()}",
                lambda: f"COMMENT {self._maybe('= ')}'new'",
                lambda: f"ORDER BY {self._column_of(schema)}",
                lambda: "ENGINE = InnoDB",
                lambda: f"RENAME {self._pick(['TO ', 'AS ', '', '= '])}{self._name(self._new_table())}" if renames else "FORCE",
                lambda: "DISABLE KEYS",
                lambda: "ROW_FORMAT=COMPACT COMMENT='two'",
            ]
        )()


def run_random(book: Logbook, databases: tuple[str, str], seed: int, count: int, every: int = 1) -> tuple[int, list[str]]:
    """Run random statements and follow them. Return how many the server accepted, and the first differences with their statements."""
    book.run(f"SET explicit_defaults_for_timestamp = {'OFF' if seed % 4 == 0 else 'ON'}")
    follower = Follower(book, databases)
    generator = Generator(seed, book.server.flavour, databases, lambda: follower.history.catalog)
    taken, since = 0, []
    for number in range(count):
        statement = generator.next()
        try:
            book.run(statement)
        except pymysql.err.MySQLError:
            continue
        taken += 1
        since.append(statement)
        answers = follower.catch_up()
        if number % every and number != count - 1:
            continue
        differences = follower.differences()
        if differences:
            outcomes = [f"{answer.outcome.name} {answer.why} {answer.query.statement}" for answer in answers]
            return taken, [*differences, *since, *outcomes]
        since = []
    return taken, []
