"""The part of the control API that reads what the process has recorded: `GET /api/events`, `GET /api/history`, `GET /api/log`,
`GET /api/table_rates`.

Invariant: it only reads. A parameter that is unknown, repeated or out of range is named in the response.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from headrace.dashboard.routes import Response, check_pipe, failure_response, json_response
from headrace.errors import DefiniteError
from headrace.http.request import HttpError
from headrace.service.status import Control
from headrace.telemetry.log_reader import LEVELS, MAX_LINES, LogQuery
from headrace.telemetry.metrics import RANGES

MAX_LIMIT: Final = 1000
_MAX_SEARCH: Final = 500


def get(control: Control, path: str, query: str) -> Response:
    parameters, answer = ROUTES[path]
    try:
        return json_response(answer(control, _parse(query, parameters)))
    except DefiniteError as error:
        return failure_response(error, HTTPStatus.BAD_REQUEST)


def _events(control: Control, given: Mapping[str, str]) -> Any:
    return {"events": control.events(_pipe(control, given), _number(given, "limit", 1, MAX_LIMIT, 100))}


def _history(control: Control, given: Mapping[str, str]) -> Any:
    name, span = _required_pipe(control, given), given.get("range", "1h")
    if span not in RANGES:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{span!r} is no range", place="range", remedy=f"one of {', '.join(RANGES)}")
    found = control.metrics(name, span)
    return {"step_s": found.step_s, "samples": [[one.at, one.rate, one.lag_s, one.behind, one.copied] for one in found.points]}


def _log(control: Control, given: Mapping[str, str]) -> Any:
    name, level, search = _required_pipe(control, given), given.get("level", ""), given.get("search", "")
    if level and level not in LEVELS:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{level!r} is no level", place="level", remedy=f"one of {', '.join(LEVELS)}")
    if len(search) > _MAX_SEARCH:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the text is too long", place="search", remedy=f"at most {_MAX_SEARCH} characters")
    before, after = (_number(given, key, 0, (1 << 53) - 1) if given.get(key) else None for key in ("before", "after"))
    return control.log(name, LogQuery(level, search, before, _number(given, "limit", 1, MAX_LINES, 100), after)).to_json()


ROUTES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Control, Mapping[str, str]], Any]]]] = {
    "/api/events": (("pipe", "limit"), _events),
    "/api/history": (("pipe", "range"), _history),
    "/api/table_rates": (("pipe",), lambda control, given: control.table_rates(_required_pipe(control, given)).to_json()),
    "/api/log": (("pipe", "level", "search", "before", "after", "limit"), _log),
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


def _required_pipe(control: Control, given: Mapping[str, str]) -> str:
    if not given.get("pipe"):
        raise HttpError(HTTPStatus.BAD_REQUEST, "'pipe' is missing", place="pipe", remedy="add ?pipe=NAME")
    return _pipe(control, given)


def _number(given: Mapping[str, str], key: str, least: int, most: int, default: int = 0) -> int:
    text = given.get(key, "") or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{text!r} is no number for {key}", place=key, remedy=f"a number from {least} to {most}")
    return int(text)
