"""The recorded workloads of Debezium: tables with every type and extreme values, and changes of every kind.

A case has two halves. The connectors read the rows of `before` in their snapshot; `stream` holds the changes that they then follow. The
table `sentinel` ends each half: its record is the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

DATABASE = "shop"


@dataclass(frozen=True, slots=True)
class Case:
    """A workload for one kind of server."""

    connector: str
    before: tuple[str, ...]
    stream: tuple[str, ...]
    tables: tuple[str, ...]
    """The tables that exist at the end, without the sentinel."""
    typed: tuple[str, ...]
    """The tables with columns of every type."""


SENTINEL = "sentinel"
UNALTERED = ("sbtest1", "nokey", "pairs", "uniques", "emptied", "late", "spans", "numbers", "texts", "times")
"""Tables of the MySQL and MariaDB cases that keep their definition and hold valid dates only."""
_BINARY = "x'00FF80fe0a22'"

_SBTEST = (
    "CREATE TABLE sbtest1 (id INT NOT NULL, k INT NOT NULL DEFAULT 0, c CHAR(120) NOT NULL DEFAULT '',"
    " pad CHAR(60) NOT NULL DEFAULT '',"
    " PRIMARY KEY (id, k)) PARTITION BY RANGE (k) (PARTITION p0 VALUES LESS THAN (3000), PARTITION p1 VALUES LESS THAN MAXVALUE)"
)
_SEED_ROW = (
    "(2317, 3737,"
    " '20488251985-66135155553-00362235007-72249840112-70784105787-84584360668-65106023418-49140058226-99031281108-48426083028',"
    " '18846546959-44726413785-66695616247-63594911107-83062207348')"
)

_NUMBERS = (
    "CREATE TABLE numbers (id INT NOT NULL PRIMARY KEY, ti TINYINT, tu TINYINT UNSIGNED, bo TINYINT(1),"
    " si SMALLINT, su SMALLINT UNSIGNED,"
    " mi MEDIUMINT, mu MEDIUMINT UNSIGNED, i INT, iu INT UNSIGNED, bi BIGINT, bu BIGINT UNSIGNED, f FLOAT,"
    " d DOUBLE, small DECIMAL(9,4),"
    " wide DECIMAL(65,30), whole DECIMAL(20,0), money NUMERIC(10,2) UNSIGNED NOT NULL DEFAULT 1.50,"
    " b1 BIT(1), b9 BIT(9), b64 BIT(64),"
    " z INT(8) UNSIGNED ZEROFILL, y YEAR)"
)
_NUMBER_ROWS = (
    "(1, -128, 0, 0, -32768, 0, -8388608, 0, -2147483648, 0, -9223372036854775808, 0, -3.4028234e38,"
    " -1.7976931348623157e308, -99999.9999,"
    " -99999999999999999999999999999999999.999999999999999999999999999999, -99999999999999999999, 0, b'0', b'0', b'0', 0, 1901)",
    "(2, 127, 255, 1, 32767, 65535, 8388607, 16777215, 2147483647, 4294967295, 9223372036854775807,"
    " 18446744073709551615, 3.4028234e38,"
    " 1.7976931348623157e308, 99999.9999, 99999999999999999999999999999999999.999999999999999999999999999999, 99999999999999999999,"
    " 99999999.99, b'1', b'111111111', ~0, 4294967295, 2155)",
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " 0.01, NULL, NULL, NULL, NULL, NULL)",
    "(4, 1, 2, 3, -4, 5, -6, 7, -8, 9, 10, 9223372036854775808, 0.1, 0.1, -0.0001, 0.000000000000000000000000000001, 0, 1.10, b'1',"
    " b'100000001', 9223372036854775808, 42, 0)",
)

_TEXTS = (
    "CREATE TABLE texts (id VARCHAR(40) NOT NULL PRIMARY KEY, c CHAR(4), v VARCHAR(300), tt TINYTEXT, t TEXT,"
    " mt MEDIUMTEXT, lt LONGTEXT,"
    " latin VARCHAR(20) CHARACTER SET latin1, bn BINARY(6), vb VARBINARY(20), tb TINYBLOB, bl BLOB, lb LONGBLOB,"
    " e ENUM('red','green','a b','q''s'), s SET('a','b','c'), j JSON, g GEOMETRY, p POINT, pol POLYGON,"
    " def VARCHAR(10) DEFAULT 'd\"\\\\x'"
)
_SHAPES = (
    "ST_GeomFromText('LINESTRING(0 0,1 -1.5,1e10 2)'), ST_GeomFromText('POINT(1 -2.5)'),"
    " ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,2 1,2 2,1 1))')"
)
_TEXT_ROWS = (
    f"('é🙂\"\\\\', 'ab', 'tab\\tnew\\nline\\0nul \\\\ \"quoted\" \\b\\f\\r\u007f', 'tiny', REPEAT('é', 200),"
    f" 'm', '日本', 'naïve', {_BINARY}, {_BINARY}, x'', x'ff',"
    f" {_BINARY}, 'q''s', 'a,c', '{{\"k\": [1, -2.5, null, \"é\\\\\"\", true,"
    f' {{"n": 18446744073709551615}}], "": 1e-7}}\', {_SHAPES}, \'x\'',
    "('', '', '', '', '', '', '', '', '', '', '', '', '', 'red', '', '[]', NULL, NULL, NULL, ''",
    "('none', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
    "('zeros', 'a', ' lead', 'trail ', '0', 'true', 'null', 'x', x'00', x'00', x'0000', x'00', x'00', 'a b',"
    " 'a,b,c', '\"s\"', NULL, NULL, NULL, 'y'",
)
_EXTRA = {
    "mysql": (", vec VECTOR(3))", (", STRING_TO_VECTOR('[1,-2.5,3e10]'))", ", NULL)", ", NULL)", ", STRING_TO_VECTOR('[0.1]'))")),
    "mariadb": (
        # Debezium's grammar knows neither INET4 nor INET6.
        ", u UUID)",
        (
            ", '123e4567-e89b-12d3-a456-426655440000')",
            ", NULL)",
            ", NULL)",
            ", '00000000-0000-0000-0000-000000000000')",
        ),
    ),
}

_TIMES = (
    "CREATE TABLE times (id INT NOT NULL PRIMARY KEY, d DATE, t0 TIME, t3 TIME(3), t6 TIME(6), d0 DATETIME,"
    " d3 DATETIME(3), d6 DATETIME(6),"
    " s0 TIMESTAMP NULL, s3 TIMESTAMP(3) NULL, s6 TIMESTAMP(6) NULL, nn DATETIME(6) NOT NULL DEFAULT '2000-01-01 00:00:00.5')"
)
_TIME_ROWS = (
    "(1, '1000-01-01', '00:00:00', '00:00:00.000', '00:00:00.000000', '1000-01-01 00:00:00', '1000-01-01 00:00:00.000',"
    " '1000-01-01 00:00:00.000000', '1970-01-01 00:00:01', '1970-01-01 00:00:01.001',"
    " '1970-01-01 00:00:01.000001', '1969-12-31 23:59:59.9')",
    "(2, '9999-12-31', '23:59:59', '23:59:59.999', '23:59:59.999999', '9999-12-31 23:59:59', '9999-12-31 23:59:59.999',"
    " '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07', '2038-01-19 03:14:07.999',"
    " '2038-01-19 03:14:07.999999', '2024-02-29 12:00:00')",
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '1970-01-01 00:00:00')",
    "(4, '1970-01-01', '12:34:56', '12:34:56.7', '12:34:56.789012', '1970-01-01 00:00:00',"
    " '2024-10-27 02:30:00.120', '1969-12-31 23:59:59.999999',"
    " '2024-10-27 01:30:00', '2024-10-27 01:30:00.120', '2024-10-27 01:30:00.120000', '2024-10-27 02:30:00.000001')",
)
_SPANS = (
    "CREATE TABLE spans (id INT NOT NULL PRIMARY KEY, t0 TIME, t6 TIME(6))",
    "INSERT INTO spans VALUES (1, '-838:59:59', '-838:59:58.999999'), (2, '838:59:59', '838:59:58.999999'),"
    " (3, '-00:00:01', '-00:00:00.000001')",
)
_ZEROS = (
    "SET SESSION sql_mode = ''",
    "INSERT INTO zeros VALUES (1, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '0000-00-00', '0000-00-00 00:00:00'),"
    " (2, '2024-00-10', '2024-02-00 01:02:03', NULL, '2024-01-02', '2024-01-02 03:04:05')",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
)

_BEFORE = (
    f"CREATE TABLE {SENTINEL} (id INT NOT NULL PRIMARY KEY)",
    _SBTEST,
    f"INSERT INTO sbtest1 VALUES {_SEED_ROW}, (1, 1, 'one', 'p'), (2, 2, 'two', 'p'), (3, 3, 'three', 'p')",
    "CREATE TABLE nokey (a INT, b VARCHAR(20))",
    "INSERT INTO nokey VALUES (1, 'x'), (1, 'x'), (2, NULL)",
    "CREATE TABLE pairs (note VARCHAR(20), code CHAR(3) NOT NULL, day DATE NOT NULL,"
    " n BIGINT UNSIGNED NOT NULL, PRIMARY KEY (day, code, n))",
    "INSERT INTO pairs VALUES ('a', 'x', '2024-02-29', 18446744073709551615), ('b', 'y', '2024-02-29', 1)",
    "CREATE TABLE uniques (v VARCHAR(10), code INT NOT NULL, UNIQUE KEY (code))",
    "CREATE TABLE emptied (id INT NOT NULL PRIMARY KEY, v VARCHAR(10))",
    "INSERT INTO emptied VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE evolving (id INT NOT NULL PRIMARY KEY, a VARCHAR(10))",
    "INSERT INTO evolving VALUES (1, 'first')",
    "CREATE TABLE zeros (id INT NOT NULL PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, dn DATE NOT NULL, dtn DATETIME NOT NULL)",
)
_STREAM = (
    # Each key change is three records.
    "UPDATE sbtest1 SET k = 3738 WHERE id = 2317",
    "UPDATE sbtest1 SET id = 20, k = 5000 WHERE id = 2",
    "BEGIN",
    "UPDATE sbtest1 SET c = 'one, once' WHERE id = 1",
    "UPDATE sbtest1 SET c = 'one, twice' WHERE id = 1",
    "UPDATE sbtest1 SET c = 'one, thrice', k = 10 WHERE id = 1",
    "UPDATE sbtest1 SET c = 'one, last' WHERE id = 1",
    "DELETE FROM sbtest1 WHERE id = 3",
    "INSERT INTO sbtest1 VALUES (3, 3, 'three again', '')",
    "DELETE FROM sbtest1 WHERE id = 3",
    "INSERT INTO sbtest1 VALUES (3, 3, 'three at last', '')",
    "COMMIT",
    "INSERT INTO sbtest1 (id) VALUES (100), (101), (102), (103)",
    "UPDATE sbtest1 SET pad = CONCAT('p', id) WHERE id BETWEEN 100 AND 102",
    "DELETE FROM sbtest1 WHERE id IN (101, 103)",
    "INSERT INTO nokey VALUES (3, 'three'), (3, 'three')",
    "UPDATE nokey SET b = 'y' WHERE a = 2",
    "DELETE FROM nokey WHERE a = 1 LIMIT 1",
    "UPDATE pairs SET note = 'changed' WHERE code = 'x'",
    "UPDATE pairs SET code = 'z', day = '2024-03-01' WHERE code = 'y'",
    "INSERT INTO uniques VALUES ('u', 1), (NULL, 2)",
    "UPDATE uniques SET code = 3 WHERE code = 2",
    "TRUNCATE TABLE emptied",
    "INSERT INTO emptied VALUES (3, 'c')",
    "ALTER TABLE evolving ADD COLUMN b INT NOT NULL DEFAULT 5, ADD COLUMN c DECIMAL(10,2) NULL AFTER a",
    "INSERT INTO evolving VALUES (2, 'second', 2.50, 6)",
    "ALTER TABLE evolving MODIFY COLUMN a VARCHAR(100) NOT NULL, MODIFY COLUMN b BIGINT",
    "UPDATE evolving SET b = 9223372036854775807 WHERE id = 1",
    "ALTER TABLE evolving DROP COLUMN c",
    "INSERT INTO evolving VALUES (3, 'third', NULL)",
    "ALTER TABLE evolving CHANGE COLUMN a name VARCHAR(100) NOT NULL",
    "INSERT INTO evolving VALUES (4, 'fourth', 1)",
    "CREATE TABLE late (id INT NOT NULL PRIMARY KEY, v TEXT)",
    "INSERT INTO late VALUES (1, 'late')",
    "CREATE TABLE dropped (id INT NOT NULL PRIMARY KEY)",
    "INSERT INTO dropped VALUES (1)",
    "DROP TABLE dropped",
)


def _binlog_case(flavour: str) -> Case:
    more, endings = _EXTRA[flavour]
    texts = [row + ending for row, ending in zip(_TEXT_ROWS, endings, strict=True)]
    typed = (
        f"INSERT INTO numbers VALUES {', '.join(_NUMBER_ROWS[2:])}",
        f"INSERT INTO texts VALUES {', '.join(texts[2:])}",
        f"INSERT INTO times VALUES {', '.join(_TIME_ROWS[2:])}",
        "UPDATE numbers SET bu = 18446744073709551614, wide = 1.5, f = NULL WHERE id = 4",
        "UPDATE texts SET t = NULL, j = '{\"b\": 1, \"a\": 2}' WHERE id = 'zeros'",
        "UPDATE times SET s6 = '2024-10-27 00:30:00.5', t6 = NULL WHERE id = 4",
        "DELETE FROM numbers WHERE id = 1",
        "DELETE FROM times WHERE id = 1",
        "DELETE FROM texts WHERE id = ''",
    )
    snapshot = (
        _NUMBERS,
        f"INSERT INTO numbers VALUES {', '.join(_NUMBER_ROWS[:2])}",
        _TEXTS + more,
        f"INSERT INTO texts VALUES {', '.join(texts[:2])}",
        _TIMES,
        f"INSERT INTO times VALUES {', '.join(_TIME_ROWS[:2])}",
    )
    tables = ("sbtest1", "nokey", "pairs", "uniques", "emptied", "evolving", "zeros", "late", "spans", "numbers", "texts", "times")
    return Case(flavour, (*_BEFORE, *snapshot), (*_STREAM, *_SPANS, *_ZEROS, *typed), tables, ("numbers", "texts", "times"))


_PG_TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s')",
    "CREATE TABLE kinds (id INT PRIMARY KEY, si SMALLINT, i INT, bi BIGINT, r REAL, d DOUBLE PRECISION,"
    " n NUMERIC, n2 NUMERIC(38,10),"
    " money MONEY, bo BOOLEAN, c CHAR(4), v VARCHAR(20), t TEXT, by BYTEA, dt DATE, tm TIME, tm3 TIME(3),"
    " tz TIMETZ, ts TIMESTAMP, ts3 TIMESTAMP(3),"
    " tsz TIMESTAMPTZ, iv INTERVAL, u UUID, j JSON, jb JSONB, x XML, ip INET, net CIDR, mac MACADDR,"
    " bt BIT(1), bt9 BIT(9), vb BIT VARYING(20),"
    " ia INT[], ta TEXT[], na NUMERIC(10,2)[], da DATE[], e mood, r4 INT4RANGE, rt TSTZRANGE, p POINT, o OID)",
)
_PG_ROWS = (
    "(1, -32768, -2147483648, -9223372036854775808, -3.4e38, -1.7976931348623157e308, 'NaN',"
    " -9999999999999999999999999999.9999999999,"
    " '-$12.34', false, '', '', '', '', '0001-01-01', '00:00', '00:00:00.001', '00:00:00+14',"
    " '0001-01-01 00:00', '0001-01-01 00:00:00.001',"
    " '0001-01-01 00:00+00', '-1 year -2 days', '00000000-0000-0000-0000-000000000000', '[]', '{}', '<a/>', '0.0.0.0', '0.0.0.0/0',"
    " '00:00:00:00:00:00', B'0', B'000000001', B'1', '{}', '{}', '{}', '{}', 'sad', 'empty', '[2024-01-01 00:00+00,)', '(0,0)', 0)",
    "(2, 32767, 2147483647, 9223372036854775807, 3.4e38, 1.7976931348623157e308,"
    " 12345678901234567890.123456789012345678901234567890,"
    " 9999999999999999999999999999.9999999999, '$92233720368547758.07', true, 'ab', 'é🙂\"\\',"
    " E'tab\\tnew\\n', '\\x00ff80', '9999-12-31', '23:59:59.999999',"
    " '23:59:59.999', '23:59:59.999999-12', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999',"
    " '9999-12-31 23:59:59.999999+00',"
    " '1 year 2 months 3 days 04:05:06.789', 'ffffffff-ffff-ffff-ffff-ffffffffffff', '{\"b\":  1, \"a\": 2}',"
    ' \'{"b": 1, "a": [1.50, null]}\','
    " '<a>b</a>', '2001:db8::1/64', '10.1.0.0/16', 'ff:ff:ff:ff:ff:ff', B'1', B'111111111',"
    " B'10101010101010101010', '{1,NULL,-3}', '{\"a\",NULL,\"\"}',"
    " '{1.50,NULL}', '{2024-02-29}', 'it''s', '[1,10)', NULL, '(1.5,-2.5)', 4294967295)",
    f"(3{', NULL' * 40})",
    "(4, 1, 2, 3, 0.1, 0.1, 0.00000000000000000001, 0, '$0.00', true, 'x', 'v', 't', '\\x00', '1970-01-01',"
    " '12:34:56.789012', '12:34:56.7',"
    " '12:34:56.789012+01', '1969-12-31 23:59:59.999999', '2024-10-27 02:30:00.12', '2024-10-27 02:30:00.12+02', '00:00:00.000001',"
    " '123e4567-e89b-12d3-a456-426655440000', 'null', '\"s\"', NULL, '10.0.0.1', '2001:db8::/32',"
    " '08:00:2b:01:02:03', NULL, NULL, B'', '{{1,2},{3,4}}',"
    " '{x}', NULL, NULL, 'ok', '(,5]', 'empty', NULL, 1)",
)
POSTGRES = Case(
    "postgres",
    (
        f"CREATE TABLE {SENTINEL} (id INT PRIMARY KEY)",
        "CREATE TABLE sbtest1 (id INT NOT NULL, k INT NOT NULL DEFAULT 0, c TEXT NOT NULL DEFAULT '',"
        " pad TEXT NOT NULL DEFAULT '', PRIMARY KEY (id, k))",
        f"INSERT INTO sbtest1 VALUES {_SEED_ROW}, (1, 1, 'one', 'p'), (2, 2, 'two', 'p'), (3, 3, 'three', 'p')",
        "CREATE TABLE nokey (a INT, b TEXT)",
        "ALTER TABLE nokey REPLICA IDENTITY FULL",
        "INSERT INTO nokey VALUES (1, 'x'), (1, 'x'), (2, NULL)",
        "CREATE TABLE whole (id INT PRIMARY KEY, n INT, big TEXT)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE toasted (id INT PRIMARY KEY, n INT, big TEXT, bytes BYTEA)",
        # Kept out of line and uncompressed: an update that leaves it alone does not log it.
        "ALTER TABLE toasted ALTER COLUMN big SET STORAGE EXTERNAL, ALTER COLUMN bytes SET STORAGE EXTERNAL",
        "ALTER TABLE whole ALTER COLUMN big SET STORAGE EXTERNAL",
        "INSERT INTO toasted VALUES (1, 1, repeat('toast ', 500), convert_to(repeat('b', 3000), 'UTF8'))",
        "CREATE TABLE emptied (id INT PRIMARY KEY, v TEXT)",
        "INSERT INTO emptied VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE evolving (id INT PRIMARY KEY, a VARCHAR(10))",
        "INSERT INTO evolving VALUES (1, 'first')",
        *_PG_TYPES,
        f"INSERT INTO kinds VALUES {', '.join(_PG_ROWS[:2])}",
    ),
    (
        "UPDATE sbtest1 SET k = 3738 WHERE id = 2317",
        "UPDATE sbtest1 SET id = 20, k = 5000 WHERE id = 2",
        "BEGIN",
        "UPDATE sbtest1 SET c = 'one, once' WHERE id = 1",
        "UPDATE sbtest1 SET c = 'one, twice' WHERE id = 1",
        "UPDATE sbtest1 SET c = 'one, thrice', k = 10 WHERE id = 1",
        "UPDATE sbtest1 SET c = 'one, last' WHERE id = 1",
        "DELETE FROM sbtest1 WHERE id = 3",
        "INSERT INTO sbtest1 VALUES (3, 3, 'three again', '')",
        "DELETE FROM sbtest1 WHERE id = 3",
        "INSERT INTO sbtest1 VALUES (3, 3, 'three at last', '')",
        "COMMIT",
        "INSERT INTO sbtest1 (id) VALUES (100), (101), (102), (103)",
        "UPDATE sbtest1 SET pad = 'p' || id WHERE id BETWEEN 100 AND 102",
        "DELETE FROM sbtest1 WHERE id IN (101, 103)",
        "INSERT INTO nokey VALUES (3, 'three'), (3, 'three')",
        "UPDATE nokey SET b = 'y' WHERE a = 2",
        "DELETE FROM nokey WHERE a = 3",
        "INSERT INTO whole VALUES (1, 1, repeat('toast ', 500)), (2, 2, 'small')",
        "UPDATE whole SET n = n + 1",
        "DELETE FROM whole WHERE id = 2",
        "UPDATE toasted SET n = 2 WHERE id = 1",
        "UPDATE toasted SET n = 3, big = 'short' WHERE id = 1",
        "INSERT INTO toasted VALUES (2, 1, repeat('bread ', 500), NULL)",
        "UPDATE toasted SET id = 3 WHERE id = 2",
        "TRUNCATE TABLE emptied",
        "INSERT INTO emptied VALUES (3, 'c')",
        "SELECT pg_logical_emit_message(true, 'headrace', 'a message')",
        "ALTER TABLE evolving ADD COLUMN b INT NOT NULL DEFAULT 5",
        "INSERT INTO evolving VALUES (2, 'second', 6)",
        "ALTER TABLE evolving ALTER COLUMN b TYPE BIGINT",
        "UPDATE evolving SET b = 9223372036854775807 WHERE id = 1",
        "ALTER TABLE evolving DROP COLUMN a",
        "INSERT INTO evolving VALUES (3, 7)",
        f"INSERT INTO kinds VALUES {', '.join(_PG_ROWS[2:])}",
        "UPDATE kinds SET t = NULL, n = 1.5, jb = '{\"z\": 1}' WHERE id = 4",
        "DELETE FROM kinds WHERE id = 1",
    ),
    ("sbtest1", "nokey", "whole", "toasted", "emptied", "evolving", "kinds"),
    ("kinds",),
)

MYSQL = _binlog_case("mysql")
MARIADB = _binlog_case("mariadb")
