"""A read-only query of a pipe's sink, bounded in time and number.

Invariant: ClickHouse itself refuses whatever would change something (`readonly = 1`, which also bars functions that read files or other
servers), and ends what takes too long; nothing is left to a look at the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.pipes.endpoints import open_sink
from headrace.sinks.clickhouse.client import connect
from headrace.sinks.clickhouse.failures import translated
from headrace.sinks.clickhouse.reader import names_format

MOST_ROWS: Final = 1000
MOST_SECONDS: Final = 30
_SETTINGS: Final = {
    "readonly": "1",
    "max_execution_time": str(MOST_SECONDS),
    "max_result_rows": str(MOST_ROWS),
    "max_result_bytes": str(16 << 20),
    "result_overflow_mode": "break",
    "output_format_json_quote_64bit_integers": "1",
    "output_format_json_quote_denormals": "1",
    "output_format_json_quote_decimals": "1",
}
_FORMAT: Final = "JSONCompactEachRowWithNames"


def ask(sink: str, sql: str) -> tuple[list[str], list[list[Any]]]:
    """Column names and the first rows of a query's result, in JSON's types; large numbers and decimals as text."""
    if names_format(sql):
        raise DefiniteError("the result is shown as a table, whatever the query says", place="FORMAT", hint="leave FORMAT … out")
    with open_sink(sink) as named:
        target = named.sink.target
        connection = connect(target)
        with _only_reading(), translated(target, "running a query"):
            raw = connection.client.raw_query(
                sql, settings=connection.known(_SETTINGS), transport_settings={"X-ClickHouse-Format": _FORMAT}
            )
    rows = [json.loads(line) for line in raw.decode(errors="replace").split("\n") if line]
    # The server ends after the block that is too much, and that may be a large one.
    return (rows[0], rows[1 : MOST_ROWS + 1]) if rows else ([], [])


@contextmanager
def _only_reading() -> Iterator[None]:
    """What ClickHouse says of a query that would write is meant for accounts; here it is the place."""
    try:
        yield
    except DefiniteError as error:
        if "(READONLY)" not in error.message:
            raise
        hint = "write with a client of your own, such as `headrace sql`"
        raise DefiniteError("only queries that read are allowed here", place=error.place, hint=hint) from error
