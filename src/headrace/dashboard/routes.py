"""The control API: from a path and a document to what is asked of `Control`, and back.

Invariant: nothing is taken on trust. A key that is not known, a value of another kind, a pipe that is not there: each is named in the
answer, and nothing is done.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import orjson

from headrace.dashboard.responses import Answer, Refused, as_json, failure
from headrace.errors import DefiniteError, TransientError
from headrace.service.control import Control

PREFIX: Final = "/api/"
STREAM: Final = "/api/stream"
_SAFE_INTEGER: Final = 1 << 53
"""From here on browsers round whole numbers."""


def get(control: Control, path: str) -> Answer:
    """What can be looked at."""
    if path == "/api/status":
        return as_json(control.status())
    parts = _parts(path)
    match parts:
        case ["pipes", name]:
            known = _known(control, name)
            return _answered(lambda: control.pipe(known), HTTPStatus.NOT_FOUND)
        case ["pipes", name, "history"]:
            known = _known(control, name)
            return _answered(lambda: _samples(control, known), HTTPStatus.NOT_FOUND)
        case ["pipes", _, action] if action in _ACTIONS:
            raise _wrong_method("POST", path)
        case ["query"]:
            raise _wrong_method("POST", path)
    raise _nothing_here(path)


def post(control: Control, path: str, body: bytes) -> Answer:
    """What changes something, or reads rows."""
    match _parts(path):
        case ["pipes", name, action] if action in _ACTIONS:
            said, known = _document(body), _known(control, name)
            return _answered(lambda: _ACTIONS[action](control, known, said), HTTPStatus.CONFLICT)
        case ["query"]:
            said = _document(body)
            return _answered(lambda: _query(control, said), HTTPStatus.BAD_REQUEST)
        case ["status"] | ["stream"] | ["pipes", _] | ["pipes", _, "history"]:
            raise _wrong_method("GET", path)
    raise _nothing_here(path)


def _samples(control: Control, name: str) -> Any:
    return {"samples": [[one.at, one.rate, one.lag_s, one.lag_bytes] for one in control.history(name)]}


def _answered(call: Callable[[], Any], refused: HTTPStatus) -> Answer:
    try:
        return as_json(call())
    except DefiniteError as error:
        return failure(error, refused)
    except TransientError as error:
        return failure(error, HTTPStatus.SERVICE_UNAVAILABLE)


def _parts(path: str) -> list[str]:
    # Cut first, decode then: a pipe's name may hold slashes.
    return [unquote(part, errors="replace") for part in path.removeprefix(PREFIX).split("/")]


def _known(control: Control, name: str) -> str:
    """The name, if there is such a pipe, or one of several parts."""
    pipes = control.status().pipes
    names = {pipe.name for pipe in pipes} | {pipe.group for pipe in pipes}
    if name not in names:
        known = ", ".join(pipe.name for pipe in pipes) or "none"
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no pipe {name!r}", place=name, remedy=f"pipes of this process: {known}")
    return name


def _document(body: bytes) -> dict[str, Any]:
    try:
        said = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}", remedy="send an object, such as {}") from error
    if not isinstance(said, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "the body is no JSON object", remedy="send an object, such as {}")
    return said


def _only(said: Mapping[str, Any], *allowed: str) -> None:
    unknown = next((key for key in said if key not in allowed), None)
    if unknown is not None:
        remedy = f"allowed: {', '.join(allowed)}" if allowed else "send {}"
        raise Refused(HTTPStatus.BAD_REQUEST, f"{unknown!r} means nothing here", place=unknown, remedy=remedy)


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Refused(HTTPStatus.BAD_REQUEST, f"{key!r} must be a text", place=key, remedy=f'send {{"{key}": "…"}}')
    return value


def _tables(said: Mapping[str, Any], *, needed: bool) -> list[str]:
    tables = said.get("tables", [])
    if not isinstance(tables, list) or not all(isinstance(table, str) and table for table in tables) or (needed and not tables):
        raise Refused(HTTPStatus.BAD_REQUEST, "'tables' must be a list of names", place="tables", remedy='send {"tables": ["db.table"]}')
    return tables


def _done(action: str, name: str) -> dict[str, Any]:
    return {"done": action, "pipe": name}


def _pause(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said)
    control.pause(name)
    return _done("pause", name)


def _resume(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said)
    control.resume(name)
    return _done("resume", name)


def _stop(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said)
    control.stop(name)
    return _done("stop", name)


def _resync(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said, "tables")
    tables = _tables(said, needed=True)
    control.resync(name, tables)
    return {**_done("resync", name), "tables": tables}


def _skip(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said, "place")
    return {**_done("skip", name), "skipped": control.skip(name, _text(said, "place"))}


def _verify(control: Control, name: str, said: Mapping[str, Any]) -> Any:
    _only(said, "tables")
    tables = _tables(said, needed=False)
    control.verify(name, tables)
    return {**_done("verify", name), "tables": tables}


_ACTIONS: Final[Mapping[str, Callable[[Control, str, Mapping[str, Any]], Any]]] = {
    "pause": _pause,
    "resume": _resume,
    "stop": _stop,
    "resync": _resync,
    "skip": _skip,
    "verify": _verify,
}


def _query(control: Control, said: Mapping[str, Any]) -> Any:
    _only(said, "pipe", "sql")
    name = _known(control, _text(said, "pipe"))
    columns, rows = control.query(name, _text(said, "sql"))
    return {"columns": columns, "rows": [[shown(value) for value in row] for row in rows]}


def shown(value: Any) -> Any:
    """A value of a result as JSON has it, without loss: what a browser would round is a text."""
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
            return {str(key): shown(one) for key, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [shown(one) for one in value]
    return str(value)


def _wrong_method(right: str, path: str) -> Refused:
    return Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"this takes {right} only", place=path, headers={"Allow": right})


def _nothing_here(path: str) -> Refused:
    return Refused(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy="see docs/operations.md for what the API has")
