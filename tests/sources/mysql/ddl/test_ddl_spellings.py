"""DDL in all its spellings: following the log gives the definitions that the server describes.

Every statement has its own tables, so that one comparison at the end covers all. A statement that one of the servers does not know is
dropped for it; the minimum count of accepted statements guards against a corpus that tests nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from headrace.demo.private_server import PrivateServer
from headrace.model.schema import TableName
from testkit.oracles.binlogs import Logbook, open_logbook
from testkit.oracles.ddl import Follower
from testkit.servers.servers import execute

SETUP = {
    "t": "CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(20), c DECIMAL(10,2), KEY ia (a))",
    "o": "CREATE TABLE {o} (x INT NOT NULL, y VARCHAR(10), UNIQUE KEY ux (x))",
    "p": "CREATE TABLE {p} (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))",
}
STATEMENTS = r"""
CREATE TABLE {n} (id INT)
CREATE TABLE {n} (id INTEGER(5) UNSIGNED ZEROFILL NOT NULL AUTO_INCREMENT PRIMARY KEY, b BOOL, b2 BOOLEAN)
CREATE TABLE {n} (id SERIAL, d DEC(5,1), f FIXED(4), r REAL, dp DOUBLE PRECISION, fl FLOAT(30), fd FLOAT(7,3), n NUMERIC, i INT8, m MIDDLEINT)
CREATE TABLE {n} (id BIGINT SERIAL DEFAULT VALUE, x TINYINT(1) UNSIGNED, y TINYINT(1))
CREATE TABLE {n} (a CHAR BYTE, b NATIONAL VARCHAR(10), c CHARACTER VARYING(10), d LONG VARCHAR, e LONG VARBINARY, f NCHAR(3), h NVARCHAR(4))
CREATE TABLE {n} (a NATIONAL CHARACTER VARYING(3), b NCHAR VARYING(4), c NATIONAL CHAR(5), d CHAR VARYING(6), e VARCHARACTER(7), f LONG)
CREATE TABLE {n} (a TEXT(100), b TEXT(70000), c BLOB(20000000), d TINYTEXT, e TEXT(10), f TEXT(0), g BLOB(256), h MEDIUMTEXT, i LONGBLOB)
CREATE TABLE {n} (y YEAR(4), y2 YEAR, ts TIMESTAMP, dt DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), t TIME(2))
CREATE TABLE {n} (a INT, b INT GENERATED ALWAYS AS (a + 1) STORED, c INT AS (a * 2) VIRTUAL, d VARCHAR(9) AS (concat('(', a)) COMMENT 'x')
CREATE TABLE {n} (a INT, b INT GENERATED ALWAYS AS (a + 1) PERSISTENT)
CREATE TABLE {n} (g GEOMETRY NOT NULL, p POINT, l LINESTRING, c GEOMETRYCOLLECTION, SPATIAL INDEX (g))
CREATE TABLE {n} (p POINT SRID 4326 NOT NULL, c GEOMCOLLECTION)
CREATE TABLE {n} (p POINT REF_SYSTEM_ID=4326)
CREATE TABLE {n} (v VECTOR(3), w VECTOR)
CREATE TABLE {n} (u UUID, i4 INET4, i6 INET6 DEFAULT '::1')
CREATE TABLE {n} (j JSON, k JSON CHECK (JSON_VALID(k)))
CREATE TABLE {n} (z BLOB COMPRESSED, y VARCHAR(100) COMPRESSED=zlib)
CREATE TABLE {n} (a VARCHAR(10) CHARACTER SET latin1 COLLATE latin1_bin, b CHAR(3) ASCII, c CHAR(3) UNICODE, d VARCHAR(9) BINARY, e CHAR(5) CHARSET utf8)
CREATE TABLE {n} (a VARCHAR(10) COLLATE utf8mb4_bin, e ENUM('a','it''s',"x\"y",'b ') CHARACTER SET latin1, s SET('a','b'), f ENUM('\\','\n'))
CREATE TABLE {n} (a INT DEFAULT 5, b VARCHAR(9) DEFAULT 'it''s', c DATE DEFAULT '2001-1-1', d BIT(3) DEFAULT b'101', e INT DEFAULT (1+2))
CREATE TABLE {n} (a BINARY(3) DEFAULT 0x414243, b DECIMAL(6,2) DEFAULT '1', c INT(5) ZEROFILL DEFAULT 7, d DATETIME(3) DEFAULT '2001-02-03 04:05:06')
CREATE TABLE {n} (a INT COMMENT 'x', b INT INVISIBLE DEFAULT 1, c INT KEY, d INT UNIQUE, e INT UNIQUE KEY NOT NULL)
CREATE TABLE {n} (a INT, CONSTRAINT pk PRIMARY KEY USING BTREE (a), UNIQUE KEY u (a DESC), INDEX i USING BTREE (a) COMMENT 'c', KEY (a), KEY (a))
CREATE TABLE {n} (a INT, b INT, CHECK (b > 1), CONSTRAINT ck{n} CHECK (b <> 3), FOREIGN KEY fki (a) REFERENCES {t} (id) ON DELETE CASCADE)
CREATE TABLE {n} (a INT REFERENCES {t} (id), b VARCHAR(30), KEY (b(10)), UNIQUE KEY whole (b(30)), UNIQUE KEY part (b(29)), FULLTEXT KEY ft (b))
CREATE TABLE {n} (a INT, KEY ((a + 1)), UNIQUE KEY ((a * 2), a), KEY named ((a + 3)))
CREATE TABLE {n} (a INT) ENGINE=InnoDB AUTO_INCREMENT=5 DEFAULT CHARSET=latin1 COLLATE=latin1_swedish_ci COMMENT='hello' ROW_FORMAT=DYNAMIC
CREATE TABLE {n} (a VARCHAR(5)) CHARACTER SET = utf8mb4, COMMENT 'x', ENGINE InnoDB, STATS_PERSISTENT=1
CREATE TABLE {n} (a VARCHAR(5)) COLLATE latin1_bin
CREATE TABLE IF NOT EXISTS {n} LIKE {t}
CREATE TABLE IF NOT EXISTS {t} (other INT)
CREATE TABLE {n} (LIKE {t})
CREATE TABLE {n} AS SELECT id, b FROM {t}
CREATE TABLE {n} (z INT NOT NULL) SELECT id, b FROM {t}
CREATE TABLE {n} (PRIMARY KEY (id)) IGNORE SELECT * FROM {t}
CREATE OR REPLACE TABLE {o} (q INT)
CREATE TEMPORARY TABLE {n} (a INT)
CREATE TABLE {n} (id INT, d DATE) PARTITION BY HASH (id) PARTITIONS 4
CREATE TABLE {n} (id INT, d DATE) PARTITION BY LIST COLUMNS (id) (PARTITION a VALUES IN (1,2) COMMENT = 'x', PARTITION b VALUES IN (3))
CREATE TABLE {n} (id INT, d1 DATE, d2 DATE, PERIOD FOR p (d1, d2))
CREATE TABLE `od``d``. {n}` (`a b` INT, `c``d` INT, `select` INT, ü INT, `漢` VARCHAR(3) DEFAULT '字')
CREATE TABLE {n} (a INT /*!80023 INVISIBLE */, b INT /*!50601 DEFAULT 3 */ /*M!100100 COMMENT 'maria' */ /* plain */)
/*!40101 CREATE TABLE {n} (a INT) */
CREATE TABLE {n} (a VARCHAR(70000), b VARBINARY(70000), c VARCHAR(20000))
CREATE TABLE {n} (comment INT, date DATE, status VARCHAR(3), `key` INT, value INT, `first` INT, `after` INT, period INT, vector INT)
DROP TABLE {t}, {o}
DROP TABLE IF EXISTS {t}, missing RESTRICT
DROP TABLES {t} CASCADE
DROP TEMPORARY TABLE IF EXISTS {t}
DROP TABLE /*! IF EXISTS */ `{t}` /* generated by server */
RENAME TABLE {t} TO {n}, {o} TO {t}
RENAME TABLES {t} TO {n}, {o} TO {t}, {n} TO {o}
RENAME TABLE IF EXISTS {t} WAIT 5 TO {n}
ALTER TABLE {t} RENAME {n}
ALTER TABLE {t} RENAME TO {n}
ALTER TABLE {t} RENAME AS {n}
ALTER TABLE {t} RENAME = {n}
TRUNCATE {t}
TRUNCATE TABLE {t}
TRUNCATE TABLE {t} WAIT 3
ALTER TABLE {t} ADD COLUMN d INT
ALTER TABLE {t} ADD d INT FIRST, ADD COLUMN e INT NOT NULL DEFAULT 3 AFTER a
ALTER TABLE {t} ADD (d INT, e VARCHAR(5) NOT NULL UNIQUE, KEY (d))
ALTER TABLE {t} ADD COLUMN IF NOT EXISTS (d INT, a INT)
ALTER TABLE {t} ADD COLUMN IF NOT EXISTS a BIGINT UNIQUE, DROP COLUMN IF EXISTS zz
ALTER TABLE {t} DROP a
ALTER TABLE {t} DROP COLUMN a, DROP COLUMN b
ALTER TABLE {t} MODIFY a BIGINT UNSIGNED NOT NULL FIRST
ALTER TABLE {t} MODIFY COLUMN B TEXT CHARACTER SET latin1 AFTER ID
ALTER TABLE {t} CHANGE a aa INT, CHANGE COLUMN b bb VARCHAR(30) NOT NULL FIRST
ALTER TABLE {t} CHANGE a b INT, CHANGE b a VARCHAR(20)
ALTER TABLE {t} RENAME COLUMN a TO z, RENAME COLUMN b TO a
ALTER TABLE {t} RENAME COLUMN a TO b, RENAME COLUMN b TO c, RENAME COLUMN c TO a
ALTER TABLE {t} DROP COLUMN a, ADD COLUMN a TEXT
ALTER TABLE {t} MODIFY c INT FIRST, MODIFY a INT AFTER c, ADD d INT AFTER a
ALTER TABLE {t} ALTER COLUMN a SET DEFAULT 5, ALTER b DROP DEFAULT
ALTER TABLE {t} ALTER a SET DEFAULT (1 + 1)
ALTER TABLE {t} ALTER COLUMN a SET INVISIBLE
ALTER TABLE {t} DROP PRIMARY KEY
ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (a, id)
ALTER TABLE {t} ADD INDEX (b), ADD UNIQUE (a), ADD KEY named (a, b(5))
ALTER TABLE {t} ADD CONSTRAINT uq UNIQUE INDEX foo (a), ADD CONSTRAINT ck{n} CHECK (a > 0)
ALTER TABLE {t} ADD FULLTEXT INDEX ft (b)
ALTER TABLE {t} DROP INDEX ia
ALTER TABLE {t} DROP KEY IF EXISTS ia
ALTER TABLE {t} DROP CONSTRAINT `PRIMARY`
ALTER TABLE {t} RENAME INDEX ia TO ib
ALTER TABLE {t} RENAME KEY ia TO ib, ALGORITHM=INPLACE, LOCK=NONE
ALTER TABLE {t} ALTER INDEX ia INVISIBLE
ALTER TABLE {t} ALTER INDEX ia IGNORED
ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb3
ALTER TABLE {t} ADD d TINYTEXT, ADD e TEXT, ADD f LONGTEXT, ADD g ENUM('a'), ADD h MEDIUMTEXT, CONVERT TO CHARACTER SET latin1 COLLATE latin1_bin
ALTER TABLE {t} DEFAULT CHARACTER SET latin1, ADD d VARCHAR(3)
ALTER TABLE {t} CHARACTER SET = latin1, COLLATE = latin1_bin, COMMENT = 'x y'
ALTER TABLE {t} COLLATE utf8mb4_bin
ALTER TABLE {t} ORDER BY a DESC, b
ALTER TABLE {t} ENGINE = InnoDB, AUTO_INCREMENT = 100
ALTER TABLE {t} FORCE
ALTER TABLE {t} DISABLE KEYS
ALTER ONLINE TABLE {t} ADD COLUMN d INT
ALTER IGNORE TABLE {t} ADD UNIQUE (a)
ALTER TABLE {t} WAIT 10 ADD COLUMN d INT
ALTER TABLE {t} NOWAIT ADD COLUMN d INT
ALTER TABLE IF EXISTS {t} ADD COLUMN d INT
ALTER TABLE {t} ALGORITHM=INSTANT, ADD COLUMN d INT
ALTER TABLE {t} ADD COLUMN d INT, ALGORITHM INPLACE, LOCK NONE
ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 3
ALTER TABLE {t} ADD d INT PARTITION BY HASH (id) PARTITIONS 3
ALTER TABLE {p} REMOVE PARTITIONING
ALTER TABLE {p} ADD PARTITION (PARTITION p2 VALUES LESS THAN (1000))
ALTER TABLE {p} DROP PARTITION p0
ALTER TABLE {p} TRUNCATE PARTITION p0
ALTER TABLE {p} REORGANIZE PARTITION p0, p1 INTO (PARTITION pp VALUES LESS THAN (100))
ALTER TABLE {p} CONVERT PARTITION p0 TO TABLE {o}_part
SET STATEMENT max_statement_time=100 FOR ALTER TABLE {t} ADD COLUMN d INT
CREATE INDEX i ON {t} (a)
CREATE UNIQUE INDEX u USING BTREE ON {t} (a, b)
CREATE OR REPLACE INDEX ia ON {t} (b)
CREATE INDEX IF NOT EXISTS ia ON {t} (b)
CREATE FULLTEXT INDEX f ON {t} (b) ALGORITHM=INPLACE LOCK=SHARED
DROP INDEX ia ON {t}
DROP INDEX IF EXISTS ia ON {t}
DROP INDEX `PRIMARY` ON {t}
ALTER TABLE {t} ADD COLUMN g INT GENERATED ALWAYS AS (a+1) VIRTUAL AFTER id
ALTER TABLE {t} ADD CONSTRAINT fk{n} FOREIGN KEY (a) REFERENCES {o} (x) ON UPDATE CASCADE
ALTER TABLE {t} MODIFY COLUMN IF EXISTS a BIGINT
ALTER TABLE {t} CHANGE COLUMN IF EXISTS zz yy INT
ALTER TABLE {t} ADD PRIMARY KEY IF NOT EXISTS (id)
ALTER TABLE {t} ADD COLUMN d DATETIME NOT NULL DEFAULT '2000-01-01 00:00:00' COMMENT "x", ADD INDEX (d)
ALTER TABLE {t} ADD d VARCHAR(10) NOT NULL DEFAULT _utf8mb4'x' COLLATE utf8mb4_bin
ALTER TABLE {t} SECONDARY_ENGINE = NULL
ALTER TABLE {t} CHECKSUM=1 MAX_ROWS=100
ALTER TABLE {t} ADD d INT NOT NULL DEFAULT 0, ADD UNIQUE KEY u (d, id), DROP KEY ia, MODIFY b VARCHAR(40), RENAME TO {n}
ALTER TABLE {t} ADD c2 INT DEFAULT -5, ADD c3 VARCHAR(9) DEFAULT "x""y", ADD c4 CHAR(2) DEFAULT N'q', ADD c5 DECIMAL(5,2) DEFAULT +1.5;
ALTER TABLE {t} ADD COLUMN IF NOT EXISTS d VARCHAR(100) COMPRESSED KEY NOT NULL
ALTER TABLE {t} ADD d INT AFTER C, CHANGE c c LONGBLOB NULL FIRST
ALTER TABLE {t} ADD d LONG CHARACTER SET latin1 COLLATE latin1_bin, ADD e TIME DEFAULT '-1:02:03.5', ADD f YEAR DEFAULT 5, ADD g TIME DEFAULT 5
ALTER TABLE {t} ADD h BIT(7) DEFAULT 'a', ADD i DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3), ADD j DATETIME NOT NULL ON UPDATE CURRENT_TIMESTAMP
ALTER TABLE {t} RENAME KEY ia TO ia, DROP COLUMN A
ALTER TABLE {t} ADD d INT, ADD COLUMN IF NOT EXISTS d BIGINT
ALTER TABLE {t} CHANGE c d INT, ADD COLUMN IF NOT EXISTS d BIGINT
ALTER TABLE {t} MODIFY COLUMN IF EXISTS c DATE NOT NULL PRIMARY KEY FIRST
ALTER TABLE {t} MODIFY b VARCHAR(20000) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'z', CONVERT TO CHARACTER SET latin1
ALTER TABLE {t} ADD COLUMN d POINT NOT NULL, ADD KEY (c), RENAME COLUMN c TO cc
""".strip().split("\n")  # noqa: E501
COUNTS = {"mariadb": 136, "mysql": 112}
"""The minimum number of statements that each server accepts."""


@pytest.fixture
def book(server: PrivateServer, database: str) -> Iterator[Logbook]:
    with open_logbook(server, database, sql_mode="") as book:
        yield book


def attempt(book: Logbook, statement: str) -> bool:
    try:
        book.run(statement)
    except pymysql.err.MySQLError:
        return False
    return True


def test_spellings(book: Logbook) -> None:
    names = [{letter: f"{letter}{number}" for letter in "topn"} for number in range(len(STATEMENTS))]
    for statement, name in zip(STATEMENTS, names, strict=True):
        book.run(*(made.format(**name) for letter, made in SETUP.items() if f"{{{letter}}}" in statement))
    follower = Follower(book, (book.database,))
    taken = [attempt(book, statement.format(**name)) for statement, name in zip(STATEMENTS, names, strict=True)]
    answers = follower.catch_up()
    unclear = [answer for answer in answers if answer.outcome.name in ("UNKNOWN", "DML") or answer.recapture]
    # A partition that became a table has a definition that is in no statement.
    assert [answer.query.statement for answer in unclear if "CONVERT PARTITION" not in answer.query.statement] == []
    assert [line for line in follower.differences() if "_part: is not followed" not in line] == []
    assert sum(taken) >= COUNTS[book.server.flavour]


SESSIONS: list[tuple[str, list[str]]] = [
    (
        "sql_mode = 'ANSI_QUOTES'",
        ['CREATE TABLE "q1" ("a ""b" INT, c VARCHAR(3) DEFAULT \'"\')', 'ALTER TABLE "q1" ADD "d" INT AFTER "a ""b"'],
    ),
    ("sql_mode = 'NO_BACKSLASH_ESCAPES'", ["CREATE TABLE q2 (e ENUM('\\', 'b'), v VARCHAR(9) DEFAULT 'a\\')"]),
    ("sql_mode = 'REAL_AS_FLOAT'", ["CREATE TABLE q3 (r REAL, d DOUBLE)"]),
    (
        "sql_mode = '', explicit_defaults_for_timestamp = OFF",
        ["CREATE TABLE q4 (a TIMESTAMP, b TIMESTAMP, c TIMESTAMP NULL, d TIMESTAMP(3))"],
    ),
    ("explicit_defaults_for_timestamp = ON", ["CREATE TABLE q5 (a TIMESTAMP, b TIMESTAMP NOT NULL DEFAULT '2001-01-01 00:00:00')"]),
    ("NAMES latin1", ["CREATE TABLE q6 (ä INT, e ENUM('ö', 'x') CHARACTER SET latin1 COMMENT 'ü')"]),
    ("NAMES gbk", ["CREATE TABLE q7 (`漢` INT, e ENUM('字', 'x'))"]),
    ("NAMES utf8mb4", ["CREATE TABLE q8 (`漢` INT, e ENUM('字', '🚰'))"]),
]


def test_session_settings_of_statements(server: PrivateServer, database: str) -> None:
    charsets = {"NAMES latin1": "latin1", "NAMES gbk": "gbk"}
    with open_logbook(server, database, sql_mode="") as book:
        follower = Follower(book, (database,))
        for settings, statements in SESSIONS:
            with server.root_connection(database, charset=charsets.get(settings, "utf8mb4")) as connection, connection.cursor() as cursor:
                cursor.execute(f"SET {settings}")
                for statement in statements:
                    cursor.execute(statement)
            assert [answer.outcome.name for answer in follower.catch_up()] == ["CHANGED"] * len(statements), settings
            assert follower.differences() == [], settings
        assert [column.default for column in follower.history.catalog.tables[TableName(database, "q4")].columns] == [
            "(current_timestamp())",
            "0000-00-00 00:00:00",
            None,
            "0000-00-00 00:00:00.000",
        ]


def test_databases(book: Logbook) -> None:
    first, second = f"{book.database}_1", f"{book.database}_2"
    follower = Follower(book, (book.database, first, second))

    def check(*statements: str) -> None:
        book.run(*statements)
        follower.catch_up()
        assert follower.differences() == []

    try:
        check(f"CREATE DATABASE `{first}` CHARACTER SET latin1", f"CREATE SCHEMA IF NOT EXISTS {first} CHARACTER SET ascii")
        check(
            f"CREATE SCHEMA {second} DEFAULT COLLATE utf8mb4_bin",
            f"CREATE TABLE {first}.a (x VARCHAR(3), y VARCHAR(3) CHARACTER SET ascii)",
        )
        check(f"ALTER DATABASE {first} CHARACTER SET = cp1251", f"CREATE TABLE {first}.b (x VARCHAR(3))")
        check(
            f"USE {second}",
            "ALTER DATABASE COLLATE latin1_bin",
            "CREATE TABLE c (x TEXT)",
            f"ALTER TABLE {first}.a CONVERT TO CHARACTER SET DEFAULT",
        )
        check(f"RENAME TABLE {first}.a TO a, c TO {first}.c", f"DROP DATABASE {first}")
        assert sorted(map(str, follower.history.catalog.tables)) == [f"{second}.a"]
    finally:
        book.run(f"DROP DATABASE IF EXISTS {first}", f"DROP DATABASE IF EXISTS {second}")


def test_an_alter_that_mariadb_logs_twice(mariadb_server: PrivateServer) -> None:
    """It takes effect at its end, not at its start, and not if it is rolled back."""
    execute(mariadb_server, "CREATE DATABASE two_phases")
    try:
        with open_logbook(mariadb_server, "two_phases") as book:
            book.run("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (1)")
            follower = Follower(book, ("two_phases",))
            book.run("SET SESSION binlog_alter_two_phase = 1", "ALTER TABLE t ADD b INT")
            assert not attempt(book, "ALTER TABLE t ADD UNIQUE (a), ADD c INT")
            book.run("ALTER TABLE t ADD d INT")
            outcomes = [answer.outcome.name for answer in follower.catch_up()]
            assert outcomes == ["NOTHING", "CHANGED", "NOTHING", "NOTHING", "NOTHING", "CHANGED"]
            assert follower.differences() == []
    finally:
        execute(mariadb_server, "DROP DATABASE two_phases")


def test_a_statement_that_failed_after_it_dropped_a_table(mariadb_server: PrivateServer) -> None:
    execute(mariadb_server, "CREATE DATABASE half_way")
    try:
        with open_logbook(mariadb_server, "half_way") as book:
            book.run("CREATE TABLE t (a INT)")
            follower = Follower(book, ("half_way",))
            assert not attempt(book, "CREATE OR REPLACE TABLE t (b INT, SPATIAL INDEX (b))")
            [answer] = follower.catch_up()
            assert (answer.query.error_code > 0, answer.gone) == (True, {TableName("half_way", "t")})
            assert follower.differences() == []
    finally:
        execute(mariadb_server, "DROP DATABASE half_way")


def test_a_primary_key_that_mysql_generates(mysql_server: PrivateServer) -> None:
    execute(mysql_server, "CREATE DATABASE generated_key")
    try:
        with open_logbook(mysql_server, "generated_key") as book:
            follower = Follower(book, ("generated_key",))
            book.run("SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a INT)", "CREATE TABLE u LIKE t")
            follower.catch_up()
            assert follower.differences() == []
            assert follower.history.catalog.tables[TableName("generated_key", "u")].primary_key == ("my_row_id",)
    finally:
        execute(mysql_server, "DROP DATABASE generated_key")
