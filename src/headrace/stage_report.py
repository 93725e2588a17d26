"""Logs the stage of work that takes long: a start-up, the plan of a snapshot, a comparison.

`report_stages` logs the current stage of its block when the block has lasted a second, and then often enough that two seconds never pass
without a line. A short block logs nothing. The code in the block names its stage with `enter_stage` or `count_stage`, at any depth, and in
every thread that has the block's context. Without a report these functions have no effect. Lines go to the log, so they have its format
(text or JSON), its stream (the standard error) and the pipe's name.

Do not open a report in a generator around a `yield`: the caller would inherit it. `report_iteration` is for the results of a generator.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Final, TypeVar

log = logging.getLogger("headrace")

T = TypeVar("T")
FIRST_S: Final = 1.0
"""When the first line of a report is logged."""
EVERY_S: Final = 1.5
"""The time between two lines."""


class StageReport:
    """Logs its stage from a thread until it is ended."""

    def __init__(self, stage: str) -> None:
        self._ended = threading.Event()
        # One assignment replaces both, so that the thread never sees the count of another stage.
        self._current = stage, ""
        self._since = time.monotonic()
        threading.Thread(target=copy_context().run, args=(self._run,), name="headrace-stages", daemon=True).start()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def stage(self) -> str:
        return self._current[0]

    def enter(self, stage: str, count: str = "") -> None:
        """Name the current stage; its time starts now if the name is new."""
        if stage != self.stage:
            self._since = time.monotonic()
        self._current = stage, count

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._ended.wait(wait_s):
            stage, count = self._current
            log.info("%s%s … (%.0f s)", stage, count, time.monotonic() - self._since)
            wait_s = EVERY_S


_reports: ContextVar[StageReport | None] = ContextVar("headrace-stages", default=None)


def _active_report() -> StageReport | None:
    report = _reports.get()
    # A thread that was started in a report's block may outlive it.
    return None if report is None or report.is_ended else report


@contextmanager
def report_stages(stage: str) -> Iterator[None]:
    """Report the stages of the block, beginning with this one. Inside another report the block is one of its stages."""
    outer = _active_report()
    if outer is not None:
        before = outer.stage
        outer.enter(stage)
        try:
            yield
        finally:
            outer.enter(before)
        return
    report = StageReport(stage)
    token = _reports.set(report)
    try:
        yield
    finally:
        report.end()
        _reports.reset(token)


def enter_stage(stage: str, count: str = "") -> None:
    """Name the stage that begins now. `count` says how far it is."""
    report = _active_report()
    if report is not None:
        report.enter(stage, count)


def count_stage(stage: str, items: Sequence[T], unit: str) -> Iterator[T]:
    """Yield the items of a stage; its lines say how many are done: `planning the snapshot: 120 of 384 tables`."""
    for number, item in enumerate(items):
        enter_stage(stage, f": {number} of {len(items)} {unit}")
        yield item


def end_report() -> None:
    """End the current report before its block ends: its work is done, or something else shows the progress from now on."""
    report = _active_report()
    if report is not None:
        report.end()


def report_iteration(stage: str, items: Iterator[T]) -> Iterator[T]:
    """Yield the items of a generator, and report its stages while it computes the next one."""
    while True:
        with report_stages(stage):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
