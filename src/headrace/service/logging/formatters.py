"""How lines of the log look: text for people, or one JSON object a line for programs; and that no secret is in either.

Invariant: code logs addresses without passwords. The formatters look through message and traceback once more and mask secrets by their
position (`user:password@`, `password=…`, `IDENTIFIED BY '…'`, `Bearer …`), never by their text: a password that equals a database's name
must not hide that name elsewhere.
"""

from __future__ import annotations

import copy
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headrace.errors import HeadraceError
from headrace.log_text import record_text
from headrace.terminal_text import escape_text

MASK: Final = "***"
_QUOTED: Final = r"""[A-Za-z]?'(?:[^'\\]|\\.|'')*'|[A-Za-z]?"(?:[^"\\]|\\.|"")*\""""
"""A literal of SQL, JSON, Python or Java, with its escapes."""
_NAMES: Final = r"passw(?:or)?d|passphrase|\bpass|pwd|secret|token|credentials?|key\.pem|jaas\.config|(?:api|access|private)[._-]?key"
_FORMS: Final = (
    # Not so the example of an address that remedies give.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://(?!user:password@host\b)[^\s/?#:@'\"]*:)[^\s/?#'\"]+@"), rf"\1{MASK}@"),
    (re.compile(rf"(?i)((?:{_NAMES})['\"]?\s*=\s*)(?:{_QUOTED}|[^\s'\",;&)]+)"), rf"\1{MASK}"),
    (re.compile(rf"(?i)(['\"][\w.-]*(?:{_NAMES})['\"]\s*:\s*)(?:{_QUOTED})"), rf'\1"{MASK}"'),
    (re.compile(rf"(?i)(identified\s+(?:with\s+\S+\s+)?(?:by|as)\s+(?:password\s+)?)(?:{_QUOTED})"), rf"\1'{MASK}'"),
    (re.compile(r"(?i)((?:bearer|authorization['\"]?\s*:\s*['\"]?basic)\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)(x-clickhouse-key['\"]?\s*:\s*['\"]?)[^\s'\",]+"), rf"\1{MASK}"),
)


def masked(text: str) -> str:
    """A text without what stands where a secret stands."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


class TextLines(logging.Formatter):
    """Lines for people: names and values are escaped, and what follows the first line of a record is indented."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args, shown.exc_text = record_text(record), (), None
        return masked(super().format(shown))

    def formatException(self, ei: Any) -> str:
        # The lines of an exception's text are not known from those of the traceback: no line of either may look like one of the log.
        return "\n".join(f"  {escape_text(line)}" for line in super().formatException(ei).split("\n"))


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
        kept = {name: _encodable(masked(value)) for name, value in said.items() if value or name not in optional}
        return orjson.dumps(kept).decode()


def _encodable(text: str) -> str:
    """A text that UTF-8 can hold: bytes of arguments and file names that are not UTF-8 are shown as escapes."""
    return text.encode(errors="backslashreplace").decode()


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
