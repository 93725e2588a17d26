"""Spark's Java classes, loaded once and kept: a class-data archive that more than halves the JVM's start-up.

`python -m headrace.spark.session.class_data_archive` (part of set-up) runs a tiny stream of the kind a pipe runs and lets the JVM dump
the classes it loaded. Sessions use the archive if it exists. The JVM ignores an archive that does not fit its version or class path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

import pyspark

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import TableSchema
from headrace.sinks.base import Writer
from headrace.sources.base import Offset, Split

TRAINING_VARIABLE: Final = "HEADRACE_TRAIN_ARCHIVE"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_DUMP_WITHIN_S: Final = 180.0


def archive_path() -> Path:
    """Where the archive for this Spark and this Java is kept."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    identity = [pyspark.__version__, str(Path(pyspark.__file__).resolve()), str(java.resolve())]
    if java.exists():
        identity.append(str(java.resolve().stat().st_mtime_ns))
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    root = os.environ.get("HEADRACE_CACHE") or str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace")
    return Path(root) / f"spark-{digest}.jsa"


def java_options() -> str:
    """What a session's JVM is told about the archive: write it (in training), use it, or nothing."""
    training = os.environ.get(TRAINING_VARIABLE)
    if training:
        return f"-XX:ArchiveClassesAtExit={training} {_QUIET}"
    archive = archive_path()
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def make_archive() -> Path:
    """Make the archive unless it is there."""
    archive = archive_path()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=archive.parent) as home:
        made = Path(home) / "made.jsa"
        command = [sys.executable, "-m", "headrace.spark.session.class_data_archive", "--train", home]
        training = subprocess.run(command, env={**os.environ, TRAINING_VARIABLE: str(made)}, check=False)
        if training.returncode:
            raise DefiniteError(f"the training run ended with exit code {training.returncode}", hint="check that Java 17 is installed")
        _await_dump(made, int((Path(home) / "java.pid").read_text()))
        made.replace(archive)
    return archive


def _await_dump(made: Path, java: int) -> None:
    """The JVM writes the archive while it exits, a moment after the training process has ended."""
    deadline = time.monotonic() + _DUMP_WITHIN_S
    while Path(f"/proc/{java}").exists() or not made.exists():
        if time.monotonic() > deadline:
            raise TransientError("the JVM did not write its class archive in time")
        time.sleep(0.1)


class _TrainingPipe:
    """A source of one empty change, its reader, its sink and its writer: enough to make Spark load what a pipe needs."""

    def planner(self) -> _TrainingPipe:
        return self

    def initial(self) -> Offset:
        return {"pos": 0}

    def plan(self, start: Offset) -> Offset:
        time.sleep(0.05)
        return {"pos": min(int(start["pos"]) + 1, 3)}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [{"kind": "rows", "until": end}] if start != end else []

    def commit(self, end: Offset) -> None:
        del end

    def stop(self) -> None:
        pass

    def read(self, split: Split) -> Generator[ChangeBlock, None, Split | None]:
        del split
        yield from ()
        return None

    def prepare(self, schemas: Iterable[TableSchema]) -> None:
        del schemas

    def replace(self, schema: TableSchema) -> None:
        del schema

    def key_columns(self, schema: TableSchema) -> tuple[str, ...]:
        return schema.row_key

    def delete_stale(self, schema: TableSchema, before: int) -> None:
        del schema, before

    def writer(self) -> Writer:
        return self

    def write(self, block: ChangeBlock) -> None:
        del block

    def close(self) -> None:
        pass


def _train(home: Path) -> None:
    from headrace.spark.runtime.micro_batch import ChangeStream, run_splits
    from headrace.spark.runtime.tasks import Task
    from headrace.spark.session.session import java_pid, start_session  # (session asks this module for options)

    session = start_session("local[2]", home, spark_log=False)
    (home / "java.pid").write_text(str(java_pid(session)))
    part = _TrainingPipe()
    task = Task(part, part, _call)
    run_splits(session, task, [{"kind": "rows", "until": {}}], 1, lambda *_: None)
    batches: list[int] = []
    stream = ChangeStream(session, part, home / "checkpoint", lambda: task, lambda reports: batches.append(len(reports)))
    deadline = time.monotonic() + _DUMP_WITHIN_S
    while len(batches) < 3 and not stream.wait(0.1) and time.monotonic() < deadline:
        pass
    stream.stop()
    session.stop()


def _call(call: object) -> None:
    assert callable(call)
    call()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        _train(Path(sys.argv[2]))
    else:
        make_archive()
