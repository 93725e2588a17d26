"""Checks whether the settings of a pipe are consistent, without contacting a server."""

from __future__ import annotations

from headrace.errors import DefiniteError
from headrace.pipes.factory import check_sections
from headrace.pipes.source_registry import source_connector
from headrace.pipes.spec import PipeSpec
from headrace.settings.settings_file import KAFKA, REPLAY, SINK
from headrace.sinks.registry import sink_connector


def check_spec(spec: PipeSpec) -> None:
    """Raise `DefiniteError` for settings that would make the pipe fail at its start."""
    check_sections(spec)
    chosen = spec.chosen
    # Building the options validates their combination.
    for section, build in ((SINK, lambda: chosen.sink), (KAFKA, lambda: chosen.kafka)):
        if chosen.plain.get(section):
            build()
    if chosen.plain.get(REPLAY):
        chosen.replay.check()
    connector, source = sink_connector(spec.sink), source_connector(spec.source)
    if connector.open is None and not source.is_cdc_log:
        raise DefiniteError(f"{connector.label} takes ScyllaDB's log only", hint="choose ClickHouse or Kafka for other sources")
    source.check(spec)
