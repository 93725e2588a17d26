"""The effect of an alteration on values: known effects only; for all others the table is read again."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from headrace.model.alter_effects import BackfillValue, Effect, Truncated, Unchanged, UnknownValues
from headrace.model.schema import Column, Kind, TableName
from headrace.model.schema_change import AddColumn, ModifyColumn, SchemaCatalog, apply_all
from headrace.sources.mysql.ddl.dialect import PAD_CHAR_TO_FULL_LENGTH, STRICT, Dialect
from headrace.sources.mysql.ddl.statement_effects import interpret
from headrace.sources.mysql.events.event_types import Query, Session
from headrace.sources.mysql.schema.alter_effects import effect_of, is_strict

T = TableName("shop", "t")
SERVERS = (Dialect(mariadb=False, version=90700), Dialect(mariadb=True, version=101100))
K, U = Unchanged(), "untold"


def altered(dialect: Dialect, before: str, after: str, *, strict: bool = True) -> Effect:
    """The effect of MODIFY c from one definition to another."""
    session = Session(sql_mode=STRICT if strict else 0, server_charset="utf8mb4")
    catalog = SchemaCatalog()
    for statement in (f"CREATE TABLE shop.t (id INT PRIMARY KEY, c {before})", f"ALTER TABLE shop.t MODIFY c {after}"):
        meaning = interpret(Query("shop", statement, session), catalog, dialect)
        assert not meaning.unknown, meaning.why
        assert not meaning.opaque, meaning.why
        catalog = apply_all(meaning.changes, catalog)
    [change] = [change for change in meaning.changes if isinstance(change, ModifyColumn)] or [None]
    return K if change is None else effect_of(change, session)


# Definition before, after, the effect in a strict session, and in one that is not (None: the same).
MODIFIED: list[tuple[str, str, object, object]] = [
    ("INT", "BIGINT", K, None),
    ("INT", "INT UNSIGNED", K, U),
    ("INT UNSIGNED", "BIGINT", K, None),
    ("BIGINT", "INT", K, U),
    ("TINYINT(1)", "TINYINT", K, None),
    ("INT", "MEDIUMINT", K, U),
    ("INT UNSIGNED", "MEDIUMINT UNSIGNED", K, U),
    ("MEDIUMINT", "INT", K, None),
    ("MEDIUMINT UNSIGNED", "INT", K, None),
    ("INT", "INT NOT NULL", K, U),
    ("INT NOT NULL", "INT", K, None),
    ("TIMESTAMP NULL", "TIMESTAMP NOT NULL", U, None),
    ("DATETIME NULL", "DATETIME NOT NULL", K, U),
    ("INT", "DECIMAL(12,2)", K, None),
    ("INT", "DECIMAL(11,2)", U, None),
    ("INT", "DOUBLE", K, None),
    ("BIGINT", "DOUBLE", U, None),
    ("INT", "FLOAT", U, None),
    ("INT", "VARCHAR(11)", K, None),
    ("INT", "VARCHAR(10)", U, None),
    ("INT(5) ZEROFILL", "VARCHAR(20)", U, None),
    ("VARCHAR(20)", "INT", U, None),
    ("DECIMAL(5,2)", "DECIMAL(7,3)", K, None),
    ("DECIMAL(5,2)", "DECIMAL(6,3)", K, None),
    ("DECIMAL(5,2)", "DECIMAL(5,3)", U, None),
    ("DECIMAL(5,2)", "DECIMAL(9,1)", U, None),
    ("DECIMAL(5,2)", "DECIMAL(5,2) UNSIGNED", K, U),
    ("FLOAT", "DOUBLE", K, None),
    ("DOUBLE", "FLOAT", U, None),
    ("DOUBLE", "DOUBLE(9,2)", U, None),
    ("DOUBLE(9,2)", "DOUBLE", K, None),
    ("BIT(5)", "BIT(9)", K, None),
    ("BIT(9)", "BIT(5)", K, U),
    ("DATETIME(3)", "DATETIME(6)", K, None),
    ("DATETIME(6)", "DATETIME(3)", U, None),
    ("TIME", "TIME(2)", K, None),
    ("DATE", "DATETIME", U, None),
    ("DATETIME", "TIMESTAMP NULL", U, None),
    ("VARCHAR(20)", "VARCHAR(30)", K, None),
    ("VARCHAR(20)", "VARCHAR(10)", Truncated(10), U),
    ("VARCHAR(20)", "CHAR(20)", Truncated(None, stripped=True), None),
    ("VARCHAR(20)", "CHAR(10)", Truncated(10, stripped=True), U),
    ("CHAR(20)", "CHAR(30)", K, None),
    ("CHAR(20)", "VARCHAR(20)", K, None),
    ("TEXT", "VARCHAR(50)", Truncated(50), U),
    ("VARCHAR(50)", "TEXT", K, None),
    ("VARCHAR(300)", "TINYTEXT", U, None),
    ("TEXT", "MEDIUMTEXT", K, None),
    ("MEDIUMTEXT", "TEXT", U, None),
    ("VARCHAR(20) CHARACTER SET latin1", "VARCHAR(20) CHARACTER SET utf8mb4", K, None),
    ("VARCHAR(20)", "VARCHAR(20) CHARACTER SET latin1", K, U),
    ("TINYTEXT CHARACTER SET latin1", "TINYTEXT CHARACTER SET utf8mb4", U, None),
    ("VARCHAR(20)", "VARBINARY(80)", U, None),
    ("VARBINARY(20)", "VARBINARY(40)", K, None),
    ("VARBINARY(20)", "VARBINARY(10)", U, None),
    ("BINARY(4)", "BINARY(8)", U, None),
    ("BINARY(4)", "VARBINARY(4)", K, None),
    ("ENUM('a','b')", "ENUM('a','b','c')", K, None),
    ("ENUM('a','b')", "ENUM('c','b','a')", K, None),
    ("ENUM('a','b','c')", "ENUM('a','c')", K, U),
    ("ENUM('a','b')", "ENUM('A','b')", U, None),
    ("ENUM('a','A') COLLATE utf8mb4_bin", "ENUM('a') COLLATE utf8mb4_general_ci", U, None),
    ("ENUM('a','A') COLLATE utf8mb4_bin", "ENUM('A','a') COLLATE utf8mb4_general_ci", K, U),
    ("ENUM('a','ä') COLLATE utf8mb4_bin", "ENUM('a') COLLATE utf8mb4_general_ci", U, None),
    ("SET('a','A') COLLATE utf8mb4_bin", "SET('a') COLLATE utf8mb4_general_ci", U, None),
    ("ENUM('a','bb')", "VARCHAR(2)", K, None),
    ("ENUM('a','bb')", "VARCHAR(1)", U, None),
    ("VARCHAR(2)", "ENUM('a','bb')", U, None),
    ("SET('a','b')", "SET('a','x','b')", K, None),
    ("SET('a','b')", "SET('b','a')", U, None),
    ("SET('a','b')", "VARCHAR(3)", K, None),
    ("SET('a','b')", "VARCHAR(2)", U, None),
    ("INT", "INT NOT NULL AUTO_INCREMENT, ADD KEY (c)", U, None),
    ("INT", "INT AS (id + 1) STORED", U, None),
    ("INT", "INT COMMENT 'x' DEFAULT 5", K, None),
    ("YEAR", "YEAR COMMENT 'y'", K, None),
    ("POINT", "GEOMETRY", K, None),
]


@pytest.mark.parametrize(("before", "after", "strict", "lax"), MODIFIED, ids=lambda value: str(value)[:40])
def test_modified_columns(before: str, after: str, strict: object, lax: object) -> None:
    for dialect in SERVERS:
        for mode, expected in ((True, strict), (False, strict if lax is None else lax)):
            found = altered(dialect, before, after, strict=mode)
            assert (U if isinstance(found, UnknownValues) else found) == expected, (dialect, mode, found)


# Added columns, and their values in existing rows.
ADDED: list[tuple[str, object]] = [
    ("INT", None),
    ("INT DEFAULT 7", 7),
    ("BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615", 18446744073709551615),
    ("INT NOT NULL", 0),
    ("TINYINT(1) NOT NULL DEFAULT TRUE", 1),
    ("DECIMAL(5,2) NOT NULL DEFAULT -1.5", Decimal("-1.50")),
    ("DECIMAL(65,30) NOT NULL DEFAULT 1", Decimal(1)),
    ("DECIMAL(5,2) NOT NULL", Decimal(0)),
    ("FLOAT DEFAULT 0.1", 0.10000000149011612),
    ("DOUBLE DEFAULT 1e3", 1000.0),
    ("DOUBLE(8,3) DEFAULT 1.5", 1.5),
    ("DOUBLE(8,3) DEFAULT 1.0005", U),
    ("BIT(7) DEFAULT b'101'", 5),
    ("BIT(7) NOT NULL", 0),
    ("VARCHAR(20) DEFAULT 'it''s'", "it's"),
    ("VARCHAR(20) DEFAULT 'é'", "é"),
    ("VARCHAR(20) CHARACTER SET latin1 DEFAULT 'é'", U),
    (r"VARCHAR(20) DEFAULT '5\%\_\x'", r"5\%\_x"),
    (r"ENUM('a\_b') DEFAULT 'a\_b'", r"a\_b"),
    ("VARCHAR(20) DEFAULT 7", "7"),
    ("VARCHAR(20) DEFAULT 007", U),
    ("VARCHAR(20) DEFAULT 1e2", U),
    ("VARBINARY(20) DEFAULT 1e2", U),
    ("VARCHAR(20) DEFAULT _latin1'x'", "x"),
    ("VARCHAR(20) DEFAULT _latin1'é'", U),
    ("VARCHAR(20) DEFAULT _latin1 x'E9'", U),
    ("VARCHAR(20) DEFAULT x'41'", "A"),
    ("VARCHAR(20) DEFAULT x'C3A9'", U),
    ("VARCHAR(20) CHARACTER SET utf16 DEFAULT x'0041'", U),
    ("INT DEFAULT 2.5", 3),
    ("INT DEFAULT 2.5e0", U),
    ("CHAR(9) NOT NULL DEFAULT 'x  '", "x"),
    ("VARCHAR(9) NOT NULL DEFAULT 'x  '", "x  "),
    ("TEXT NOT NULL", ""),
    ("BINARY(4) NOT NULL DEFAULT 0x4142", b"AB\0\0"),
    ("VARBINARY(4) NOT NULL DEFAULT 'AB'", b"AB"),
    ("BLOB NOT NULL", b""),
    ("DATE DEFAULT '2001-02-03'", 11356),
    ("DATE DEFAULT '01-02-03'", 11356),
    ("DATE DEFAULT '70-1-1'", 0),
    ("DATE DEFAULT '2001-02-03 23:59:59.9'", U),
    ("DATETIME DEFAULT '01-02-03 04:05:06'", 981173106000000),
    ("DATETIME DEFAULT '2001-02-03 04:05:06.7'", U),
    ("DATETIME(1) DEFAULT '2001-02-03 04:05:06.700'", 981173106700000),
    ("DATE NOT NULL DEFAULT '0000-00-00'", U),
    ("DATE NOT NULL", U),
    ("DATETIME(3) DEFAULT '2001-02-03 04:05:06.789'", 981173106789000),
    ("DATETIME DEFAULT CURRENT_TIMESTAMP", U),
    ("TIMESTAMP NULL", None),
    ("TIMESTAMP NULL DEFAULT '2001-02-03 04:05:06'", U),
    ("TIME(2) DEFAULT '-01:02:03.25'", -3723250000),
    ("TIME NOT NULL", 0),
    ("YEAR NOT NULL DEFAULT 1999", 1999),
    ("YEAR NOT NULL DEFAULT '0'", 2000),
    ("YEAR NOT NULL DEFAULT 00", 0),
    ("YEAR NOT NULL DEFAULT '000'", U),
    ("YEAR NOT NULL", U),
    ("ENUM('a','b') NOT NULL", "a"),
    ("ENUM('a','b') DEFAULT 'b'", "b"),
    ("ENUM('0','1') DEFAULT '1'", "1"),
    ("ENUM('0','1') DEFAULT 1", U),
    ("SET('a','b','c') NOT NULL DEFAULT 'c,a'", "a,c"),
    ("SET('a','b') NOT NULL", ""),
    ("JSON", None),
    ("INT DEFAULT (1 + 1)", U),
    ("VARCHAR(20) DEFAULT '(x)'", U),
    ("INT AS (id + 1) VIRTUAL", U),
    ("INT AUTO_INCREMENT UNIQUE", U),
]


@pytest.mark.parametrize(("definition", "value"), ADDED, ids=lambda value: str(value)[:40])
def test_added_columns(definition: str, value: object) -> None:
    for dialect in SERVERS:
        catalog = SchemaCatalog()
        session = Session(sql_mode=STRICT, server_charset="utf8mb4")
        for statement in ("CREATE TABLE shop.t (id INT)", f"ALTER TABLE shop.t ADD COLUMN c {definition}"):
            meaning = interpret(Query("shop", statement, session), catalog, dialect)
            catalog = apply_all(meaning.changes, catalog)
        [change] = [change for change in meaning.changes if isinstance(change, AddColumn)]
        found = effect_of(change, session)
        assert (found.value if isinstance(found, BackfillValue) else U) == value, (dialect, found)


def test_a_session_is_strict_by_either_mode() -> None:
    column = Column("c", Kind.INT64)
    narrowed = ModifyColumn(T, column, replace(column, kind=Kind.INT8))
    for mode in (1 << 21, 1 << 22):
        assert is_strict(Session(sql_mode=mode))
    assert not is_strict(Session(sql_mode=1 << 20))
    assert isinstance(effect_of(narrowed, Session()), UnknownValues)


def test_rows_that_an_alteration_may_throw_away_are_disturbed() -> None:
    catalog = SchemaCatalog()
    for statement in ("CREATE TABLE shop.t (id INT)", "ALTER IGNORE TABLE shop.t ADD UNIQUE (id)"):
        meaning = interpret(Query("shop", statement), catalog, SERVERS[1])
        catalog = apply_all(meaning.changes, catalog)
    assert meaning.disturbed == (T,)
    assert catalog.tables[T].indexes


@pytest.mark.parametrize("definition", ["VARCHAR(20) DEFAULT 'é'", "VARBINARY(20) DEFAULT 'é'"])
@pytest.mark.parametrize(("charset", "is_known"), [("utf8mb4", True), ("utf8mb3", True), ("latin1", False)])
def test_defaults_that_the_connection_converts(definition: str, charset: str, *, is_known: bool) -> None:
    session = Session(STRICT, "utf8mb4", charset, "utf8mb4")
    catalog = SchemaCatalog()
    for statement in ("CREATE TABLE shop.t (id INT)", f"ALTER TABLE shop.t ADD c {definition}"):
        meaning = interpret(Query("shop", statement, session), catalog, SERVERS[0])
        catalog = apply_all(meaning.changes, catalog)
    [change] = meaning.changes
    assert isinstance(change, AddColumn)
    assert isinstance(effect_of(change, session), BackfillValue) == is_known


def test_a_char_that_is_read_with_all_its_spaces() -> None:
    session = Session(STRICT | PAD_CHAR_TO_FULL_LENGTH)
    column = Column("c", Kind.STRING, source_type="char(5)", charset="utf8mb4")
    for spelled, kept in (("varchar(5)", False), ("text", False), ("char(9)", True)):
        change = ModifyColumn(T, column, replace(column, source_type=spelled))
        assert isinstance(effect_of(change, session), Unchanged) == kept, spelled


CHILD = "CREATE TABLE shop.t (id INT, p INT)"


@pytest.mark.parametrize(
    "action", ["ON DELETE CASCADE", "ON UPDATE CASCADE", "ON DELETE SET NULL", "ON UPDATE NO ACTION ON DELETE SET DEFAULT"]
)
@pytest.mark.parametrize("statement", ["ALTER TABLE t ADD FOREIGN KEY (p) REFERENCES o (id)", "ALTER TABLE t ADD q INT REFERENCES o (id)"])
def test_rows_that_a_foreign_key_may_change_are_disturbed(statement: str, action: str) -> None:
    """The key may have been dropped when its statement is read."""
    servers = {SERVERS[1]: True, Dialect(mariadb=False, version=80400): "FOREIGN" in statement, SERVERS[0]: False}
    for dialect, lost in servers.items():
        known = apply_all(interpret(Query("shop", CHILD), SchemaCatalog(), dialect).changes, SchemaCatalog())
        assert (T in interpret(Query("shop", f"{statement} {action}"), known, dialect).disturbed) == lost
        assert not interpret(Query("shop", f"{statement} ON DELETE RESTRICT"), known, dialect).disturbed


def test_a_table_is_made_with_a_foreign_key_that_may_change_its_rows() -> None:
    statement = "CREATE TABLE shop.t (id INT, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)"
    assert interpret(Query("shop", statement), SchemaCatalog(), SERVERS[1]).filled == (T,)
    assert not interpret(Query("shop", statement), SchemaCatalog(), SERVERS[0]).filled


def test_an_engine_that_keeps_no_rows_disturbs_them() -> None:
    known = apply_all(interpret(Query("shop", CHILD), SchemaCatalog(), SERVERS[0]).changes, SchemaCatalog())
    assert interpret(Query("shop", "ALTER TABLE t ENGINE = Blackhole"), known, SERVERS[0]).disturbed == (T,)
    assert not interpret(Query("shop", "ALTER TABLE t ENGINE 'MyISAM'"), known, SERVERS[0]).disturbed


def test_a_temporary_table_that_hides_a_known_one() -> None:
    known = apply_all(interpret(Query("shop", CHILD), SchemaCatalog(), SERVERS[0]).changes, SchemaCatalog())
    assert interpret(Query("shop", "CREATE TEMPORARY TABLE IF NOT EXISTS t (id INT)"), known, SERVERS[0]).unknown
    assert not interpret(Query("shop", "CREATE TEMPORARY TABLE other SELECT 1"), known, SERVERS[0]).unknown


@pytest.mark.parametrize(("zone", "moved"), [("", False), ("+02:00", False), ("UTC", False), ("Europe/Berlin", True), ("SYSTEM", True)])
def test_timestamps_that_mysql_copies_by_local_time(zone: str, moved: bool) -> None:
    session = Session(STRICT, time_zone=zone)
    for dialect in SERVERS:
        known = apply_all(
            interpret(Query("shop", "CREATE TABLE t (id INT, c TIMESTAMP NULL)"), SchemaCatalog(), dialect).changes, SchemaCatalog()
        )
        found = interpret(Query("shop", "ALTER TABLE t MODIFY id BIGINT", session), known, dialect)
        assert bool(found.disturbed) == (moved and not dialect.mariadb)
        utc = interpret(Query("shop", "ALTER TABLE t MODIFY id BIGINT", session), known, replace(dialect, in_utc=True))
        assert bool(utc.disturbed) == (moved and not dialect.mariadb and zone != "SYSTEM")


@pytest.mark.parametrize("clause", ["MODIFY c ENUM('a','A') COLLATE utf8mb4_general_ci", "CONVERT TO CHARACTER SET utf8mb4"])
def test_names_that_a_collation_takes_for_one(clause: str) -> None:
    create = "CREATE TABLE t (id INT, c ENUM('a','A') COLLATE utf8mb4_bin)"
    known = apply_all(interpret(Query("shop", create), SchemaCatalog(), SERVERS[1]).changes, SchemaCatalog())
    assert interpret(Query("shop", f"ALTER TABLE t {clause}"), known, SERVERS[1]).disturbed
    assert not interpret(Query("shop", f"ALTER TABLE t {clause}", Session(STRICT)), known, SERVERS[1]).disturbed
    assert not interpret(Query("shop", "ALTER TABLE t MODIFY id BIGINT"), known, SERVERS[1]).disturbed
