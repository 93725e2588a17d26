"""Finds the running process by its pipe file, its state directory, or its URL.

Only `[headrace] state` is read from the file, so that clients do not need the secrets that the pipes use.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError
from headrace.service.client.control_file import CONTROL_FILE, ControlEndpoint, read_endpoint

TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
DEFAULT_FILE: Final = "headrace.toml"
_STATE: Final = "headrace-state"


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
