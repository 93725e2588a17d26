"""Statements to their changes or another outcome; a statement that cannot be parsed is never skipped."""

from __future__ import annotations

import pytest

from headrace.model.schema import Column, Index, Kind, TableName, TableSchema
from headrace.model.schema_change import (
    FIRST,
    AddColumn,
    ChangeIndexes,
    ChangePrimaryKey,
    DropColumn,
    DropTable,
    ModifyColumn,
    RenameColumn,
    RenameTable,
    SchemaCatalog,
    TruncateTable,
    apply_all,
)
from headrace.sources.mysql.ddl.dialect import ANSI_QUOTES, NO_BACKSLASH_ESCAPES, Dialect
from headrace.sources.mysql.ddl.statement_effects import StatementEffects, interpret
from headrace.sources.mysql.ddl.token_cursor import DdlTokenKind, NotUnderstood, tokenize
from headrace.sources.mysql.events.event_types import Query, Session

MYSQL, MARIADB = Dialect.of("9.7.0"), Dialect.of("5.5.5-10.11.6-MariaDB-log")
ORDERS, OTHER = TableName("shop", "orders"), TableName("shop", "other")
ID, NAME = Column("id", Kind.INT32, False, source_type="int"), Column("name", Kind.STRING, source_type="varchar(9)", charset="utf8mb4")
KNOWN = SchemaCatalog(
    {
        ORDERS: TableSchema(ORDERS, (ID, NAME), ("id",), (Index("n", ("name",), False),), "utf8mb4"),
        OTHER: TableSchema(OTHER, (ID,), (), (), "utf8mb4"),
    },
    {"shop": "utf8mb4"},
)


def meaning(statement: str, dialect: Dialect = MYSQL, sql_mode: int = 0, database: str = "shop") -> StatementEffects:
    return interpret(Query(database, statement, Session(sql_mode=sql_mode)), KNOWN, dialect)


def words(text: str, dialect: Dialect = MYSQL, sql_mode: int = 0) -> list[str]:
    return [token.text for token in tokenize(text, dialect, sql_mode)[:-1]]


def test_versions() -> None:
    assert (Dialect(False, 90_700), Dialect(True, 101_106)) == (MYSQL, MARIADB)


@pytest.mark.parametrize(
    ("text", "mysql", "mariadb"),
    [
        ("a /*!80000 b */ c", "a b c", "a c"),
        ("a /*!50600 b */ c", "a b c", "a b c"),
        ("a /*!99999 b */ c", "a c", "a c"),
        ("a /*M!100100 b */ c", "a c", "a b c"),
        ("a /*M!120000 b */ c", "a c", "a c"),
        ("a /*! b /* inner */ */ c", "a b c", "a b c"),
        ("a /*!99999 b /* inner */ d */ c", "a c", "a c"),
        ("a # b\nc -- d\ne --f", "a c e - - f", "a c e - - f"),
    ],
)
def test_version_comments_count_where_the_server_executes_them(text: str, mysql: str, mariadb: str) -> None:
    assert (" ".join(words(text, MYSQL)), " ".join(words(text, MARIADB))) == (mysql, mariadb)


def test_quotes() -> None:
    assert words(r"""'it''s\'' "a""b" `c``d`""") == ["it's'", 'a"b', "c`d"]
    assert words(r"'a\' 'b'", sql_mode=NO_BACKSLASH_ESCAPES) == ["a\\", "b"]
    assert [token.form for token in tokenize("\"a\" 'b'", MYSQL, ANSI_QUOTES)] == [DdlTokenKind.NAME, DdlTokenKind.STRING, DdlTokenKind.END]
    assert words("db.1st db . `2nd` .5 1e3 x'4a' 0b11") == ["db", ".", "1st", "db", ".", "2nd", ".5", "1e3", "4a", "03"]
    with pytest.raises(NotUnderstood):
        tokenize("'without an end", MYSQL, 0)


IGNORED = [
    "",
    " /* nothing */ ;",
    "GRANT SELECT ON shop.orders TO me",
    "FLUSH TABLES orders",
    "ANALYZE LOCAL TABLE orders",
    "OPTIMIZE TABLE orders",
    "CREATE TEMPORARY TABLE of_a_session (a INT)",
    "CREATE OR REPLACE TEMPORARY TABLE of_a_session (a INT)",
    "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `orders`",
    "CREATE DEFINER=`root`@`%` TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.a = 1",
    "CREATE ALGORITHM=UNDEFINED DEFINER=`a b`@`localhost` SQL SECURITY DEFINER VIEW `v` AS SELECT * FROM orders",
    "CREATE OR REPLACE VIEW orders_view AS SELECT * FROM orders",
    "DROP VIEW IF EXISTS orders",
    "CREATE USER orders IDENTIFIED BY 'x'",
    "RENAME USER orders TO other",
    "CREATE DEFINER = CURRENT_USER() PROCEDURE p() DELETE FROM orders",
    "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM orders",
    "CREATE SEQUENCE s",
    "XA COMMIT 'orders'",
    "SET PASSWORD = 'x'",
    "ALTER TABLE orders ENGINE = InnoDB, ALGORITHM = INPLACE, LOCK = NONE",
    "ALTER TABLE orders REORGANIZE PARTITION p0 INTO (PARTITION a VALUES LESS THAN (1))",
    "CREATE TABLE IF NOT EXISTS orders (a INT)",
]


@pytest.mark.parametrize("statement", IGNORED)
@pytest.mark.parametrize("dialect", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_statements_that_change_no_table(statement: str, dialect: Dialect) -> None:
    assert meaning(statement, dialect) == StatementEffects()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders VALUES (1)",
        "SET STATEMENT max_statement_time=1 FOR DELETE FROM orders",
        "/* x */ update orders SET a = 1",
        "REPLACE orders SET a = 1",
        "LOAD DATA INFILE 'x' INTO TABLE orders",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "ANALYZE DELETE FROM orders",
        "CALL p()",
    ],
)
def test_row_changes_are_printed(statement: str) -> None:
    assert meaning(statement).rows != ""


@pytest.mark.parametrize(
    "statement",
    [
        "FROBNICATE TABLE orders",
        "ALTER TABLE orders FROBNICATE (a)",
        "ALTER TABLE orders ADD a FROB",
        "ALTER TABLE orders ADD a INT FROBBED",
        "CREATE TABLE n (a INT",
        "TRUNCATE 'orders",
        "CREATE FROB orders",
        "ALTER FROB orders",
        "DROP FROB orders",
        "DROP TABLE orders, other frob",
    ],
)
def test_unknown_statements_are_reported(statement: str) -> None:
    found = meaning(statement)
    assert (found.unknown, bool(found.why), found.changes) == (True, True, ())


@pytest.mark.parametrize(
    ("statement", "others"),
    [
        ("ALTER TABLE orders TRUNCATE PARTITION p0", ()),
        ("ALTER TABLE orders DROP PARTITION p0, p1", ()),
        ("ALTER TABLE orders EXCHANGE PARTITION p0 WITH TABLE other WITHOUT VALIDATION", (OTHER,)),
        ("ALTER TABLE orders DISCARD TABLESPACE", ()),
        ("ALTER TABLE orders DISCARD PARTITION p0 TABLESPACE", ()),
        ("ALTER TABLE orders IMPORT TABLESPACE", ()),
    ],
)
def test_rows_that_come_and_go_without_row_events(statement: str, others: tuple[TableName, ...]) -> None:
    assert meaning(statement) == StatementEffects(disturbed=(ORDERS, *others))


TABLES = [
    ("DROP TABLE orders, `other`", [DropTable(ORDERS), DropTable(OTHER)]),
    ("TRUNCATE shop . orders", [TruncateTable(ORDERS)]),
    ("RENAME TABLE orders TO x, other TO orders", [RenameTable(ORDERS, TableName("shop", "x")), RenameTable(OTHER, ORDERS)]),
    ("ALTER TABLE orders RENAME = x.y", [RenameTable(ORDERS, TableName("x", "y"))]),
    ("ALTER TABLE orders DROP PRIMARY KEY", [ChangePrimaryKey(ORDERS, ("id",), ())]),
    ("DROP INDEX N ON orders", [ChangeIndexes(ORDERS, (Index("n", ("name",), False),), ())]),
    ("ALTER TABLE orders DROP COLUMN Name", [DropColumn(ORDERS, "name")]),
    (
        "ALTER TABLE orders ADD x DATE FIRST, ADD (y INT)",
        [
            AddColumn(ORDERS, Column("x", Kind.DATE, source_type="date"), FIRST),
            AddColumn(ORDERS, Column("y", Kind.INT32, source_type="int"), None),
        ],
    ),
    ("ALTER TABLE orders MODIFY name VARCHAR(9) FIRST", [ModifyColumn(ORDERS, NAME, NAME, FIRST)]),
    (
        "ALTER TABLE orders RENAME COLUMN id TO name, RENAME COLUMN name TO id",
        [RenameColumn(ORDERS, "name", "name_0"), RenameColumn(ORDERS, "id", "name"), RenameColumn(ORDERS, "name_0", "id")],
    ),
    ("DROP DATABASE elsewhere", []),
]


@pytest.mark.parametrize(("statement", "changes"), TABLES, ids=[statement for statement, _ in TABLES])
def test_changes(statement: str, changes: list[object]) -> None:
    found = meaning(statement)
    assert [change for change in found.changes if type(change).__name__ != "DropDatabase"] == changes
    apply_all(found.changes, KNOWN)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE n LIKE elsewhere.unknown",
        "CREATE TABLE n AS SELECT 1",
        "CREATE TABLE n (a INT) SELECT 1",
        "CREATE TABLE n (a INT) WITH SYSTEM VERSIONING",
        "RENAME TABLE unknown TO n",
        "ALTER TABLE unknown RENAME n",
    ],
)
def test_definitions_without_a_statement_text(statement: str) -> None:
    found = meaning(statement)
    assert (found.opaque, found.changes, bool(found.why)) == ((TableName("shop", "n"),), (), True)


def test_a_statement_that_does_not_fit_makes_the_table_opaque() -> None:
    found = meaning("ALTER TABLE orders DROP COLUMN missing")
    assert (found.opaque, found.changes, found.why) == ((ORDERS,), (), "it has no column missing")


def test_names_are_folded_only_where_the_server_does() -> None:
    assert meaning("DROP TABLE ORDERS").changes == (DropTable(TableName("shop", "ORDERS")),)
    folding = interpret(Query("Shop", "DROP TABLE ORDERS"), KNOWN, Dialect(False, 90_700, folds_case=True))
    assert folding.changes == (DropTable(ORDERS),)


def test_a_column_that_is_dropped_and_added_again_is_another_one() -> None:
    changes = meaning("ALTER TABLE orders DROP COLUMN name, ADD COLUMN name INT").changes
    assert [type(change) for change in changes[:2]] == [DropColumn, AddColumn]
