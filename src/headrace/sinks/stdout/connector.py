"""The connector of the standard output (`stdout:`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.errors import DefiniteError
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.stdout.options import StdoutOptions

if TYPE_CHECKING:
    from headrace.sinks.base import Sink
    from headrace.sinks.cdc_log_sink import LogSink

STDOUT_ADDRESS: Final = "stdout:"


@contextmanager
def _open(request: OpenRequest) -> Iterator[NamedSink[Sink]]:
    from headrace.sinks.stdout.output import NO_FRAME
    from headrace.sinks.stdout.sink import StdoutSink, handover, parse_stdout
    from headrace.sinks.stdout.sql_format import SQL_FRAME

    options = parse_stdout(request.address, terminal=sys.stdout.isatty())
    with handover(request.state, request.host, SQL_FRAME if options.sql else NO_FRAME) as lines:
        yield NamedSink(StdoutSink(lines, options), STDOUT_ADDRESS)


@contextmanager
def _open_log(request: OpenRequest) -> Iterator[NamedSink[LogSink]]:
    from headrace.sinks.stdout.sink import StdoutLogSink, handover, parse_stdout

    if parse_stdout(request.address, terminal=False).sql:
        hint = "remove format=sql: the rows of ScyllaDB's log are printed as JSON"
        raise DefiniteError("the changes of ScyllaDB cannot be printed as SQL", place=STDOUT_ADDRESS, hint=hint)
    with handover(request.state, request.host) as lines:
        yield NamedSink(StdoutLogSink(lines), STDOUT_ADDRESS)


def _check_address(address: str) -> None:
    from headrace.sinks.stdout.sink import parse_stdout

    parse_stdout(address, terminal=False)


def _redact(address: str) -> str:
    return address.partition("?")[0]


STDOUT: Final = SinkConnector(
    name="stdout",
    label="the standard output",
    form=STDOUT_ADDRESS,
    schemes=(STDOUT_ADDRESS,),
    matches=lambda address: address == STDOUT_ADDRESS or address.startswith(f"{STDOUT_ADDRESS}?"),
    redact=_redact,
    is_same=lambda one, other: _redact(one) == _redact(other),
    check_address=_check_address,
    address_options=StdoutOptions,
    prints=True,
    secret_query=True,
    open=_open,
    open_log=_open_log,
)
