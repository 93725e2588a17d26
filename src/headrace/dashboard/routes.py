"""The control API: maps paths and JSON bodies to calls of `Control`, and results to JSON.

Invariant: input is validated before anything is done. An unknown key, a value of a wrong type or an unknown pipe is named in the response.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import orjson

from headrace.dashboard.responses import Response, failure_response, json_response
from headrace.errors import DefiniteError, TransientError
from headrace.http.request import HttpError
from headrace.service.control import Control

PREFIX: Final = "/api/"
STREAM: Final = "/api/stream"
_SAFE_INTEGER: Final = 1 << 53
"""Browsers round larger integers."""


def get(control: Control, path: str) -> Response:
    """Respond to a GET request."""
    if path == "/api/status":
        return json_response(control.status())
    parts = _parts(path)
    match parts:
        case ["pipes", name]:
            known = _check_pipe(control, name)
            return _respond(lambda: control.pipe(known), HTTPStatus.NOT_FOUND)
        case ["pipes", name, "history"]:
            known = _check_pipe(control, name)
            return _respond(lambda: _samples(control, known), HTTPStatus.NOT_FOUND)
        case ["pipes", _, action] if action in _ACTIONS:
            raise _wrong_method("POST", path)
        case ["query"]:
            raise _wrong_method("POST", path)
    raise _not_found(path)


def post(control: Control, path: str, body: bytes) -> Response:
    """Respond to a POST request: an action on a pipe, or a query."""
    match _parts(path):
        case ["pipes", name, action] if action in _ACTIONS:
            body_json, known = _document(body), _check_pipe(control, name)
            return _respond(lambda: _ACTIONS[action](control, known, body_json), HTTPStatus.CONFLICT)
        case ["query"]:
            body_json = _document(body)
            return _respond(lambda: _query(control, body_json), HTTPStatus.BAD_REQUEST)
        case ["status"] | ["stream"] | ["pipes", _] | ["pipes", _, "history"]:
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


def _check_pipe(control: Control, name: str) -> str:
    """Return the name if a pipe, or one source of a pipe, has it."""
    pipes = control.status().pipes
    names = {pipe.name for pipe in pipes} | {pipe.group for pipe in pipes}
    if name not in names:
        known = ", ".join(pipe.name for pipe in pipes) or "none"
        raise HttpError(HTTPStatus.NOT_FOUND, f"there is no pipe {name!r}", place=name, remedy=f"pipes of this process: {known}")
    return name


def _document(body: bytes) -> dict[str, Any]:
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


def _confirmation(action: str, name: str) -> dict[str, Any]:
    return {"done": action, "pipe": name}


def _pause(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json)
    control.pause(name)
    return _confirmation("pause", name)


def _resume(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json)
    control.resume(name)
    return _confirmation("resume", name)


def _stop(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json)
    control.stop(name)
    return _confirmation("stop", name)


def _resync(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json, "tables")
    tables = _tables(body_json, needed=True)
    control.resync(name, tables)
    return {**_confirmation("resync", name), "tables": tables}


def _skip(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json, "place")
    return {**_confirmation("skip", name), "skipped": control.skip(name, _text(body_json, "place"))}


def _verify(control: Control, name: str, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json, "tables")
    tables = _tables(body_json, needed=False)
    control.verify(name, tables)
    return {**_confirmation("verify", name), "tables": tables}


_ACTIONS: Final[Mapping[str, Callable[[Control, str, Mapping[str, Any]], Any]]] = {
    "pause": _pause,
    "resume": _resume,
    "stop": _stop,
    "resync": _resync,
    "skip": _skip,
    "verify": _verify,
}


def _query(control: Control, body_json: Mapping[str, Any]) -> Any:
    _check_keys(body_json, "pipe", "sql")
    name = _check_pipe(control, _text(body_json, "pipe"))
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
