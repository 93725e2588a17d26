"""Work that takes long says what it does, at least every two seconds; short work says nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from headrace import stage_report
from headrace.retry import WaitState, bind_context, current_wait, use_wait_state
from headrace.stage_report import count_stage, end_report, enter_stage, report_iteration, report_stages


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines so far; the reports are faster than those of users."""
    monkeypatch.setattr(stage_report, "FIRST_S", 0.05)
    monkeypatch.setattr(stage_report, "EVERY_S", 0.02)
    log = logging.getLogger("headrace")
    propagates, log.propagate = log.propagate, True
    with caplog.at_level(logging.INFO, logger="headrace"):
        yield caplog.messages
    log.propagate = propagates


def await_line(caplog: pytest.LogCaptureFixture, text: str) -> None:
    deadline = time.monotonic() + 10
    while not any(text in message for message in caplog.messages):
        assert time.monotonic() < deadline, caplog.messages
        time.sleep(0.01)


def test_two_seconds_never_pass_without_a_line() -> None:
    assert stage_report.FIRST_S <= 1.0
    assert stage_report.EVERY_S < 2.0


@pytest.mark.usefixtures("lines")
def test_a_short_block_is_silent(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_report, "FIRST_S", 0.5)
    with report_stages("starting Spark"):
        enter_stage("starting Spark again")
    time.sleep(0.7)
    assert not caplog.messages


@pytest.mark.usefixtures("lines")
def test_a_long_block_names_its_stages_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    with report_stages("connecting"):
        await_line(caplog, "connecting … (0 s)")
        for number in count_stage("planning the snapshot", range(3), "tables"):
            await_line(caplog, f"planning the snapshot: {number} of 3 tables … (0 s)")
    ended = list(caplog.messages)
    time.sleep(0.2)
    assert caplog.messages == ended


@pytest.mark.usefixtures("lines")
def test_a_block_within_another_is_one_of_its_stages(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with report_stages("outer"):
        with report_stages("inner"):
            assert threading.active_count() == before + 1
            await_line(caplog, "inner")
        caplog.clear()
        await_line(caplog, "outer")


@pytest.mark.usefixtures("lines")
def test_an_error_ends_the_report(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="wrong"), report_stages("outer"):
        raise ValueError("wrong")
    time.sleep(0.2)
    assert not caplog.messages


@pytest.mark.usefixtures("lines")
def test_a_report_that_was_ended_reports_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with report_stages("start-up"):
        end_report()
        enter_stage("streaming")
        time.sleep(0.2)
        assert not caplog.messages
        # What begins later has its own report, also in this block.
        with report_stages("starting Spark"):
            await_line(caplog, "starting Spark")


@pytest.mark.usefixtures("lines")
def test_a_thread_with_the_context_names_stages(caplog: pytest.LogCaptureFixture) -> None:
    with report_stages("connecting"):
        thread = threading.Thread(target=bind_context(enter_stage), args=("from a thread",))
        thread.start()
        thread.join()
        await_line(caplog, "from a thread")
        other = threading.Thread(target=enter_stage, args=("of another pipe",))
        other.start()
        other.join()
        time.sleep(0.1)
    assert not any("of another pipe" in message for message in caplog.messages)


@pytest.mark.usefixtures("lines")
def test_lines_belong_to_the_pipe() -> None:
    pipes: set[str] = set()

    class Pipes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002
            pipes.add(current_wait().pipe)

    handler = Pipes()
    logging.getLogger("headrace").addHandler(handler)
    try:
        with use_wait_state(WaitState(pipe="shop")), report_stages("connecting"):
            time.sleep(0.2)
    finally:
        logging.getLogger("headrace").removeHandler(handler)
    assert pipes == {"shop"}


@pytest.mark.usefixtures("lines")
def test_a_generator_is_reported_while_it_computes(caplog: pytest.LogCaptureFixture) -> None:
    def results() -> Iterator[int]:
        enter_stage("first")
        await_line(caplog, "first")
        yield 1
        enter_stage("second")
        await_line(caplog, "second")
        yield 2

    seen = []
    for result in report_iteration("waiting", results()):
        seen.append(result)
        # The consumer of a result is not part of the stage.
        caplog.clear()
        time.sleep(0.1)
        assert not caplog.messages
    assert seen == [1, 2]
