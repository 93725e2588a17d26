"""The interface between pipes and the engine that runs their tasks.

`headrace.spark` implements it with Spark. Tests implement it with threads of their own process (`testkit.pipelines.local_runtime`).
`tests/runtime/test_runtime_contract.py` checks what both have in common:

- A task gets a copy of its description, as another process would.
- A Headrace error that a task raises reaches the driver as the same error.
- A batch of a stream counts when it is in the checkpoint, and that happens after `run` has returned. If `run` raises, the next start
  plans the same batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.errors import TransientError
from headrace.runtime.reports import Report, SplitDone
from headrace.runtime.tasks import SplitGroup, Task, TaskFunction
from headrace.sources.base import Source, Split

if TYPE_CHECKING:
    from headrace.sources.debezium.offset_range_reader import OffsetRange, Subscription

OnSplitDone = Callable[[Split, SplitDone], None]
RunTask = Callable[[TaskFunction], list[Report]]
"""Runs a task over the splits of a batch."""
OnBatch = Callable[[RunTask, int], None]
"""Processes a batch: gets the function that runs a task over it, and the number of the batch."""
RunRanges = Callable[[TaskFunction, "Sequence[OffsetRange]"], list[Report]]
"""Runs a task for each of these ranges of offsets."""
OnRecordBatch = Callable[[RunRanges, "Sequence[OffsetRange]", int], None]
"""Processes a batch of Kafka records: gets the function that runs a task, the ranges of the batch, and the number of the batch."""
LOOP_S = 0.25
"""How often a pipe that follows its log checks for other work."""
STOP_TIMEOUT_S = 30.0
"""How long a stop waits for a running task before it cancels the task."""


class WorkerStartTimeout(TransientError):
    """A worker process did not start in time, because the machine is too busy. No data is lost."""


class BatchStream(Protocol):
    """A running stream of micro-batches."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the stream; True if it has ended. Raises the error that ended it."""

    def stop(self) -> None:
        """End the stream after the current batch, or cancel that batch if it waits for a server."""

    def paused(self) -> AbstractContextManager[None]:
        """Run no batch inside the block."""


class RuntimeSession(Protocol):
    """Runs the tasks of one pipe."""

    @property
    def task_slots(self) -> int:
        """How many tasks run at the same time."""

    @property
    def is_local(self) -> bool:
        """Whether all tasks run on this machine."""

    @property
    def always_fetches_segments(self) -> bool:
        """Whether tasks always fetch log segments from the source, and never read the relay's copy of the log."""

    @property
    def plan_wait_s(self) -> float:
        """How long a planner may wait for changes."""

    @property
    def helper_pid(self) -> int | None:
        """The process that runs tasks and may outlive this one for a moment; None if there is none."""

    def run_groups(
        self, groups: Sequence[SplitGroup], parallelism: int, on_done: OnSplitDone, on_idle: Callable[[], None] = lambda: None
    ) -> None:
        """Run groups of splits, `parallelism` at a time, and call `on_done` for each finished split in the calling thread.

        `on_idle` is called at intervals. An error that it raises cancels the splits.
        """

    def run_splits(
        self,
        task: TaskFunction,
        splits: Sequence[Split],
        parallelism: int,
        on_done: OnSplitDone,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Run each split in a task of its own; see `run_groups`."""

    def stream_splits(self, source: Source, checkpoint: Path, run: OnBatch) -> BatchStream:
        """Start a stream of a source that plans its own batches. `run` may run several tasks over a batch, each of them repeatedly."""

    def stream_changes(
        self, source: Source, checkpoint: Path, task: Callable[[], Task], on_batch: Callable[[list[Report]], None]
    ) -> BatchStream:
        """Start a stream that runs one task per batch; `on_batch` gets its reports."""

    def stream_records(self, subscription: Subscription, checkpoint: Path, run: OnRecordBatch) -> BatchStream:
        """Start a stream of Kafka topics. While the cluster does not answer, `wait` raises `KafkaUnavailable`."""


class Runtime(Protocol):
    """Starts sessions."""

    @property
    def is_shared(self) -> bool:
        """Whether the engine keeps running when a pipe has ended, because other pipes use it."""

    def session(
        self, master: str, directory: Path, *, spark_log: bool, preload: Sequence[str], more: Mapping[str, str] | None
    ) -> AbstractContextManager[RuntimeSession]:
        """Return a session that ends with the block.

        `directory`: where the session keeps scratch files; `preload`: modules that workers import when they start; `more`: settings of
        the engine.
        """
