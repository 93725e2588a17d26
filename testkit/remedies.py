"""Executes the commands that an error prints as its remedy, as the reader of the error would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from headrace.cli import main
from headrace.errors import HeadraceError

_COMMAND = re.compile(r"headrace (?:resync|skip|verify|retry|sql|check|config check|tail|ddl|serve)\b[^,;()]*")


def commands_of(error: HeadraceError | str) -> list[list[str]]:
    """The arguments of every `headrace` command in a remedy."""
    hint = error if isinstance(error, str) else error.hint
    return [shlex.split(found.strip().rstrip("."))[1:] for found in _COMMAND.findall(hint)]


def execute(error: HeadraceError | str, state: Path) -> None:
    """Run the commands of a remedy; DIRECTORY stands for the pipe's state directory."""
    commands = commands_of(error)
    assert commands, f"the remedy names no command: {error}"
    for command in commands:
        assert main([str(state) if word == "DIRECTORY" else word for word in command]) == 0, command
