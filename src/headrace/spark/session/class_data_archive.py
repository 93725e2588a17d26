"""A class-data archive of Spark's Java classes: it more than halves the start-up time of the JVM.

`python -m headrace.spark.session.class_data_archive` (part of set-up) runs a small stream of the kind that a pipe runs, and the JVM dumps
the classes that it loaded. Sessions use the archive if it exists. The JVM ignores an archive that does not fit its version or class path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from headrace.errors import DefiniteError, TransientError
from headrace.model.change_block import ChangeBlock
from headrace.model.json_record import JsonRecord
from headrace.runtime.tasks import SplitGroup, Task
from headrace.sinks.base import Writer
from headrace.sources.base import Json, Offset, Split
from headrace.spark.runtime.java_process import TRAINING_VARIABLE, archive_path
from headrace.spark.runtime.micro_batch import SplitStream, run_groups
from headrace.spark.session.session import java_pid, start_session

_TRAINING: Final = (
    # Workers must be able to import the classes of the training run, so they must not be those of `__main__`.
    "import sys, pathlib; from headrace.spark.session.class_data_archive import train; train(pathlib.Path(sys.argv[1]))"
)
_DUMP_TIMEOUT_S: Final = 180.0


def make_archive() -> Path:
    """Create the archive unless it exists."""
    archive = archive_path()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=archive.parent) as home:
        made = Path(home) / "made.jsa"
        command = [sys.executable, "-c", _TRAINING, home]
        training = subprocess.run(command, env={**os.environ, TRAINING_VARIABLE: str(made)}, check=False)
        if training.returncode:
            raise DefiniteError(f"the training run ended with exit code {training.returncode}", hint="check that Java 17 is installed")
        _await_dump(made, int((Path(home) / "java.pid").read_text()))
        made.replace(archive)
    return archive


def _await_dump(made: Path, java: int) -> None:
    """Wait until the JVM has written the archive, which it does while it exits, after the training process has ended."""
    deadline = time.monotonic() + _DUMP_TIMEOUT_S
    while Path(f"/proc/{java}").exists() or not made.exists():
        if time.monotonic() > deadline:
            raise TransientError("the JVM did not write its class archive in time")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class _EmptySplit(JsonRecord):
    split_kind: ClassVar[str] = "rows"
    once: ClassVar[bool] = False


class _TrainingPipe:
    """A source of one empty change with its reader, sink and writer: enough to make Spark load the classes that a pipe needs."""

    split_types: ClassVar[tuple[type[Split], ...]] = (_EmptySplit,)

    def planner(self) -> _TrainingPipe:
        return self

    def initial(self) -> Offset:
        return {"pos": 0}

    def plan(self, start: Offset) -> Offset:
        time.sleep(0.05)
        return {"pos": min(int(start["pos"]) + 1, 3)}

    def splits(self, start: Offset, end: Offset) -> list[Split]:
        return [_EmptySplit()] if start != end else []

    def commit(self, end: Offset) -> None:
        del end

    def stop(self) -> None:
        pass

    def read(self, split: _EmptySplit) -> Generator[ChangeBlock, None, Json]:
        del split
        yield from ()
        return {}

    def writer(self) -> Writer:
        return self

    def for_replay(self) -> _TrainingPipe:
        return self

    def write(self, block: ChangeBlock) -> None:
        del block

    def close(self) -> None:
        pass


def train(home: Path) -> None:
    session = start_session("local[2]", home, spark_log=False)
    (home / "java.pid").write_text(str(java_pid(session)))
    part = _TrainingPipe()
    task = Task(part, part, _call)
    run_groups(session, [SplitGroup(task, (_EmptySplit(),))], 1, lambda *_: None)
    batches: list[int] = []
    stream = SplitStream(session, part, home / "checkpoint", lambda run, _: batches.append(len(run(task))))
    deadline = time.monotonic() + _DUMP_TIMEOUT_S
    while len(batches) < 3 and not stream.wait(0.1) and time.monotonic() < deadline:
        pass
    stream.stop()
    session.stop()


def _call(call: object) -> None:
    assert callable(call)
    call()


if __name__ == "__main__":
    make_archive()
