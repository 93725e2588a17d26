"""The figures, in Prometheus's text format.

Invariant: every figure is described (`HELP`, `TYPE`) and every label is escaped, whatever a table is called. What is not known is left out,
never told as 0. Counters count since the process began, as Prometheus expects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.service.status import PipeStage, PipeStatus, ServiceStatus, TableStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_GAUGE, _COUNTER = "gauge", "counter"
_VERDICTS: Final = ("equal", "different", "undecided", "running")


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric of every pipe, or of every table of one."""

    name: str
    kind: str
    text: str
    of_pipe: Callable[[PipeStatus], float | None] | None = None
    of_table: Callable[[TableStatus], float | None] | None = None


def _known(moment: float) -> float | None:
    return moment or None


FIGURES: Final = (
    Figure(
        "headrace_pipe_lag_seconds",
        _GAUGE,
        "Age of the oldest change that is committed at the source and not yet visible in the sink.",
        lambda p: p.lag_s,
    ),
    Figure(
        "headrace_pipe_lag_bytes",
        _GAUGE,
        "What lies between the pipe's place and the end of its source's log (of topics: records).",
        lambda p: p.lag_bytes,
    ),
    Figure("headrace_pipe_changes_per_second", _GAUGE, "Changes per second over the last few seconds.", lambda p: p.rate),
    Figure("headrace_pipe_changes_total", _COUNTER, "Changes that reached the sink.", lambda p: p.changes),
    Figure("headrace_pipe_bytes_total", _COUNTER, "Bytes of the source's log that were read.", lambda p: p.bytes),
    Figure("headrace_pipe_batches_total", _COUNTER, "Batches that were committed.", lambda p: p.batches),
    Figure("headrace_pipe_errors_total", _COUNTER, "Errors that ended a run of the pipe.", lambda p: p.errors),
    Figure("headrace_pipe_retries_total", _COUNTER, "Tries after passing errors.", lambda p: p.retries),
    Figure("headrace_pipe_skipped_events", _GAUGE, "Events that were left out by `headrace skip`, ever.", lambda p: p.skipped),
    Figure("headrace_pipe_dead_letters", _GAUGE, "Rows that wait in headrace.errors.", lambda p: p.dead_letters),
    Figure("headrace_pipe_late_rows", _GAUGE, "Rows of the source's log that arrived too late to be read.", lambda p: p.late_rows),
    Figure("headrace_pipe_relay_bytes", _GAUGE, "Bytes of the source's log on local disk.", lambda p: p.relay_bytes),
    Figure(
        "headrace_pipe_waiting_seconds", _GAUGE, "For how long the pipe has waited for a peer; 0 if it does not.", lambda p: p.waiting_s
    ),
    Figure(
        "headrace_pipe_snapshot_remaining_seconds", _GAUGE, "How long the snapshot will still take, by its pace so far.", lambda p: p.eta_s
    ),
    Figure("headrace_pipe_stage_since_timestamp_seconds", _GAUGE, "When the pipe came into its stage.", lambda p: _known(p.since)),
    Figure(
        "headrace_pipe_next_try_timestamp_seconds",
        _GAUGE,
        "When a pipe that is retried will be started again.",
        lambda p: _known(p.next_try),
    ),
    Figure("headrace_table_changes_total", _COUNTER, "Changes of the table that reached the sink.", of_table=lambda t: t.changes),
    Figure("headrace_table_rows", _GAUGE, "Rows in the target table, asked now and then.", of_table=lambda t: t.rows),
    Figure(
        "headrace_table_last_change_timestamp_seconds",
        _GAUGE,
        "When the table's newest change was committed at the source.",
        of_table=lambda t: _known(t.last_change),
    ),
    Figure("headrace_table_snapshot_rows", _GAUGE, "Rows that the table's snapshot has brought so far.", of_table=lambda t: t.copied),
    Figure(
        "headrace_table_snapshot_rows_expected",
        _GAUGE,
        "Rows that the table's snapshot will bring, as the source guesses.",
        of_table=lambda t: t.estimate,
    ),
    Figure(
        "headrace_table_complete",
        _GAUGE,
        "1 if the table's rows are all there, 0 while they are being copied.",
        of_table=lambda t: t.complete,
    ),
    Figure(
        "headrace_table_verify_timestamp_seconds",
        _GAUGE,
        "When the table was compared with its source last.",
        of_table=lambda t: _known(t.verify.at) if t.verify else None,
    ),
    Figure(
        "headrace_table_verify_differences",
        _GAUGE,
        "Rows that differed in that comparison; absent if it could not decide.",
        of_table=lambda t: t.verify.differences if t.verify and t.verify.verdict in ("equal", "different") else None,
    ),
)


def render(status: ServiceStatus) -> str:
    """All figures of a process."""
    return "".join(_lines(status))


def names() -> list[str]:
    """Of all figures that there may be."""
    return sorted({line.split()[2] for line in _lines(ServiceStatus("", 0, 0.0, "")) if line.startswith("# TYPE")})


def _lines(status: ServiceStatus) -> Iterator[str]:
    yield from _head("headrace_info", _GAUGE, "Always 1: the version that runs.")
    yield _line("headrace_info", [("version", status.version), ("file", status.file)], 1)
    for name, kind, text, value in (
        ("headrace_process_start_time_seconds", _GAUGE, "When the process began.", status.started),
        ("headrace_process_memory_bytes", _GAUGE, "Resident memory of all of its processes, Spark's among them.", status.memory_bytes),
        ("headrace_process_cpu_seconds_total", _COUNTER, "CPU time of all of its processes.", status.cpu_s),
    ):
        yield from _head(name, kind, text)
        yield _line(name, [], value)
    yield from _stages(status.pipes)
    yield from _head("headrace_pipe_failed", _GAUGE, "1 if the pipe halts at an error that a person has to see to.")
    for pipe in status.pipes:
        yield _line("headrace_pipe_failed", _labels(pipe), pipe.stage is PipeStage.FAILED)
    for figure in FIGURES:
        yield from _head(figure.name, figure.kind, figure.text)
        for pipe in status.pipes:
            yield from _values(figure, pipe)
    yield from _verdicts(status.pipes)


def _stages(pipes: Sequence[PipeStatus]) -> Iterator[str]:
    name = "headrace_pipe_stage"
    yield from _head(name, _GAUGE, "1 for the stage that the pipe is in, 0 for the others.")
    for pipe in pipes:
        for stage in PipeStage:
            yield _line(name, [*_labels(pipe), ("stage", stage)], pipe.stage is stage)


def _verdicts(pipes: Sequence[PipeStatus]) -> Iterator[str]:
    name = "headrace_table_verify"
    yield from _head(name, _GAUGE, "1 for the verdict of the table's last comparison with its source, 0 for the others.")
    for pipe in pipes:
        for table in pipe.tables:
            if table.verify is not None:
                for verdict in _VERDICTS:
                    yield _line(name, [*_labels(pipe), ("table", table.name), ("verdict", verdict)], table.verify.verdict == verdict)


def _values(figure: Figure, pipe: PipeStatus) -> Iterator[str]:
    if pipe.stage is PipeStage.DISABLED:
        return
    if figure.of_pipe is not None and (value := figure.of_pipe(pipe)) is not None:
        yield _line(figure.name, _labels(pipe), value)
    if figure.of_table is not None:
        for table in pipe.tables:
            if (value := figure.of_table(table)) is not None:
                yield _line(figure.name, [*_labels(pipe), ("table", table.name)], value)


def _labels(pipe: PipeStatus) -> list[tuple[str, str]]:
    return [("pipe", pipe.name), ("group", pipe.group)]


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {escaped}\n"
    yield f"# TYPE {name} {kind}\n"


def _line(name: str, labels: Sequence[tuple[str, str]], value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{written}}} {_number(value)}\n" if written else f"{name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
