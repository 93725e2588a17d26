"""A read-only query of a pipe's sink, bounded in time and number.

Invariant: ClickHouse itself refuses whatever would change something (`readonly = 1`, which also bars table functions that read files or
other servers), and ends what takes too long. What it would do all the same is refused before, by rules that rather refuse too much:
statements that do not begin as those that read (KILL QUERY), and to an embedded one the function `file`, which reads any file there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.service.embedded_servers import SCHEME
from headrace.sinks.clickhouse.reader import names_format
from headrace.sinks.clickhouse.server.client import connect
from headrace.sinks.clickhouse.server.errors import translated
from headrace.sinks.clickhouse.server.response_rows import json_rows

MOST_ROWS: Final = 1000
MOST_SECONDS: Final = 30
_READ_ONLY: Final = {"readonly": "1"}
_SETTINGS: Final = {
    "max_execution_time": str(MOST_SECONDS),
    "max_result_rows": str(MOST_ROWS),
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


def ask(sink: str, sql: str) -> tuple[list[str], list[list[Any]]]:
    """Column names and the first rows of a query's result, in JSON's types; large numbers and decimals as text."""
    if names_format(sql):
        raise DefiniteError("the result is shown as a table, whatever the query says", place="FORMAT", hint="leave FORMAT … out")
    _check_reads(sql, embedded=sink.startswith(SCHEME))
    with open_clickhouse_sink(sink) as named:
        target = named.sink.target
        connection = connect(target)
        with _only_reading(), translated(target, "running a query"):
            # A server that did not know this one is not asked at all.
            settings = {**connection.known(_SETTINGS), **_READ_ONLY}
            raw = connection.client.raw_query(sql, settings=settings, transport_settings={"X-ClickHouse-Format": _FORMAT})
            rows = json_rows(raw, raw.decode(errors="replace"))
    # The server ends after the block that is too much, and that may be a large one.
    return (rows[0], rows[1 : MOST_ROWS + 1]) if rows else ([], [])


def _check_reads(sql: str, *, embedded: bool) -> None:
    """Raise `DefiniteError` for what a server would do that lets nothing be written."""
    if not _READS.match(sql):
        raise DefiniteError("only queries that read are allowed here", place="the query", hint=_HINT)
    # A name in quotes may be written with escapes.
    if embedded and (_FILE.search(sql) or ("\\" in sql and not _QUOTES.isdisjoint(sql))):
        raise DefiniteError(
            "an embedded ClickHouse would read any file of this machine: the name file, and names with escapes, are not allowed here",
            place="the query",
            hint="ask with a client of your own, such as `headrace sql`",
        )


@contextmanager
def _only_reading() -> Iterator[None]:
    """What ClickHouse says of a query that would write is meant for accounts; here it is the place."""
    try:
        yield
    except DefiniteError as error:
        if "(READONLY)" not in error.message:
            raise
        raise DefiniteError("only queries that read are allowed here", place=error.place, hint=_HINT) from error
