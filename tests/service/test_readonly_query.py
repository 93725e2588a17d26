"""Queries of a pipe's sink: read-only statements are answered, others are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.readonly_query import MAX_ROWS, run_readonly_query


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    found = f"chdb:{tmp_path_factory.mktemp('asked') / 'warehouse'}"
    with EmbeddedServers() as embedded_servers:
        embedded_servers.ensure(found)
        yield found


def test_reading_statements_are_answered(sink: str) -> None:
    for sql, rows in (
        ("SELECT 1 AS filename, 'a\\tb' AS text", [[1, "a\tb"]]),
        ("/* all */ (SELECT 2)", [[2]]),
        ("FROM system.one SELECT 4", [[4]]),
        ("-- so many\nWITH 3 AS n SELECT n UNION ALL SELECT n", [[3], [3]]),
        ("SELECT 1 INTERSECT SELECT 1", [[1]]),
        ("EXISTS TABLE system.one", [[1]]),
        ("DESCRIBE TABLE system.one", [["dummy", "UInt8", "", "", "", "", ""]]),
        ("SHOW TABLES FROM default", []),
    ):
        assert run_readonly_query(sink, sql)[1] == rows
    assert run_readonly_query(sink, "EXPLAIN SELECT 1")[1]
    assert len(run_readonly_query(sink, "SELECT * FROM numbers(100000)")[1]) == MAX_ROWS


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE default.x (a Int8) ENGINE = Memory",
        "INSERT INTO FUNCTION file('{there}', 'CSV', 'a Int8') SELECT 1",
        "KILL QUERY WHERE 1",
        "/* */ " * 200 + "KILL QUERY WHERE 1",
        "SYSTEM FLUSH LOGS",
        "SELECT 1 SETTINGS readonly = 0",
        "SET readonly = 0",
        "SELECT 1; SELECT 2",
        "SELECT * FROM file('{secret}', 'LineAsString')",
        "SELECT file('{secret}')",
        "SELECT /* a */ `\\x66ile` ('{secret}')",
        "SELECT * APPLY(file) FROM (SELECT '{secret}')",
        "EXPLAIN SELECT file('{secret}')",
        "DESCRIBE (SELECT toUInt8(file('{secret}')))",
        "WITH a AS (SELECT file('{secret}') AS b) SELECT * FROM a",
    ],
)
def test_nothing_else_is_done_and_no_file_is_read(sink: str, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(DefiniteError) as caught:
        run_readonly_query(sink, sql.format(secret=tmp_path / "secret", there=tmp_path / "there.csv"))
    assert "hunter2" not in str(caught.value)
    assert not (tmp_path / "there.csv").exists()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC * FROM shop.orders", "Syntax error: failed at position 1 (SELEC): SELEC * FROM shop.orders. Maybe you meant: SELECT"),
        ("DROP TABLE", "Syntax error: failed at position 11 (end of query)"),
        ("'", "Syntax error: failed at position 1"),
        ("SELECT * FROM system.one WHERE (", "Syntax error: failed at position 33 (end of query)"),
        ("SELECT 'it''s' FROM", "Syntax error: failed at position 20 (end of query)"),
    ],
)
def test_a_syntax_error_is_the_servers_own(sink: str, sql: str, message: str) -> None:
    with pytest.raises(DefiniteError) as caught:
        run_readonly_query(sink, sql)
    assert caught.value.message.startswith(message)
    assert "Expected one of" not in caught.value.message


@pytest.mark.parametrize("sql", ["DROP TABLE shop.orders", "INSERT INTO a VALUES (1)", "KILL QUERY WHERE 1", "SYSTEM FLUSH LOGS"])
def test_a_valid_statement_that_writes_is_named_so(sink: str, sql: str) -> None:
    with pytest.raises(DefiniteError, match="only queries that read are allowed here"):
        run_readonly_query(sink, sql)


def browser_queries(database: str, table: str) -> list[str]:
    """The queries of the dashboard's list of tables: of all tables, and of the columns of one."""
    source = (files("headrace.dashboard") / "assets/schema_browser.js").read_text(encoding="utf-8")
    hidden = re.search(r'HIDDEN = "(.*)";', source)
    assert hidden is not None
    names = {f"literal({name})": f"unhex('{text.encode().hex()}')" for name, text in (("database", database), ("table", table))}
    values = {"HIDDEN": hidden[1], "MAX_TABLES": "1000", **names}
    return [re.sub(r"\$\{(.*?)\}", lambda found: values[found[1]], sql) for sql in re.findall(r"`(SELECT .*?)`;", source)]


def test_the_list_of_tables_and_columns(sink: str) -> None:
    tables, columns = browser_queries("system", "one")
    names, rows = run_readonly_query(sink, tables)
    assert names == ["database", "name", "engine"]
    assert "system" not in {row[0] for row in rows}
    assert run_readonly_query(sink, columns) == (["name", "type", "comment"], [["dummy", "UInt8", ""]])
    # An embedded server refuses the word `file`, and quotes with escapes; names of tables may have them.
    for table in ("file", "'`\"\\", ""):
        assert run_readonly_query(sink, browser_queries("default", table)[1])[1] == []
