"""`headrace retry`: writes dead letters again with the settings of their pipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headrace.pipes.state.pipe_registry import find_pipe
from headrace.sinks.clickhouse.bookkeeping.dead_letters import waiting_dead_letters
from headrace.sinks.clickhouse.dead_letter_retry import RetryOutcome, retry_dead_letters
from headrace.sinks.clickhouse.server.options import ClickHouseOptions
from headrace.sinks.clickhouse.sink import ClickHouseSink


def retry_rows(
    sink: ClickHouseSink, *, pipe: str = "", table: str = "", ids: Sequence[str] = (), choices: ClickHouseOptions | None = None
) -> Iterator[RetryOutcome]:
    """Write dead letters again, pipe by pipe; `choices` override the settings that each pipe was last started with."""
    tables = sink.own_tables()
    for name in sorted({str(letter.fields["pipe"]) for letter in waiting_dead_letters(tables, pipe=pipe, table=table, ids=ids)}):
        known = find_pipe(tables, name) if choices is None else None
        chosen = choices if choices is not None else known.chosen.sink if known is not None else sink.options
        yield from retry_dead_letters(replace(sink, options=chosen), pipe=name, table=table, ids=ids)
