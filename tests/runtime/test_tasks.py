"""A task that Spark starts again: allowed if the sink merges, refused if its writes would count twice."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from headrace.errors import TransientError
from headrace.model.change_block import ChangeBlock
from headrace.runtime.reports import MarkReached, SplitDone, StatementReached, TableWrites, filtered_rows
from headrace.runtime.tasks import TASK_ATTEMPT, SplitGroup, Task, separate_driver_splits
from headrace.sources.base import Json, Split
from headrace.sources.splits import MarkSplit, StatementSplit, encode_split
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


def test_a_repeated_task_does_not_read_a_counting_split_again() -> None:
    task = Task(Nothing(), Nothing(), lambda call: call())
    chunk = NumberSplit(1, once=True)
    assert task._run(chunk) == SplitDone({"position": {}})
    second = TASK_ATTEMPT.set(1)
    try:
        assert task._run(replace(chunk, once=False)) == SplitDone({"position": {}})
        with pytest.raises(TransientError, match="started a task again"):
            task._run(chunk)
    finally:
        TASK_ATTEMPT.reset(second)


def test_the_driver_processes_marks_and_statements_itself() -> None:
    statement = StatementSplit({"statement": "ALTER TABLE t ADD c INT"}, {"at": 2})
    encoded = [encode_split(one) for one in (NumberSplit(1), statement, MarkSplit({"at": 1}), NumberSplit(2))]
    assert separate_driver_splits(encoded) == ([encoded[0], encoded[3]], [StatementReached(statement), MarkReached({"at": 1})])


@dataclass(frozen=True)
class FewChanges:
    """A block of one table."""

    changes: int
    subject: str = "shop.orders"
    nbytes: int = 8
    newest: int = 5


@dataclass
class FewBlocks(Nothing):
    """A reader of three blocks, and the writer that gets them."""

    written: list[int] = field(default_factory=list)

    def read(self, split: NumberSplit) -> Generator[FewChanges, None, Json]:  # type: ignore[override]
        del split
        yield from (FewChanges(3), FewChanges(1), FewChanges(2))
        return {}

    def write(self, block: FewChanges) -> None:  # type: ignore[override]
        self.written.append(block.changes)


def test_changes_that_a_filter_excludes_are_reported_and_not_written() -> None:
    def leave_out_one(block: FewChanges) -> FewChanges:
        return replace(block, changes=block.changes - 1)

    both = FewBlocks()
    done = Task(both, both, lambda call: call(), leave_out_one)._run(NumberSplit(1))
    assert done == SplitDone({}, (TableWrites("shop.orders", 3, 16, 5, filtered=3),))
    assert filtered_rows(done.written) == {"shop.orders": 3}
    assert both.written == [2, 1]
    every = FewBlocks()
    plain = Task(every, every, lambda call: call())._run(NumberSplit(1))
    assert plain == SplitDone({}, (TableWrites("shop.orders", 6, 24, 5),))
    assert filtered_rows(plain.written) == {}
    assert every.written == [3, 1, 2]


@dataclass
class TogetherWriter(FewBlocks):
    """A writer that finishes all blocks together, at the second attempt."""

    is_away: bool = True
    completed: list[list[int]] = field(default_factory=list)

    def complete(self) -> None:
        if self.is_away:
            self.is_away = False
            raise TransientError("the sink is away")
        self.completed.append(list(self.written))


def try_twice(call: Callable[[], None]) -> None:
    try:
        call()
    except TransientError:
        call()


def test_a_writer_that_defers_work_completes_it_before_the_split_is_reported() -> None:
    both = TogetherWriter()
    Task(both, both, try_twice)._run(NumberSplit(1))
    assert both.completed == [[3, 1, 2]]
    away = TogetherWriter()
    with pytest.raises(TransientError):
        Task(away, away, lambda call: call())._run(NumberSplit(1))
    assert away.closed == ["writer"]


def test_a_split_that_failed_is_not_completed() -> None:
    both = TogetherWriter(is_away=False)

    def refuse(_: FewChanges) -> FewChanges:
        raise TransientError("a block cannot be read")

    with pytest.raises(TransientError):
        Task(both, both, lambda call: call(), refuse)._run(NumberSplit(1))
    assert (both.completed, both.closed) == ([], ["writer"])


def test_reports_of_a_group_go_to_the_splits_that_made_them() -> None:
    splits = [NumberSplit(number) for number in range(3)]
    reports = [SplitDone(number, (TableWrites(f"table{number}", 1, 8, 0),)) for number in range(3)]
    paired = SplitGroup(Task(Nothing(), Nothing(), lambda call: call()), splits).pair_reports(reports)
    assert list(paired) == list(zip(splits, reports, strict=True))


def test_a_split_without_a_report_is_noticed() -> None:
    group = SplitGroup(Task(Nothing(), Nothing(), lambda call: call()), [NumberSplit(1), NumberSplit(2)])
    with pytest.raises(ValueError, match="zip"):
        list(group.pair_reports([SplitDone(None)]))
