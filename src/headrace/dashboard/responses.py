"""What is asked of the server and what it answers, as plain values; and how errors are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import orjson

from headrace.errors import HeadraceError

JSON: Final = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, whole."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """The request is not answered: why, and what to do."""

    def __init__(
        self, status: HTTPStatus, message: str, *, place: str = "", remedy: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.place, self.remedy = status, message, place, remedy
        self.headers = dict(headers or {})


def as_json(value: Any, status: int = HTTPStatus.OK) -> Answer:
    """A document; numbers that JSON has no word for (NaN) are null."""
    return Answer(status, orjson.dumps(value))


def refusal(error: Refused) -> Answer:
    told = {"message": error.message, "place": error.place, "remedy": error.remedy}
    return Answer(error.status, orjson.dumps({"error": told}), headers=error.headers)


def failure(error: HeadraceError, status: int) -> Answer:
    """An error of ours, in full: it is made for people."""
    return as_json({"error": {"message": error.message, "place": error.place, "remedy": error.hint}}, status)
