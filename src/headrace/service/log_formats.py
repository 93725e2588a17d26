"""Log formats: text, or one JSON object per line, each with the pipe of the logging thread. Both mask secrets.

Invariant: code logs addresses without passwords. As a second defence, the formatters mask secrets in message and traceback by their
position (`user:password@`, `password=…`, `IDENTIFIED BY '…'`, `Bearer …`), never by their text: a password that equals a database's name
must not hide that name elsewhere.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headrace.errors import HeadraceError
from headrace.log_text import record_text
from headrace.retry import current_wait
from headrace.terminal_text import escape_text

MASK: Final = "***"
_QUOTED: Final = r"""[A-Za-z]?'(?:[^'\\]|\\.|'')*'|[A-Za-z]?"(?:[^"\\]|\\.|"")*\""""
"""A literal of SQL, JSON, Python or Java, with its escapes."""
_NAMES: Final = r"passw(?:or)?d|passphrase|\bpass|pwd|secret|token|credentials?|key\.pem|jaas\.config|(?:api|access|private)[._-]?key"
_FORMS: Final = (
    # The example address in remedies is not masked.
    (re.compile(r"((?<=[A-Za-z0-9+.-])://(?!user:password@host\b)[^\s/?#:@'\"]*:)[^\s/?#'\"]+@"), rf"\1{MASK}@"),
    (re.compile(rf"(?i)((?:{_NAMES})['\"]?\s*=\s*)(?:{_QUOTED}|[^\s'\",;&)]+)"), rf"\1{MASK}"),
    (re.compile(rf"(?i)(['\"][\w.-]*(?:{_NAMES})['\"]\s*:\s*)(?:{_QUOTED})"), rf'\1"{MASK}"'),
    (re.compile(rf"(?i)(identified\s+(?:with\s+\S+\s+)?(?:by|as)\s+(?:password\s+)?)(?:{_QUOTED})"), rf"\1'{MASK}'"),
    (re.compile(r"(?i)((?:bearer|authorization['\"]?\s*:\s*['\"]?basic)\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)(x-clickhouse-key['\"]?\s*:\s*['\"]?)[^\s'\",]+"), rf"\1{MASK}"),
)


def mask_secrets(text: str) -> str:
    """Replace values in the position of a secret by a mask."""
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


class TextFormatter(logging.Formatter):
    """Text lines: names and values are escaped, and lines after the first line of a record are indented."""

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        shown.msg, shown.args, shown.exc_text = record_text(record), (), None
        return mask_secrets(super().format(shown))

    def formatException(self, ei: Any) -> str:
        # Lines of the exception text look like traceback lines; neither may look like a log line.
        return "\n".join(f"  {escape_text(line)}" for line in super().formatException(ei).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `ts`, `level`, `logger`, `message`; if present, `pipe`, `place`, `remedy`, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        return orjson.dumps(self.fields(record)).decode()

    def fields(self, record: logging.LogRecord) -> dict[str, str]:
        error = _error_of(record)
        fields: dict[str, Any] = {
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
        return {name: _encodable(mask_secrets(value)) for name, value in fields.items() if value or name not in optional}


def _encodable(text: str) -> str:
    """Escape bytes of arguments and file names that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _error_of(record: logging.LogRecord) -> HeadraceError | None:
    """Return the error among the arguments or the exception of a record."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = record.exc_info[1] if record.exc_info else None
    return next((one for one in (*arguments, raised) if isinstance(one, HeadraceError)), None)


def _message(record: logging.LogRecord) -> str:
    """Return the message; an error contributes only its message, since place and remedy have their own fields."""
    if not isinstance(record.args, tuple) or not any(isinstance(one, HeadraceError) for one in record.args):
        return record.getMessage()
    return str(record.msg) % tuple(one.message if isinstance(one, HeadraceError) else one for one in record.args)


def _exception(record: logging.LogRecord) -> str:
    raised = record.exc_info[1] if record.exc_info else None
    if raised is None or isinstance(raised, HeadraceError):
        return ""
    return "".join(traceback.format_exception(raised)).rstrip()


class PipeContextFilter(logging.Filter):
    """Sets `pipe` (empty: the process) and the prefix of text lines, `of_pipe`, on every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        pipe = current_wait().pipe
        record.__dict__.update(pipe=pipe, of_pipe=f"{pipe}: " if pipe else "")
        return True


class _Py4JFilter(logging.Filter):
    """Drops Py4J's messages about a dead Java process; each pipe reports it once."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def configure_pipe_logging(formatter: logging.Formatter | None = None) -> None:
    """Add the pipe to all log lines from now on.

    Lines go to the current standard error: Spark redirects it for a moment while it starts.
    """
    stream = os.fdopen(os.dup(2), "w", buffering=1)
    lines = formatter or TextFormatter("%(asctime)s %(levelname)s %(of_pipe)s%(message)s")
    for handler in logging.getLogger("headrace").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)
        handler.addFilter(PipeContextFilter())
        handler.setFormatter(lines)
    # Messages of libraries get the same format and masking.
    root = logging.StreamHandler(stream)
    root.addFilter(_Py4JFilter())
    root.addFilter(PipeContextFilter())
    root.setFormatter(lines)
    logging.getLogger().addHandler(root)
