"""HTTP responses and errors as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import orjson

from headrace.errors import HeadraceError
from headrace.http.request import HttpError

JSON: Final = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """A complete HTTP response."""

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
