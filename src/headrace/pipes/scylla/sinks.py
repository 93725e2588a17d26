"""Sinks of log rows by their address: ClickHouse, where cells are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.pipes.endpoints import CLICKHOUSE, open_sink
from headrace.pipes.settings_file import KAFKA, Chosen
from headrace.sinks.base import Books
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sinks.logs import LogSink


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A sink of log rows, the name by which a state directory knows it, and where progress is told."""

    sink: LogSink
    name: str
    books: Books
    is_lost: Callable[[], bool] = lambda: False
    """Whether it is gone for good: an embedded server that has ended."""


@contextmanager
def open_log_target(address: str, chosen: Chosen) -> Iterator[LogTarget]:
    """The sink of an address, with what was chosen for its kind; what was chosen for another kind is refused."""
    if not address.startswith((*CLICKHOUSE, "chdb:")):
        raise DefiniteError(
            "the log of ScyllaDB goes to ClickHouse",
            place=address.partition(":")[0],
            hint="give clickhouse://user:password@host:port/db or chdb:PATH",
        )
    chosen.check_sections((KAFKA,), "this is about messages in Kafka, and the sink is ClickHouse")
    with open_sink(address, choices=chosen.sink) as named:
        yield LogTarget(CellSink(named.sink), named.name, named.sink.books(), named.is_lost)
