"""The connector of producers: classes of users (`class:MODULE:CLASS`), or a scheme that an installed package has claimed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.producer_address import CLASS, is_producer

if TYPE_CHECKING:
    from headrace.sinks.base import Sink


@contextmanager
def _open(request: OpenRequest) -> Iterator[NamedSink[Sink]]:
    from headrace.sinks.producer import open_producer

    with open_producer(request.address, request.options) as (sink, name):
        yield NamedSink(sink, name)


def _check_here(address: str, options: Any) -> None:
    from headrace.sinks.producer import parse_producer

    parse_producer(address, options).load()


def _redact(address: str) -> str:
    # Any setting of a producer may be a secret.
    return address.partition("?")[0]


PRODUCER: Final = SinkConnector(
    name="producer",
    label="a producer of your own",
    form="class:MODULE:CLASS",
    schemes=(CLASS,),
    matches=is_producer,
    redact=_redact,
    is_same=lambda one, other: _redact(one) == _redact(other),
    section="producer",
    section_subject="a producer of your own",
    check_here=_check_here,
    secret_query=True,
    open=_open,
)
