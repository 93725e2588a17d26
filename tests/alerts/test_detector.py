"""Each condition is reported once, and its end once; schema changes are reported once, also over restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.alerts.alert import Alert, AlertKind
from headrace.alerts.detector import RECOVERY_S, Detector, RuleState, dashboard_link, duration_text
from headrace.alerts.observation import DiskObservation, Health, LastComparison, Observation, PipeObservation, SchemaChange
from headrace.alerts.rules import AlertRule
from headrace.config.document import parse_document
from headrace.config.load import resolve

PIPES = '[sources.a]\nurl = "mysql://u@h/d"\n[sinks.b]\nurl = "chdb:x"\n[pipes.shop]\nsource = "a"\nsink = "b"\n'
START = 1_000_000.0
PIPE = PipeObservation("shop", "shop", Health.RUNS, START)
FAILED = replace(PIPE, health=Health.FAILED, message="a column is too wide", place="table shop.orders", remedy="widen it", since=START + 3)


def rule(more: str = "") -> AlertRule:
    [found] = resolve(parse_document(f'{PIPES}[alerts.chat]\nurl = "https://h/x"\n{more}', "headrace.toml", Path(), {})).alerts
    return found


@dataclass
class Scene:
    """A detector with a clock. `restart` begins another process with the stored state."""

    rule: AlertRule
    now: float = 0.0
    began: float = START
    state: RuleState = field(default_factory=lambda: RuleState(START))
    detector: Detector = field(init=False)

    def __post_init__(self) -> None:
        self.detector = Detector(self.rule, self.state, self.began)

    def restart(self) -> None:
        self.began = START + self.now
        self.__post_init__()

    def change(self, more: str) -> None:
        """Give the running detector another rule."""
        self.rule = rule(more)
        self.detector.set_rule(self.rule)

    def see(self, pipe: PipeObservation | None = None, *, after: float = 1.0, disks: tuple[DiskObservation, ...] = ()) -> list[Alert]:
        self.now += after
        pipes = () if pipe is None else (pipe,)
        return self.detector.observe(Observation(START + self.now, self.now, pipes, disks, "https://headrace.example.com/"))

    def kinds(self, *pipes: PipeObservation, after: float = 1.0) -> list[str]:
        return [str(alert.kind) for pipe in pipes for alert in self.see(pipe, after=after)]


def test_a_failure_is_reported_once_with_all_that_a_person_needs_and_so_is_its_end() -> None:
    scene = Scene(rule())
    assert scene.see(PIPE) == []
    [alert] = scene.see(FAILED)
    assert (alert.kind, alert.pipe, alert.summary) == (AlertKind.FAILED, "shop", "shop: failed: a column is too wide")
    assert (alert.place, alert.remedy, alert.since) == ("table shop.orders", "widen it", START + 3)
    assert alert.link == "https://headrace.example.com/#/pipes/shop"
    assert scene.kinds(FAILED, FAILED, after=500) == []
    # It is resumed, and fails at once again; then it runs.
    assert scene.kinds(replace(PIPE, health=Health.AWAY), PIPE, FAILED, replace(PIPE, health=Health.AWAY), PIPE) == []
    [ended] = scene.see(PIPE, after=RECOVERY_S)
    assert (ended.kind, ended.recovers, ended.since) == (AlertKind.RECOVERED, alert.id, alert.since)
    assert ended.summary.startswith("shop: runs again, after 16 min 5")
    assert ended.details == ("it was: shop: failed: a column is too wide",)
    assert scene.kinds(PIPE, FAILED) == ["failed"], "a new failure is a new alert"


def test_a_restart_repeats_no_alert_and_still_reports_the_end() -> None:
    scene = Scene(rule())
    assert scene.kinds(FAILED) == ["failed"]
    scene.restart()
    assert scene.kinds(replace(PIPE, health=Health.AWAY), FAILED, FAILED) == []
    scene.restart()
    assert scene.kinds(PIPE, PIPE, after=RECOVERY_S) == ["recovered"]
    scene.restart()
    assert scene.kinds(PIPE, PIPE, after=RECOVERY_S) == []


def test_a_pause_ends_no_failure() -> None:
    scene = Scene(rule())
    idle = replace(PIPE, health=Health.IDLE)
    assert scene.kinds(FAILED, idle, idle, idle, after=100) == ["failed"]
    assert scene.kinds(PIPE, PIPE, after=RECOVERY_S) == ["recovered"]


def test_a_pipe_that_stays_away_is_reported_after_a_while() -> None:
    scene = Scene(rule("away_seconds = 60"))
    away = replace(PIPE, health=Health.AWAY, message="the sink does not answer", remedy="start it")
    assert scene.kinds(away, away, PIPE, after=50) == []
    assert scene.kinds(away, away, after=59) == []
    [alert] = scene.see(away)
    assert alert.summary == "shop: does not run: the sink does not answer"
    assert (alert.remedy, alert.details) == ("start it", ("it is retried by itself",))
    # It halts: that is the same trouble.
    assert scene.kinds(FAILED, PIPE) == []
    assert scene.kinds(PIPE, after=RECOVERY_S) == ["recovered"]


def test_lag_must_last() -> None:
    scene = Scene(rule("lag_seconds = 60\nlag_for_seconds = 300"))
    late, near, unknown = (replace(PIPE, lag_s=lag) for lag in (61.0, 60.0, None))
    assert scene.kinds(late, late, near, late, unknown, late, late, after=250) == []
    [alert] = scene.see(late, after=50)
    assert alert.summary == "shop: 1 min 1 s behind its source, for 5 min more than 60 s"
    assert alert.since == pytest.approx(START + scene.now - 300)
    assert alert.remedy
    assert scene.kinds(late, unknown, near, unknown, near, after=4) == [], "the end must last, too"
    [ended] = scene.see(near, after=RECOVERY_S)
    assert (ended.kind, ended.recovers) == (AlertKind.RECOVERED, alert.id)
    # Pauses and halts are no lag.
    halted = replace(late, health=Health.IDLE)
    assert scene.kinds(halted, halted, replace(halted, health=Health.FAILED), after=400) == ["failed"]


def test_only_chosen_events_of_chosen_pipes() -> None:
    scene = Scene(rule('events = ["lag", "recovered"]\nlag_for_seconds = 0'))
    assert scene.kinds(FAILED, PIPE) == []
    assert scene.kinds(PIPE, after=RECOVERY_S) == [], "an end whose beginning was not sent is not sent"
    assert scene.kinds(replace(PIPE, lag_s=100.0)) == ["lag"]
    other = replace(FAILED, name="crm", group="crm")
    chosen = rule('pipes = ["sh*"]')
    assert Scene(chosen).kinds(other) == []
    assert Scene(chosen).kinds(replace(FAILED, name="shop/east")) == ["failed"]
    assert Scene(rule('events = ["failed"]')).kinds(FAILED, PIPE, PIPE, after=RECOVERY_S) == ["failed"]


def changed(*changes: tuple[float, str]) -> PipeObservation:
    """The status has the newest change first."""
    found = [SchemaChange(START + at, "shop.orders", statement, "applied") for at, statement in changes]
    return replace(PIPE, schema_changes=tuple(sorted(found, key=lambda one: -one.at)))


def test_schema_changes_are_reported_once_each() -> None:
    scene = Scene(rule())
    assert scene.see(changed((-500, "OLD"))) == [], "changes from before the rule"
    [alert] = scene.see(changed((-500, "OLD"), (1, "ALTER a")))
    assert alert.summary == "shop: a schema change of shop.orders: applied"
    assert alert.details == ("shop.orders: ALTER a (applied)",)
    [both] = scene.see(changed((1, "ALTER a"), (2, "ALTER b"), (3, "ALTER a")))
    assert both.details == ("shop.orders: ALTER b (applied)", "shop.orders: ALTER a (applied)")
    assert scene.see(changed((1, "ALTER a"), (2, "ALTER b"), (3, "ALTER a"))) == []
    many = changed(*((number, f"ALTER {number}") for number in range(10, 30)))
    [alert] = scene.see(many)
    assert alert.summary == "shop: 20 schema changes"
    assert len(alert.details) == 11
    assert alert.details[-1] == "and 10 more"


def test_schema_changes_that_an_earlier_process_reported_are_not_repeated() -> None:
    scene = Scene(rule())
    assert scene.kinds(changed((1, "ALTER a"))) == ["schema_change"]
    scene.restart()
    # The sink's ledger has another clock; one change was applied and not reported before the process was killed.
    assert [one.details for one in scene.see(changed((1.7, "ALTER a"), (3, "ALTER b")))] == [("shop.orders: ALTER b (applied)",)]
    # The same statement again is another change.
    assert scene.kinds(changed((1.7, "ALTER a"), (3, "ALTER b"), (400, "ALTER a"))) == ["schema_change"]


def compared(**verdicts: str) -> PipeObservation:
    return replace(PIPE, comparisons=tuple(LastComparison(f"shop.{name}", verdict, START, 3) for name, verdict in verdicts.items()))


def test_differences_are_one_alert_for_a_comparison() -> None:
    scene = Scene(rule())
    assert scene.kinds(compared(a="different", b="running")) == [], "the comparison goes on"
    [alert] = scene.see(compared(a="different", b="different", c="equal", d="", e="undecided"))
    assert alert.summary == "shop: verification found differences in shop.a, shop.b"
    assert alert.details == ("shop.a: 3 rows differ", "shop.b: 3 rows differ")
    assert "--repair" in alert.remedy
    # Compared again, with the same result; after a restart, results are loaded later.
    assert scene.kinds(compared(a="different", b="different")) == []
    scene.restart()
    assert scene.kinds(compared(a="", b=""), compared(a="different", b="different")) == []
    assert scene.kinds(compared(a="equal", b="different")) == []
    [ended] = scene.see(compared(a="equal", b="equal"))
    assert (ended.kind, ended.recovers) == (AlertKind.RECOVERED, alert.id)
    assert scene.kinds(compared(a="different", b="equal")) == ["differences"]


def test_differences_of_tables_that_are_read_again_end_silently() -> None:
    scene = Scene(rule())
    assert scene.kinds(compared(a="different", b="different")) == ["differences"]
    assert scene.kinds(compared(a="", b="different"), compared(a="", b="different"), after=61) == []
    assert scene.kinds(compared(a="different", b="different")) == ["differences"], "the new copy differs"
    assert scene.kinds(compared(b="different")) == [], "the table was dropped"
    assert set(scene.state.open) == {"differences:shop:shop.b"}


def test_low_disk() -> None:
    scene = Scene(rule('low_disk = "10G"\npipes = ["shop"]'))

    def disk(gib: float, *groups: str) -> tuple[DiskObservation, ...]:
        return (DiskObservation("/srv/state", int(gib * 2**30), groups or ("shop", "crm")),)

    assert scene.see(disks=disk(10)) == []
    assert scene.see(disks=disk(9, "crm")) == [], "no chosen pipe writes there"
    [alert] = scene.see(disks=disk(9.5))
    assert (alert.pipe, alert.summary) == ("shop", "shop: 9.5 GiB of disk space left at /srv/state")
    assert alert.place == "/srv/state"
    assert alert.remedy
    assert scene.see(disks=disk(9), after=30) == []
    assert scene.see(disks=disk(10.5), after=30) == scene.see(disks=disk(10.5), after=30) == [], "only a little above the threshold"
    assert scene.see(disks=disk(11), after=30) == []
    [ended] = scene.see(disks=disk(11), after=30)
    assert (ended.kind, ended.recovers) == (AlertKind.RECOVERED, alert.id)
    assert "disk space again" in ended.summary


def test_a_changed_rule_reports_what_lasts_and_repeats_nothing() -> None:
    scene = Scene(rule('events = ["schema_change"]'))
    late = replace(PIPE, lag_s=100.0)
    assert scene.kinds(FAILED, FAILED) == []
    assert scene.state.open == {}, "only what was reported is open"
    scene.change("")
    [alert] = scene.see(FAILED)
    assert alert.kind is AlertKind.FAILED
    scene.change('events = ["lag", "recovered"]')
    assert scene.kinds(FAILED) == []
    scene.change("")
    assert scene.kinds(FAILED) == [], "it was reported before"
    assert [one.recovers for _ in range(2) for one in scene.see(PIPE, after=RECOVERY_S)] == [alert.id]
    scene.change('events = ["lag"]\nlag_seconds = 50\nlag_for_seconds = 300')
    assert scene.kinds(late, late, after=250) == []
    scene.change('events = ["lag"]\nlag_seconds = 50\nlag_for_seconds = 251')
    assert scene.kinds(late) == ["lag"], "it has lasted"
    assert scene.kinds(compared(a="different")) == []
    scene.change("")
    assert scene.kinds(compared(a="different")) == ["differences"]


def test_a_lag_above_a_new_threshold_must_last_again() -> None:
    scene = Scene(rule("lag_seconds = 10\nlag_for_seconds = 300"))
    late = replace(PIPE, lag_s=100.0)
    assert scene.kinds(late, late, after=299) == []
    scene.change("lag_seconds = 90\nlag_for_seconds = 300")
    assert scene.kinds(late, late, after=200) == []
    assert scene.kinds(late, after=100) == ["lag"]


def test_what_a_changed_rule_no_longer_covers_is_not_open() -> None:
    scene = Scene(rule())
    crm = replace(FAILED, name="crm/east", group="crm")
    assert scene.kinds(FAILED, crm) == ["failed", "failed"]
    scene.change('pipes = ["shop"]')
    assert set(scene.state.open) == {"failed:shop"}
    assert scene.kinds(FAILED, crm) == []


def test_schema_changes_of_the_past_are_no_news_for_a_changed_rule() -> None:
    scene = Scene(rule('pipes = ["shop"]\nevents = ["failed"]'))
    crm = replace(changed((1, "ALTER a")), name="crm", group="crm")
    assert scene.kinds(changed((1, "ALTER a")), crm) == []
    scene.change("")
    assert scene.kinds(changed((1, "ALTER a")), crm) == []
    assert scene.kinds(replace(crm, schema_changes=changed((1, "ALTER a"), (2, "ALTER b")).schema_changes)) == ["schema_change"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h"), (3725, "1 h 2 min"), (200_000, "2 d 7 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("address", "pipe", "link"),
    [
        ("", "shop", ""),
        ("http://127.0.0.1:8088", "a/b c", "http://127.0.0.1:8088/#/pipes/a%2Fb%20c"),
        ("https://h.example.com/headrace/", "", "https://h.example.com/headrace/"),
    ],
)
def test_links(address: str, pipe: str, link: str) -> None:
    assert dashboard_link(address, pipe) == link


def test_state_keeps_its_form(tmp_path: Path) -> None:
    from headrace.alerts.store import AlertStore

    chosen = rule()
    store = AlertStore(tmp_path, (chosen,), START)
    store.observe(_seen(FAILED))
    before: Any = (tmp_path / "alerts.json").read_text()
    again = AlertStore(tmp_path, (chosen,), START + 9)
    assert (tmp_path / "alerts.json").read_text() == before
    assert again.status() == store.status()
    assert (tmp_path / "alerts.json").stat().st_mode & 0o777 == 0o600


def _seen(*pipes: PipeObservation) -> Observation:
    return Observation(START, 0.0, pipes, ())
