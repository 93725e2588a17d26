"""The target of a table: the statements that create it, and whether it exists already.

Invariant: it changes nothing in the sink, and starts no server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.embedded.process import EmbeddedServer
from headrace.errors import HeadraceError
from headrace.model.schema import TableSchema
from headrace.pipes.spec import PipeSpec
from headrace.sinks.clickhouse.connector import embedded_path
from headrace.sinks.clickhouse.server.url import ClickHouseTarget, parse_target
from headrace.sinks.clickhouse.tables.create_table import create_statements, plan_table
from headrace.sinks.clickhouse.tables.system_tables import find_with_local_tables
from headrace.sinks.registry import sink_connector


def plan_target(spec: PipeSpec, schema: TableSchema) -> dict[str, Any]:
    """Return `statements`, none if the sink has no tables, and `existing`: the names of the tables that exist; None: not known."""
    connector = sink_connector(spec.sink)
    if not connector.has_table_store:
        return {"statements": [], "existing": []}
    target = ClickHouseTarget("127.0.0.1") if connector.is_embedded else parse_target(spec.sink)
    planned = plan_table(schema, target, spec.chosen.sink)
    places = {planned.place, planned.view_place} if planned.view_table else {planned.place}
    try:
        with _running(spec) as server:
            found = None if server is None else sorted(find_with_local_tables(server, places, "looking for the target")[0])
    except HeadraceError:
        # The check of the sink says why.
        found = None
    existing = None if found is None else [".".join(place) for place in found]
    return {"statements": list(create_statements(planned)), "existing": existing}


@contextmanager
def _running(spec: PipeSpec) -> Iterator[ClickHouseTarget | None]:
    """The server of a ClickHouse sink; None if it is an embedded one that does not run."""
    if not sink_connector(spec.sink).is_embedded:
        yield parse_target(spec.sink)
        return
    path = embedded_path(spec.sink)
    serving = read_serving_process(path)
    if serving is None or not serving.port:
        yield None
        return
    with EmbeddedServer.connect_or_start(path) as server:
        yield ClickHouseTarget(server.host, server.port, server.user, server.password)
