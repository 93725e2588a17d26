"""Where a statement is cut: kind, FORMAT clause, start of the rows."""

from __future__ import annotations

import pytest

from headrace.embedded.engine.errors import QueryFailure
from headrace.embedded.engine.statement_scanner import StatementKind, leading_word, parse_insert, parse_statement


@pytest.mark.parametrize(
    ("text", "kind", "head", "name", "tail"),
    [
        (b"SELECT 1", StatementKind.OUTPUT, b"SELECT 1", "", b""),
        (b"  select 1 ; ", StatementKind.OUTPUT, b"select 1", "", b""),
        (b"SELECT 1 -- the end; FORMAT JSON", StatementKind.OUTPUT, b"SELECT 1", "", b""),
        (b"SELECT 1 FORMAT JSON", StatementKind.OUTPUT, b"SELECT 1 ", "JSON", b""),
        (b"SELECT 1\n FORMAT Native", StatementKind.OUTPUT, b"SELECT 1\n ", "Native", b""),
        (b"SELECT 1 FORMAT JSON SETTINGS max_threads = 1", StatementKind.OUTPUT, b"SELECT 1 ", "JSON", b" SETTINGS max_threads = 1"),
        (b"SELECT format FROM t", StatementKind.OUTPUT, b"SELECT format FROM t", "", b""),
        (b"SELECT format('{}', 1)", StatementKind.OUTPUT, b"SELECT format('{}', 1)", "", b""),
        (b"SELECT ' FORMAT JSON'", StatementKind.OUTPUT, b"SELECT ' FORMAT JSON'", "", b""),
        (b"SELECT 'it''s; \\' fine' FORMAT CSV", StatementKind.OUTPUT, b"SELECT 'it''s; \\' fine' ", "CSV", b""),
        (b"SELECT $x$ ; ' $x$ FORMAT CSV", StatementKind.OUTPUT, b"SELECT $x$ ; ' $x$ ", "CSV", b""),
        (b"/* FORMAT x */ WITH 1 AS a SELECT a", StatementKind.OUTPUT, b"WITH 1 AS a SELECT a", "", b""),
        (b"(SELECT 1) UNION ALL (SELECT 2)", StatementKind.OUTPUT, b"(SELECT 1) UNION ALL (SELECT 2)", "", b""),
        (b"SHOW TABLES", StatementKind.OUTPUT, b"SHOW TABLES", "", b""),
        (b"SHOW SETTINGS LIKE 'x'", StatementKind.OUTPUT, b"SHOW SETTINGS LIKE 'x'", "", b""),
        (b"CHECK TABLE t SETTINGS a = 1", StatementKind.OUTPUT, b"CHECK TABLE t ", "", b" SETTINGS a = 1"),
        (b"SET max_threads = 1;", StatementKind.SESSION, b"SET max_threads = 1", "", b""),
        (b"create or replace temporary table t (a Int8)", StatementKind.SESSION, b"create or replace temporary table t (a Int8)", "", b""),
        (b"CREATE TABLE t (a Int8) ENGINE = Memory", StatementKind.OTHER, b"CREATE TABLE t (a Int8) ENGINE = Memory", "", b""),
        (b" ; ", StatementKind.EMPTY, b"", "", b""),
    ],
)
def test_a_statement_is_split_around_its_format(text: bytes, kind: StatementKind, head: bytes, name: str, tail: bytes) -> None:
    statement = parse_statement(text)
    assert (statement.kind, statement.head, statement.format, statement.tail) == (kind, head, name, tail)


@pytest.mark.parametrize(
    ("text", "head", "name", "rows"),
    [
        (b"INSERT INTO t FORMAT CSV\n1,2", b"INSERT INTO t ", "CSV", b"1,2"),
        (b"INSERT INTO t FORMAT CSV 1,2", b"INSERT INTO t ", "CSV", b"1,2"),
        (b"INSERT INTO t FORMAT CSV\r\n\n1", b"INSERT INTO t ", "CSV", b"\n1"),
        (b"insert into t (a, `format`) format Native\n\x00;'\xff", b"insert into t (a, `format`) ", "Native", b"\x00;'\xff"),
        (b"INSERT INTO t VALUES (1), (2)", b"INSERT INTO t ", "Values", b" (1), (2)"),
        (b"INSERT INTO db.values VALUES (1)", b"INSERT INTO db.values ", "Values", b" (1)"),
        (b"INSERT INTO format FORMAT TSV\nx", b"INSERT INTO format ", "TSV", b"x"),
        (
            b"INSERT INTO TABLE t (a) SETTINGS async_insert = 0 FORMAT TSV\nx",
            b"INSERT INTO TABLE t (a) SETTINGS async_insert = 0 ",
            "TSV",
            b"x",
        ),
        (b"INSERT INTO t FORMAT TSV SETTINGS a = 1, b = 'x'\nrow", b"INSERT INTO t SETTINGS a = 1, b = 'x'", "TSV", b"row"),
        (b"INSERT INTO FUNCTION file('x', 'CSV') FORMAT TSV\nx", b"INSERT INTO FUNCTION file('x', 'CSV') ", "TSV", b"x"),
        (b"INSERT INTO {t:Identifier} FORMAT TSV\nx", b"INSERT INTO {t:Identifier} ", "TSV", b"x"),
    ],
)
def test_an_insert_is_split_where_its_rows_begin(text: bytes, head: bytes, name: str, rows: bytes) -> None:
    statement = parse_insert(text)
    assert statement is not None
    assert (statement.kind, statement.head, statement.format, text[statement.data_start :]) == (StatementKind.INSERT_DATA, head, name, rows)


@pytest.mark.parametrize(
    "text", [b"INSERT INTO t SELECT 1;", b"INSERT INTO t (a) SELECT 1", b"INSERT INTO t (SELECT 1)", b"INSERT INTO t WITH 1 AS x SELECT x"]
)
def test_an_insert_from_a_query_is_one_statement(text: bytes) -> None:
    statement = parse_insert(text)
    assert statement is not None
    assert (statement.kind, statement.head) == (StatementKind.OTHER, text.rstrip(b";"))


def test_an_insert_whose_rows_have_not_begun_is_not_split() -> None:
    assert parse_insert(b"INSERT INTO t (a, b") is None
    assert parse_insert(b"INSERT INTO t FORMAT") is None


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"SELECT 1; SELECT 2", 62), (b"SELECT 1 INTO OUTFILE '/x' FORMAT CSV", 358), (b"INSERT INTO t SELECT 1; DROP TABLE t", 62)],
)
def test_what_a_server_must_not_run_is_refused(text: bytes, code: int) -> None:
    with pytest.raises(QueryFailure) as caught:
        _ = parse_insert(text) if leading_word(text) == b"INSERT" else parse_statement(text)
    assert caught.value.code == code


def test_an_insert_from_a_file_of_the_server_is_refused() -> None:
    with pytest.raises(QueryFailure) as caught:
        parse_insert(b"INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV")
    assert caught.value.code == 69
