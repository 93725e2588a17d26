"""Lag by its one definition: the age of the oldest change that is committed at the source and not yet visible in the sink."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from headrace.pipes.lifecycle.progress_view import Lag, Pending, TerminalView, lag_text
from headrace.sources.mysql.binlog import commit_times
from headrace.sources.mysql.binlog.commit_times import BacklogFile, BacklogWriter, log_place
from headrace.sources.mysql.kernels import scan

FILE = "binlog.000007"


def groups(*found: tuple[int, float], exact: bool = True) -> npt.NDArray[np.int64]:
    """Transactions by their end in the log and their commit time."""
    made = np.zeros((len(found), scan.GROUP_COLUMNS), dtype=np.int64)
    for row, (end, committed) in zip(made, found, strict=True):
        row[scan.END], row[scan.KIND], row[scan.TIME] = end, scan.DATA, int(committed)
        row[scan.COMMITTED] = round(committed * 1e6) if exact else 0
    return made


@pytest.fixture
def relay(tmp_path: Path) -> tuple[BacklogWriter, BacklogFile]:
    path = tmp_path / "relay" / "backlog"
    assert BacklogFile(path).read() is None
    return BacklogWriter(path), BacklogFile(path)


def since(file: BacklogFile, offset: int, now: float | None = None) -> float | None:
    found = file.read()
    assert found is not None
    micros = found.pending_since(log_place(FILE, offset), round((time.time() if now is None else now) * 1e6))
    return None if micros is None else micros / 1e6


def test_the_oldest_transaction_behind_the_applied_position_counts(relay: tuple[BacklogWriter, BacklogFile]) -> None:
    writer, file = relay
    assert file.read() is None, "the lag is unknown before the source has answered"
    now = time.time()
    writer.received(FILE, groups((100, now - 30), (200, now - 20), (300, now - 10)), is_open=False)
    assert [since(file, at) for at in (50, 100, 200)] == pytest.approx([now - 30, now - 20, now - 10], abs=1e-5)
    assert since(file, 300) is None
    writer.applied(FILE, 200)
    writer.received(FILE, groups((400, now - 5)), is_open=False)
    assert [since(file, at) for at in (200, 300)] == pytest.approx([now - 10, now - 5], abs=1e-5)


def test_a_transaction_that_is_still_coming_is_pending(relay: tuple[BacklogWriter, BacklogFile]) -> None:
    writer, file = relay
    before = time.time()
    writer.received(FILE, groups(), is_open=True)
    first = since(file, 10)
    assert first == pytest.approx(before, abs=1)
    writer.received(FILE, groups(), is_open=True)
    assert since(file, 10) == first, "it is as old as its first bytes"
    writer.received(FILE, groups((50, before)), is_open=False)
    assert since(file, 50) is None


def test_what_is_committed_while_the_source_is_silent_is_not_known(relay: tuple[BacklogWriter, BacklogFile]) -> None:
    writer, file = relay
    writer.heard(idle=True)
    heard = time.time()
    assert since(file, 10, heard + 4) is None
    assert since(file, 10, heard + 90) == pytest.approx(heard, abs=1)


@pytest.mark.parametrize("off_s", [-3600, 0, 3600])
def test_clocks_of_servers_do_not_matter(relay: tuple[BacklogWriter, BacklogFile], off_s: int) -> None:
    writer, file = relay
    now = time.time()
    writer.set_server_clock(off_s * 1_000_000)
    writer.received(FILE, groups((100, now + off_s - 50)), is_open=False)
    assert since(file, 0) == pytest.approx(now - 50, abs=1e-5)
    # The server's clock is set while the stream runs: a change after a heartbeat was committed after it, and before its arrival.
    writer.applied(FILE, 100)
    writer.heard(idle=True)
    writer.set_server_clock(0)
    writer.received(FILE, groups((200, now + 2 * off_s)), is_open=False)
    assert since(file, 100) == pytest.approx(now, abs=1)


def test_logs_without_exact_commit_times(relay: tuple[BacklogWriter, BacklogFile]) -> None:
    writer, file = relay
    now = time.time()
    writer.received(FILE, groups((100, now - 600), exact=False), is_open=False)
    assert since(file, 0) == pytest.approx(now - 599.5, abs=0.6)
    writer.applied(FILE, 100)
    writer.received(FILE, groups((200, now), exact=False), is_open=False)
    assert since(file, 100) == pytest.approx(now, abs=0.5), "a change of at most a second has the age of its arrival"


@pytest.mark.parametrize("arrival", ["at once", "one by one", "in mixed order"])
def test_a_long_backlog_is_kept_in_little_space(
    relay: tuple[BacklogWriter, BacklogFile], monkeypatch: pytest.MonkeyPatch, arrival: str
) -> None:
    """A commit time is off by at most a fifth of its age, for any times of transactions and any progress of the pipe."""
    writer, file = relay
    begin_ns, count = time.time_ns(), 20_000
    passed_ns = 0 if arrival == "one by one" else count * 10**9
    clock = SimpleNamespace(time_ns=lambda: begin_ns + passed_ns, monotonic_ns=lambda: passed_ns)
    monkeypatch.setattr(commit_times, "time", clock)
    writer.set_server_clock(0)
    begin, true = begin_ns / 1e9, np.arange(count, dtype=np.float64)
    if arrival == "in mixed order":
        true[::2] += 3600.0
    for first in range(0, count, 100):
        if arrival == "one by one":
            passed_ns = (first + 100) * 10**9
        found = groups(*((at + 1, begin + true[at]) for at in range(first, first + 100)))
        writer.received(FILE, found, is_open=False)
    # The pipe catches up: the oldest unapplied transaction counts.
    oldest = np.minimum.accumulate(np.minimum(true, passed_ns / 1e9)[::-1])[::-1]
    for at in range(0, count, 37):
        since_s = since(file, at)
        assert since_s is not None
        early_s = begin + oldest[at] - since_s
        # Commit times are whole microseconds.
        assert -1e-5 <= early_s <= max(0.2 * (count - oldest[at]), 0.1) + 1e-5, at
    assert since(file, count) is None


def test_a_running_pipe_reports_its_lag() -> None:
    lag = Lag()
    assert lag.seconds(100.0) is None
    lag.say(Pending(None), 100.0)
    assert lag.seconds(101.0) == 0.0
    lag.looked(100, 500, 400, 101.0)
    lag.say(Pending(101.5), 102.0)
    assert (lag.seconds(102.5), lag.size) == (1.0, 400), "the log's end is queried less often, and is less precise"
    lag.say(Pending(None), 103.0)
    assert lag.seconds(103.0) == 0.0
    lag.say(None, 104.0)
    assert lag.seconds(104.0) == 0.0, "unknown for a moment"


def test_a_stopped_pipe_falls_behind_when_its_source_changes() -> None:
    lag = Lag()
    lag.say(Pending(None), 100.0)
    for second in range(101, 120):
        lag.looked(7, 7, 0, second)
    assert lag.seconds(120.0) == 0.0
    lag.looked(7, 9, 2, 120.0)
    lag.looked(7, 20, 13, 121.0)
    assert lag.seconds(130.0) == 10.5, "committed between the samples at 119 and 120"
    lag.looked(9, 20, 11, 131.0)
    assert lag.seconds(131.0) == 10.5, "the next end came between 120 and 121"
    lag.looked(20, 20, 0, 132.0)
    assert lag.seconds(132.0) == 0.0


def test_a_pipe_that_has_just_stopped_falls_behind_at_once() -> None:
    lag = Lag()
    lag.looked(7, 7, 0, 96.0)
    lag.say(Pending(None), 100.0)
    lag.looked(7, 9, 2, 100.5)
    assert lag.seconds(100.5) == 0.0, "the running pipe is more precise"
    lag.stop()
    assert lag.seconds(101.0) == 0.75, "committed after the pipe reported that nothing is pending"
    # Sampled ends of the log are reached when the pipe reports it, not at the next sample.
    lag.looked(9, 20, 11, 110.0)
    lag.say(Pending(113.0), 114.0)
    lag.stop()
    assert lag.seconds(114.0) == 1.0
    lag.looked(20, 30, 10, 115.0)
    assert lag.seconds(115.0) == 2.0


def test_what_was_pending_when_a_pipe_stopped_still_is() -> None:
    lag = Lag()
    lag.say(Pending(90.0), 100.0)
    assert lag.seconds(200.0) == 110.0


def test_an_unreachable_source_may_have_new_changes() -> None:
    lag = Lag()
    lag.looked(7, 7, 0, 100.0)
    assert lag.seconds(110.0) == 0.0
    assert lag.seconds(400.0) == 300.0


def test_lag_is_not_that_of_a_log_that_is_gone() -> None:
    lag = Lag()
    lag.looked(9_000, 9_500, 500, 1.0)
    # A failover: the new server's log has other numbers.
    lag.looked(100, 200, 100, 60.0)
    assert lag.seconds(61.0) == 1.0
    lag.looked(200, 200, 0, 65.0)
    assert lag.seconds(70.0) == 0.0


def test_the_terminal_shows_the_lag_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    view, lines = TerminalView(), list[str]()
    clock = iter(range(100))
    monkeypatch.setattr("headrace.pipes.lifecycle.progress_view.time.monotonic", lambda: float(next(clock)) * 2)
    monkeypatch.setattr(view, "_show", lines.append)
    view.batch(10, 900.0, "binlog.000001:4")
    view.pending(Pending(time.time() - 33))
    view.pending(None)
    assert [line.split(" · ")[2] for line in lines] == ["lag 900.0 s", "lag 33.0 s", "lag unknown"]
    assert (lag_text(0.04), lag_text(None)) == ("lag 0.0 s", "lag unknown")


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_lag_under_load_while_the_clock_of_this_machine_is_set(
    relay: tuple[BacklogWriter, BacklogFile], monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """Under load no heartbeat comes: only the server's commit times are known, and its clock was not set."""
    writer, file = relay
    server = time.time()
    writer.received(FILE, groups((100, server - 50)), is_open=False)
    set_ns, real_ns = step_s * 10**9, time.time_ns
    stepped = SimpleNamespace(time_ns=lambda: real_ns() + set_ns, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(commit_times, "time", stepped)
    writer.received(FILE, groups((200, server - 20)), is_open=True)
    now = server + step_s
    assert [since(file, at, now) for at in (0, 100)] == pytest.approx([now - 50, now - 20], abs=1)
    assert since(file, 200, now) == pytest.approx(now, abs=1)
