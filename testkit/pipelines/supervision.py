"""Waits for pipes of a `Supervisor` in this process, and queries their sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.service.status import PipeStage
from headrace.service.supervisor import Supervisor
from testkit.machine.wait_condition import wait_until

PATIENCE_S = 180.0


def until(what: str, condition: Callable[[], Any], supervisor: Supervisor) -> None:
    """Wait until `condition` holds. On failure the error names `what` and the state of each pipe."""

    def states() -> tuple[object, ...]:
        return what, [(one.name, one.stage, one.position, one.lag_bytes, one.error) for one in supervisor.status().pipes]

    wait_until(condition, PATIENCE_S, 0.1, states)


def await_stage(supervisor: Supervisor, stage: PipeStage, *names: str) -> None:
    until(f"{stage} of {', '.join(names)}", lambda: all(supervisor.pipe(name).stage is stage for name in names), supervisor)


def counted(supervisor: Supervisor, pipe: str, rows: str) -> int:
    """Count rows in the sink of a pipe: `db.table FINAL WHERE …`."""
    [[count]] = supervisor.query(pipe, f"SELECT count() FROM {rows}")[1]
    return int(count)
