"""The metrics of a process, in Prometheus's text format.

Invariant: a value that is not known is left out, never reported as 0. Counters count since the process began, as Prometheus expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from headrace.service.status import PipeStage, PipeStatus, ServiceStatus, TableStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_COUNTER_SUFFIX: Final = "_total"
_VERDICTS: Final = ("equal", "different", "undecided", "running")
_DECIDED: Final = ("equal", "different")
_KINDS: Final = ("different", "missing", "extra")

PIPE_METRICS: Final[tuple[tuple[str, str, Callable[[PipeStatus], float | None]], ...]] = (
    (
        "headrace_pipe_lag_seconds",
        "Age of the oldest change that is committed at the source and not yet visible in the sink.",
        lambda p: p.lag_s,
    ),
    (
        "headrace_pipe_lag_bytes",
        "What lies between the pipe's place and the end of its source's log (of topics: records).",
        lambda p: p.lag_bytes,
    ),
    ("headrace_pipe_changes_per_second", "Changes per second over the last few seconds.", lambda p: p.rate),
    ("headrace_pipe_changes_total", "Changes that reached the sink.", lambda p: p.changes),
    ("headrace_pipe_bytes_total", "Bytes of the source's log that were read.", lambda p: p.bytes),
    ("headrace_pipe_batches_total", "Batches that were committed.", lambda p: p.batches),
    ("headrace_pipe_errors_total", "Errors that ended a run of the pipe.", lambda p: p.errors),
    ("headrace_pipe_retries_total", "Tries after passing errors.", lambda p: p.retries),
    ("headrace_pipe_skipped_events", "Events that were left out by `headrace skip`, ever.", lambda p: p.skipped),
    ("headrace_pipe_dead_letters", "Rows that wait in headrace.errors.", lambda p: p.dead_letters),
    ("headrace_pipe_late_rows", "Rows of the source's log that arrived too late to be read.", lambda p: p.late_rows),
    (
        "headrace_pipe_unreadable_records",
        "Records that could not be read and are in headrace.errors or in the dead-letter topic, in total.",
        lambda p: p.unreadable,
    ),
    ("headrace_pipe_filtered_rows_total", "Changes and snapshot rows that filters excluded.", lambda p: p.filtered),
    ("headrace_pipe_relay_bytes", "Bytes of the source's log on local disk.", lambda p: p.relay_bytes),
    ("headrace_pipe_waiting_seconds", "For how long the pipe has waited for a peer; 0 if it does not.", lambda p: p.waiting_s),
    ("headrace_pipe_snapshot_remaining_seconds", "How long the snapshot will still take, by its pace so far.", lambda p: p.eta_s),
    ("headrace_pipe_stage_since_timestamp_seconds", "When the pipe came into its stage.", lambda p: p.since or None),
    ("headrace_pipe_next_try_timestamp_seconds", "When a pipe that is retried will be started again.", lambda p: p.next_try or None),
)
TABLE_METRICS: Final[tuple[tuple[str, str, Callable[[TableStatus], float | None]], ...]] = (
    ("headrace_table_changes_total", "Changes of the table that reached the sink.", lambda t: t.changes),
    ("headrace_table_rows", "Rows in the target table, counted from time to time.", lambda t: t.rows),
    (
        "headrace_table_last_change_timestamp_seconds",
        "When the table's newest change was committed at the source.",
        lambda t: t.last_change or None,
    ),
    ("headrace_table_snapshot_rows", "Rows that the table's snapshot has brought so far.", lambda t: t.copied),
    ("headrace_table_snapshot_rows_expected", "Rows that the table's snapshot will bring, as the source guesses.", lambda t: t.estimate),
    ("headrace_table_complete", "1 if the table's rows are all there, 0 while they are being copied.", lambda t: t.complete),
    ("headrace_table_skipped_events", "Events of the table that were left out by `headrace skip`, ever.", lambda t: t.skipped),
    ("headrace_table_dead_letters", "Rows of the table that wait in headrace.errors.", lambda t: t.dead_letters),
    ("headrace_table_filtered_rows_total", "Changes and snapshot rows that the table's filter excluded.", lambda t: t.filtered),
    (
        "headrace_table_verify_timestamp_seconds",
        "When the table was compared with its source last.",
        lambda t: (t.verify.at or None) if t.verify else None,
    ),
    (
        "headrace_table_verify_rows",
        "Source rows that were compared then; absent if it could not decide.",
        lambda t: t.verify.rows if t.verify and t.verify.verdict in _DECIDED else None,
    ),
    (
        "headrace_table_verify_differences",
        "Missing rows, extra rows and differing values in that comparison; absent if it could not decide.",
        lambda t: t.verify.differences if t.verify and t.verify.verdict in _DECIDED else None,
    ),
    (
        "headrace_table_verify_repaired_rows",
        "Rows that differed in that comparison and were repaired; absent if it could not decide.",
        lambda t: t.verify.repaired if t.verify and t.verify.verdict in _DECIDED else None,
    ),
    (
        "headrace_table_verify_excluded_rows",
        "Source rows that the table's filter excluded in that comparison; absent if it could not decide.",
        lambda t: t.verify.excluded if t.verify and t.verify.verdict in _DECIDED else None,
    ),
)
"""Name, description and value; counters end with `_total`, all others are gauges."""


def render(status: ServiceStatus) -> bytes:
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    return generate_latest(registry)


def names() -> list[str]:
    empty = ServiceStatus("", 0, 0.0, "")
    return sorted(f"{one.name}{_COUNTER_SUFFIX}" if one.type == "counter" else one.name for one in _metrics(empty))


class _StatusCollector(Collector):
    def __init__(self, status: ServiceStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        return _metrics(self._status)


def _metrics(status: ServiceStatus) -> Iterator[Metric]:
    yield _metric("headrace_info", "Always 1: the version that runs.", [({"version": status.version, "file": status.file}, 1)])
    for name, text, value in (
        ("headrace_process_start_time_seconds", "When the process began.", status.started),
        ("headrace_process_memory_bytes", "Resident memory of all of its processes, Spark's among them.", status.memory_bytes),
        ("headrace_process_cpu_seconds_total", "CPU time of all of its processes.", status.cpu_s),
    ):
        yield _metric(name, text, [({}, value)])
    labelled = [({"pipe": pipe.name, "group": pipe.group}, pipe) for pipe in status.pipes]
    text = "1 for the stage that the pipe is in, 0 for the others."
    stages = (({**labels, "stage": stage}, pipe.stage is stage) for labels, pipe in labelled for stage in PipeStage)
    yield _metric("headrace_pipe_stage", text, stages)
    text = "1 if the pipe halts at an error that a person has to see to."
    yield _metric("headrace_pipe_failed", text, ((labels, pipe.stage is PipeStage.FAILED) for labels, pipe in labelled))
    enabled = [(labels, pipe) for labels, pipe in labelled if pipe.stage is not PipeStage.DISABLED]
    for name, text, of_pipe in PIPE_METRICS:
        yield _metric(name, text, ((labels, of_pipe(pipe)) for labels, pipe in enabled))
    for name, text, of_table in TABLE_METRICS:
        yield _metric(name, text, ((labels, of_table(table)) for labels, table in _tables(enabled)))
    compared = [(labels, table.verify) for labels, table in _tables(labelled) if table.verify is not None]
    text = "Rows that differed in that comparison, by kind; absent if it could not decide."
    decided = [(labels, verify) for labels, verify in compared if verify.verdict in _DECIDED]
    kinds = (({**labels, "kind": kind}, getattr(verify, kind)) for labels, verify in decided for kind in _KINDS)
    yield _metric("headrace_table_verify_differing_rows", text, kinds)
    text = "1 for the verdict of the table's last comparison with its source, 0 for the others."
    verdicts = (({**labels, "verdict": verdict}, verify.verdict == verdict) for labels, verify in compared for verdict in _VERDICTS)
    yield _metric("headrace_table_verify", text, verdicts)


def _tables(pipes: Iterable[tuple[dict[str, str], PipeStatus]]) -> Iterator[tuple[dict[str, str], TableStatus]]:
    return (({**labels, "table": table.name}, table) for labels, pipe in pipes for table in pipe.tables)


def _metric(name: str, text: str, samples: Iterable[tuple[dict[str, str], float | None]]) -> Metric:
    metric = Metric(name.removesuffix(_COUNTER_SUFFIX), text, "counter" if name.endswith(_COUNTER_SUFFIX) else "gauge")
    for labels, value in samples:
        if value is not None:
            metric.add_sample(name, labels, value)
    return metric
