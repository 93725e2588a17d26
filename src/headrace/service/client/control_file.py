"""`control.json` in the state directory: the address and token of the running process.

Invariant: only the user who runs the process can read the file (0600). The process removes it at exit; a file that a killed process left
behind is detected by its process id.
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
class ControlEndpoint:
    """Address, token and process id of a running process."""

    url: str
    token: str = field(repr=False)
    pid: int = 0


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(32)


@contextmanager
def publish_endpoint(state: Path, url: str, token: str) -> Iterator[ControlEndpoint]:
    """Publish this process's endpoint in the state directory while the context is open."""
    endpoint = ControlEndpoint(url, token, os.getpid())
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state / CONTROL_FILE
    temporary = state / f".{CONTROL_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Created with its final mode, so that other users can never read it.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(endpoint), file)
    temporary.replace(path)
    try:
        yield endpoint
    finally:
        # Another process may have published its own file since.
        with contextlib.suppress(DefiniteError):
            if read_endpoint(state).pid == endpoint.pid:
                path.unlink(missing_ok=True)


def read_endpoint(state: Path) -> ControlEndpoint:
    """Return the endpoint of the process that runs on a state directory."""
    path = state / CONTROL_FILE
    try:
        said: Any = json.loads(path.read_text())
        endpoint = ControlEndpoint(str(said["url"]), str(said["token"]), int(said["pid"]))
    except FileNotFoundError as error:
        raise DefiniteError("no process runs here", place=str(state), hint=_RUN) from error
    except PermissionError as error:
        raise DefiniteError("the process belongs to another user", place=str(path), hint="ask as the user who runs it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DefiniteError(f"this is no control file: {error}", place=str(path), hint="remove it and start the process again") from error
    if not _is_running(endpoint.pid):
        raise DefiniteError(f"the process that ran here, {endpoint.pid}, is no more", place=str(state), hint=_RUN)
    return endpoint


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
