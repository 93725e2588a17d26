"""Where a running process is found: `control.json` in its state directory, with its address and its token.

Invariant: only the user who runs the process can read the file (0600). It is there for as long as the process serves; one that a kill left
behind names a process that is no more, and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.errors import DefiniteError

CONTROL_FILE: Final = "control.json"
_RUN: Final = "start it with `headrace run`, or say where it is: its file, --state DIR, or --url URL with HEADRACE_TOKEN"


@dataclass(frozen=True, slots=True)
class Contact:
    """How to reach a process."""

    url: str
    token: str = field(repr=False)
    pid: int = 0


def new_token() -> str:
    """One that nobody guesses."""
    return secrets.token_urlsafe(32)


@contextmanager
def published(state: Path, url: str, token: str) -> Iterator[Contact]:
    """Meanwhile whoever may read the state directory finds this process."""
    contact = Contact(url, token, os.getpid())
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state / CONTROL_FILE
    temporary = state / f".{CONTROL_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Never readable by others, not even for a moment: made with its mode.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(contact), file)
    temporary.replace(path)
    try:
        yield contact
    finally:
        # Another process may have taken the place since.
        with contextlib.suppress(DefiniteError):
            if find(state).pid == contact.pid:
                path.unlink(missing_ok=True)


def find(state: Path) -> Contact:
    """The process that works with a state directory."""
    path = state / CONTROL_FILE
    try:
        said: Any = json.loads(path.read_text())
        contact = Contact(str(said["url"]), str(said["token"]), int(said["pid"]))
    except FileNotFoundError as error:
        raise DefiniteError("no process runs here", place=str(state), hint=_RUN) from error
    except PermissionError as error:
        raise DefiniteError("the process belongs to another user", place=str(path), hint="ask as the user who runs it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DefiniteError(f"this is no control file: {error}", place=str(path), hint="remove it and start the process again") from error
    if not _lives(contact.pid):
        raise DefiniteError(f"the process that ran here, {contact.pid}, is no more", place=str(state), hint=_RUN)
    return contact


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
