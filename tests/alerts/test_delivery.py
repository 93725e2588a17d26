"""Alerts reach receivers that are down, slow or busy, in order; none is lost by `kill -9`; no receiver delays another."""

from __future__ import annotations

import itertools
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.alerts import store as stores
from headrace.alerts.delivery import AlertDelivery
from headrace.alerts.observation import Health, Observation, PipeObservation, SchemaChange
from headrace.alerts.rules import AlertRule
from headrace.alerts.store import AlertStore
from headrace.config.document import parse_document
from headrace.config.load import resolve
from testkit.machine.wait_condition import wait_until
from testkit.servers.alert_receivers import webhook

PIPES = '[sources.a]\nurl = "mysql://u@h/d"\n[sinks.b]\nurl = "chdb:x"\n[pipes.shop]\nsource = "a"\nsink = "b"\n'
WAIT_S = 30.0
BEGAN = time.time()


def rules(**ports: int) -> tuple[AlertRule, ...]:
    sections = "".join(
        f'[alerts.{name}]\nurl = "http://127.0.0.1:{port}/services/path-secret"\ntimeout_seconds = 2\n' for name, port in ports.items()
    )
    return resolve(parse_document(PIPES + sections, "headrace.toml", Path(), {})).alerts


def failed(*names: str) -> Observation:
    """One failed pipe each: one alert each."""
    pipes = tuple(PipeObservation(name, name, Health.FAILED, time.time(), "too wide", remedy="widen it") for name in names)
    return Observation(time.time(), time.monotonic(), pipes, ())


@contextmanager
def delivering(directory: Path, chosen: tuple[AlertRule, ...], **options: float) -> Iterator[AlertStore]:
    with reloading(directory, chosen, **options) as (store, _):
        yield store


Reload = Callable[[tuple[AlertRule, ...]], None]


@contextmanager
def reloading(directory: Path, chosen: tuple[AlertRule, ...], **options: float) -> Iterator[tuple[AlertStore, Reload]]:
    store = AlertStore(directory, chosen, BEGAN)
    with AlertDelivery(store, **{"first_wait_s": 0.05, **options}) as delivery:

        def reload(rules: tuple[AlertRule, ...]) -> None:
            began = time.monotonic()
            store.set_rules(rules, time.time())
            delivery.follow_rules()
            assert time.monotonic() - began < WAIT_S / 6, "a reload waits for no receiver"

        yield store, reload


def threads() -> dict[str, threading.Thread]:
    """Those of receivers, by the names of the rules."""
    prefix = "headrace-alerts-"
    return {one.name.removeprefix(prefix): one for one in threading.enumerate() if one.name.startswith(prefix)}


def test_alerts_arrive_in_order_once_and_are_recorded(tmp_path: Path) -> None:
    with webhook() as receiver, delivering(tmp_path, rules(chat=receiver.port)) as store:
        store.observe(failed("a", "b"))
        store.observe(failed("a", "b", "c"))
        assert store.flush(WAIT_S)
        assert [one.body["pipe"] for one in receiver.posted] == ["a", "b", "c"]
        status = store.status()
    assert [(one.pipe, one.receiver, one.outcome, one.attempts) for one in status.deliveries] == [
        (name, "chat", "sent: HTTP 200", 1) for name in ("c", "b", "a")
    ]
    assert [one.pipe for one in status.open] == ["a", "b", "c"]
    assert "path-secret" not in json.dumps(status.to_json())
    assert "path-secret" not in (tmp_path / "alerts.json").read_text()


def test_a_receiver_that_is_busy_gets_the_alert_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    with webhook() as receiver, delivering(tmp_path, rules(chat=receiver.port)) as store:
        receiver.answers, receiver.headers = [500, 500, 429, 404], {"Retry-After": "1"}
        store.observe(failed("a", "b"))
        wait_until(lambda: len(store.status().deliveries) == 2, WAIT_S)
    assert [(one.body["pipe"], one.headers["answered"]) for one in receiver.posted] == [
        *(("a", status) for status in ("500", "500", "429", "404", "200")),
        ("b", "200"),
    ]
    assert len({one.body["id"] for one in receiver.posted[:5]}) == 1
    times = [one.at for one in receiver.posted[:5]]
    assert all(later - earlier >= 0.95 for earlier, later in itertools.pairwise(times)), "Retry-After is respected"
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, "a receiver that is away does not fill the log"
    assert "it answers 500" in warnings[0]
    assert "path-secret" not in caplog.text


def test_an_alert_that_is_rejected_or_too_old_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "headrace")
    with webhook() as receiver, delivering(tmp_path, rules(chat=receiver.port)) as store:
        receiver.answers = [400]
        store.observe(failed("a", "b"))
        wait_until(lambda: len(store.status().deliveries) == 2, WAIT_S)
        assert [one.outcome for one in store.status().deliveries] == ["sent: HTTP 200", "given up: it answers 400 Bad Request: ok"]
    assert [record.levelname for record in caplog.records if "given up" in record.getMessage()] == ["ERROR"]
    with webhook() as receiver, delivering(tmp_path / "other", rules(chat=receiver.port), max_age_s=0.3) as store:
        receiver.answers = [500] * 100
        store.observe(failed("a"))
        wait_until(lambda: store.status().deliveries, WAIT_S)
        assert store.status().deliveries[0].outcome.startswith("given up: it answers 500")


def test_a_slow_receiver_delays_no_other_and_no_observation(tmp_path: Path) -> None:
    release = threading.Event()
    with webhook() as slow, webhook() as quick, delivering(tmp_path, rules(slow=slow.port, quick=quick.port)) as store:
        slow.hold = lambda: release.wait(WAIT_S)
        began = time.monotonic()
        for number in range(20):
            store.observe(failed(*(f"p{one}" for one in range(number + 1))))
        wait_until(lambda: len(quick.accepted) == 20, WAIT_S)
        assert time.monotonic() - began < WAIT_S / 2
        assert not slow.posted
        release.set()
        wait_until(lambda: len(slow.accepted) >= 20, WAIT_S)
    # The first one took longer than the timeout, or less: it came at least once, and the others exactly once.
    assert sorted({one.body["pipe"] for one in slow.accepted}) == sorted(f"p{one}" for one in range(20))


def test_what_was_not_sent_is_sent_after_a_restart(tmp_path: Path) -> None:
    with webhook() as receiver:
        port = receiver.port
    # Nothing listens there now.
    with delivering(tmp_path, rules(chat=port)) as store:
        store.observe(failed("a"))
        assert store.flush(WAIT_S)
        assert store.status().rules[0].queued == 1
        assert "cannot be reached" in store.status().rules[0].error
    with webhook(port=port) as receiver, delivering(tmp_path, rules(chat=port)) as store:
        # The pipe still fails: that was detected already.
        store.observe(failed("a"))
        wait_until(lambda: receiver.posted, WAIT_S)
        assert store.flush(WAIT_S)
        assert [one.body["pipe"] for one in receiver.posted] == ["a"]
        assert store.status().rules[0].queued == 0
    with webhook(port=port) as receiver, delivering(tmp_path, rules(chat=port)) as store:
        store.observe(failed("a"))
        assert store.flush(WAIT_S)
        time.sleep(0.2)
        assert receiver.posted == []


ALERTING = """
import sys, time
from pathlib import Path
from headrace.alerts.delivery import AlertDelivery
from headrace.alerts.observation import Health, Observation, PipeObservation
from headrace.alerts.store import AlertStore
from headrace.config.document import parse_document
from headrace.config.load import resolve
rules = resolve(parse_document(sys.argv[2], "headrace.toml", Path(), {})).alerts
store = AlertStore(Path(sys.argv[1]), rules, time.time())
pipe = PipeObservation("a", "a", Health.FAILED, time.time(), "too wide")
with AlertDelivery(store):
    store.observe(Observation(time.time(), time.monotonic(), (pipe,), ()))
    time.sleep(60)
"""


def test_an_alert_under_way_survives_kill_9(tmp_path: Path) -> None:
    under_way, release = threading.Event(), threading.Event()
    with webhook() as receiver:
        receiver.hold = lambda: (under_way.set(), release.wait(WAIT_S))
        text = f'{PIPES}[alerts.chat]\nurl = "http://127.0.0.1:{receiver.port}/"\n'
        process = subprocess.Popen([sys.executable, "-c", ALERTING, str(tmp_path), text])
        try:
            assert under_way.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
        release.set()
        wait_until(lambda: receiver.posted, WAIT_S)
        # The receiver has it, but the process was killed before it knew: it comes again, with the same id.
        with delivering(tmp_path, rules(chat=receiver.port)) as store:
            store.observe(failed("a"))
            assert store.flush(WAIT_S)
    assert len(receiver.posted) == 2
    assert len({one.body["id"] for one in receiver.posted}) == 1


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stores, "MAX_QUEUED", 3)
    store = AlertStore(tmp_path, rules(chat=1), BEGAN)
    with caplog.at_level(logging.WARNING, "headrace"):
        store.observe(failed(*"abcde"))
    assert [one["alert"]["pipe"] for one in json.loads((tmp_path / "alerts.json").read_text())["rules"]["chat"]["queue"]] == ["a", "d", "e"]
    assert [(one.pipe, one.outcome) for one in store.status().deliveries] == [
        (name, "dropped: too many alerts wait for this receiver") for name in ("c", "b")
    ]
    assert caplog.text.count("dropped") == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "rules": {}}', '{"version": 1, "rules": {"chat": {"since": "x"}}}'])
def test_a_damaged_file_is_written_again(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "alerts.json").write_text(content)
    with webhook() as receiver, caplog.at_level(logging.WARNING, "headrace"), delivering(tmp_path, rules(chat=receiver.port)) as store:
        store.observe(failed("a"))
        assert store.flush(WAIT_S)
        assert [one.body["pipe"] for one in receiver.posted] == ["a"]
    assert "cannot be read, and is written again" in caplog.text
    assert json.loads((tmp_path / "alerts.json").read_text())["version"] == 1


def test_a_file_that_cannot_be_written_stops_no_alert(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with webhook() as receiver, caplog.at_level(logging.WARNING, "headrace"), delivering(tmp_path, rules(chat=receiver.port)) as store:
        # As on a full disk.
        (tmp_path / "alerts.new").mkdir()
        store.observe(failed("a", "b"))
        assert store.flush(WAIT_S)
        assert [one.body["pipe"] for one in receiver.posted] == ["a", "b"]
    assert caplog.text.count("cannot be written") == 1


def test_rules_that_are_gone_leave_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    AlertStore(tmp_path, rules(chat=1, mail=2), BEGAN).observe(failed("a"))
    with caplog.at_level(logging.WARNING, "headrace"):
        store = AlertStore(tmp_path, rules(mail=2), BEGAN)
    assert "there is no [alerts.chat] any more: 1 alerts" in caplog.text
    assert [rule.name for rule in store.status().rules] == ["mail"]
    assert set(json.loads((tmp_path / "alerts.json").read_text())["rules"]) == {"mail"}


def test_a_changed_address_gets_what_waits_at_once(tmp_path: Path) -> None:
    with webhook() as old, webhook() as new, reloading(tmp_path, rules(chat=old.port)) as (store, reload):
        old.answers, old.headers = [500] * 100, {"Retry-After": "600"}
        store.observe(failed("a", "b"))
        assert store.flush(WAIT_S)
        [first] = old.posted
        reload(rules(chat=new.port))
        wait_until(lambda: len(store.status().deliveries) == 2, WAIT_S)
        assert [one.body["pipe"] for one in new.posted] == ["a", "b"]
        assert new.posted[0].body["id"] == first.body["id"]
        store.observe(failed("a", "b"))
        assert store.flush(WAIT_S)
        assert (len(old.posted), len(new.posted)) == (1, 2), "each alert is sent once"
        [status] = store.status().rules
        assert (status.address, status.queued, status.error) == (f"http://127.0.0.1:{new.port}", 0, "")


def test_a_changed_threshold_shortens_no_wait(tmp_path: Path) -> None:
    with webhook() as receiver, reloading(tmp_path, rules(chat=receiver.port)) as (store, reload):
        receiver.answers, receiver.headers = [429], {"Retry-After": "600"}
        store.observe(failed("a"))
        assert store.flush(WAIT_S)
        [chat] = rules(chat=receiver.port)
        reload((replace(chat, lag_s=7.0),))
        time.sleep(0.5)
        assert len(receiver.posted) == 1
        assert store.status().rules[0].lag_seconds == 7.0
        assert "429" in store.status().rules[0].error
        reload((replace(chat, timeout_s=3.0),))
        wait_until(lambda: receiver.accepted, WAIT_S)


@pytest.mark.parametrize("status", [200, 500])
def test_an_attempt_ends_before_its_receiver_changes(status: int, tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()
    with webhook() as old, webhook() as new, reloading(tmp_path, rules(chat=old.port)) as (store, reload):
        old.hold, old.answers = lambda: (begun.set(), release.wait(WAIT_S)), [status]
        [chat] = rules(chat=old.port)
        reload((replace(chat, timeout_s=WAIT_S),))
        store.observe(failed("a"))
        assert begun.wait(WAIT_S)
        reload(rules(chat=new.port))
        store.observe(failed("a", "b"))
        time.sleep(0.2)
        assert new.posted == []
        release.set()
        wait_until(lambda: len(store.status().deliveries) == 2, WAIT_S)
        accepted = [(one.body["pipe"], hook is new) for hook in (old, new) for one in hook.accepted]
        assert accepted == [("a", status != 200), ("b", True)]


def test_a_receiver_vanishes_during_an_attempt_and_returns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun, release = threading.Event(), threading.Event()
    with webhook() as slow, webhook() as other, reloading(tmp_path, rules(chat=slow.port, other=other.port)) as (store, reload):
        slow.hold = lambda: (begun.set(), release.wait(WAIT_S))
        [chat, kept] = rules(chat=slow.port, other=other.port)
        patient = replace(chat, timeout_s=WAIT_S)
        reload((patient, kept))
        store.observe(failed("a", "b"))
        assert begun.wait(WAIT_S)
        before = threads()
        with caplog.at_level(logging.WARNING, "headrace"):
            reload((kept,))
        assert "there is no [alerts.chat] any more: 2 alerts that waited for it are dropped" in caplog.text
        assert set(json.loads((tmp_path / "alerts.json").read_text())["rules"]) == {"other"}
        assert [rule.name for rule in store.status().rules] == ["other"]
        # It returns while the attempt of its predecessor lasts: what lasts is new for it.
        slow.hold = lambda: None
        reload((patient, kept))
        store.observe(failed("a"))
        wait_until(lambda: [one.body["pipe"] for one in slow.posted] == ["a"], WAIT_S)
        assert store.flush(WAIT_S)
        release.set()
        before["chat"].join(WAIT_S)
        assert not before["chat"].is_alive()
        assert threads()["other"] is before["other"]
        assert sorted(one.body["pipe"] for one in slow.posted) == ["a", "a"], "what was dropped is not sent"
        assert [(one.pipe, one.receiver) for one in store.status().deliveries if one.receiver == "chat"] == [("a", "chat")]
        assert [one.body["pipe"] for one in other.accepted] == ["a", "b"]


def test_an_outcome_belongs_to_the_receiver_that_was_tried(tmp_path: Path) -> None:
    store, [chat] = AlertStore(tmp_path, rules(chat=1), BEGAN), rules(chat=1)
    store.observe(failed("a"))
    tried = store.first("chat")
    assert tried is not None
    assert [store.set_failure("chat", tried.alert, "it answers 500") for _ in range(2)] == [1, 2]
    store.set_rules((replace(chat, lag_s=7.0),), time.time())
    assert store.status().rules[0].error == "it answers 500"
    store.set_rules(rules(chat=2), time.time())
    assert store.first("chat") == replace(tried, attempts=0), "the waits begin again"
    # The section is removed and returns, while an attempt lasts.
    for now in ((), rules(chat=1)):
        store.set_rules(now, time.time())
        assert store.set_failure("chat", tried.alert, "it answers 500") == 0
    store.observe(failed("b"))
    store.finish("chat", tried.alert, "sent")
    assert store.set_failure("chat", tried.alert, "it answers 500") == 0
    waiting = store.first("chat")
    assert waiting is not None
    assert (waiting.alert.pipe, waiting.attempts) == ("b", 0)
    assert store.status().deliveries == ()


def test_a_receiver_vanishes_during_a_wait(tmp_path: Path) -> None:
    with webhook() as receiver, reloading(tmp_path, rules(chat=receiver.port)) as (store, reload):
        receiver.answers, receiver.headers = [500], {"Retry-After": "600"}
        store.observe(failed("a"))
        assert store.flush(WAIT_S)
        thread = threads()["chat"]
        reload(())
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert store.status().rules == store.status().open == ()
        store.observe(failed("b"))
        reload(rules(chat=receiver.port))
        store.observe(failed("c"))
        wait_until(lambda: [one.body["pipe"] for one in receiver.accepted] == ["c"], WAIT_S)


def test_schema_changes_survive_in_the_file(tmp_path: Path) -> None:
    change = SchemaChange(BEGAN + 5, "shop.orders", "ALTER", "applied")
    pipe = PipeObservation("shop", "shop", Health.RUNS, BEGAN, schema_changes=(change,))
    seen = Observation(BEGAN + 6, 0.0, (pipe,), ())
    AlertStore(tmp_path, rules(chat=1), BEGAN).observe(seen)
    again = AlertStore(tmp_path, rules(chat=1), BEGAN + 60)
    again.observe(replace(seen, pipes=(replace(pipe, schema_changes=(replace(change, at=change.at + 0.4),)),)))
    assert again.status().rules[0].queued == 1
