"""The connectors of MySQL and MariaDB: a server (`mysql://`), and the files of its binary log (`binlog:DIRECTORY`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.pipes.spec import BuiltPipe, PipeSpec, SourceConnector
from headrace.sources.mysql.server.connection import connect, parse_mysql_url
from headrace.sources.preflight import Finding, ok

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime

_PRELOAD: Final = ("headrace.sources.mysql.split_reader",)


@contextmanager
def _open_server(spec: PipeSpec, view: ProgressView, runtime: Runtime | None, host: str) -> Iterator[BuiltPipe]:
    from headrace.pipes.lifecycle.sink_factory import open_sink
    from headrace.pipes.mysql.pipe import MySQLPipe

    with open_sink(spec.sink, spec.chosen, spec.settings.state, host) as named:
        yield BuiltPipe(MySQLPipe(parse_mysql_url(spec.source), named.sink, named.name, spec.settings, view, runtime), named.is_lost)


@contextmanager
def _open_files(spec: PipeSpec, view: ProgressView, runtime: Runtime | None, host: str) -> Iterator[BuiltPipe]:
    from headrace.pipes.lifecycle.sink_factory import open_sink
    from headrace.pipes.mysql.binlog_files_pipe import BinlogFilesPipe
    from headrace.sources.mysql.offline_source import parse_directory

    with open_sink(spec.sink, spec.chosen, spec.settings.state, host) as named:
        yield BuiltPipe(BinlogFilesPipe(parse_directory(spec.source), named.sink, named.name, spec.settings, view, runtime), named.is_lost)


def _preflight_server(spec: PipeSpec) -> Sequence[Finding]:
    from headrace.sources.mysql.preflight.required import examine

    address = parse_mysql_url(spec.source)
    connection = connect(address)
    try:
        return examine(connection, address, spec.settings.selection, spec.settings.cascades)
    finally:
        connection.close()


def _preflight_files(spec: PipeSpec) -> Sequence[Finding]:
    from headrace.sources.mysql.offline_source import open_directory, parse_directory

    found = open_directory(parse_directory(spec.source), spec.settings.start_at or "oldest")
    return (ok("log files", f"{found.start} to {found.end}", f"of server version {found.server_version}"),)


MYSQL: Final = SourceConnector(
    name="mysql",
    label="a server's log",
    schemes=("mysql://", "mariadb://"),
    redact=lambda address: str(parse_mysql_url(address)),
    preload=_PRELOAD,
    open=_open_server,
    preflight=_preflight_server,
    database_of=lambda address: parse_mysql_url(address).database,
)

BINLOG_FILES: Final = SourceConnector(
    name="binlog",
    label="a server's log",
    schemes=("binlog:",),
    redact=str,
    preload=_PRELOAD,
    open=_open_files,
    preflight=_preflight_files,
    has_rows=False,
)
