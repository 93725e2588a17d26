"""Pipes without Spark: tests run them with `testkit.pipelines.local_runtime`, and end them at a chosen write."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.change_block import ChangeBlock
from headrace.pipes.lifecycle import base
from headrace.sinks.clickhouse.write.writer import ClickHouseWriter
from testkit.pipelines.local_runtime import LocalRuntime


class Killed(BaseException):
    """Ends the pipe at once; no code catches it."""


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run pipes that are opened from now on in this process."""
    monkeypatch.setattr(base, "SparkRuntime", LocalRuntime)


class Cutter:
    """Counts the blocks sent to the sink, and ends the pipe at a chosen block: before it is sent, or before its response is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[ChangeBlock] = []
        self._at: int | None = None
        self._answered = False
        real = ClickHouseWriter._send

        def send(writer: ClickHouseWriter, connection: Any, route: Any, block: ChangeBlock, settings: dict[str, str]) -> None:
            doomed = self._at is not None and len(self.sent) >= self._at
            if doomed and not self._answered:
                raise Killed
            real(writer, connection, route, block, settings)
            self.sent.append(block)
            if doomed:
                raise Killed

        monkeypatch.setattr(ClickHouseWriter, "_send", send)

    def arm(self, block: int, *, answered: bool) -> None:
        """Kill at this block from now on; `answered`: after it is stored."""
        self.sent.clear()
        self._at, self._answered = block, answered

    def disarm(self) -> None:
        self.sent.clear()
        self._at = None
