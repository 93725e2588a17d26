"""`/health` and `/ready`, for process managers and load balancers.

A process is healthy if it responds: a restart would not help a failed pipe. It is ready when all enabled pipes have started and none has
failed or waits for a retry. Pipes that a person paused or stopped do not count.
"""

from __future__ import annotations

import os
from http import HTTPStatus
from typing import Final

from headrace import __version__
from headrace.dashboard.responses import Response, json_response
from headrace.service.status import PipeStage, PipeStatus, ServiceStatus

_NOT_READY: Final = {
    PipeStage.STARTING: "has not begun yet",
    PipeStage.RETRYING: "ended by a passing error and will be started again",
    PipeStage.FAILED: "failed",
}


def health() -> Response:
    """Respond without querying pipes: a slow pipe is no reason to restart the process."""
    return json_response({"status": "ok", "version": __version__, "pid": os.getpid()})


def ready(status: ServiceStatus) -> Response:
    """Respond 200, or 503 with the pipes that are not ready."""
    not_ready = [_pipe_reason(pipe) for pipe in status.pipes if pipe.stage in _NOT_READY]
    code = HTTPStatus.SERVICE_UNAVAILABLE if not_ready else HTTPStatus.OK
    return json_response({"ready": not not_ready, "not_ready": not_ready}, code)


def _pipe_reason(pipe: PipeStatus) -> dict[str, str]:
    error = pipe.error
    return {
        "pipe": pipe.name,
        "stage": pipe.stage,
        "reason": error.message if error is not None else _NOT_READY[pipe.stage],
        "remedy": error.remedy if error is not None else "",
    }
