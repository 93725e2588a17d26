"""The message of a log record for people: the format comes from code, whatever fills it is escaped.

Invariant: a record's text has only the line breaks of its own format and of errors, never one from a name or a value.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError
from headrace.terminal_text import escape_text


def record_text(record: logging.LogRecord) -> str:
    """The message; one that was put together before it was logged is all content, and hence one line."""
    if not record.args:
        return _content(record.msg)
    if isinstance(record.args, Mapping):
        return str(record.msg) % {name: _argument(value) for name, value in record.args.items()}
    return str(record.msg) % tuple(map(_argument, record.args))


def _argument(value: Any) -> Any:
    return value if isinstance(value, int | float) else _content(value)


def _content(value: Any) -> str:
    # The text of our errors is escaped already, and puts the remedy on a line of its own.
    return str(value) if isinstance(value, HeadraceError) else escape_text(str(value))
