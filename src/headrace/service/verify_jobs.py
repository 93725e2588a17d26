"""Verification of a pipe's tables while the pipe runs, table by table, as `headrace verify` does.

Invariant: nothing is written to either side; results are recorded in the pipe's state directory (`verify.records`). A pipe that cannot be
verified is rejected before the comparison starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from headrace.cql.address import parse_cql_url
from headrace.errors import DefiniteError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.source_registry import source_connector
from headrace.pipes.spec import PipeSpec
from headrace.sinks.registry import has_table_store
from headrace.sources.mysql.server.connection import parse_mysql_url
from headrace.verify.records import VerifyRecord, VerifyRecorder
from headrace.verify.result import TableResult, check_not_ending
from headrace.verify.view import LineView
from headrace.verify.watched_pipe import KnownPipe, known_pipe

WAIT_S: Final = 60.0


class _StoppableView(LineView):
    """Aborts the comparison when the process ends."""

    def advanced(self, table: str, rows: int) -> None:
        super().advanced(table, rows)
        check_not_ending()


def check_verifiable(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if the pipe's tables cannot be compared with their source."""
    if not source_connector(spec.source).has_rows:
        raise DefiniteError(
            "there are no rows to compare a copy with: the source is a log",
            place=f"pipe {spec.name}",
            hint="compare with the database that the log is of: headrace verify mysql://… SINK",
        )
    if not has_table_store(spec.sink):
        raise DefiniteError(
            "only tables in ClickHouse are compared", place=f"pipe {spec.name}", hint="other sinks hold changes, and no rows"
        )


def check_resyncable(spec: PipeSpec) -> None:
    """Raise `DefiniteError` if the pipe's source cannot be read again."""
    if not source_connector(spec.source).has_rows:
        raise DefiniteError(
            "tables are read again from a server, and the source is a log",
            place=f"pipe {spec.name}",
            hint="of Debezium's topics: have the connector take a new snapshot (an incremental one, say)",
        )


def verify_pipe(spec: PipeSpec, tables: Sequence[str]) -> Iterator[tuple[TableResult, VerifyRecord | None]]:
    """Compare the pipe's tables, or those that match globs over `database.table`; yield each result as soon as it is final.

    With each result comes its record; None if it could not be recorded.
    """
    check_verifiable(spec)
    known = known_pipe(str(spec.settings.state))
    chosen = Selection(tuple(tables)) if tables else known.selection or spec.settings.selection
    yield from _verify_scylla(spec, known, chosen) if source_connector(spec.source).is_cdc_log else _verify_mysql(spec, known, chosen)


def _verify_mysql(spec: PipeSpec, known: KnownPipe, chosen: Selection) -> Iterator[tuple[TableResult, VerifyRecord | None]]:
    from headrace.model.projection import Projection
    from headrace.verify.verifier import SparkUse, VerifyOptions, verify_tables
    from headrace.verify.watched_pipe import find_watermark

    address = parse_mysql_url(spec.source)
    with open_clickhouse_sink(spec.sink) as named:
        options = VerifyOptions(
            projection=known.carried(Projection()), zero_dates=known.zero_dates, spark=SparkUse.NEVER, slots=2, transforms=known.transforms
        )
        sink = replace(named.sink, options=known.choices)
        watermark = find_watermark(sink, address, spec.name, known, WAIT_S)
        recorder = VerifyRecorder.begin(known.directory, sink.own_tables())
        for result in verify_tables(address, sink, chosen, options, watermark=watermark, view=_StoppableView()):
            yield result, recorder.record(result)


def _verify_scylla(spec: PipeSpec, known: KnownPipe, chosen: Selection) -> Iterator[tuple[TableResult, VerifyRecord | None]]:
    from headrace.cql.session import connect
    from headrace.sinks.clickhouse.cells.sink import CellSink
    from headrace.verify.scylla.verifier import pipe_position_of, verify_logged
    from headrace.verify.watched_pipe import watch

    address = parse_cql_url(spec.source)
    with open_clickhouse_sink(spec.sink) as named, connect(address) as session:
        wait_s = WAIT_S + 2 * spec.chosen.scylla.confidence
        watermark = watch(named.sink.own_tables(), str(address), spec.name, known, wait_s, pipe_position_of)
        sink = CellSink(replace(named.sink, options=known.choices))
        recorder = VerifyRecorder.begin(known.directory, named.sink.own_tables())
        for result in verify_logged(session, sink, chosen, watermark, _StoppableView()):
            yield result, recorder.record(result)
