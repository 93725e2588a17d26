"""The address and token of the running process: published in `control.json` of its state directory, found by file, directory or URL.

Invariant: only the user who runs the process can read the file (0600). The process removes it at exit; a file that a killed process left
behind is detected by its process id. Clients read only `[headrace] state` of a pipe file, so they do not need the secrets of the pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.errors import DefiniteError

CONTROL_FILE: Final = "control.json"
TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
DEFAULT_FILE: Final = "headrace.toml"
_STATE: Final = "headrace-state"
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
        content: Any = json.loads(path.read_text())
        endpoint = ControlEndpoint(str(content["url"]), str(content["token"]), int(content["pid"]))
    except FileNotFoundError as error:
        raise DefiniteError("no process runs here", place=str(state), hint=_RUN) from error
    except PermissionError as error:
        raise DefiniteError("the process belongs to another user", place=str(path), hint="run the command as that user") from error
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


def find_process(file: str = "", state: str = "", url: str = "") -> ControlEndpoint:
    """Return the endpoint of the process; `url` takes precedence over `state`, `state` over `file`. `DefiniteError` if none runs."""
    if url:
        return ControlEndpoint(url.rstrip("/"), os.environ.get(TOKEN_VARIABLE, ""))
    if state:
        return read_endpoint(Path(state))
    if file:
        return read_endpoint(read_state_directory(Path(file)))
    if Path(DEFAULT_FILE).exists():
        return read_endpoint(read_state_directory(Path(DEFAULT_FILE)))
    if (Path(_STATE) / CONTROL_FILE).exists():
        return read_endpoint(Path(_STATE))
    raise DefiniteError(
        f"there is no {DEFAULT_FILE} here",
        place=str(Path.cwd()),
        hint=f"name the file of pipes, or --state DIR, or --url URL with {TOKEN_VARIABLE}",
    )


def read_state_directory(path: Path) -> Path:
    """Return the state directory named in a pipe file; a relative path is relative to the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"the file cannot be read: {error}"
        raise DefiniteError(reason, place=str(path), hint="name the file of pipes, or its state: --state DIR") from error
    directory = path.resolve().parent
    if path.suffix != ".toml":
        # Files of other tools have no state setting.
        return directory / _STATE
    try:
        section = tomllib.loads(text).get("headrace", {})
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the file is not TOML: {error}", place=str(path), hint="see `headrace config check`") from error
    named = section.get("state", _STATE) if isinstance(section, dict) else _STATE
    if not isinstance(named, str):
        raise DefiniteError("[headrace] state is no text", place=str(path), hint="see `headrace config check`")
    if "${" in named:
        from headrace.config.document.substitution import References

        named = References(directory).resolve(named, f"{path}, headrace.state")
    return directory / named
