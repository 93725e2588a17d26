"""The connector of another CQL cluster (`cql://host:port/keyspace`), which takes ScyllaDB's log only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace import extras
from headrace.cql.address import parse_cql_url
from headrace.errors import DefiniteError
from headrace.sinks.connector import NamedSink, OpenRequest, SinkConnector
from headrace.sinks.cql.options import ReplayOptions

if TYPE_CHECKING:
    from headrace.sinks.cdc_log_sink import LogSink
    from headrace.sinks.target_claims import ClaimStore

_SINK_SCHEME: Final = "cql://"


@contextmanager
def _open_log(request: OpenRequest) -> Iterator[NamedSink[LogSink]]:
    from headrace.sinks.cql.sink import ReplaySink

    _check_address(request.address)
    target = parse_cql_url(request.address)
    yield NamedSink(ReplaySink(target, request.options), str(target))


@contextmanager
def _open_claims(address: str) -> Iterator[tuple[ClaimStore, str]]:
    from headrace.sinks.cql.target_tables import CqlClaims

    nodes = parse_cql_url(address)
    yield CqlClaims(nodes, creates=False), str(nodes)


def _check_address(address: str) -> None:
    if not address.startswith(_SINK_SCHEME):
        message = "a cluster that is the sink has another scheme than one that is the source"
        raise DefiniteError(message, place=address.partition(":")[0], hint="write cql://user:password@host:port/keyspace")
    parse_cql_url(address)


def _is_same(one: str, other: str) -> bool:
    first, second = parse_cql_url(one), parse_cql_url(other)
    # Any node knows all others: two addresses that share a node are of the same cluster.
    return first.keyspace == second.keyspace and bool(set(first.hosts) & set(second.hosts))


CQL: Final = SinkConnector(
    name="cql",
    label="a CQL cluster",
    form="cql://user:password@host:port/keyspace",
    schemes=(_SINK_SCHEME,),
    matches=lambda address: address.startswith((_SINK_SCHEME, "scylla://")),
    redact=lambda address: str(parse_cql_url(address)),
    is_same=_is_same,
    section="replay",
    section_subject="replay into another cluster",
    options=ReplayOptions,
    options_page="scylla",
    check_address=_check_address,
    servers=lambda address: frozenset(parse_cql_url(address).hosts),
    extra=extras.SCYLLA,
    open_log=_open_log,
    open_claims=_open_claims,
)
