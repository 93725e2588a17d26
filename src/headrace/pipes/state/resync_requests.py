"""Resync requests for a pipe: files in its state directory, which a running pipe polls.

A request is written atomically and removed only when the state includes it. A request that arrives while no pipe runs, or that a crash
interrupts, is handled at the next start.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.entry_stamp import stamped, unstamped
from headrace.errors import DefiniteError
from headrace.jsonl import MISSHAPEN, sync_directory
from headrace.model.schema import TableName
from headrace.pipes.state.pipe_state import StateDirectory

_RESYNC = re.compile(r"headrace resync(?>(?: [^\s,;()]+\.[^\s,;()]+)+)(?! --state| --pipe)")


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    tables: tuple[str, ...]
    """Globs over `database.table`."""
    path: Path
    new_log: bool = False
    """Whether the pipe must start in the server's current log, under a new epoch."""

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def request_resync(directory: StateDirectory, tables: tuple[str, ...], *, new_log: bool = False) -> None:
    """Write a request for the pipe that owns the directory, or for its next run."""
    folder = directory.path / "requests"
    folder.mkdir(mode=0o700, exist_ok=True)
    temporary = folder / f"{secrets.token_hex(8)}.new"
    with temporary.open("w") as file:
        json.dump(stamped({"resync": list(tables), **({"new_log": True} if new_log else {})}, "", 1, 1)[0], file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(temporary.with_suffix(".json"))
    sync_directory(folder)


def resync_command(names: Collection[TableName], state: str) -> str:
    """Return the command that reads tables again; for many tables, all tables of their databases."""
    tables = sorted(map(str, names))
    if len(tables) > 10:
        tables = sorted({f"{name.database}.*" for name in names})
    return f"headrace resync {' '.join(map(shlex.quote, tables))} --state {shlex.quote(state)}"


def add_state_to_hint(hint: str, state: Path) -> str:
    """Add the state directory to `headrace resync TABLE` commands in a hint, so that they can be run as printed."""
    return _RESYNC.sub(lambda found: f"{found[0]} --state {shlex.quote(str(state))}", hint)


def pending_requests(directory: StateDirectory) -> Iterator[ResyncRequest]:
    """Return the pending requests, oldest first."""
    for _, path, text in sorted(_written(directory.path / "requests")):
        try:
            raw, stamp = unstamped(json.loads(text))
            if stamp is None and not raw.keys() <= {"resync", "new_log"}:
                raise ValueError("it has no checksum")
            tables, new_log = tuple(str(table) for table in raw["resync"]), bool(raw.get("new_log"))
        except MISSHAPEN as error:
            raise DefiniteError(f"a request cannot be read: {error}", place=str(path), hint="remove the file and ask again") from error
        yield ResyncRequest(tables, path, new_log)


def _written(folder: Path) -> Iterator[tuple[int, Path, str]]:
    for path in folder.glob("*.json"):
        try:
            yield path.stat().st_mtime_ns, path, path.read_text(errors="replace")
        except FileNotFoundError:
            # Another thread has removed it.
            continue
