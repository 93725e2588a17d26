"""Opens sinks of ScyllaDB's log by their address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.pipes.lifecycle.sink_factory import check_sink_sections
from headrace.pipes.state.stored_progress import FileProgressStore
from headrace.settings.settings_file import UserSettings
from headrace.sinks.base import ProgressStore
from headrace.sinks.cdc_log_sink import LogSink
from headrace.sinks.connector import OpenRequest
from headrace.sinks.registry import SINK_CONNECTORS, find_sink_connector
from headrace.sinks.target_claims import ClaimStore
from headrace.sources.scylla.snapshot.options import MergeTime, StoredForm


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A sink of log rows, the name by which a state directory knows it, and where its pipe keeps progress."""

    sink: LogSink
    name: str
    progress_store: ProgressStore
    is_lost: Callable[[], bool] = lambda: False
    """Whether the sink's embedded server has exited."""
    place: Callable[[TableName], str] = lambda _: ""
    """The name of a table in the sink, for people; empty if the sink has no table store."""
    claims: ClaimStore | None = None
    """Where the sink records which pipe writes to which target."""
    target_of: Callable[[TableName], str] = str
    """The name of a table's target in those records."""


@contextmanager
def open_log_target(address: str, chosen: UserSettings, state: Path, host: str) -> Iterator[LogTarget]:
    """Open a sink for log rows. Options for another kind of sink are an error.

    `state` is the pipe's directory, which keeps progress if the sink does not; `host` is where its tasks reach this process.
    """
    connector = find_sink_connector(address)
    if connector is None or connector.open_log is None:
        takers = [one for one in SINK_CONNECTORS if one.open_log is not None]
        message = f"the log of ScyllaDB goes to {', '.join(sorted({one.label for one in takers}))}"
        hint = f"give {', '.join(one.form for one in takers[:-1])} or {takers[-1].form}"
        raise DefiniteError(message, place=address.partition(":")[0], hint=hint)
    check_sink_sections(connector, chosen)
    row_images = chosen.scylla.kept is StoredForm.IMAGES
    merge = chosen.scylla.merge
    merges_rows = None if merge is MergeTime.AUTO else merge is MergeTime.WRITE
    request = OpenRequest(address, chosen.section_options(connector.section), state, host, row_images, merges_rows, chosen.transforms)
    with connector.open_log(request) as named:
        sink = named.sink
        place = sink.target_of if connector.has_table_store else lambda _: ""
        yield LogTarget(
            sink, named.name, sink.progress_store() or FileProgressStore(state), named.is_lost, place, sink.claims(), sink.target_of
        )
