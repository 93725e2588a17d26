"""`stdout:?format=sql`: a second server that executes the output has the same tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pymysql.constants import CLIENT

from headrace import cli
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError
from headrace.model.change_block import ChangeBlock, Op
from headrace.model.schema import Column, Kind, TableName, TableSchema
from headrace.model.version import pack_version
from headrace.sinks.connector import OpenRequest
from headrace.sinks.schema_changes import LedgerEntry
from headrace.sinks.stdout.batches import LineOptions
from headrace.sinks.stdout.connector import STDOUT
from headrace.sinks.stdout.encoder import LineEncoder
from headrace.sinks.stdout.sql_format import print_statements
from testkit.generators.kind_values import block_of_rows
from testkit.generators.server_types import ROWS, TYPES
from testkit.pipelines.local_pipeline import without_spark

LAX = "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'"
POINT = "ST_GeomFromText('POINT(-1.5 2.5)')"
SPECIAL = {
    "mysql": {"vec": ("VECTOR(3)", ["STRING_TO_VECTOR('[1,-0.0,1.5e-38]')", "STRING_TO_VECTOR('[3.4028234e38,1,2]')"])},
    "mariadb": {
        "uu": ("UUID", ["'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426655440000'"]),
        "v4": ("INET4", ["'0.0.0.0'", "'255.1.2.3'"]),
        "v6": ("INET6", ["'::'", "'::ffff:1.2.3.4'", "'2001:db8::ff00:42:8329'"]),
    },
}
OTHERS = (
    "CREATE TABLE parents (id INT AUTO_INCREMENT PRIMARY KEY, n INT, twice INT AS (n * 2) STORED, at TIMESTAMP(3) NULL"
    " ON UPDATE CURRENT_TIMESTAMP(3))",
    "CREATE TABLE children (id INT PRIMARY KEY, parent INT, FOREIGN KEY (parent) REFERENCES parents (id))",
    "CREATE TABLE `we``ird 'name\"` (`a ``b` VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, `ключ` VARCHAR(20) CHARACTER SET latin1)",
    "CREATE TABLE words (code CHAR(4), day DATE NOT NULL, v VARCHAR(20), PRIMARY KEY (day, code))",
    "CREATE TABLE goes (id INT PRIMARY KEY)",
)


class Twins:
    """A source and a second server that executes what a pipe prints."""

    def __init__(self, source: PrivateServer, target: PrivateServer, database: str, state: Path) -> None:
        self.source, self.target, self.database, self.state = source, target, database, state

    def run(self, *statements: str) -> None:
        with self.source.root_connection(self.database) as connection, connection.cursor() as cursor:
            for statement in (LAX, *statements):
                cursor.execute(statement)

    def create(self, *statements: str) -> None:
        """Create tables on both servers; the pipe does not see the statements."""
        for server in (self.source, self.target):
            with server.root_connection() as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{self.database}` CHARACTER SET utf8mb4")
                cursor.execute(LAX)
                cursor.execute(f"USE `{self.database}`")
                for statement in statements:
                    cursor.execute(statement)

    def replicate(self, capfd: pytest.CaptureFixture[str]) -> str:
        """Print the changes as SQL and execute them on the target, under a strict sql_mode and another character set."""
        url = self.source.url(self.database, self.source.user, self.source.password)
        assert cli.main(["replicate", url, "stdout:", "--format", "sql", "--state", str(self.state), "--once"]) == 0
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        options: dict[str, Any] = {"client_flag": CLIENT.MULTI_STATEMENTS, "charset": "latin1"}
        with self.target.root_connection(**options) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'TRADITIONAL,ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+05:00'")
            cursor._query(out.encode())  # type: ignore[attr-defined] # (the text is UTF-8 for any character set of the connection)
            while cursor.nextset():
                pass
        return out

    def rows(self, server: PrivateServer, table: str) -> list[tuple[Any, ...]]:
        """Every value by its bytes."""
        with server.root_connection(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute(
                "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
                " ORDER BY ordinal_position",
                (self.database, table),
            )
            columns = [(name.replace("`", "``"), kind) for name, kind in cursor.fetchall()]
            raw = ("geometry", "point", "vector", "bit")
            shown = [f"HEX(`{name}`)" if kind in raw else f"HEX(CAST(`{name}` AS CHAR))" for name, kind in columns]
            cursor.execute(f"SELECT {', '.join(shown)} FROM `{table.replace('`', '``')}`")
            return sorted(cursor.fetchall(), key=repr)

    def tables(self, server: PrivateServer) -> list[str]:
        with server.root_connection(self.database) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW TABLES")
            return sorted(name for (name,) in cursor.fetchall())

    def compare(self) -> None:
        assert self.tables(self.target) == self.tables(self.source)
        for table in self.tables(self.source):
            assert self.rows(self.target, table) == self.rows(self.source, table), table


@pytest.fixture
def twins(
    server: PrivateServer, database: str, fresh_server: Callable[..., PrivateServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Twins:
    without_spark(monkeypatch)
    return Twins(server, fresh_server(max_allowed_packet=64 << 20), database, tmp_path / "state")


def test_every_type_with_and_without_a_key(twins: Twins, capfd: pytest.CaptureFixture[str]) -> None:
    types = {**TYPES, "geo": ("GEOMETRY", [POINT, "NULL"]), **SPECIAL[twins.source.flavour]}
    columns = ", ".join(f"`{name}` {kind}" for name, (kind, _) in types.items())
    twins.create(
        f"CREATE TABLE keyed (id INT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC",
        f"CREATE TABLE keyless (id INT, {columns}) ROW_FORMAT=DYNAMIC",
    )

    def values(row: int) -> list[str]:
        return [found[row % len(found)] for _, found in types.values()]

    def insert(table: str, row: int) -> str:
        return f"INSERT INTO {table} VALUES ({row}, {', '.join(values(row))})"

    half = ROWS // 2
    for table in ("keyed", "keyless"):
        twins.run(*(insert(table, row) for row in range(half)))
    twins.replicate(capfd)
    twins.compare()
    for table in ("keyed", "keyless"):
        twins.run(*(insert(table, row) for row in range(half, ROWS)), f"INSERT INTO {table} (id) VALUES (1000)")
        for row in range(0, ROWS, 2):
            changes = ", ".join(f"`{name}` = {value}" for name, value in zip(types, values(row + 1), strict=True))
            twins.run(f"UPDATE {table} SET {changes} WHERE id = {row}")
        twins.run(f"DELETE FROM {table} WHERE id % 3 = 0")
    # Equal rows: one of two is deleted, the other is changed.
    twins.run(insert("keyless", 1), insert("keyless", 1), "DELETE FROM keyless WHERE id = 1 LIMIT 1")
    twins.run("UPDATE keyless SET i32 = 77 WHERE id = 1 LIMIT 1", "DELETE FROM keyless WHERE id = 1000")
    out = twins.replicate(capfd)
    assert " LIMIT 1; -- " in out
    twins.compare()


def test_transactions_statements_and_keys(twins: Twins, capfd: pytest.CaptureFixture[str]) -> None:
    twins.create(*OTHERS)
    # A child is printed in a snapshot possibly before its parent.
    twins.run("INSERT INTO parents (id, n) VALUES (1, 10), (2, 20), (0, 0)", "INSERT INTO children VALUES (1, 1), (2, 2), (3, 2)")
    assert "REPLACE INTO" in twins.replicate(capfd)
    twins.compare()
    twins.run(
        "BEGIN",
        "INSERT INTO parents (n) VALUES (30)",
        "INSERT INTO children VALUES (4, 1)",
        "UPDATE parents SET n = n + 1",
        "COMMIT",
        "DELETE FROM children WHERE parent = 2",
        "DELETE FROM parents WHERE id = 2",
        "INSERT INTO `we``ird 'name\"` VALUES ('x'' \\\\ \\n', 'é'), ('X', NULL), ('y ', '')",
        "UPDATE `we``ird 'name\"` SET `a ``b` = CONCAT(`a ``b`, '!')",
        "INSERT INTO words VALUES ('ab', '2024-02-29', 'one'), ('cd', '2024-02-29', NULL)",
        "UPDATE words SET code = 'AB', v = 'two' WHERE code = 'ab'",
        "ALTER TABLE words ADD COLUMN more INT NOT NULL DEFAULT 7, ADD INDEX (more) -- a comment",
        "INSERT INTO words (code, day) VALUES ('ef', '2000-01-01')",
        "CREATE TABLE twin LIKE words",
        "INSERT INTO twin SELECT * FROM words",
        "RENAME TABLE words TO terms, twin TO words",
        "DELETE FROM terms WHERE code = 'ef'",
        "TRUNCATE TABLE words",
        "INSERT INTO words (code, day) VALUES ('gh', '2000-01-01')",
        "DROP TABLE goes",
    )
    out = twins.replicate(capfd)
    twins.compare()
    lines = out.splitlines()
    assert lines[:5] == [
        "ROLLBACK;",
        "SET NAMES utf8mb4;",
        "SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO';",
        "SET SESSION time_zone = '+00:00';",
        "SET SESSION foreign_key_checks = 0;",
    ]
    first = lines[lines.index("BEGIN;") : lines.index("COMMIT;") + 1]
    words = [line.split(f" `{twins.database}`")[0] for line in first]
    assert words == ["BEGIN;", "INSERT INTO", "INSERT INTO", "UPDATE", "UPDATE", "UPDATE", "UPDATE", "COMMIT;"]
    assert lines.count("BEGIN;") == lines.count("COMMIT;")
    assert "twice" not in out
    assert out.count("RENAME TABLE words TO terms, twin TO words;") == 1


def test_alterations_that_other_sinks_need_not_follow(twins: Twins, capfd: pytest.CaptureFixture[str]) -> None:
    """A longer text, another character set or a dropped unique index changes nothing in ClickHouse, and everything in the same server."""
    twins.create(
        "CREATE TABLE texts (id INT PRIMARY KEY, v VARCHAR(5), w VARCHAR(9) CHARACTER SET latin1, x TINYTEXT, y VARBINARY(3), u INT, "
        "UNIQUE by_u (u))",
    )
    twins.run("INSERT INTO texts (id) VALUES (0)")
    twins.replicate(capfd)
    twins.run(
        "ALTER TABLE texts MODIFY v VARCHAR(50)",
        "ALTER TABLE texts MODIFY w VARCHAR(9) CHARACTER SET utf8mb4, MODIFY x LONGTEXT",
        "ALTER TABLE texts MODIFY y VARBINARY(30)",
        "ALTER TABLE texts ALTER COLUMN u SET DEFAULT 4",
        "DROP INDEX by_u ON texts",
        "INSERT INTO texts VALUES (1, REPEAT('v', 50), '日本', REPEAT('x', 300), REPEAT('y', 30), 1), (2, '', '', '', '', 1)",
        "INSERT INTO texts (id) VALUES (3)",
    )
    twins.replicate(capfd)
    twins.compare()


def test_sessions_without_checks_and_tables_from_queries(twins: Twins, capfd: pytest.CaptureFixture[str]) -> None:
    twins.create(*OTHERS)
    twins.run("INSERT INTO parents (id, n) VALUES (5, 50)")
    twins.replicate(capfd)
    twins.run(
        "SET foreign_key_checks = 0",
        "INSERT INTO children VALUES (1, 1)",
        "INSERT INTO parents (id, n) VALUES (1, 10), (2, 20)",
        "SET foreign_key_checks = 1",
        "CREATE TABLE copied (PRIMARY KEY (id)) AS SELECT id, n FROM parents",
        "INSERT INTO copied VALUES (3, 30)",
    )
    assert "START TRANSACTION" not in twins.replicate(capfd)
    twins.compare()


def _block(columns: list[Column], rows: list[list[Any]], ops: list[Op], key: tuple[str, ...] = (), name: str = "orders") -> ChangeBlock:
    schema = TableSchema(TableName("shop", name), tuple(columns), key)
    versions = [pack_version(1, 3, 4001 + at) for at in range(len(rows))]
    return block_of_rows(schema, rows, ops, versions=versions, transactions=["0-1-77"] * len(rows))


def _lines(block: ChangeBlock) -> list[str]:
    return [line for part in LineEncoder(LineOptions(sql=True)).encode(block) for line in part.text.to_pylist()]


def test_the_statements() -> None:
    columns = [Column("id", Kind.INT32, False), Column("v", Kind.STRING)]
    rows = [[1, "it's"], [1, "it's"], [2, "a\\b"], [2, None]]
    ops = [Op.INSERT, Op.BEFORE, Op.UPDATE, Op.DELETE]
    assert _lines(_block(columns, rows, ops, ("id",))) == [
        "INSERT INTO `shop`.`orders` (`id`, `v`) VALUES (1, 'it''s'); -- binlog.000003:4000\n",
        "UPDATE `shop`.`orders` SET `id` = 2, `v` = _utf8mb4 x'615c62' WHERE `id` = 1; -- binlog.000003:4000\n",
        "DELETE FROM `shop`.`orders` WHERE `id` = 2; -- binlog.000003:4000\n",
    ]
    assert _lines(_block(columns, rows[3:], [Op.DELETE])) == [
        "DELETE FROM `shop`.`orders` WHERE `id` <=> 2 AND CAST(CONVERT(`v` USING utf8mb4) AS BINARY) <=> NULL LIMIT 1;"
        " -- binlog.000003:4000\n"
    ]


def test_a_statement_is_printed_once_and_an_ignored_one_is_a_comment() -> None:
    entries = [
        LedgerEntry("p", 1, "binlog.1:4", f"shop.{table}", "drop_table", "DROP TABLE a, b", "", outcome)
        for table, outcome in (("a", "applied"), ("b", "applied"))
    ]
    assert print_statements(entries) == b"USE `shop`;\nDROP TABLE a, b; -- binlog.1:4\n"
    kept = LedgerEntry("p", 2, "binlog.1:9", "shop.c", "drop_table", "DROP TABLE\n c", "", "kept")
    assert print_statements([kept]) == b"-- kept: DROP TABLE\\n c\n"


def test_a_name_that_a_terminal_would_obey_is_refused() -> None:
    with pytest.raises(DefiniteError, match="a character that SQL") as error:
        _lines(_block([Column("id", Kind.INT32)], [[1]], [Op.INSERT], name="a\x1b[31m"))
    assert "format=json" in error.value.hint
    (line,) = [
        line
        for part in LineEncoder().encode(_block([Column("id", Kind.INT32)], [[1]], [Op.INSERT], name="a\x1b[31m"))
        for line in part.text.to_pylist()
    ]
    assert "\x1b" not in line


def test_only_the_standard_output_has_a_format(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(tmp_path / "state"), "--once"]
    assert cli.main(["replicate", "mysql://root@localhost:1/shop", "kafka://localhost:1", "--format", "sql", *state]) != 0
    assert "--format is about the standard output" in capfd.readouterr().err


def test_changes_of_scylladb_have_no_sql(tmp_path: Path) -> None:
    request = OpenRequest("stdout:?format=sql", None, tmp_path, "127.0.0.1")
    assert STDOUT.open_log is not None
    with pytest.raises(DefiniteError, match="cannot be printed as SQL") as error, STDOUT.open_log(request):
        pass
    assert "remove format=sql" in error.value.hint
    with STDOUT.open_log(OpenRequest("stdout:", None, tmp_path, "127.0.0.1")) as named:
        assert named.name == "stdout:"
