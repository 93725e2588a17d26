"""The log lines of each pipe of a process, as JSON in files of its state directory.

The lines of a pipe are one long text. It is stored in segments, each named by the offset of its first byte, so an offset stays valid when
an old segment is removed. Invariant: pipes never wait for a file. They put lines into a bounded queue, and a thread writes them; lines that
do not fit are counted, and the log says how many are missing. A pipe has at most `SEGMENTS` segments of `SEGMENT_BYTES`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

log = logging.getLogger("headrace")

DIRECTORY: Final = ".logs"
SEGMENT_BYTES: Final = 8 << 20
SEGMENTS: Final = 2
MAX_LINE: Final = 64 << 10
"""Bytes of one line; the caller shortens longer records."""
_MAX_QUEUED: Final = 10_000
_RETENTION_S: Final = 30 * 86_400
_SUFFIX: Final = ".jsonl"


def log_directory(state: Path, pipe: str) -> Path:
    # A name may have characters that a file name must not have.
    return state / DIRECTORY / hashlib.sha256(pipe.encode(errors="replace")).hexdigest()[:24]


def segments(directory: Path) -> list[tuple[int, Path]]:
    """Return the segments of a log with the offsets of their first bytes, oldest first. Files with other names are ignored."""
    found = [(path.stem, path) for path in directory.glob(f"*{_SUFFIX}")]
    return sorted((int(stem), path) for stem, path in found if stem.isascii() and stem.isdigit() and len(stem) == 20)


class PipeLog:
    """Appends to the log of one pipe; used by one thread."""

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self._start = self._size = -1
        self._is_writable = True

    def append(self, lines: Iterable[bytes]) -> None:
        try:
            if self._size < 0:
                self._open()
            for batch in self._batches(lines):
                self._write(batch)
            self._is_writable = True
        except OSError as error:
            if self._is_writable:
                log.warning("logs: %s cannot be written, so lines are missing on the dashboard: %s", self._directory, error)
            self._is_writable, self._size = False, -1

    def _batches(self, lines: Iterable[bytes]) -> Iterable[bytes]:
        """Join lines up to the end of a segment, and begin a new segment at its end."""
        joined = bytearray()
        for line in lines:
            if self._size + len(joined) + len(line) + 1 > self._segment_bytes and self._size + len(joined):
                yield bytes(joined)
                joined.clear()
                self._begin_segment()
            joined += line[:MAX_LINE] + b"\n"
        yield bytes(joined)

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = segments(self._directory)
        self._start, self._size = 0, 0
        if found:
            self._start, path = found[-1]
            self._size = path.stat().st_size
            if _is_torn(path):
                self._write(b"\n")

    def _begin_segment(self) -> None:
        self._start, self._size = self._start + self._size, 0
        for _, path in segments(self._directory)[: -(SEGMENTS - 1)]:
            path.unlink(missing_ok=True)

    def _write(self, content: bytes) -> None:
        if not content:
            return
        path = self._directory / f"{self._start:020}{_SUFFIX}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab", buffering=0) as file:
            self._size += file.write(content)


def _is_torn(path: Path) -> bool:
    """Whether the last line of a file has no end: the process was killed while it wrote."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


class LogFileWriter:
    """Writes the lines of all pipes in a thread of its own. Thread-safe."""

    def __init__(self, state: Path, pipes: Iterable[str], *, max_queued: int = _MAX_QUEUED) -> None:
        self._state = state
        self._logs: dict[str, PipeLog] = {}
        self._queue: deque[tuple[str, bytes]] = deque()
        self._dropped: dict[str, int] = {}
        self._max_queued = max_queued
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-logs", daemon=True)
        self.add_pipes(pipes)

    def start(self) -> None:
        self._thread.start()

    def add_pipes(self, pipes: Iterable[str]) -> None:
        """Store the lines of these pipes, too."""
        with self._changed:
            for pipe in pipes:
                self._dropped.setdefault(pipe, 0)
                self._logs.setdefault(pipe, PipeLog(log_directory(self._state, pipe)))

    def add(self, pipe: str, line: bytes) -> None:
        """Queue a line, without its end. Lines of unknown pipes are ignored."""
        if pipe not in self._logs:
            return
        with self._changed:
            if len(self._queue) < self._max_queued:
                self._queue.append((pipe, line))
            else:
                self._dropped[pipe] += 1
            self._changed.notify()

    def close(self) -> None:
        """Write what is queued, and end."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._write()

    def _run(self) -> None:
        while not self._ended:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._ended)
            self._write()

    def _write(self) -> None:
        with self._changed:
            queued, self._queue = self._queue, deque()
            dropped = {pipe: count for pipe, count in self._dropped.items() if count}
            self._dropped.update(dict.fromkeys(dropped, 0))
        lines: dict[str, list[bytes]] = {}
        for pipe, line in queued:
            lines.setdefault(pipe, []).append(line)
        for pipe, count in dropped.items():
            lines.setdefault(pipe, []).append(_gap(count))
        for pipe, found in lines.items():
            self._logs[pipe].append(found)


def _gap(count: int) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    message = f"{count} lines are missing here: they came faster than they could be stored"
    return orjson.dumps({"ts": now, "level": "warning", "logger": "headrace", "message": message})


def prune_logs(state: Path, now: float) -> None:
    """Remove the logs of pipes that have not run for 30 days."""
    for directory in (state / DIRECTORY).glob("*"):
        with suppress(OSError):
            newest = max((path.stat().st_mtime for _, path in segments(directory)), default=directory.stat().st_mtime)
            if newest < now - _RETENTION_S:
                shutil.rmtree(directory)
