"""The supervisor's state machine, with scripted pipes: failures, retries and requests."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.config.configuration import Configuration, ConfiguredPipe, ProcessSettings
from headrace.errors import DefiniteError, TransientError
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.pipes.state.event_skips import EventSkips, skipped_events
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import WaitState, use_wait_state
from headrace.runtime.interface import Runtime
from headrace.service import pipe_runner as runner_module
from headrace.service import supervisor as supervisor_module
from headrace.service import verify_jobs
from headrace.service.merge_tables import plan_merge_tables
from headrace.service.status import MetricSample, PipeStage, PipeStatus
from headrace.service.status_collector import SampleHistory, StatusCollector, merge_history
from headrace.service.supervisor import Supervisor, _shared_spark, measure_usage
from headrace.settings.pipe_keys import TopicKeys
from headrace.settings.pipe_settings import PipeSettings
from headrace.spark.runtime.worker_logs import log_marked_line
from headrace.spark.spark_runtime import SparkRuntime
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.scripted_pipes import PATIENCE_S, Scenario, ScriptedPipe, configuration, stage, supervised


def test_a_definite_error_fails_one_pipe_and_leaves_the_others(tmp_path: Path) -> None:
    bad = DefiniteError("a column is too wide", place="table shop.orders", hint="widen it")
    scenarios = {"good": Scenario("run"), "bad": Scenario(bad), "odd": Scenario(ZeroDivisionError("by the test"))}
    with supervised(configuration(tmp_path, ("good", ("good",)), ("bad", ("bad",)), ("odd", ("odd",))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.FAILED and stage(supervisor, "odd") is PipeStage.FAILED, PATIENCE_S)
        wait_until(lambda: stage(supervisor, "good") is PipeStage.STREAMING, PATIENCE_S)
        found = supervisor.pipe("bad")
        assert found.error is not None
        assert (found.error.message, found.error.place, found.error.remedy) == ("a column is too wide", "table shop.orders", "widen it")
        assert not found.error.transient
        assert found.errors == 1
        odd = supervisor.pipe("odd").error
        assert odd is not None
        assert "ZeroDivisionError" in odd.message
        time.sleep(0.2)
        assert scenarios["bad"].runs == 1, "a definite error is not tried again"
        assert "secret" not in str(supervisor.status().to_json())
        # A person has resumed it.
        scenarios["bad"].acts.append("run")
        supervisor.resume("bad")
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.STREAMING, PATIENCE_S)
        assert supervisor.pipe("bad").error is None
        assert len(supervisor.pipe("bad").recent_errors) == 1
        assert scenarios["good"].runs == 1
        assert scenarios["good"].seen == ["good"], "log lines and wait states have the pipe's name"
    assert stage(supervisor, "good") is PipeStage.STOPPED


def test_the_event_that_a_pipe_halts_at_is_skipped_and_nothing_else(tmp_path: Path) -> None:
    poison = DefiniteError("no such date", place="table shop.orders", event="binlog.000001:120")
    scenarios = {"good": Scenario("run"), "bad": Scenario(poison, "run")}
    with supervised(configuration(tmp_path, ("good", ("good",)), ("bad", ("bad",))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.FAILED and stage(supervisor, "good") is PipeStage.STREAMING, PATIENCE_S)
        error = supervisor.pipe("bad").error
        assert error is not None
        assert error.skippable == "binlog.000001:120"
        for name, place, message in (("bad", "binlog.000001:4", "does not halt at"), ("good", "binlog.000001:120", "it runs")):
            with pytest.raises(DefiniteError, match=message):
                supervisor.skip(name, place)
        assert "binlog.000001:120" in supervisor.skip("bad", "binlog.000001:120")
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.STREAMING, PATIENCE_S)
        assert EventSkips(tmp_path / "bad").pending == {"binlog.000001:120"}


def test_a_transient_error_is_retried_after_growing_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MAX_RETRY_WAIT_S", 0.4)
    away = TransientError("the server is away", place="db:3306")
    scenarios = {"p": Scenario(away, away, away, away, "run")}
    begun = time.monotonic()
    with supervised(configuration(tmp_path, ("p", ("p",))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.RETRYING, PATIENCE_S)
        assert supervisor.pipe("p").error is not None
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        assert time.monotonic() - begun >= 0.05 + 0.1 + 0.2 + 0.4
        found = supervisor.pipe("p")
        assert (found.retries, found.errors, scenarios["p"].runs) == (4, 4, 5)
        scenarios["p"].waited = "the sink is away"
        wait_until(lambda: stage(supervisor, "p") is PipeStage.WAITING, PATIENCE_S)
        assert supervisor.pipe("p").waiting == "the sink is away"


def test_resume_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    scenarios = {"p": Scenario(TransientError("away"), "run")}
    asked = configuration(tmp_path, ("p", ("p",)))
    asked = Configuration(asked.file, ProcessSettings(tmp_path, retry_seconds=3600), asked.pipes)
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.RETRYING, PATIENCE_S)
        assert supervisor.pipe("p").next_try > time.time() + 100
        supervisor.resume("p")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)


def test_a_clock_that_is_set_back_does_not_delay_the_next_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = {"p": Scenario(TransientError("away"), "run")}
    asked = configuration(tmp_path, ("p", ("p",)))
    asked = Configuration(asked.file, ProcessSettings(tmp_path, retry_seconds=1), asked.pipes)
    real = time.time
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.RETRYING, PATIENCE_S)
        monkeypatch.setattr(runner_module, "time", SimpleNamespace(time=lambda: real() - 3600, monotonic=time.monotonic))
        assert supervisor.pipe("p").next_try == pytest.approx(real() - 3600 + 1, abs=5), "the time follows the current clock"
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)


def test_a_pause_outlives_the_process_and_a_stop_does_not(tmp_path: Path) -> None:
    asked = configuration(tmp_path, ("a", ("a",)), ("b", ("b",)))
    scenarios = {"a": Scenario("run"), "b": Scenario("run")}
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in "ab"), PATIENCE_S)
        supervisor.pause("a")
        supervisor.stop("b")
        wait_until(lambda: stage(supervisor, "a") is PipeStage.PAUSED and stage(supervisor, "b") is PipeStage.STOPPED, PATIENCE_S)
        assert not StateDirectory(tmp_path / "a").is_owned
    scenarios = {"a": Scenario("run"), "b": Scenario("run")}
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "b") is PipeStage.STREAMING, PATIENCE_S)
        assert stage(supervisor, "a") is PipeStage.PAUSED
        assert scenarios["a"].runs == 0
        supervisor.resume("a")
        wait_until(lambda: stage(supervisor, "a") is PipeStage.STREAMING, PATIENCE_S)
    scenarios = {"a": Scenario("run"), "b": Scenario("run")}
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "a") is PipeStage.STREAMING, PATIENCE_S)


def test_a_pause_of_a_pipe_that_has_failed_stays_and_one_that_is_disabled_is_left_alone(tmp_path: Path) -> None:
    scenarios = {"bad": Scenario(DefiniteError("wrong"), "run"), "off": Scenario("run")}
    asked = configuration(tmp_path, ("bad", ("bad",)), ("off", ("off",)), disabled=("off",))
    with supervised(asked, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.FAILED, PATIENCE_S)
        supervisor.pause("bad")
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.PAUSED, PATIENCE_S)
        supervisor.resume("bad")
        wait_until(lambda: stage(supervisor, "bad") is PipeStage.STREAMING, PATIENCE_S)
        assert stage(supervisor, "off") is PipeStage.DISABLED
        for ask in (supervisor.pause, supervisor.resume, supervisor.stop, lambda name: supervisor.resync(name, ["shop.orders"])):
            with pytest.raises(DefiniteError, match="disabled"):
                ask("off")
        with pytest.raises(DefiniteError, match="no pipe 'other'") as caught:
            supervisor.pause("other")
        assert "bad, off" in caught.value.hint
    assert scenarios["off"].runs == 0
    assert not (tmp_path / "off").exists()


def test_parts_of_one_pipe_are_asked_together_or_singly_and_seen_as_one(tmp_path: Path) -> None:
    scenarios = {"shop/east": Scenario("run"), "shop/west": Scenario(DefiniteError("wrong"), "run")}
    with supervised(configuration(tmp_path, ("shop", ("shop/east", "shop/west"))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "shop/east") is PipeStage.STREAMING, PATIENCE_S)
        wait_until(lambda: stage(supervisor, "shop/west") is PipeStage.FAILED, PATIENCE_S)
        whole = supervisor.pipe("shop")
        assert (whole.stage, whole.group, whole.changes) == (PipeStage.FAILED, "shop", 7)
        supervisor.resume("shop/west")
        wait_until(lambda: stage(supervisor, "shop") is PipeStage.STREAMING, PATIENCE_S)
        assert supervisor.pipe("shop").changes == 14
        supervisor.pause("shop/east")
        wait_until(lambda: stage(supervisor, "shop/east") is PipeStage.PAUSED, PATIENCE_S)
        assert stage(supervisor, "shop/west") is PipeStage.STREAMING
        supervisor.pause("shop")
        wait_until(lambda: stage(supervisor, "shop") is PipeStage.PAUSED, PATIENCE_S)
        wait_until(lambda: len(supervisor.history("shop/east")) >= 2, PATIENCE_S)


def test_pipes_that_are_done_end_the_process_and_failures_show_in_how(tmp_path: Path) -> None:
    scenarios = {"a": Scenario("end"), "b": Scenario(TransientError("away"), "end")}
    with supervised(configuration(tmp_path, ("a", ("a",)), ("b", ("b",))), scenarios) as supervisor:
        assert supervisor.wait()
        assert all(stage(supervisor, name) is PipeStage.STOPPED for name in "ab")
    with supervised(configuration(tmp_path, ("a", ("a",))), {"a": Scenario(DefiniteError("wrong"))}) as supervisor:
        assert not supervisor.wait()
    with supervised(configuration(tmp_path, ("a", ("a",))), {"a": Scenario("run")}) as supervisor:
        threading.Timer(0.3, supervisor.end).start()
        assert supervisor.wait()


def test_a_resume_during_the_stop_takes_effect(tmp_path: Path) -> None:
    scenarios = {"p": Scenario("run")}
    with supervised(configuration(tmp_path, ("p", ("p",))), scenarios) as supervisor:
        for runs in range(1, 6):
            wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
            supervisor.pause("p")
            supervisor.resume("p")
            wait_until(lambda runs=runs: scenarios["p"].runs > runs, PATIENCE_S)  # type: ignore[misc]


def test_a_pipe_resumed_during_a_sink_outage_is_retried_after_a_wait(tmp_path: Path) -> None:
    scenario, away, built = Scenario("run"), threading.Event(), []

    @contextmanager
    def build(spec: PipeSpec, view: ProgressView, _: Runtime) -> Iterator[BuiltPipe]:
        built.append(time.monotonic())
        if away.is_set():
            raise TransientError("the sink is away", place="ch:8123")
        yield BuiltPipe(ScriptedPipe(scenario, spec.settings, view), lambda: False)

    asked = configuration(tmp_path, ("p", ("p",)))
    asked = Configuration(asked.file, ProcessSettings(tmp_path, retry_seconds=0.2), asked.pipes)
    with Supervisor(asked, build=build, runtime=SparkRuntime()) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        supervisor.pause("p")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.PAUSED, PATIENCE_S)
        away.set()
        supervisor.resume("p")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.RETRYING, PATIENCE_S)
        found = supervisor.pipe("p").error
        assert found is not None
        assert found.message == "the sink is away"
        assert len(built) < 5, "it is not tried again without a wait"
        away.clear()
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)


def test_waits_of_a_pipes_processes_are_reported_to_its_run(tmp_path: Path) -> None:
    scenarios = {"p": Scenario("run")}
    with supervised(configuration(tmp_path, ("p", ("p",))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        with use_wait_state(WaitState(pipe="p")):
            # A `verify` job, for example.
            pass
        assert log_marked_line("headrace-log WARNING p/ waiting: the server is away; try 1\n")
        assert not log_marked_line("headrace-log WARNING\n"), "the process ended while it wrote the line"
        wait_until(lambda: stage(supervisor, "p") is PipeStage.WAITING, PATIENCE_S)


def test_a_comparison_ends_with_the_process_and_unexpected_errors_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def compare(spec: PipeSpec, tables: Any) -> Iterator[Any]:
        if spec.name == "odd":
            raise ZeroDivisionError("by the test")
        begun.set()
        while True:
            time.sleep(0.01)
            verify_jobs._StoppableView().advanced("shop.orders", 1)
        yield tables

    monkeypatch.setattr(supervisor_module, "verify_pipe", compare)
    scenarios = {"p": Scenario("run"), "odd": Scenario("run")}
    with supervised(configuration(tmp_path, ("p", ("p",)), ("odd", ("odd",))), scenarios) as supervisor:
        wait_until(lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in scenarios), PATIENCE_S)
        supervisor.verify("odd")
        wait_until(lambda: supervisor.pipe("odd").recent_errors, PATIENCE_S)
        assert "ZeroDivisionError" in supervisor.pipe("odd").recent_errors[0].message
        wait_until(lambda: supervisor.pipe("odd").tables[0].verify is not None, PATIENCE_S)
        supervisor.verify("p")
        assert begun.wait(PATIENCE_S)
        with pytest.raises(DefiniteError, match="already"):
            supervisor.verify("p")
        ending = threading.Thread(target=supervisor.close)
        ending.start()
        ending.join(PATIENCE_S)
        assert not ending.is_alive()
        assert not supervisor.pipe("p").recent_errors


def test_what_is_wrong_with_the_figures_of_one_pipe_leaves_the_others_theirs(tmp_path: Path) -> None:
    scenarios = {"p": Scenario("run"), "q": Scenario("run")}
    with supervised(configuration(tmp_path, ("p", ("p",)), ("q", ("q",))), scenarios) as supervisor:
        wait_until(lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in scenarios), PATIENCE_S)
        (tmp_path / "p" / "skips.jsonl").write_text("no JSON\n")
        known = len(supervisor.history("q"))
        wait_until(lambda: len(supervisor.history("q")) >= known + 3, PATIENCE_S)


def test_merged_tables_keep_the_rows_of_all_sources() -> None:
    def part(name: str, *targets: str) -> Any:
        view = StatusCollector()
        view.tables({f"shop.{number}": target for number, target in enumerate(targets)})
        return SimpleNamespace(name=name, view=view)

    both = [part("shop/east", "shop.east_orders", "shop.east_notes"), part("shop/west", "shop.west_orders")]
    all_of_them = {"shop.orders": ("east_orders", "west_orders"), "shop.notes": ("east_notes", "west_notes")}
    assert plan_merge_tables("{source}_", both) == all_of_them
    assert plan_merge_tables("{source}_", [both[0], part("shop/west")]) == all_of_them
    assert plan_merge_tables("{source}_", [part("shop/east"), both[1]]) == {"shop.orders": ("east_orders", "west_orders")}
    assert plan_merge_tables("{source}_", [part("shop/east", "shop.other", "shop.east_"), part("shop/west", "")]) == {}


def test_pipe_metrics_continue_over_runs(tmp_path: Path) -> None:
    scenarios = {"p": Scenario("run")}
    with supervised(configuration(tmp_path, ("p", ("p",))), scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        supervisor.stop("p")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STOPPED, PATIENCE_S)
        supervisor.resume("p")
        wait_until(lambda: supervisor.pipe("p").batches == 2, PATIENCE_S)
        found: PipeStatus = supervisor.pipe("p")
        assert (found.changes, found.bytes, found.position) == (14, 140, "binlog.000001:4")
        [table] = found.tables
        assert (table.name, table.changes, table.last_change) == ("shop.orders", 14, 1.0)


def test_process_names_do_not_affect_usage() -> None:
    # The kernel cuts names to 15 bytes, possibly within a character.
    code = "open('/proc/self/comm', 'wb').write('éééééééé'.encode()); print('named', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        assert named.stdout.readline() == b"named\n"
        assert measure_usage(os.getpid())[0] > 0
        named.communicate(b"\n")


def test_skips_of_any_event_are_read_back(tmp_path: Path) -> None:
    skips = EventSkips(tmp_path)
    skips.record_skipped([{"place": "binlog.000001:120", "table": "shop.orders", "content": "one\u2028two\u0085three\udc80"}])
    assert skipped_events(tmp_path) == 1
    assert EventSkips(tmp_path).pending == frozenset()


def test_history_is_a_ring_and_parts_of_a_pipe_add_up() -> None:
    history = SampleHistory(3)
    for second in range(5):
        history.add(MetricSample(float(second), second * 1.0, None if second == 3 else 0.5, second))
    assert history.samples() == [MetricSample(2.0, 2.0, 0.5, 2), MetricSample(3.0, 3.0, None, 3), MetricSample(4.0, 4.0, 0.5, 4)]
    other = [MetricSample(3.0, 10.0, 2.0, None)]
    assert merge_history([history.samples(), other])[1] == MetricSample(3.0, 13.0, 2.0, 3)


def test_pipes_of_one_process_share_the_kafka_connector_and_add_their_own_jars(tmp_path: Path) -> None:
    def reading(name: str, folder: str) -> ConfiguredPipe:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "spark-sql-kafka-0-10_2.13.jar").touch()
        settings = PipeSettings(Selection(("*.*",)), tmp_path / name, name=name)
        spec = PipeSpec("kafka://h:1/t", "chdb:x", settings, topics=TopicKeys(kafka_jars=str(tmp_path / folder)))
        return ConfiguredPipe(name, (spec,))

    process = ProcessSettings(tmp_path, spark={"spark.jars": "mine.jar", "spark.cores.max": "4"})
    shared = _shared_spark(Configuration("f", process, (reading("a", "one"), reading("b", "one"))))
    assert shared._more.items() >= {"spark.jars": f"{tmp_path}/one/spark-sql-kafka-0-10_2.13.jar,mine.jar", "spark.cores.max": "4"}.items()
    with pytest.raises(DefiniteError, match="want different connectors"):
        _shared_spark(Configuration("f", process, (reading("a", "one"), reading("b", "two"))))
