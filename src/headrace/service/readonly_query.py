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
_QUOTES: Final = frozenset('`"“”')
_HINT: Final = "write with a client of your own, such as `headrace sql`"


def run_readonly_query(sink: str, sql: str) -> tuple[list[str], list[list[Any]]]:
    """Return column names and the first rows of the result as JSON types; large numbers and decimals as text."""
    if names_format(sql):
        raise DefiniteError("the result is shown as a table, whatever format the query names", place="FORMAT", hint="leave FORMAT … out")
    _check_read_only(sql, embedded=EMBEDDED_CLICKHOUSE.is_address(sink))
    with open_clickhouse_sink(sink) as named:
        target = named.sink.target
        connection = connect(target)
        with _explain_readonly_error(), translate_errors(target, "running a query"):
            # `readonly` is always sent: a server that does not know it must reject the query.
            settings = {**connection.supported({**_SETTINGS, **read_settings(named.sink, sql)}), **_READ_ONLY}
            raw = connection.client.raw_query(sql, settings=settings, transport_settings={"X-ClickHouse-Format": _FORMAT})
            rows = json_rows(raw, raw.decode(errors="replace"))
    # The server stops after the block that exceeds the limit, and that block may be large.
    return (rows[0], rows[1 : MAX_ROWS + 1]) if rows else ([], [])


def _check_read_only(sql: str, *, embedded: bool) -> None:
    """Raise `DefiniteError` for statements that a read-only server would still run."""
    if not _READS.match(sql):
        raise DefiniteError("only queries that read are allowed here", place="the query", hint=_HINT)
    # A quoted name may contain escapes.
    if embedded and (_FILE.search(sql) or ("\\" in sql and not _QUOTES.isdisjoint(sql))):
        raise DefiniteError(
            "an embedded ClickHouse would read any file of this machine: the name file, and names with escapes, are not allowed here",
            place="the query",
            hint="use a client of your own, such as `headrace sql`",
        )


@contextmanager
def _explain_readonly_error() -> Iterator[None]:
    """Replace ClickHouse's READONLY error, whose remedy is about accounts, by one about this API."""
    try:
        yield
    except DefiniteError as error:
        if "(READONLY)" not in error.message:
            raise
        raise DefiniteError("only queries that read are allowed here", place=error.place, hint=_HINT) from error
