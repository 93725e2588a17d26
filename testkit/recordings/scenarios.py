"""The recorded workloads: they make real servers write every kind of event and every type of column.

Each scenario has its own log file. The tables are created outside of the log, so that it holds only the workload, except where statements
are tested. Every scenario leaves rows, with which the recording is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DATABASE = "golden"
CLOCK = "SET SESSION timestamp = 1700000000"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload, for one flavour or for both."""

    name: str
    tables: tuple[str, ...]
    """CREATE TABLE statements. What differs between flavours is another scenario."""
    workload: tuple[str, ...]
    flavours: tuple[str, ...] = ("mariadb", "mysql")
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Global settings by flavour, in force while the workload runs."""
    prepare: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    """Statements before the log begins, and after it ends, for settings that are changed in steps."""
    logs_tables: bool = False
    """Whether the CREATE TABLE statements are part of the log."""

    def sql(self) -> tuple[str, ...]:
        return (*self.tables, *self.workload)


_NUMBERS = (
    "CREATE TABLE numbers (id BIGINT UNSIGNED, tiny TINYINT, medium MEDIUMINT, f FLOAT, d DOUBLE, small DECIMAL(9,4), wide DECIMAL(65,30),"
    " bits BIT(13), PRIMARY KEY (id))"
)
_WORDS = (
    "CREATE TABLE words (code CHAR(4), day DATE NOT NULL, at DATETIME(3), stamp TIMESTAMP(6) NULL, spent TIME(2), y YEAR,"
    " v VARCHAR(300), t TEXT, b BINARY(6), bl BLOB, e ENUM('red','green','🚰') COLLATE utf8mb4_bin,"
    " s SET('a','b','c'), j JSON, PRIMARY KEY (day, code))"
)
_PLAIN = (
    "BEGIN",
    "INSERT INTO numbers VALUES (1, -128, 8388607, 1.5, -1e300, -12345.6789, 1.5, 5000), (18446744073709551615, 127, -8388608, NULL,"
    " 0.1, 99999.9999, -99999999999999999999999999999999999.999999999999999999999999999999, 8191), (3, NULL, NULL, NULL, NULL, NULL,"
    " NULL, NULL)",
    "INSERT INTO words VALUES ('ab', '2024-02-29', '9999-12-31 23:59:59.999', '2038-01-19 03:14:07.999999', '-838:59:58.99', 2155,"
    " REPEAT('é', 300), 'text', x'0100', x'ff00', '🚰', 'a,c', '{\"k\": [1, null, \"v\"]}')",
    "UPDATE numbers SET tiny = 0, wide = NULL WHERE id = 1",
    "COMMIT",
    "UPDATE words SET code = 'AB', spent = '00:00:00.01', e = 'red', s = '', y = 0, j = '[]'",
    "UPDATE numbers SET id = 4 WHERE id = 3",
    "DELETE FROM numbers WHERE id > 5",
    "INSERT INTO words (code, day) VALUES ('', '1000-01-01')",
    "DELETE FROM words WHERE code = 'AB'",
    "INSERT INTO words VALUES ('x', '1999-12-31', '1970-01-01 00:00:00.001', '2001-02-03 04:05:06.7', '838:59:58.99', 1901, '', '', '', '',"
    " 'green', 'a,b,c', '\"s\"')",
)
_LITTLE = (
    "CREATE TABLE little (id INT NOT NULL PRIMARY KEY, n INT, v VARCHAR(40), j JSON)",
    "CREATE TABLE other (id INT NOT NULL PRIMARY KEY, t TEXT)",
)
_LITTLE_WORK = (
    "INSERT INTO little VALUES (1, 10, 'one', '{\"a\": 1}'), (2, 20, 'two', '[1, 2.5, \"x\"]'), (3, NULL, NULL, NULL)",
    "BEGIN",
    "UPDATE little SET v = REPEAT('y', 40), n = n + 1",
    "INSERT INTO other VALUES (1, REPEAT('compressible ', 20))",
    "DELETE FROM little WHERE id = 2",
    "COMMIT",
    "UPDATE little SET id = 4 WHERE id = 3",
)

_JSON_TABLE = "CREATE TABLE papers (id INT NOT NULL PRIMARY KEY, n INT, a JSON, b JSON)"

_SHAPES = (
    "ST_GeomFromText('POINT(1 -2.5)')",
    "ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 4,0 0),(1 1,2 1,2 2,1 1))')",
    "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))')",
)
_XA_WORK = (
    "INSERT INTO little VALUES (1, 10, 'one', '[]')",
    "XA START 'a', 'branch', 3",
    "INSERT INTO little VALUES (2, 20, 'two', '[1]'), (3, 30, 'three', '[2]')",
    "UPDATE little SET n = 11 WHERE id = 2",
    "XA END 'a', 'branch', 3",
    "XA PREPARE 'a', 'branch', 3",
    "XA COMMIT 'a', 'branch', 3",
    "XA START 'gone'",
    "INSERT INTO little VALUES (9, 90, 'nine', '[]')",
    "XA END 'gone'",
    "XA PREPARE 'gone'",
    "XA ROLLBACK 'gone'",
    "XA START 'quick'",
    "DELETE FROM little WHERE id = 1",
    "XA END 'quick'",
    "XA COMMIT 'quick' ONE PHASE",
    "UPDATE little SET v = 'last' WHERE id = 3",
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("plain", (_NUMBERS, _WORDS), _PLAIN),
    Scenario(
        "minimal",
        (_NUMBERS, _WORDS.replace("🚰", "blue")),
        tuple(statement.replace("🚰", "blue") for statement in _PLAIN),
        settings={
            "mariadb": {"binlog_row_metadata": "MINIMAL", "binlog_annotate_row_events": "ON"},
            "mysql": {"binlog_row_metadata": "MINIMAL", "binlog_rows_query_log_events": "ON"},
        },
    ),
    Scenario("unchecked", _LITTLE, _LITTLE_WORK, settings={flavour: {"binlog_checksum": "NONE"} for flavour in ("mariadb", "mysql")}),
    Scenario(
        "compressed",
        _LITTLE,
        (*_LITTLE_WORK, "CREATE TABLE apart (id INT PRIMARY KEY, a_name_that_is_long_enough INT)", "DROP TABLE apart"),
        settings={
            "mariadb": {"log_bin_compress": "ON", "log_bin_compress_min_len": 10},
            "mysql": {"binlog_transaction_compression": "ON"},
        },
    ),
    Scenario("xa", _LITTLE, _XA_WORK),
    Scenario(
        "special",
        (
            "CREATE TABLE rare (id INT PRIMARY KEY, g GEOMETRY, v VECTOR(3), twice INT GENERATED ALWAYS AS (id * 2) STORED,"
            " `hid den` INT DEFAULT 5 INVISIBLE, b BIT(64), d DECIMAL(18,9) UNSIGNED, j JSON)",
        ),
        (
            f"INSERT INTO rare (id, g, v, b, d, j) VALUES (1, {_SHAPES[0]}, STRING_TO_VECTOR('[1,-2.5,3e10]'), ~0, 123456789.987654321,"
            " JSON_OBJECT('d', CAST(1.50 AS DECIMAL(5,2)), 't', CAST('10:11:12.5' AS TIME(1)), 'n', -1, 'big', 18446744073709551615,"
            " 'x', CAST(x'00ff' AS JSON), 'l', REPEAT('z', 300), 'f', 1e-7, 'a', JSON_ARRAY(true, false, null, 70000, 2.5)))",
            f"INSERT INTO rare (id, g) VALUES (2, {_SHAPES[1]}), (3, {_SHAPES[2]})",
            "UPDATE rare SET j = JSON_OBJECT('k', CAST('2024-02-29 01:02:03.000004' AS DATETIME(6))), v = NULL",
            "DELETE FROM rare WHERE id = 2",
        ),
        flavours=("mysql",),
    ),
    Scenario(
        "special",
        (
            "CREATE TABLE rare (id INT PRIMARY KEY, u UUID, a4 INET4, a6 INET6, g GEOMETRY, t TEXT COMPRESSED, b VARBINARY(300) COMPRESSED,"
            " twice INT AS (id * 2) PERSISTENT, `hid den` INT INVISIBLE DEFAULT 5, z SMALLINT UNSIGNED)",
        ),
        (
            "INSERT INTO rare (id, u, a4, a6, g, t, b, z) VALUES (1, '123e4567-e89b-12d3-a456-426655440000', '10.2.3.4',"
            f" '2001:db8::ff00:42:8329', {_SHAPES[0]}, REPEAT('squeeze ', 30), REPEAT(x'0001', 100), 42)",
            f"INSERT INTO rare (id, g, t) VALUES (2, {_SHAPES[1]}, ''), (3, {_SHAPES[2]}, 'short')",
            "UPDATE rare SET u = '00000000-0000-0000-0000-000000000001', t = REPEAT('other ', 40)",
            "DELETE FROM rare WHERE id = 2",
        ),
        flavours=("mariadb",),
    ),
    Scenario(
        "partial",
        (_JSON_TABLE,),
        (
            "INSERT INTO papers VALUES (1, 1, JSON_OBJECT('a', 1, 'b', REPEAT('b', 100), 'c', JSON_ARRAY(1, 2, 3)), '[1, 2, 3]'),"
            ' (2, 2, \'{"k": "v", "deep": {"er": [1, {"x": 2.5}]}}\', NULL)',
            "UPDATE papers SET a = JSON_SET(a, '$.a', 2) WHERE id = 1",
            "UPDATE papers SET a = JSON_REPLACE(a, '$.b', REPEAT('c', 90)), b = JSON_REMOVE(b, '$[1]'), n = n + 1",
            "UPDATE papers SET a = JSON_SET(a, '$.deep.er[1].x', CAST(1.25 AS DECIMAL(5,2)), '$.new', NULL) WHERE id = 2",
            "UPDATE papers SET a = JSON_REMOVE(a, '$.c[0]'), id = 3 WHERE id = 1",
        ),
        flavours=("mysql",),
        settings={"mysql": {"binlog_row_value_options": "PARTIAL_JSON"}},
    ),
    Scenario(
        "charsets",
        (
            "CREATE TABLE letters (id VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin, g VARCHAR(20) CHARACTER SET gbk,"
            " s VARCHAR(20) CHARACTER SET sjis, w VARCHAR(20) CHARACTER SET utf16, c TEXT CHARACTER SET cp1251,"
            " q CHAR(10) CHARACTER SET utf32, e ENUM('größe','naïve') CHARACTER SET latin1, b VARCHAR(20) CHARACTER SET big5,"
            " PRIMARY KEY (id))",
        ),
        (
            "INSERT INTO letters VALUES ('é€', '中文', '日本', 'w🚰', 'Привет', '🚰q', 'größe', '中文'),"
            " ('plain', NULL, 'ｱｲ', '', '', '', 'naïve', 'x')",
            "UPDATE letters SET id = 'ß', c = 'Ёж' WHERE id = 'plain'",
            "INSERT INTO letters (id) VALUES ('other')",
            "DELETE FROM letters WHERE id = 'other'",
        ),
    ),
    Scenario(
        "tagged",
        _LITTLE,
        ("SET SESSION gtid_next = 'AUTOMATIC:tag_of_ours'", *_LITTLE_WORK, "SET SESSION gtid_next = AUTOMATIC", "DELETE FROM other"),
        flavours=("mysql",),
    ),
    Scenario(
        "anonymous",
        _LITTLE,
        _LITTLE_WORK,
        flavours=("mysql",),
        prepare=("SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = OFF_PERMISSIVE"),
        restore=("SET GLOBAL gtid_mode = ON_PERMISSIVE", "SET GLOBAL gtid_mode = ON"),
    ),
    Scenario(
        "statements",
        _LITTLE,
        (
            "INSERT INTO little VALUES (1, 10, 'one', '[]')",
            "CREATE TABLE twin LIKE little",
            "BEGIN",
            "SAVEPOINT a",
            "INSERT INTO little VALUES (2, 20, 'two', '[]')",
            "SAVEPOINT b",
            "INSERT INTO other VALUES (1, 'gone')",
            "ROLLBACK TO SAVEPOINT b",
            "INSERT INTO other VALUES (2, 'stays')",
            "COMMIT",
            "TRUNCATE TABLE twin",
            "/* über */ DROP TABLE twin /*!40005 CASCADE */",
        ),
        logs_tables=True,
    ),
)
