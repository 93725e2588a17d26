"""Which process is meant: by the file of its pipes, by its state directory, or by its address.

Of the file only `[headrace] state` is read: whoever asks a process need not have the secrets that it runs with.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Final

from headrace.errors import DefiniteError
from headrace.service.client.control_file import CONTROL_FILE, Contact, find

TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
DEFAULT_FILE: Final = "headrace.toml"
_STATE: Final = "headrace-state"


def locate(file: str = "", state: str = "", url: str = "") -> Contact:
    """The process; what is given last counts first. `DefiniteError` if none runs there."""
    if url:
        return Contact(url.rstrip("/"), os.environ.get(TOKEN_VARIABLE, ""))
    if state:
        return find(Path(state))
    if file:
        return find(state_of(Path(file)))
    if Path(DEFAULT_FILE).exists():
        return find(state_of(Path(DEFAULT_FILE)))
    if (Path(_STATE) / CONTROL_FILE).exists():
        return find(Path(_STATE))
    raise DefiniteError(
        f"there is no {DEFAULT_FILE} here",
        place=str(Path.cwd()),
        hint=f"name the file of pipes, or --state DIR, or --url URL with {TOKEN_VARIABLE}",
    )


def state_of(path: Path) -> Path:
    """The state directory that a file of pipes names; relative ones are seen from the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"the file cannot be read: {error}"
        raise DefiniteError(reason, place=str(path), hint="name the file of pipes, or its state: --state DIR") from error
    directory = path.resolve().parent
    if path.suffix != ".toml":
        # Files of other tools name no state.
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
