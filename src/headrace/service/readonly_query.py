"""Read-only queries on a pipe's sink, limited in time and rows.

Invariant: ClickHouse refuses writes (`readonly = 1`, which also bars table functions that read files or other servers) and ends long
queries. Two things that it would still do are refused here, by rules that are too strict rather than too lax: statements that do not start
like a read (KILL QUERY), and the function `file` of an embedded server, which reads any file of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.materialize_mysql.statement_router import read_settings
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.sinks.clickhouse.connector import EMBEDDED_CLICKHOUSE
from headrace.sinks.clickhouse.reader import names_format
from headrace.sinks.clickhouse.server.bounded_client import json_rows
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translate_errors
from headrace.sinks.clickhouse.server.identifiers import quote_text
from headrace.sinks.clickhouse.server.url import ClickHouseTarget

MAX_ROWS: Final = 1000
MAX_SECONDS: Final = 30
_READ_ONLY: Final = {"readonly": "1"}
_SETTINGS: Final = {
    "max_execution_time": str(MAX_SECONDS),
    "max_result_rows": str(MAX_ROWS),
    "max_result_bytes": str(16 << 20),
    "result_overflow_mode": "break",
    "output_format_json_quote_64bit_integers": "1",
    "output_format_json_quote_denormals": "1",
    "output_format_json_quote_decimals": "1",
}
_FORMAT: Final = "JSONCompactEachRowWithNames"
_BEFORE: Final = r"(?>\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*+"
_READS: Final = re.compile(_BEFORE + r"(?:SELECT|WITH|FROM|SHOW|DESCRIBE|DESC|EXPLAIN|EXISTS)\b", re.IGNORECASE | re.DOTALL)
_FILE: Final = re.compile(r"\bfile\b")
_SYNTAX_ERROR: Final = re.compile(r"Syntax error.*?(?=\.? Expected one of: |: In scope SELECT formatQuery|: while executing|$)", re.DOTALL)
"""Without the statements that the server knows, and without the statement that parses."""
_QUOTES: Final = frozenset('`"“”')
_HINT: Final = "write with a client of your own, such as `headrace sql`"


def run_readonly_query(sink: str, sql: str) -> tuple[list[str], list[list[Any]]]:
    """Return column names and the first rows of the result as JSON types; large numbers and decimals as text."""
    if names_format(sql):
        raise DefiniteError("the result is shown as a table, whatever format the query names", place="FORMAT", hint="leave FORMAT … out")
    if EMBEDDED_CLICKHOUSE.is_address(sink):
        _check_reads_no_file(sql)
    with open_clickhouse_sink(sink) as named:
        target = named.sink.target
        if not _READS.match(sql):
            raise _rejection(target, sql)
        connection = connect(target)
        with _explain_errors(target, sql), translate_errors(target, "running a query"):
            # `readonly` is always sent: a server that does not know it must reject the query.
            settings = {**connection.supported({**_SETTINGS, **read_settings(named.sink, sql)}), **_READ_ONLY}
            raw = connection.client.raw_query(sql, settings=settings, transport_settings={"X-ClickHouse-Format": _FORMAT})
            rows = json_rows(raw, raw.decode(errors="replace"))
    # The server stops after the block that exceeds the limit, and that block may be large.
    return (rows[0], rows[1 : MAX_ROWS + 1]) if rows else ([], [])


def _check_reads_no_file(sql: str) -> None:
    """Raise `DefiniteError` for statements with which an embedded server would read a file."""
    # A quoted name may contain escapes.
    if _FILE.search(sql) or ("\\" in sql and not _QUOTES.isdisjoint(sql)):
        raise DefiniteError(
            "an embedded ClickHouse would read any file of this machine: the name file, and names with escapes, are not allowed here",
            place="the query",
            hint="use a client of your own, such as `headrace sql`",
        )


def _rejection(target: ClickHouseTarget, sql: str) -> DefiniteError:
    """Return the error for a text that does not start like a read: the server's syntax error, if it is no statement at all."""
    return _find_syntax_error(target, sql) or DefiniteError("only queries that read are allowed here", place="the query", hint=_HINT)


def _find_syntax_error(target: ClickHouseTarget, sql: str) -> DefiniteError | None:
    """Let the server parse a statement without executing it."""
    connection = connect(target)
    settings = {**connection.supported({"implicit_select": "0"}), **_READ_ONLY}
    try:
        with translate_errors(target, "parsing a query"):
            connection.client.raw_query(f"SELECT formatQuery({quote_text(sql)})", settings=settings)
    except DefiniteError as error:
        if found := _SYNTAX_ERROR.search(error.message):
            return DefiniteError(found[0], place="the query", hint="correct the statement")
    return None


@contextmanager
def _explain_errors(target: ClickHouseTarget, sql: str) -> Iterator[None]:
    """Replace ClickHouse's READONLY error, whose remedy is about accounts, by one about this API; shorten syntax errors."""
    try:
        yield
    except DefiniteError as error:
        if "(READONLY)" in error.message:
            raise DefiniteError("only queries that read are allowed here", place=error.place, hint=_HINT) from error
        if "Syntax error" in error.message and (syntax_error := _find_syntax_error(target, sql)):
            raise syntax_error from error
        raise
