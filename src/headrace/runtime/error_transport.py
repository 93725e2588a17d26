"""Carries Headrace errors from tasks to the driver.

An error of a task or of the source's process reaches the driver as the text of a Java exception. `serialize_errors` adds the encoded error
to that text, and the driver decodes it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import DefiniteError, HeadraceError, TransientError

_MARK = re.compile(r"headrace-error\[([A-Za-z0-9+/=]+)\]")


class SerializedError(RuntimeError):
    """A Headrace error whose text contains its encoded form."""


@contextmanager
def serialize_errors() -> Iterator[None]:
    """Raise Headrace errors as `SerializedError`."""
    try:
        yield
    except HeadraceError as error:
        raise SerializedError(f"{error}\n{encode_error(error)}") from error


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Raise Headrace errors without a traceback, so that Spark prints only their message to the user of a script."""
    try:
        yield
    except HeadraceError as error:
        raise error.with_traceback(None) from None


def encode_error(error: HeadraceError) -> str:
    content = {
        "definite": isinstance(error, DefiniteError),
        "message": error.message,
        "place": error.place,
        "hint": error.hint,
        "event": error.event,
    }
    return f"headrace-error[{base64.b64encode(json.dumps(content).encode()).decode()}]"


def decode_error(text: str) -> HeadraceError | None:
    """Return the first encoded error in a text, if any."""
    found = _MARK.search(text)
    if found is None:
        return None
    content = json.loads(base64.b64decode(found.group(1)))
    kind = DefiniteError if content["definite"] else TransientError
    return kind(content["message"], place=content["place"], hint=content["hint"], event=content["event"])
