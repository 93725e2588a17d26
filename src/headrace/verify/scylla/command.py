"""`headrace verify scylla://…`: finds the watched pipe and its settings, and refuses options that do not apply."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from headrace.cql.address import STRONG_CONSISTENCIES, CqlAddress, parse_cql_url
from headrace.cql.session import connect
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.state.stored_settings import settings_in
from headrace.settings.settings_file import read_settings
from headrace.sinks.clickhouse.cells.sink import CellSink
from headrace.sources.scylla.snapshot.options import ScyllaOptions
from headrace.verify.records import VerifyRecorder
from headrace.verify.result import TableResult
from headrace.verify.scylla.verifier import pipe_position_of, verify_logged
from headrace.verify.view import choose_view
from headrace.verify.watched_pipe import KnownPipe, known_pipe, pipe_in_sink, watch


def verified(arguments: argparse.Namespace, selected: Callable[[str], Selection]) -> Iterator[TableResult]:
    """Compare tables with their views; `selected` returns the requested tables of a keyspace."""
    _check(arguments)
    address = parse_cql_url(arguments.source)
    reads_from = address_for_repairs(address) if arguments.repair else address
    with open_clickhouse_sink(arguments.sink) as named, connect(reads_from) as session:
        own = named.sink.own_tables()
        known = known_pipe(arguments.state) if arguments.state else pipe_in_sink(own, address, arguments.pipe)
        chosen = known.selection if known.selection is not None and not arguments.tables else selected(address.keyspace)
        choices = read_settings(Path(arguments.settings)).sink if arguments.settings else known.choices
        # A pipe is behind by the confidence time even when idle.
        wait_s = arguments.wait + 2 * _scylla(known).confidence
        watermark = watch(own, str(address), arguments.pipe, known, wait_s, pipe_position_of)
        repair = _scylla(known) if arguments.repair else None
        recorder = VerifyRecorder.begin(known.directory, own)
        sink = CellSink(replace(named.sink, options=choices))
        for result in verify_logged(session, sink, chosen, watermark, choose_view(), repair=repair):
            recorder.record(result)
            yield result


def address_for_repairs(address: CqlAddress) -> CqlAddress:
    """Return the address with a consistency at which a read finds every acknowledged write: a repair deletes what it does not find."""
    return address if address.consistency in STRONG_CONSISTENCIES else replace(address, consistency="local_quorum")


def _scylla(known: KnownPipe) -> ScyllaOptions:
    """Return the pipe's source options, if its state is available."""
    state = known.directory.load() if known.directory is not None else None
    return settings_in(state, "").scylla if state is not None else ScyllaOptions()


def _check(arguments: argparse.Namespace) -> None:
    if arguments.sample:
        raise DefiniteError("tables of ScyllaDB are compared whole", place="--sample", hint="leave it out, or choose --tables")
    if arguments.columns or arguments.exclude_columns:
        raise DefiniteError("tables of ScyllaDB are compared with all columns", place="--columns", hint="leave it out")
