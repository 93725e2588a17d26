"""Reads and replaces files with one JSON object; after a crash, a file holds the old object or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from headrace.errors import DefiniteError
from headrace.jsonl import START_OVER, sync_directory


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a file of a state directory."""
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
    """Replace a file of a state directory atomically."""
    temporary = path.with_suffix(".new")
    with temporary.open("w") as file:
        file.write(_spelled(content))
        file.flush()
        os.fsync(file.fileno())
    temporary.chmod(0o600)
    temporary.replace(path)
    sync_directory(path.parent)


def _spelled(content: dict[str, Any]) -> str:
    """Format the object with one line per member and list element.

    Python's json with `indent` is ten times slower, which matters for the state of a pipe with thousands of tables.
    """
    members = (
        f" {json.dumps(name)}: {_list_spelled(value) if isinstance(value, list) else json.dumps(value)}" for name, value in content.items()
    )
    return "{\n" + ",\n".join(members) + "\n}\n"


def _list_spelled(values: list[Any]) -> str:
    return "[\n  " + ",\n  ".join(map(json.dumps, values)) + "\n ]" if values else "[]"
