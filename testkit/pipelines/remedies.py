"""Executes the commands that an error prints as its remedy, as the reader of the error would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from headrace.cli import main
from headrace.errors import HeadraceError
from headrace.pipes.state.resync_requests import add_state_to_hint

_COMMAND = re.compile(r"headrace (?:resync|release|skip|verify|retry|sql|check|config check|tail|ddl|serve)\b[^,;()]*")


def commands_of(error: HeadraceError | str) -> list[list[str]]:
    """The arguments of every `headrace` command in a remedy."""
    hint = error if isinstance(error, str) else error.hint
    return [shlex.split(found.strip().rstrip("."))[1:] for found in _COMMAND.findall(hint)]


def execute(error: HeadraceError | str, state: Path) -> None:
    """Run the commands of a remedy, as the pipe of a state directory prints it."""
    commands = commands_of(add_state_to_hint(error if isinstance(error, str) else error.hint, state))
    assert commands, f"the remedy names no command: {error}"
    for command in commands:
        assert main(command) == 0, command
