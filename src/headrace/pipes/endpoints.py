"""Sinks by their address: a ClickHouse server, or an embedded one that is found running or started for the time of use."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.claim import read_holder
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.choices import SinkChoices
from headrace.sinks.clickhouse.sink import ClickHouseSink
from headrace.sinks.clickhouse.url import PASSWORD_VARIABLE, ClickHouseTarget, parse_target


@dataclass(frozen=True, slots=True)
class NamedSink:
    """A sink and the name by which a state directory knows it."""

    sink: ClickHouseSink
    name: str
    is_lost: Callable[[], bool] = lambda: False
    """Whether it is gone for good: an embedded server that has ended. (Another one has another port.)"""


@contextmanager
def open_sink(address: str, *, password: str = "", choices: SinkChoices | None = None) -> Iterator[NamedSink]:
    """`clickhouse://user:password@host:port/db`, or `chdb:PATH` for an embedded ClickHouse in a directory."""
    if address.startswith(("clickhouse://", "clickhouses://")):
        target = parse_target(address)
        yield NamedSink(ClickHouseSink(target, choices or SinkChoices()), str(target))
        return
    scheme, _, path = address.partition(":")
    if scheme != "chdb" or not path:
        raise DefiniteError(
            f"the sink's address {scheme!r}… cannot be read", hint="write clickhouse://user:password@host:port/db or chdb:PATH"
        )
    with EmbeddedServer.connect_or_start(Path(path), password=password) as server:
        target = ClickHouseTarget(server.host, server.port, server.user, password)
        is_lost = functools.partial(_is_other, Path(path).resolve(), server.port)
        yield NamedSink(ClickHouseSink(target, choices or SinkChoices()), f"chdb:{Path(path).resolve()}", is_lost)


def _is_other(path: Path, port: int) -> bool:
    """Whether a directory is no longer served at a port."""
    holder = read_holder(path)
    return holder is None or holder.port != port


__all__ = ["PASSWORD_VARIABLE", "NamedSink", "open_sink"]
