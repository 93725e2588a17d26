"""A file that holds one JSON object and is replaced as a whole: after a crash it holds the old object or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.jsonl import START_OVER


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file of a state directory holds."""
    try:
        raw = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise damaged(error, str(file)) from error
    if not isinstance(raw, dict):
        raise damaged(TypeError("no object"), str(file))
    return raw


def damaged(error: Exception, place: str) -> DefiniteError:
    return DefiniteError(f"a file of the state directory is damaged: {type(error).__name__}: {error}", place=place, hint=START_OVER)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of a state directory, all of it or nothing."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(_spelled(content))
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o600)
    temporary.replace(path)
    sync_directory(path.parent)


def _spelled(content: dict[str, Any]) -> str:
    """The object in lines for people: a line for each member, and for each element of a list.

    With `indent` Python's json is ten times slower, which counts for the state of a pipe with thousands of tables.
    """
    members = (
        f" {json.dumps(name)}: {_list_spelled(value) if isinstance(value, list) else json.dumps(value)}" for name, value in content.items()
    )
    return "{\n" + ",\n".join(members) + "\n}\n"


def _list_spelled(values: list[Any]) -> str:
    return "[\n  " + ",\n  ".join(map(json.dumps, values)) + "\n ]" if values else "[]"


def sync_directory(directory: Path) -> None:
    """Make sure that a new name in a directory outlives the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
