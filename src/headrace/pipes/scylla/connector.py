"""The connector of ScyllaDB and Apache Cassandra (`scylla://host:port/keyspace`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace import extras
from headrace.cql.address import PASSWORD_VARIABLES, parse_cql_url
from headrace.pipes.spec import BuiltPipe, PipeSpec, SourceConnector
from headrace.sources.preflight import Finding

if TYPE_CHECKING:
    from headrace.pipes.lifecycle.progress_view import ProgressView
    from headrace.runtime.interface import Runtime


@contextmanager
def _open(spec: PipeSpec, view: ProgressView, runtime: Runtime | None, host: str) -> Iterator[BuiltPipe]:
    from headrace.pipes.scylla.pipe import ScyllaPipe
    from headrace.pipes.scylla.settings_check import check_chosen, check_transforms
    from headrace.pipes.scylla.sink_factory import open_log_target

    check_chosen(spec.settings, spec.chosen)
    check_transforms(spec.sink, spec.chosen)
    with open_log_target(spec.sink, spec.chosen, spec.settings.state, host) as target:
        yield BuiltPipe(ScyllaPipe(parse_cql_url(spec.source), spec.chosen.scylla, target, spec.settings, view, runtime), target.is_lost)


def _check(spec: PipeSpec) -> None:
    from headrace.pipes.scylla.settings_check import check_chosen, check_transforms
    from headrace.pipes.scylla.start_position import check_start

    check_chosen(spec.settings, spec.chosen)
    check_transforms(spec.sink, spec.chosen)
    spec.chosen.scylla.check()
    check_start(spec.settings)


def _preflight(spec: PipeSpec) -> Sequence[Finding]:
    from headrace.cql.session import connect
    from headrace.sources.scylla.preflight import examine

    with connect(parse_cql_url(spec.source)) as session:
        return examine(session, spec.settings.selection, spec.chosen.scylla, lambda: time.time_ns() // 1000)


SCYLLA: Final = SourceConnector(
    name="scylla",
    label="ScyllaDB's log",
    schemes=tuple(f"{scheme}://" for scheme in PASSWORD_VARIABLES),
    redact=lambda address: str(parse_cql_url(address)),
    preload=("headrace.sources.scylla.window_reader", "headrace.sources.scylla.snapshot.reader"),
    extra=extras.SCYLLA,
    open=_open,
    preflight=_preflight,
    check=_check,
    database_of=lambda address: parse_cql_url(address).keyspace,
    sections=("scylla", "replay"),
    section_subject="ScyllaDB's log",
    is_cdc_log=True,
)
