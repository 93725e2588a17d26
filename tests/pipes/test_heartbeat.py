"""A running pipe writes a heartbeat every few seconds, also when the system's clock is set."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.pipes.lifecycle import progress_reporter
from headrace.pipes.lifecycle.progress_reporter import ProgressReporter
from headrace.pipes.state.stored_progress import FileProgressStore
from headrace.sources.mysql.server.position import BinlogPosition
from testkit.machine.wait_condition import wait_until


def seen_s(store: FileProgressStore) -> float:
    stored = store.progress("p")
    assert stored is not None
    return stored.seen_us / 1e6


@pytest.mark.parametrize("step_s", [-3600, 3600])
@pytest.mark.parametrize("restarted", [False, True])
def test_heartbeats_continue_after_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int, restarted: bool) -> None:
    monkeypatch.setattr(progress_reporter, "BEAT_S", 0.2)
    store, position = FileProgressStore(tmp_path), BinlogPosition("binlog.000001", 4)
    reporter = ProgressReporter(SimpleNamespace(progress_store=store), "p", "mysql://host/", lambda: ())
    reporter.begin(position, is_new=True)
    reporter.batch(position, 1, 0)
    real_ns = time.time_ns
    monkeypatch.setattr(progress_reporter, "_now_us", lambda: real_ns() // 1000 + step_s * 1_000_000)
    if restarted:
        reporter = ProgressReporter(SimpleNamespace(progress_store=store), "p", "mysql://host/", lambda: ())
        reporter.begin(position, is_new=False)
    with reporter.heartbeats():
        wait_until(lambda: abs(seen_s(store) - time.time() - step_s) <= 5, 20)
