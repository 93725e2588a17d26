"""A task that Spark starts again: harmless where the sink merges, refused where what was written would count twice."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import pytest

from headrace.errors import TransientError
from headrace.model.change import ChangeBlock
from headrace.sources.base import Work
from headrace.spark import tasks
from headrace.spark.tasks import Task


@dataclass
class Nothing:
    """A reader of nothing and a writer to nowhere."""

    closed: list[str] = field(default_factory=list)

    def read(self, work: Work) -> Generator[ChangeBlock, None, Work | None]:
        del work
        yield from ()
        return {"position": {}}

    def writer(self) -> Nothing:
        return self

    def write(self, block: ChangeBlock) -> None:
        raise AssertionError(block)

    def close(self) -> None:
        self.closed.append("writer")


class Again:
    """The context of a second attempt."""

    @staticmethod
    def attemptNumber() -> int:
        return 1


def test_a_snapshot_that_counts_is_not_read_twice_behind_the_drivers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(Nothing(), Nothing(), lambda call: call())
    chunk: Work = {"kind": "chunk", "once": True}
    assert [report.kind for report in task._run(chunk)] == ["done"]
    monkeypatch.setattr(tasks.TaskContext, "get", staticmethod(Again))
    assert [report.kind for report in task._run({**chunk, "once": False})] == ["done"]
    assert [report.kind for report in task._run({"kind": "rows"})] == ["done"]
    with pytest.raises(TransientError, match="started a task again"):
        task._run(chunk)
