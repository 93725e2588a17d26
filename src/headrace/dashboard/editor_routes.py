"""The part of the control API that edits the pipe file: `GET /api/edit`, `POST /api/edit/ACTION`,
`POST /api/edit/alerts/ACTION`.

Invariant: every action needs the token, like all POST requests, and `[headrace] edit = true`. Input is validated before anything is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from headrace.dashboard.routes import Response, failure_response, json_response, parse_document, to_json_value
from headrace.editor import AlertDraft, Editor, EditRefused, parse_alert_draft, parse_draft
from headrace.errors import DefiniteError, TransientError
from headrace.http.request import HttpError

PREFIX: Final = "/api/edit"


def get(editor: Editor | None, path: str) -> Response:
    if path != PREFIX:
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "this takes POST only", place=path, headers={"Allow": "POST"})
    return json_response({"edit": editor is not None and editor.is_enabled()})


def post(editor: Editor | None, path: str, body: bytes) -> Response:
    action = path.removeprefix(f"{PREFIX}/")
    if action not in _ACTIONS:
        raise HttpError(HTTPStatus.NOT_FOUND, "there is nothing here", place=path, remedy=f"actions: {', '.join(_ACTIONS)}")
    allowed, act = _ACTIONS[action]
    given = parse_document(body)
    unknown = next((key for key in given if key not in allowed), None)
    if unknown is not None:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{unknown!r} means nothing here", place=unknown, remedy=f"allowed: {', '.join(allowed)}")
    try:
        if editor is None:
            raise EditRefused("this process has no pipe file", place=path, hint="start it with headrace run")
        editor.require_enabled()
        return json_response(to_json_value(act(editor, given)))
    except EditRefused as error:
        return failure_response(error, HTTPStatus.FORBIDDEN)
    except DefiniteError as error:
        return failure_response(error, HTTPStatus.CONFLICT)
    except TransientError as error:
        return failure_response(error, HTTPStatus.SERVICE_UNAVAILABLE)


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{key!r} must be a text", place=key, remedy=f'send {{"{key}": "…"}}')
    return value


def _rule(given: Mapping[str, Any]) -> AlertDraft:
    return parse_alert_draft(given.get("draft"))


_ACTIONS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Editor, Mapping[str, Any]], Any]]]] = {
    "read": (("pipe",), lambda editor, given: editor.read(_text(given, "pipe"))),
    "check": (("draft",), lambda editor, given: editor.check(parse_draft(given.get("draft")))),
    "tables": (("draft",), lambda editor, given: editor.tables(parse_draft(given.get("draft")))),
    "columns": (("draft", "table"), lambda editor, given: editor.columns(parse_draft(given.get("draft")), _text(given, "table"))),
    "preview": (("draft", "table"), lambda editor, given: editor.preview(parse_draft(given.get("draft")), _text(given, "table"))),
    "plan": (("draft",), lambda editor, given: editor.plan(parse_draft(given.get("draft")))),
    "save": (("draft", "digest"), lambda editor, given: editor.save(parse_draft(given.get("draft")), _text(given, "digest"))),
    "delete": (("pipe", "digest"), lambda editor, given: editor.delete(_text(given, "pipe"), _text(given, "digest"))),
    "alerts/list": ((), lambda editor, _: editor.alerts.list_rules()),
    "alerts/plan": (("draft",), lambda editor, given: editor.alerts.plan(_rule(given))),
    "alerts/test": (("draft",), lambda editor, given: editor.alerts.test(_rule(given))),
    "alerts/save": (("draft", "digest"), lambda editor, given: editor.alerts.save(_rule(given), _text(given, "digest"))),
    "alerts/delete": (("rule", "digest"), lambda editor, given: editor.alerts.delete(_text(given, "rule"), _text(given, "digest"))),
}
"""The keys of the body and the function of each action."""
