"""Formats the message of a log record: the format string comes from code, its arguments are escaped.

Invariant: a record's text has only the line breaks of its own format string and of errors, never one from a name or a value.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError
from headrace.terminal_text import escape_text


def record_text(record: logging.LogRecord) -> str:
    """Return the message. A message without arguments is treated as one value, so it becomes one line."""
    if not record.args:
        return _content(record.msg)
    if isinstance(record.args, Mapping):
        return str(record.msg) % {name: _argument(value) for name, value in record.args.items()}
    return str(record.msg) % tuple(map(_argument, record.args))


def _argument(value: Any) -> Any:
    return value if isinstance(value, int | float) else _content(value)


def _content(value: Any) -> str:
    # The text of a HeadraceError is already escaped, and puts the remedy on its own line.
    return str(value) if isinstance(value, HeadraceError) else escape_text(str(value))
