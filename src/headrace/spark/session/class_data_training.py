"""The training run of the class-data archive: a small stream of the kind that a pipe runs, so that the JVM loads the same classes."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from headrace.model.change_block import ChangeBlock
from headrace.model.json_record import JsonRecord
from headrace.runtime.tasks import SplitGroup, Task
from headrace.sinks.base import Writer
from headrace.sources.base import Json, Offset, Split
from headrace.spark.runtime.micro_batch import ChangeStream, run_groups
from headrace.spark.session.class_data_archive import DUMP_TIMEOUT_S
from headrace.spark.session.session import java_pid, start_session


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


def _train(home: Path) -> None:
    session = start_session("local[2]", home, spark_log=False)
    (home / "java.pid").write_text(str(java_pid(session)))
    part = _TrainingPipe()
    task = Task(part, part, _call)
    run_groups(session, [SplitGroup(task, (_EmptySplit(),))], 1, lambda *_: None)
    batches: list[int] = []
    stream = ChangeStream(session, part, home / "checkpoint", lambda: task, lambda reports: batches.append(len(reports)))
    deadline = time.monotonic() + DUMP_TIMEOUT_S
    while len(batches) < 3 and not stream.wait(0.1) and time.monotonic() < deadline:
        pass
    stream.stop()
    session.stop()


def _call(call: object) -> None:
    assert callable(call)
    call()


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
