"""The monitor sees each state of a pipe as alerts mean it, reports failures before the process ends, and delays nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.alerts import detector
from headrace.alerts.observation import Health, LastComparison
from headrace.config.configuration import Configuration
from headrace.config.document import parse_document
from headrace.config.load import resolve
from headrace.service import alert_monitor
from headrace.service.alert_monitor import AlertMonitor, measure_disks, observe_pipe
from headrace.service.pipe_runner import PipeRunner
from headrace.service.status import ErrorStatus, PipeStage, PipeStatus, SchemaChangeStatus, TableStatus, VerifyResult
from testkit.machine.wait_condition import wait_until
from testkit.servers.alert_receivers import Webhook, webhook

PIPE = PipeStatus("shop", "shop", "mysql://h/d", "chdb:x", PipeStage.STREAMING, 5.0, lag_s=0.4)
ERROR = ErrorStatus("a column is too wide", "table shop.orders", "widen it")


@dataclass
class Scripted:
    """A runner whose status a test sets."""

    spec: Any
    told: PipeStatus = PIPE

    def __post_init__(self) -> None:
        self.shown = SimpleNamespace(group=self.told.group)

    def status(self) -> PipeStatus:
        return self.told


def configuration(directory: Path, port: int, address: str = "https://headrace.example.com") -> Configuration:
    text = (
        f'[headrace]\nstate = "state"\naddress = "{address}"\n'
        '[sources.a]\nurl = "mysql://u@h/d"\nrelay = "relay"\n[sinks.b]\nurl = "chdb:warehouse"\n[pipes.shop]\nsource = "a"\nsink = "b"\n'
        f'[alerts.chat]\nurl = "http://127.0.0.1:{port}/x"\nlow_disk = 0\n'
    )
    return resolve(parse_document(text, "headrace.toml", directory, {}))


def monitor(directory: Path, port: int, began: float = 1.0) -> tuple[AlertMonitor, Scripted]:
    chosen = configuration(directory, port)
    runner = Scripted(chosen.pipes[0].specs[0])
    return AlertMonitor(chosen, [cast(PipeRunner, runner)], began), runner


def alert_threads() -> set[threading.Thread]:
    """The monitor's and its receivers'; those of earlier tests may still end."""
    return {one for one in threading.enumerate() if one.name.startswith("headrace-alerts")}


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as found:
        yield found


def test_every_stage_has_a_meaning() -> None:
    idle = {PipeStage.DISABLED, PipeStage.PAUSED, PipeStage.STOPPING, PipeStage.STOPPED}
    away = {PipeStage.STARTING, PipeStage.WAITING, PipeStage.RETRYING}
    for stage in PipeStage:
        health = observe_pipe(replace(PIPE, stage=stage)).health
        meant = Health.IDLE if stage in idle else Health.AWAY if stage in away else Health.RUNS
        assert health is (Health.FAILED if stage is PipeStage.FAILED else meant)


def test_what_the_alerts_need_is_taken_from_the_status() -> None:
    tables = (TableStatus("shop.a", verify=VerifyResult(9.0, "different", 10, 5, different=2, missing=1, extra=1)), TableStatus("shop.b"))
    changes = (SchemaChangeStatus(7.0, "shop.a", "ALTER TABLE a CONNECTION='mysql://u:hidden@h/d'", "applied"),)
    seen = observe_pipe(replace(PIPE, stage=PipeStage.FAILED, error=ERROR, tables=tables, schema_changes=changes))
    assert (seen.message, seen.place, seen.remedy, seen.since, seen.lag_s) == (*(ERROR.message, ERROR.place, ERROR.remedy), 5.0, 0.4)
    assert seen.comparisons == (LastComparison("shop.a", "different", 9.0, 4), LastComparison("shop.b", ""))
    assert [one.statement for one in seen.schema_changes] == ["ALTER TABLE a CONNECTION='mysql://u:***@h/d'"]
    assert observe_pipe(replace(PIPE, stage=PipeStage.WAITING, waiting="the sink is away")).message == "the sink is away"


def test_a_failure_is_sent_before_the_process_ends_and_once(hook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "RECOVERY_S", 0.5)
    watching, runner = monitor(tmp_path, hook.port)
    watching.start()
    # It fails, and nothing is left to run: the process ends at once.
    runner.told = replace(PIPE, stage=PipeStage.FAILED, error=ERROR)
    watching.close()
    [posted] = hook.posted
    assert posted.body["kind"] == "failed"
    assert posted.body["link"] == "https://headrace.example.com/#/pipes/shop"
    assert posted.body["remedy"] == "widen it"
    # The next process fails, too; the one after it runs.
    watching, runner = monitor(tmp_path, hook.port)
    watching.start()
    runner.told = replace(PIPE, stage=PipeStage.FAILED, error=ERROR)
    watching.close()
    assert len(hook.posted) == 1
    watching, runner = monitor(tmp_path, hook.port)
    watching.start()
    wait_until(lambda: hook.kinds() == ["failed", "recovered"], 60)
    assert hook.posted[1].body["recovers"] == posted.body["id"]
    assert watching.status().open == ()
    watching.close()


def test_an_end_waits_for_a_slow_receiver_for_a_few_seconds_only(hook: Webhook, tmp_path: Path) -> None:
    release = threading.Event()
    hook.hold = lambda: release.wait(60)
    watching, runner = monitor(tmp_path, hook.port)
    watching.start()
    runner.told = replace(PIPE, stage=PipeStage.FAILED, error=ERROR)
    began = time.monotonic()
    watching.observe()
    assert time.monotonic() - began < 20, "an observation does not wait for the receiver"
    watching.close()
    assert time.monotonic() - began < 40
    release.set()


def test_an_error_in_a_status_does_not_end_the_alerts(hook: Webhook, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watching, runner = monitor(tmp_path, hook.port)
    good = runner.told
    runner.told = cast(PipeStatus, None)
    watching.observe()
    watching.observe()
    assert caplog.text.count("the pipes cannot be observed") == 1
    runner.told = replace(good, stage=PipeStage.FAILED, error=ERROR)
    watching.start()
    watching.close()
    assert hook.kinds() == ["failed"]


def test_without_rules_there_is_no_thread_and_no_file(tmp_path: Path) -> None:
    chosen = replace(configuration(tmp_path, 1), alerts=())
    before = threading.active_count()
    watching = AlertMonitor(chosen, [], 1.0)
    watching.start()
    watching.observe()
    assert threading.active_count() == before
    assert watching.status().rules == ()
    watching.close()
    assert list(tmp_path.iterdir()) == []


def test_a_reload_adds_the_first_rule_changes_it_and_removes_it(hook: Webhook, tmp_path: Path) -> None:
    chosen, bare = configuration(tmp_path, hook.port), configuration(tmp_path, hook.port, "")
    change = SchemaChangeStatus(time.time() - 1, "shop.a", "ALTER TABLE a", "applied")
    runner = Scripted(chosen.pipes[0].specs[0], replace(PIPE, stage=PipeStage.FAILED, error=ERROR, schema_changes=(change,)))
    runners, file = [cast(PipeRunner, runner)], tmp_path / "state" / "alerts.json"
    watching = AlertMonitor(replace(chosen, alerts=()), runners, 1.0)
    watching.server_url = "http://127.0.0.1:8088"
    watching.start()
    assert not file.exists()
    watching.configure(chosen, runners)
    assert file.exists()
    wait_until(lambda: hook.kinds() == ["failed"], 60)
    assert hook.posted[0].body["link"] == "https://headrace.example.com/#/pipes/shop"
    [opened] = watching.status().open

    # An unchanged rule repeats nothing; links have the address of the file, or the one that the dashboard listens on.
    for now, link in ((bare, "http://127.0.0.1:8088/#/pipes/shop"), (chosen, "https://headrace.example.com/#/pipes/shop")):
        watching.configure(now, runners)
        before = len(hook.posted)
        seen = SchemaChangeStatus(time.time(), "shop.a", f"ALTER TABLE a {before}", "applied")
        runner.told = replace(runner.told, schema_changes=(seen, *runner.told.schema_changes))
        wait_until(lambda before=before: len(hook.posted) > before, 60)  # type: ignore[misc]
        assert hook.posted[-1].body["link"] == link
    assert hook.kinds() == ["failed", "schema_change", "schema_change"]
    assert watching.status().open == (opened,)

    watching.configure(replace(chosen, alerts=()), runners)
    assert (watching.status().rules, watching.status().open) == ((), ())
    runner.told = PIPE
    time.sleep(1.5)
    watching.configure(chosen, runners)
    runner.told = replace(PIPE, stage=PipeStage.FAILED, error=ERROR)
    wait_until(lambda: len(hook.posted) == 4, 60)
    watching.close()
    assert hook.kinds() == ["failed", "schema_change", "schema_change", "failed"]
    assert hook.posted[3].body["id"] != opened.id


def test_a_rule_that_was_gone_at_the_start_returns_as_a_new_one(hook: Webhook, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watching, runner = monitor(tmp_path, hook.port)
    runner.told = replace(PIPE, stage=PipeStage.FAILED, error=ERROR)
    # It is queued, and the process is killed.
    watching.observe()
    chosen, before = configuration(tmp_path, hook.port), alert_threads()
    watching = AlertMonitor(replace(chosen, alerts=()), [cast(PipeRunner, runner)], time.time())
    watching.start()
    assert "there is no [alerts.chat] any more: 1 alerts" in caplog.text
    assert alert_threads() <= before
    runner.told = PIPE
    watching.configure(chosen, [cast(PipeRunner, runner)])
    time.sleep(0.5)
    assert (watching.status().open, watching.status().rules[0].queued) == ((), 0)
    watching.close()
    assert hook.posted == []


def test_rules_of_a_process_that_starts_or_ends_start_no_thread(hook: Webhook, tmp_path: Path) -> None:
    chosen, before = configuration(tmp_path, hook.port), alert_threads()
    watching = AlertMonitor(replace(chosen, alerts=()), [], 1.0)
    watching.configure(chosen, [])
    assert alert_threads() <= before
    watching.start()
    assert {one.name for one in alert_threads() - before} == {"headrace-alerts", "headrace-alerts-chat"}
    watching.close()
    watching.configure(chosen, [])
    wait_until(lambda: alert_threads() <= before, 60)


def test_free_space_is_measured_where_pipes_write(hook: Webhook, tmp_path: Path) -> None:
    watching, _ = monitor(tmp_path, hook.port)
    assert {path.name for path, _ in watching._directories} == {"state", "relay", "warehouse"}
    # Directories of one file system are one measurement; one that does not exist counts as its parent.
    [disk] = measure_disks([(tmp_path / "no" / "such", "shop"), (tmp_path, "crm"), (tmp_path, "shop")])
    assert disk.directory == str(tmp_path)
    assert disk.groups == ("shop", "crm")
    assert disk.free > 0
    other = [
        one for one in measure_disks([(tmp_path, "a"), (Path("/proc"), "b"), (Path("/dev/shm/x"), "c")]) if one.directory == "/dev/shm"
    ]
    assert [one.groups for one in other] == [("c",)]


def test_disks_are_measured_now_and_then(hook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, _ = monitor(tmp_path, hook.port)
    measured: list[int] = []
    monkeypatch.setattr(alert_monitor, "measure_disks", lambda found: (measured.append(len(found)), ())[1])
    for _ in range(5):
        watching.observe()
    assert measured == [3]
