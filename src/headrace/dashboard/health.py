"""`/health` and `/ready`, for whoever starts, restarts and routes to processes.

Healthy is a process that answers: restarting it would not help a pipe that failed. Ready is one whose enabled pipes have all begun, and
none has failed or waits to be started again. A pipe that was paused or stopped by a person is as it should be.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Final

from headrace import __version__
from headrace.dashboard.responses import Answer, as_json
from headrace.service.status import PipeStage, PipeStatus, ServiceStatus

_NOT_READY: Final = {
    PipeStage.STARTING: "has not begun yet",
    PipeStage.RETRYING: "ended by a passing error and will be started again",
    PipeStage.FAILED: "failed",
}


def health() -> Answer:
    """Asks no pipe: one that is long in answering is no reason to restart the process."""
    return as_json({"status": "ok", "version": __version__, "pid": os.getpid()})


def ready(status: ServiceStatus) -> Answer:
    """503 with the pipes that are not."""
    waited_for = [_told(pipe) for pipe in status.pipes if pipe.stage in _NOT_READY]
    code = HTTPStatus.SERVICE_UNAVAILABLE if waited_for else HTTPStatus.OK
    return as_json({"ready": not waited_for, "not_ready": waited_for}, code)


def _told(pipe: PipeStatus) -> dict[str, str]:
    error = pipe.error
    return {
        "pipe": pipe.name,
        "stage": pipe.stage,
        "reason": error.message if error is not None else _NOT_READY[pipe.stage],
        "remedy": error.remedy if error is not None else "",
    }
