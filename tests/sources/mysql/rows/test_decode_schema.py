"""`capture_schemas`: the same schemas on both servers; unsupported columns are refused by name. A schema from a table map
equals the server's description of the table."""

from __future__ import annotations

from contextlib import closing

import pytest

from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.schema import Index, Kind
from headrace.sources.mysql.events.table_map import parse_table_map
from headrace.sources.mysql.kernels import scan
from headrace.sources.mysql.rows.table_map_schema import schema_of
from headrace.sources.mysql.schema.information_schema import capture_schemas
from headrace.sources.mysql.server.connection import connect, query
from testkit.oracles.binlogs import Logbook, images_of, open_logbook, scan_log

TEXTS = ("latin1", "gbk", "utf16", "cp1251", "utf8mb3")


@pytest.mark.parametrize("usual", ["utf8mb4", "latin1"])
@pytest.mark.parametrize("geometry", [True, False])
def test_character_sets_keys_and_visibility(book: Logbook, usual: str, geometry: bool) -> None:
    """Listed one by one or as a default with exceptions; MariaDB lists geometry with the texts, MySQL does not."""
    mixed = ", ".join(f"{charset}_{n} VARCHAR(5) CHARACTER SET {charset}" for n in range(2) for charset in TEXTS)
    named = "e ENUM('a','é') CHARACTER SET latin1, s SET('ж','д') CHARACTER SET cp1251, e2 ENUM('я') CHARACTER SET koi8r"
    shapes = "g GEOMETRY, p POINT, " if geometry else ""
    plain = ", ".join(f"plain_{n} CHAR(3)" for n in range(4))
    book.run(
        f"CREATE TABLE t (a INT NOT NULL, b VARBINARY(9) NOT NULL, {shapes}{mixed}, {named}, {plain}, hidden INT INVISIBLE,"
        f" last_ VARCHAR(9) CHARACTER SET ascii NOT NULL, PRIMARY KEY (last_(3), a, b)) CHARACTER SET {usual}",
        f"CREATE TABLE u (id INT, {shapes}{plain}, one VARCHAR(5) CHARACTER SET gbk, f ENUM('x')) CHARACTER SET {usual}",
    )
    start = book.place()
    book.run(
        "INSERT INTO t (a, b, last_, e, s, e2, gbk_0) VALUES (1, x'00', 'end', 'é', 'ж,д', 'я', '漢')",
        "INSERT INTO u (id, one) VALUES (1, '漢')",
    )
    for name in ("t", "u"):
        of_log, captured = book.logged_schema(start, name), book.schema(name)
        assert of_log.primary_key == captured.primary_key
        for mine, theirs in zip(of_log.columns, captured.columns, strict=True):
            assert (mine.name, mine.kind, mine.nullable, mine.charset, mine.members) == (
                *(theirs.name, theirs.kind, theirs.nullable, theirs.charset, theirs.members),
            )
            assert mine.invisible == (theirs.invisible and book.server.flavour == "mysql")
        assert images_of(book.read_by(start, of_log)) == images_of(book.read(start, name))


def test_a_map_without_names_is_no_schema() -> None:
    assert schema_of(parse_table_map(b"\x02db\x00\x01t\x00\x02\x03\x0f\x02\x90\x01\x02", "log:1")) is None


def test_signs_and_sizes(book: Logbook) -> None:
    book.run("CREATE TABLE t (a TINYINT UNSIGNED, b BIGINT, c MEDIUMINT UNSIGNED, d DECIMAL(20,5), e BIT(9), f TIME(2), y YEAR)")
    start = book.place()
    book.run("INSERT INTO t VALUES (255, -1, 16777215, -1.5, 511, '-00:00:01.25', 2024)")
    of_log = book.logged_schema(start, "t")
    assert [column.kind for column in of_log.columns] == [
        *(Kind.UINT8, Kind.INT64, Kind.UINT32, Kind.DECIMAL, Kind.BIT, Kind.TIME, Kind.YEAR),
    ]
    assert [column.source_type for column in of_log.columns[:6]] == [
        *("tinyint unsigned", "bigint", "mediumint unsigned", "decimal(20,5)", "bit(9)", "time(2)"),
    ]
    assert [image.row for image in images_of(book.read_by(start, of_log))] == book.select(book.schema("t"))


def captured(book: Logbook) -> list[str]:
    with closing(connect(book.address)) as connection:
        return [schema.name.table for schema in capture_schemas(connection, book.address, lambda name: name.database == book.database)]


KINDS = {
    "TINYINT": (Kind.INT8, 0, 0),
    "TINYINT(1)": (Kind.INT8, 0, 0),
    "SMALLINT UNSIGNED": (Kind.UINT16, 0, 0),
    "MEDIUMINT UNSIGNED": (Kind.UINT32, 0, 0),
    "INT(5) ZEROFILL": (Kind.UINT32, 0, 0),
    "BIGINT": (Kind.INT64, 0, 0),
    "SERIAL": (Kind.UINT64, 0, 0),
    "FLOAT": (Kind.FLOAT32, 0, 0),
    "FLOAT(30)": (Kind.FLOAT64, 0, 0),
    "DOUBLE UNSIGNED": (Kind.FLOAT64, 0, 0),
    "DECIMAL": (Kind.DECIMAL, 10, 0),
    "NUMERIC(65,30)": (Kind.DECIMAL, 65, 30),
    "CHAR(3)": (Kind.STRING, 0, 0),
    "VARCHAR(3) CHARACTER SET ascii": (Kind.STRING, 0, 0),
    "LONGTEXT": (Kind.STRING, 0, 0),
    "VARBINARY(3)": (Kind.BYTES, 0, 0),
    "CHAR(3) CHARACTER SET binary": (Kind.BYTES, 0, 0),
    "LONGBLOB": (Kind.BYTES, 0, 0),
    "DATE": (Kind.DATE, 0, 0),
    "DATETIME": (Kind.DATETIME, 0, 0),
    "DATETIME(6)": (Kind.DATETIME, 6, 0),
    "TIMESTAMP(3) NULL": (Kind.TIMESTAMP, 3, 0),
    "TIME(1)": (Kind.TIME, 1, 0),
    "YEAR": (Kind.YEAR, 0, 0),
    "BIT": (Kind.BIT, 1, 0),
    "BIT(64)": (Kind.BIT, 64, 0),
    "ENUM('a','b')": (Kind.ENUM, 0, 0),
    "SET('a','b')": (Kind.SET, 0, 0),
}


def test_every_type_has_its_kind(book: Logbook) -> None:
    book.run("CREATE TABLE t (" + ", ".join(f"c{n} {kind}" for n, kind in enumerate(KINDS)) + ")")
    columns = book.schema("t").columns
    assert [(column.kind, column.precision, column.scale) for column in columns] == list(KINDS.values())
    assert [column.name for column in columns if not column.nullable] == [f"c{list(KINDS).index('SERIAL')}"]
    assert all(column.source_type for column in columns)


def test_json_is_text_where_the_server_says_so(book: Logbook) -> None:
    book.run("CREATE TABLE t (j JSON)")
    assert book.schema("t").columns[0].kind is (Kind.STRING if book.server.flavour == "mariadb" else Kind.JSON)


def test_tables_in_order_and_nothing_but_tables(book: Logbook) -> None:
    book.run(
        "CREATE TABLE b (id INT PRIMARY KEY)",
        "CREATE TABLE a (id INT)",
        "CREATE VIEW v AS SELECT * FROM a",
        "CREATE TEMPORARY TABLE tmp (x INT)",
    )
    assert captured(book) == ["a", "b"]
    assert book.schema("a").primary_key == ()


def test_a_key_of_prefixes_and_one_in_another_order(book: Logbook) -> None:
    book.run("CREATE TABLE t (a INT, b TEXT, c INT, PRIMARY KEY (c, b(10)), UNIQUE KEY (a))")
    assert book.schema("t").primary_key == ("c", "b")


def test_hidden_columns_of_indexes_are_not_columns(book: Logbook) -> None:
    book.run("CREATE TABLE t (id INT PRIMARY KEY, j VARCHAR(10), FULLTEXT KEY (j))")
    start = book.place()
    book.run("INSERT INTO t VALUES (1, 'word')")
    assert [image.row for image in images_of(book.read(start, "t"))] == [("1", "word")]


COLUMNS = {
    "id": ("INT NOT NULL AUTO_INCREMENT COMMENT 'it''s the key'", {"auto_increment": True, "comment": "it's the key"}),
    "a": ("INT DEFAULT 5", {"default": "5"}),
    "b": ("VARCHAR(20) CHARACTER SET ascii NOT NULL DEFAULT 'it''s \\\\ a\\nb'", {"default": "it's \\ a\nb", "charset": "ascii"}),
    "c": ("DECIMAL(5,2) DEFAULT 1.5", {"default": "1.50"}),
    "d": ("TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)", {"default": "(current_timestamp(3))"}),
    "e": ("DATETIME DEFAULT NOW()", {"default": "(current_timestamp())"}),
    "f": ("VARCHAR(36) DEFAULT (UUID())", {"default": "(uuid())", "charset": "utf8mb4"}),
    "g": ("INT GENERATED ALWAYS AS (a + 1) VIRTUAL", {"generated": "virtual"}),
    "h": ("INT AS (a * 2) STORED COMMENT 'twice'", {"generated": "stored", "comment": "twice"}),
    "i": ("INT INVISIBLE DEFAULT 7", {"invisible": True, "default": "7"}),
    "j": ("BIT(5) DEFAULT b'101'", {"default": "b'101'"}),
    "k": ("ENUM('x','NULL') DEFAULT 'NULL'", {"default": "NULL", "charset": "utf8mb4"}),
    "l": ("SET('x','y') CHARACTER SET latin1", {"charset": "latin1"}),
    "m": ("BINARY(3) DEFAULT 'a'", {"default": "0x61"}),
    "n": ("VARCHAR(5) NOT NULL DEFAULT ''", {"default": "", "charset": "utf8mb4"}),
    "o": ("DATE DEFAULT NULL", {}),
    "p": ("TEXT", {"charset": "utf8mb4"}),
    "q": ("VARCHAR(30) DEFAULT 'current_timestamp()'", {"default": "current_timestamp()", "charset": "utf8mb4"}),
    "r": ("DOUBLE DEFAULT -1.5e10", {"default": "-15000000000"}),
}
ATTRIBUTES = ("auto_increment", "comment", "default", "charset", "generated", "invisible")
PLAIN = {"auto_increment": False, "comment": "", "default": None, "charset": "", "generated": "", "invisible": False}


def test_column_descriptions_are_the_same_on_both_servers(book: Logbook) -> None:
    columns = ", ".join(f"{name} {text}" for name, (text, _) in COLUMNS.items())
    book.run(f"CREATE TABLE t ({columns}, PRIMARY KEY (id)) COMMENT 'all of it' CHARACTER SET utf8mb4")
    schema = book.schema("t")
    attributes = {column.name: {field: getattr(column, field) for field in ATTRIBUTES} for column in schema.columns}
    assert attributes == {name: {**PLAIN, **fields} for name, (_, fields) in COLUMNS.items()}
    assert (schema.charset, schema.comment) == ("utf8mb4", "all of it")


def test_indexes_in_the_order_of_their_names(book: Logbook) -> None:
    book.run(
        "CREATE TABLE t (a INT NOT NULL, b INT, c VARCHAR(50) NOT NULL, d TEXT, KEY z (b DESC, a), UNIQUE KEY y (c(10)),"
        " UNIQUE KEY x (c, a), UNIQUE KEY w (b), FULLTEXT KEY f (d)) CHARACTER SET ascii"
    )
    schema = book.schema("t")
    assert schema.indexes == (
        Index("f", ("d",), unique=False),
        Index("w", ("b",), unique=True),
        Index("x", ("c", "a"), unique=True),
        Index("y", ("c",), unique=True, whole=False),
        Index("z", ("b", "a"), unique=False),
    )
    assert (schema.primary_key, schema.row_key, schema.charset) == ((), ("c", "a"), "ascii")


def test_indexes_on_expressions_and_generated_keys(mysql_server: PrivateServer) -> None:
    with open_logbook(mysql_server, "mysql") as book:
        book.run("CREATE DATABASE odd_keys", "USE odd_keys")
        book.database = "odd_keys"
        try:
            book.run(
                "CREATE TABLE t (a INT, KEY e ((a + 1), a))",
                "SET SESSION sql_generate_invisible_primary_key = ON",
                "CREATE TABLE g (a INT)",
            )
            assert book.schema("t").indexes == (Index("e", ("a",), unique=False, whole=False),)
            hidden = book.schema("g").columns[0]
            assert (hidden.name, hidden.kind, hidden.invisible, hidden.auto_increment) == ("my_row_id", Kind.UINT64, True, True)
            start = book.place()
            book.run("INSERT INTO g (a) VALUES (5), (6)")
            assert [image.row for image in images_of(book.read(start, "g"))] == [("1", "5"), ("2", "6")]
            assert book.scanned(book.schema("g")) == [("1", "5"), ("2", "6")]
        finally:
            book.run("DROP DATABASE odd_keys")


def test_the_number_of_queries_does_not_depend_on_the_number_of_tables(book: Logbook) -> None:
    def questions() -> int:
        with closing(connect(book.address)) as connection:
            capture_schemas(connection, book.address, lambda name: name.database == book.database)
            return int(query(connection, book.address, "SHOW SESSION STATUS LIKE 'Questions'")[0][1])

    book.run("CREATE TABLE t (a INT)")
    one = questions()
    book.run(*(f"CREATE TABLE t{n} (a INT)" for n in range(10)))
    assert questions() == one
    assert len(captured(book)) == 11


@pytest.mark.parametrize(
    ("statement", "kind"),
    [("CREATE SEQUENCE odd", "SEQUENCE"), ("CREATE TABLE odd (id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "SYSTEM VERSIONED")],
)
def test_what_is_logged_but_is_no_plain_table_is_refused(mariadb_server: PrivateServer, statement: str, kind: str) -> None:
    with open_logbook(mariadb_server, "mysql") as book:
        book.run("CREATE DATABASE odd_tables", "USE odd_tables", statement)
        book.database = "odd_tables"
        try:
            with pytest.raises(DefiniteError, match=f"odd_tables.odd is a {kind}"):
                captured(book)
        finally:
            book.run("DROP DATABASE odd_tables")


def test_groups_of_the_statements_people_run(book: Logbook) -> None:
    """Return the data groups and the statements of a scan."""

    def kinds(*statements: str) -> list[tuple[int, int]]:
        start = book.place()
        book.run(*statements)
        segment = book.segment(start)
        status, groups, _, state = scan_log(book.bytes_of(segment), segment.start, checksum=segment.checksum)
        assert (status, int(state[scan.POS])) == (scan.OK, segment.end - segment.start)
        return [(int(group[scan.KIND]), int(group[scan.ROWS])) for group in groups]

    data, statement = (scan.DATA, 1), (scan.STATEMENT, 0)
    assert kinds("CREATE TABLE t (id INT PRIMARY KEY)", "ALTER TABLE t ADD v INT", "CREATE INDEX i ON t (v)") == [statement] * 3
    assert kinds("INSERT INTO t VALUES (1, 1)", "UPDATE t SET v = 2", "UPDATE t SET v = 2", "DELETE FROM t") == [data] * 3
    assert kinds("BEGIN", "INSERT INTO t VALUES (1, 1)", "SAVEPOINT s", "DELETE FROM t", "ROLLBACK TO s", "COMMIT") == [data]
    assert kinds("BEGIN", "INSERT INTO t VALUES (2, 1)", "ROLLBACK", "BEGIN", "COMMIT") == []
    assert kinds("TRUNCATE t", "ANALYZE TABLE t") in ([statement] * 2, [statement])
    # Engines without transactions end theirs with COMMIT.
    assert kinds("CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM", "INSERT INTO m VALUES (1), (2)") == [statement, data]
    # One group that holds both the statement and the new table's rows.
    assert kinds("CREATE TABLE c AS SELECT 1 AS x UNION SELECT 2") == [(scan.STATEMENT, 1)]
    assert kinds("DROP TABLE t, m, c")[-1] == statement
