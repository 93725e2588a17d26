"""The part of the control API that reads what the process has recorded: `GET /api/events`, `GET /api/history`.

Invariant: it only reads. A parameter that is unknown, repeated or out of range is named in the response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from headrace.dashboard.routes import Response, check_pipe, json_response
from headrace.http.request import HttpError
from headrace.service.status import Control
from headrace.telemetry.metrics import RANGES

MAX_LIMIT: Final = 1000


def get(control: Control, path: str, query: str) -> Response:
    parameters, answer = ROUTES[path]
    return json_response(answer(control, _parse(query, parameters)))


def _events(control: Control, given: Mapping[str, str]) -> Any:
    return {"events": control.events(_pipe(control, given), _limit(given, 100))}


def _history(control: Control, given: Mapping[str, str]) -> Any:
    name, span = _pipe(control, given), given.get("range", "1h")
    if not name:
        raise HttpError(HTTPStatus.BAD_REQUEST, "'pipe' is missing", place="pipe", remedy="add ?pipe=NAME")
    if span not in RANGES:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{span!r} is no range", place="range", remedy=f"one of {', '.join(RANGES)}")
    found = control.metrics(name, span)
    return {"step_s": found.step_s, "samples": [[one.at, one.rate, one.lag_s, one.behind, one.copied] for one in found.points]}


ROUTES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Control, Mapping[str, str]], Any]]]] = {
    "/api/events": (("pipe", "limit"), _events),
    "/api/history": (("pipe", "range"), _history),
}
"""The parameters and the function of each path."""


def _parse(query: str, allowed: tuple[str, ...]) -> dict[str, str]:
    try:
        given = parse_qs(query, keep_blank_values=True, max_num_fields=20, errors="replace")
    except ValueError as error:
        raise HttpError(HTTPStatus.BAD_REQUEST, "there are too many parameters", remedy=f"allowed: {', '.join(allowed)}") from error
    for name, values in given.items():
        if name not in allowed:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"{name!r} means nothing here", place=name, remedy=f"allowed: {', '.join(allowed)}")
        if len(values) > 1:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"{name!r} is given twice", place=name, remedy="give it once")
    return {name: values[0] for name, values in given.items()}


def _pipe(control: Control, given: Mapping[str, str]) -> str:
    name = given.get("pipe", "")
    return check_pipe(control, name) if name else ""


def _limit(given: Mapping[str, str], default: int) -> int:
    text = given.get("limit", "") or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MAX_LIMIT):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{text!r} is no limit", place="limit", remedy=f"a number from 1 to {MAX_LIMIT}")
    return int(text)
