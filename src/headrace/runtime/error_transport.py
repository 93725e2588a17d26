"""Our errors on their way through Spark.

An error raised in a task or in the source's process reaches the driver as text inside a Java exception. It travels as a marked, encoded
piece of that text, and is an error of ours again on arrival.
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
    """An error of ours in a form that survives as text."""


@contextmanager
def serialize_errors() -> Iterator[None]:
    """Raise our errors in their carried form, which people can read too."""
    try:
        yield
    except HeadraceError as error:
        raise SerializedError(f"{error}\n{encode_error(error)}") from error


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Raise our errors as a script is to read them at the end of what Spark prints, without their encoded form."""
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
    """The first error of ours in a text, if any."""
    found = _MARK.search(text)
    if found is None:
        return None
    content = json.loads(base64.b64decode(found.group(1)))
    kind = DefiniteError if content["definite"] else TransientError
    return kind(content["message"], place=content["place"], hint=content["hint"], event=content["event"])
