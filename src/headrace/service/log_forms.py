"""How lines of the log look: text for people, or one JSON object a line for programs; and that no secret is in either.

Invariant: addresses are logged without passwords by whoever logs them. What is written here is looked through once more, message and
traceback: what has the form of a secret (`user:password@`, `password=…`, `IDENTIFIED BY '…'`, `Bearer …`), or is one that we were told
of, is masked.
"""

from __future__ import annotations

import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headrace.errors import HeadraceError

MASK: Final = "***"
_SHORTEST: Final = 4
"""A secret that is shorter would be found in every other word."""
_FORMS: Final = (
    # Not so the example of an address that remedies give.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://(?!user:password@host\b)[^\s/?#:@'\"]*:)[^\s/?#'\"]+@"), rf"\1{MASK}@"),
    (re.compile(r"(?i)((?:password|passwd|secret|token|api[._-]?key)['\"]?\s*=\s*)(?:'[^']*'|\"[^\"]*\"|[^\s'\",;&)]+)"), rf"\1{MASK}"),
    (re.compile(r"(?i)(['\"](?:[\w.]*password|[\w.]*secret|token)['\"]\s*:\s*)(?:'[^']*'|\"[^\"]*\")"), rf'\1"{MASK}"'),
    (re.compile(r"(?i)(identified\s+(?:with\s+\S+\s+)?(?:by|as)\s+)(?:'[^']*'|\"[^\"]*\")"), rf"\1'{MASK}'"),
    (re.compile(r"(?i)(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
)
_told: set[str] = set()


def keep_secret(*secrets: str) -> None:
    """These are in no line from now on, whoever logs them."""
    _told.update(secret for secret in secrets if len(secret) >= _SHORTEST)


def masked(text: str) -> str:
    """A text without what looks like a secret, or is a known one."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    for secret in _told:
        text = text.replace(secret, MASK)
    return text


class TextLines(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class JsonLines(logging.Formatter):
    """One object a line: `ts`, `level`, `logger`, `message`; and where there is one, `pipe`, `place`, `remedy`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        error = _error_of(record)
        said: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            "pipe": getattr(record, "pipe", ""),
            "place": error.place if error is not None else "",
            "remedy": error.hint if error is not None else "",
            "exception": _exception(record),
        }
        optional = ("pipe", "place", "remedy", "exception")
        kept = {name: masked(value) for name, value in said.items() if value or name not in optional}
        return orjson.dumps(kept).decode()


def _error_of(record: logging.LogRecord) -> HeadraceError | None:
    """The error that a line tells of."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return next((one for one in (*arguments, raised) if isinstance(one, HeadraceError)), None)


def _message(record: logging.LogRecord) -> str:
    """The text; of an error, what happened: its place and its remedy have words of their own."""
    if not isinstance(record.args, tuple) or not any(isinstance(one, HeadraceError) for one in record.args):
        return record.getMessage()
    return str(record.msg) % tuple(one.message if isinstance(one, HeadraceError) else one for one in record.args)


def _exception(record: logging.LogRecord) -> str:
    raised = record.exc_info[1] if record.exc_info else None
    if raised is None or isinstance(raised, HeadraceError):
        return ""
    return "".join(traceback.format_exception(raised)).rstrip()
