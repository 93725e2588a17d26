"""The supervisor stores the log lines of each pipe, also over a restart; secrets are masked."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from headrace.errors import DefiniteError
from headrace.retry import WaitState, use_wait_state
from headrace.service.pipe_logs import PipeLogs
from headrace.service.supervisor import Supervisor, UnknownPipe
from headrace.telemetry.log_reader import LogQuery
from headrace.telemetry.log_writer import MAX_LINE, log_directory, segments
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.scripted_pipes import PATIENCE_S, Scenario, configuration, supervised

log = logging.getLogger("headrace")


@pytest.fixture(autouse=True)
def all_levels() -> None:
    log.setLevel(logging.INFO)


def messages(supervisor: Supervisor | PipeLogs, pipe: str, query: LogQuery = LogQuery()) -> list[str]:  # noqa: B008
    page = supervisor.page(pipe, query) if isinstance(supervisor, PipeLogs) else supervisor.log(pipe, query)
    return [line.message for line in page.lines]


def test_each_pipe_has_its_lines_also_after_a_restart(tmp_path: Path) -> None:
    asked = configuration(tmp_path, ("good", ("good",)), ("orders", ("orders/east", "orders/west")))
    bad = DefiniteError("cannot read mysql://repl:hidden@db:3306/shop", place="table shop.orders", hint="widen it")
    with supervised(asked, {"good": Scenario("run"), "orders/east": Scenario(bad), "orders/west": Scenario("run")}) as supervisor:
        wait_until(lambda: messages(supervisor, "orders/east", LogQuery("error")), PATIENCE_S)
        [failed] = supervisor.log("orders/east", LogQuery("error")).lines
        assert failed.message == "failed: cannot read mysql://repl:***@db:3306/shop"
        assert (failed.place, failed.remedy) == ("table shop.orders", "widen it")
        supervisor.pause("good")
        wait_until(lambda: "pause requested" in messages(supervisor, "good"), PATIENCE_S)
        assert messages(supervisor, "good", LogQuery("error")) == []
        with pytest.raises(UnknownPipe):
            supervisor.log("nowhere", LogQuery())
        with pytest.raises(DefiniteError, match="several sources"):
            supervisor.log("orders", LogQuery())
    with supervised(asked, {name: Scenario("run") for name in ("good", "orders/east", "orders/west")}) as supervisor:
        assert "pause requested" in messages(supervisor, "good")
        assert supervisor.log("orders/east", LogQuery("error")).lines == (failed,)


def test_long_and_odd_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The handler of pytest raises for a record that cannot be formatted.
    monkeypatch.setattr(log, "propagate", False)
    logs = PipeLogs(tmp_path, ["shop"], 0.0)
    logs.start()
    with use_wait_state(WaitState(pipe="shop")):
        log.info("%s", "\x00" * 100_000)
        log.info("\ud800 %s", "\U0001f600" * 100_000)
        # A record that cannot be formatted ends nothing.
        log.info("%d", "no number")
        try:
            raise ValueError("y" * 100_000)
        except ValueError:
            log.exception("x" * 100_000)
    log.info("a line of no pipe")
    logs.close()
    log.info("after the end")
    page = logs.page("shop", LogQuery())
    assert [line.level for line in page.lines] == ["info", "info", "error"]
    assert "ValueError" in page.lines[2].exception
    [(_, path)] = segments(log_directory(tmp_path, "shop"))
    assert all(len(line) < MAX_LINE for line in path.read_bytes().splitlines())


def test_a_forked_process_stores_nothing(tmp_path: Path) -> None:
    logs = PipeLogs(tmp_path, ["shop"], 0.0)
    logs.start()
    with use_wait_state(WaitState(pipe="shop")):
        child = os.fork()
        if not child:
            # Must not wait for the writer's lock, whose thread does not exist here.
            log.info("of the child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        log.info("of the parent")
    logs.close()
    assert messages(logs, "shop") == ["of the parent"]
