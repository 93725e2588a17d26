"""The control API and the health checks: maps paths and JSON bodies to calls of `Control`, and results to JSON.

Invariant: input is validated before anything is done. An unknown key, a value of a wrong type or an unknown pipe is named in the response.

A process is healthy if it responds: a restart would not help a failed pipe. It is ready when all enabled pipes have started and none has
failed or waits for a retry.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import orjson

from headrace import __version__
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.http.request import HttpError
from headrace.service.status import Control, PipeStage, PipeStatus, ServiceStatus

JSON: Final = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(value: Any, status: int = HTTPStatus.OK) -> Response:
    """Return a JSON response; NaN and infinities become null."""
    return Response(status, orjson.dumps(value))


def error_response(error: HttpError) -> Response:
    document = {"message": error.message, "place": error.place, "remedy": error.remedy}
    return Response(error.status, orjson.dumps({"error": document}), headers=error.headers)


def failure_response(error: HeadraceError, status: int) -> Response:
    """Return a Headrace error as JSON, with place and remedy."""
    return json_response({"error": {"message": error.message, "place": error.place, "remedy": error.hint}}, status)


PREFIX: Final = "/api/"
STREAM: Final = "/api/stream"
_ACTIONS: Final = frozenset({"pause", "resume", "stop", "resync", "skip", "verify"})
_SAFE_INTEGER: Final = 1 << 53
"""Browsers round larger integers."""
_NOT_READY: Final = {
    PipeStage.STARTING: "has not begun yet",
    PipeStage.RETRYING: "ended by a passing error and will be started again",
    PipeStage.FAILED: "failed",
}
"""Reasons by stage. Pipes that a person paused or stopped do not count."""


def get(control: Control, path: str) -> Response:
    if path == "/api/status":
        return json_response(control.status())
    if path == "/api/alerts":
        return json_response(control.alerts())
    match _parts(path):
        case ["pipes", name]:
            known = check_pipe(control, name)
            return _respond(lambda: control.pipe(known), HTTPStatus.NOT_FOUND)
        case ["pipes", name, "history"]:
            known = check_pipe(control, name)
            return _respond(lambda: _samples(control, known), HTTPStatus.NOT_FOUND)
        case ["pipes", _, action] if action in _ACTIONS:
            raise _wrong_method("POST", path)
        case ["query"] | ["reload"]:
            raise _wrong_method("POST", path)
    raise _not_found(path)


def post(control: Control, path: str, body: bytes) -> Response:
    """Respond to a POST request: an action on a pipe, or a query."""
    match _parts(path):
        case ["pipes", name, action] if action in _ACTIONS:
            body_json, known = parse_document(body), check_pipe(control, name)
            return _respond(lambda: _act(control, action, known, body_json), HTTPStatus.CONFLICT)
        case ["query"]:
            body_json = parse_document(body)
            return _respond(lambda: _query(control, body_json), HTTPStatus.BAD_REQUEST)
        case ["reload"]:
            _check_keys(parse_document(body))
            return _respond(control.reload, HTTPStatus.CONFLICT)
        case (
            ["status"]
            | ["alerts"]
            | ["stream"]
            | ["events"]
            | ["history"]
            | ["log"]
            | ["table_rates"]
            | ["pipes", _]
            | ["pipes", _, "history"]
        ):
            raise _wrong_method("GET", path)
    raise _not_found(path)


def _samples(control: Control, name: str) -> Any:
    return {"samples": [[one.at, one.rate, one.lag_s, one.lag_bytes] for one in control.history(name)]}


def _respond(call: Callable[[], Any], refused: HTTPStatus) -> Response:
    try:
        return json_response(call())
    except DefiniteError as error:
        return failure_response(error, refused)
    except TransientError as error:
        return failure_response(error, HTTPStatus.SERVICE_UNAVAILABLE)


def _parts(path: str) -> list[str]:
    # Split before decoding: a pipe's name may contain slashes.
    return [unquote(part, errors="replace") for part in path.removeprefix(PREFIX).split("/")]


def check_pipe(control: Control, name: str) -> str:
    """Return the name if a pipe, or one source of a pipe, has it."""
    pipes = control.status().pipes
    names = {pipe.name for pipe in pipes} | {pipe.group for pipe in pipes}
    if name not in names:
        known = ", ".join(pipe.name for pipe in pipes) or "none"
        raise HttpError(HTTPStatus.NOT_FOUND, f"there is no pipe {name!r}", place=name, remedy=f"pipes of this process: {known}")
    return name


def parse_document(body: bytes) -> dict[str, Any]:
    """Parse the body of a request: a JSON object, or nothing."""
    try:
        body_json = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}", remedy="send an object, such as {}") from error
    if not isinstance(body_json, dict):
        raise HttpError(HTTPStatus.BAD_REQUEST, "the body is no JSON object", remedy="send an object, such as {}")
    return body_json


def _check_keys(body_json: Mapping[str, Any], *allowed: str) -> None:
    unknown = next((key for key in body_json if key not in allowed), None)
    if unknown is not None:
        remedy = f"allowed: {', '.join(allowed)}" if allowed else "send {}"
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{unknown!r} means nothing here", place=unknown, remedy=remedy)


def _text(body_json: Mapping[str, Any], key: str) -> str:
    value = body_json.get(key)
    if not isinstance(value, str) or not value.strip():
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{key!r} must be a text", place=key, remedy=f'send {{"{key}": "…"}}')
    return value


def _tables(body_json: Mapping[str, Any], *, needed: bool) -> list[str]:
    tables = body_json.get("tables", [])
    if not isinstance(tables, list) or not all(isinstance(table, str) and table for table in tables) or (needed and not tables):
        raise HttpError(HTTPStatus.BAD_REQUEST, "'tables' must be a list of names", place="tables", remedy='send {"tables": ["db.table"]}')
    return tables


def _act(control: Control, action: str, name: str, body_json: Mapping[str, Any]) -> Any:
    """Check the request's keys and do the action; return what was done."""
    done = {"done": action, "pipe": name}
    if action in ("resync", "verify"):
        _check_keys(body_json, "tables")
        tables = _tables(body_json, needed=action == "resync")
        (control.resync if action == "resync" else control.verify)(name, tables)
        return {**done, "tables": tables}
    if action == "skip":
        _check_keys(body_json, "place")
        return {**done, "skipped": control.skip(name, _text(body_json, "place"))}
    _check_keys(body_json)
    {"pause": control.pause, "resume": control.resume, "stop": control.stop}[action](name)
    return done


def _query(control: Control, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json, "pipe", "sql")
    name = check_pipe(control, _text(body_json, "pipe"))
    columns, rows = control.query(name, _text(body_json, "sql"))
    return {"columns": columns, "rows": [[to_json_value(value) for value in row] for row in rows]}


def to_json_value(value: Any) -> Any:
    """Convert a result value to JSON without loss: numbers that a browser would round become text."""
    match value:
        case None | bool() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case int():
            return value if -_SAFE_INTEGER < value < _SAFE_INTEGER else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime.datetime():
            return value.isoformat(" ")
        case Mapping():
            return {str(key): to_json_value(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json_value(one) for one in value]
    return str(value)


def _wrong_method(right: str, path: str) -> HttpError:
    return HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"this takes {right} only", place=path, headers={"Allow": right})


def _not_found(path: str) -> HttpError:
    return HttpError(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy="see docs/operations.md for what the API has")


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
