"""Sinks by their address: a ClickHouse server, or an embedded one that is found running or started for the time of use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
        yield NamedSink(ClickHouseSink(target, choices or SinkChoices()), f"chdb:{Path(path).resolve()}")


__all__ = ["PASSWORD_VARIABLE", "NamedSink", "open_sink"]
