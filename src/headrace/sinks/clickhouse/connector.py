"""The connectors of ClickHouse: a server (`clickhouse://`), and an embedded one in a directory (`chdb:PATH`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace import extras
from headrace.embedded.engine.directory_lock import check_directory, read_serving_process, require_data
from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.server.options import CHANGEABLE, ClickHouseOptions
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target, same_sink
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector

if TYPE_CHECKING:
    from headrace.sinks.base import Sink
    from headrace.sinks.cdc_log_sink import LogSink
    from headrace.sinks.clickhouse.sink import ClickHouseSink
    from headrace.sinks.target_claims import ClaimStore

EMBEDDED_SCHEME: Final = "chdb:"


@contextmanager
def open_clickhouse(
    address: str, options: ClickHouseOptions | None = None, *, creates: bool = False
) -> Iterator[NamedSink[ClickHouseSink]]:
    """Open a server, or the embedded server of a directory, which is started if none runs.

    `creates`: a missing directory is created, because the caller writes to the sink; otherwise it is an error.
    """
    from headrace.sinks.clickhouse.sink import ClickHouseSink
    from headrace.sinks.clickhouse.tables.target_cache import CacheValidity

    chosen = options or ClickHouseOptions()
    if not address.startswith(EMBEDDED_SCHEME):
        target = parse_target(address)
        yield NamedSink(ClickHouseSink(target, chosen, validity=CacheValidity.of_new_run()), str(target))
        return
    path = embedded_path(address)
    if not creates:
        require_data(path)
    from headrace.embedded.process import EmbeddedServer

    with EmbeddedServer.connect_or_start(path) as server:
        target = ClickHouseTarget(server.host, server.port, server.user, server.password)
        is_lost = functools.partial(_is_other, path.resolve(), server.port)
        yield NamedSink(ClickHouseSink(target, chosen, validity=CacheValidity.of_new_run()), f"{EMBEDDED_SCHEME}{path.resolve()}", is_lost)


def embedded_path(address: str) -> Path:
    path = address.removeprefix(EMBEDDED_SCHEME)
    if not address.startswith(EMBEDDED_SCHEME) or not path:
        raise DefiniteError("this is not the address of an embedded ClickHouse", place=address, hint="write chdb:PATH")
    return Path(path)


def _is_other(path: Path, port: int) -> bool:
    """Return whether a directory is no longer served at a port."""
    holder = read_serving_process(path)
    return holder is None or holder.port != port


def _open(request: OpenRequest) -> AbstractContextManager[NamedSink[Sink]]:
    return open_clickhouse(request.address, request.options, creates=True)


@contextmanager
def _open_log(request: OpenRequest) -> Iterator[NamedSink[LogSink]]:
    from headrace.sinks.clickhouse.cells.sink import CellSink
    from headrace.sinks.clickhouse.postimages import PostimageSink

    with open_clickhouse(request.address, request.options, creates=True) as named:
        kept: LogSink = PostimageSink(named.sink) if request.row_images else CellSink(named.sink, request.merges_rows, request.transforms)
        yield NamedSink(kept, named.name, named.is_lost)


@contextmanager
def _open_claims(address: str) -> Iterator[tuple[ClaimStore, str]]:
    with open_clickhouse(address) as named:
        yield named.sink.claims(), named.name


def _probe(address: str) -> str:
    from headrace.sinks.clickhouse.server.client import connect
    from headrace.sinks.clickhouse.server.errors import translate_errors

    target = parse_target(address)
    with translate_errors(target, "asking for the version"):
        return str(connect(target).client.server_version)


CLICKHOUSE: Final = SinkConnector(
    name="clickhouse",
    label="ClickHouse",
    form="clickhouse://user:password@host:port/db",
    schemes=("clickhouse://", "clickhouses://"),
    redact=lambda address: str(parse_target(address)),
    is_same=same_sink,
    section="sink",
    section_subject="tables in ClickHouse",
    changeable=CHANGEABLE,
    check_address=parse_target,
    servers=lambda address: frozenset(parse_target(address).hosts),
    probe=_probe,
    preload=("headrace.sinks.clickhouse.sink",),
    has_table_store=True,
    merges_cells=True,
    open=_open,
    open_log=_open_log,
    open_claims=_open_claims,
)

EMBEDDED_CLICKHOUSE: Final = replace(
    CLICKHOUSE,
    name="embedded_clickhouse",
    form="chdb:PATH",
    schemes=(EMBEDDED_SCHEME,),
    redact=str,
    check_address=lambda _: None,
    check_here=lambda address, _: check_directory(embedded_path(address)),
    servers=lambda address: frozenset({address}),
    probe=None,
    extra=extras.EMBEDDED,
    is_embedded=True,
)
