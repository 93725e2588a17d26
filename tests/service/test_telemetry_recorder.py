"""The supervisor records starts, errors, pauses and ends of its pipes; a damaged or unwritable file stops no pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.service.status import PipeStage
from headrace.service.status_collector import StatusCollector
from headrace.service.supervisor import Supervisor, UnknownPipe
from headrace.telemetry.event import EventKind
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.scripted_pipes import PATIENCE_S, Scenario, configuration, stage, supervised

SECRET = "mysql://repl:hidden@db:3306/shop"


def kinds(supervisor: Supervisor, pipe: str) -> list[str]:
    """The events of a pipe, oldest first."""
    return [str(event.kind) for event in reversed(supervisor.events(pipe, 100))]


def test_a_life_is_recorded_and_survives_a_restart(tmp_path: Path) -> None:
    asked = configuration(tmp_path, ("good", ("good",)), ("orders", ("orders/east", "orders/west")))
    bad = DefiniteError(f"cannot read {SECRET}\nforged", place="table shop.orders", hint="widen it")
    script = {"good": Scenario("run"), "orders/east": Scenario(bad), "orders/west": Scenario(TransientError("refused"), "run")}
    with supervised(asked, script) as supervisor:
        wait_until(lambda: kinds(supervisor, "orders/east") == ["started", "failed"], PATIENCE_S)
        wait_until(lambda: kinds(supervisor, "orders/west")[:2] == ["started", "error"], PATIENCE_S)
        failed = supervisor.events("orders/east", 1)[0]
        assert failed.text == "cannot read mysql://repl:***@db:3306/shop\\nforged"
        assert (failed.place, failed.remedy) == ("table shop.orders", "widen it")
        assert {event.pipe for event in supervisor.events("orders", 100)} == {"orders/east", "orders/west"}
        supervisor.pause("good")
        wait_until(lambda: stage(supervisor, "good") is PipeStage.PAUSED, PATIENCE_S)
        wait_until(lambda: kinds(supervisor, "good") == ["started", "paused"], PATIENCE_S)
        with pytest.raises(UnknownPipe):
            supervisor.events("nowhere", 1)
        wait_until(lambda: supervisor.metrics("good", "1h").points, PATIENCE_S)
    stored = (tmp_path / "events.jsonl").read_text()
    assert "hidden" not in stored
    with supervised(asked, {"good": Scenario("run"), "orders/east": Scenario("run"), "orders/west": Scenario("run")}) as supervisor:
        assert kinds(supervisor, "good") == ["started", "paused"], "it is still paused"
        [*_, point] = supervisor.metrics("orders", "30d").points
        assert (point.copied, supervisor.metrics("orders", "30d").step_s) == (0.0, 900)
        wait_until(lambda: kinds(supervisor, "orders/east") == ["started", "failed", "started"], PATIENCE_S)
        everything = supervisor.events("", 100)
        assert everything == sorted(everything, key=lambda event: event.at, reverse=True)
        assert [event.text for event in supervisor.events("orders/east", 1)] == [everything[0].text]
    assert '"stopped"' in (tmp_path / "events.jsonl").read_text()


def test_a_damaged_file_stops_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with supervised(configuration(tmp_path, ("good", ("good",))), {"good": Scenario("run")}) as supervisor:
        wait_until(lambda: stage(supervisor, "good") is PipeStage.STREAMING, PATIENCE_S)
        wait_until(lambda: kinds(supervisor, "good") == ["started"], PATIENCE_S)


def test_snapshots_and_failovers_are_milestones() -> None:
    collector = StatusCollector()
    collector.snapshot_begins({"shop.a": 1200}, {"shop.a": 200})
    collector.snapshot_rows("shop.a", 1000, True)
    collector.snapshot_ends(1000, 0.5)
    collector.snapshot_begins({}, {})
    collector.snapshot_ends(0, 0.0)
    collector.failover("continues by GTID on db2:3306")
    found = [(event.kind, event.text) for event in collector.take_milestones()]
    assert found == [
        (EventKind.SNAPSHOT_STARTED, "snapshot of 1 table, about 1,200 rows, 200 there already"),
        (EventKind.SNAPSHOT_FINISHED, "snapshot complete: 1,000 rows in 0.5 s (2,000 rows/s)"),
        (EventKind.FAILOVER, "continues by GTID on db2:3306"),
    ]
    assert collector.take_milestones() == []
