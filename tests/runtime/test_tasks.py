"""A task that Spark starts again: allowed if the sink merges, refused if its writes would count twice."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from headrace.errors import TransientError
from headrace.model.change_block import ChangeBlock
from headrace.runtime.tasks import TASK_ATTEMPT, Report, SplitGroup, Task
from headrace.sources.base import Json, Split
from headrace.sources.splits import MarkSplit
from testkit.pipelines.runtime_cases import NumberSplit


@dataclass
class Nothing:
    """An empty reader and a writer that accepts no block."""

    split_types: ClassVar[tuple[type[Split], ...]] = (NumberSplit,)
    closed: list[str] = field(default_factory=list)

    def read(self, split: NumberSplit) -> Generator[ChangeBlock, None, Json]:
        del split
        yield from ()
        return {"position": {}}

    def for_replay(self) -> Nothing:
        return self

    def writer(self) -> Nothing:
        return self

    def write(self, block: ChangeBlock) -> None:
        raise AssertionError(block)

    def close(self) -> None:
        self.closed.append("writer")


def test_a_snapshot_that_counts_is_not_read_twice_behind_the_drivers_back() -> None:
    task = Task(Nothing(), Nothing(), lambda call: call())
    chunk = NumberSplit(1, once=True)
    assert [report.kind for report in task._run(chunk)] == ["done"]
    second = TASK_ATTEMPT.set(1)
    try:
        assert [report.kind for report in task._run(replace(chunk, once=False))] == ["done"]
        assert [report.kind for report in task._run(MarkSplit({"at": 1}))] == ["done"]
        with pytest.raises(TransientError, match="started a task again"):
            task._run(chunk)
    finally:
        TASK_ATTEMPT.reset(second)


def test_reports_of_a_group_go_to_the_works_that_made_them() -> None:
    def report(kind: str, subject: str) -> Report:
        return Report(kind, subject, 0, 0, 0, "")

    splits = [NumberSplit(number) for number in range(3)]
    done = report("done", "")
    reports = [done, report("changes", "a"), report("changes", "b"), done, done, report("changes", "c")]
    paired = SplitGroup(Task(Nothing(), Nothing(), lambda call: call()), splits).pair_reports(reports)
    assert [(split.number, [one.subject for one in found]) for split, found in paired] == [
        (0, ["", "a", "b"]),
        (1, [""]),
        (2, ["", "c"]),
    ]


def test_a_group_of_one_takes_reports_of_any_kind() -> None:
    answer = Report("answer", "", 0, 0, 0, "")
    assert list(SplitGroup(Task(Nothing(), Nothing(), lambda call: call()), [NumberSplit(7)]).pair_reports([answer])) == [
        (NumberSplit(7), [answer])
    ]


def test_a_work_without_a_report_is_noticed() -> None:
    group = SplitGroup(Task(Nothing(), Nothing(), lambda call: call()), [NumberSplit(1), NumberSplit(2)])
    with pytest.raises(ValueError, match="zip"):
        list(group.pair_reports([Report("done", "", 0, 0, 0, "")]))
