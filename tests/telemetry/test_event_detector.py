"""Each thing that happens to a pipe is one event, also over retries and restarts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headrace.alerts.observation import Health, LastComparison, PipeObservation, SchemaChange
from headrace.telemetry.event import EventKind, PipeEvent, draft_event
from headrace.telemetry.event_detector import EventDetector

START = 1_000_000.0
PIPE = PipeObservation("shop", "shop", Health.RUNS, START)
AWAY = replace(PIPE, health=Health.AWAY, message="connection refused", since=START + 5)
BEGINS = draft_event(START, "shop", EventKind.STARTED, "starts")
REFUSED = draft_event(START + 5, "shop", EventKind.ERROR, "connection refused")


@dataclass
class Scene:
    """A detector with a clock. `restart` begins another process with the stored events."""

    now: float = START
    began: float = START
    stored: list[PipeEvent] = field(default_factory=list)
    detector: EventDetector = field(init=False)

    def __post_init__(self) -> None:
        self.detector = EventDetector("shop", self.stored, self.began)

    def restart(self) -> None:
        self.began = self.now
        self.__post_init__()

    def see(self, pipe: PipeObservation, stage: str = "streaming", *drafts: PipeEvent, after: float = 1.0) -> list[str]:
        self.now += after
        found = self.detector.observe(pipe, stage, self.now, drafts)
        self.stored += found
        return [event.kind for event in found]


def test_retries_are_one_error_and_one_recovery() -> None:
    scene = Scene()
    assert scene.see(PIPE, "starting", BEGINS) == ["started"]
    assert scene.see(AWAY, "retrying", REFUSED) == ["error"]
    for _ in range(50):
        assert scene.see(AWAY, "starting", BEGINS) == []
        assert scene.see(AWAY, "retrying", replace(REFUSED, at=scene.now)) == []
    assert scene.see(AWAY, "retrying", replace(REFUSED, text="another error")) == ["error"]
    assert scene.see(PIPE) == []
    # A pipe that fails again at once has not recovered.
    assert scene.see(AWAY, "retrying", REFUSED) == []
    assert scene.see(PIPE) == []
    assert scene.see(PIPE, after=11.0) == ["recovered"]
    assert scene.stored[-1].text == "runs again, after 1 min 41 s"
    assert scene.see(PIPE, after=11.0) == []
    assert scene.see(AWAY, "retrying", REFUSED) == ["error"]


def test_many_different_errors_of_one_trouble_are_bounded() -> None:
    scene = Scene()
    found = [kind for at in range(100) for kind in scene.see(AWAY, "retrying", replace(REFUSED, text=f"error {at}"))]
    assert found == ["error"] * 5


def test_a_definite_error_a_pause_and_a_start_by_a_person() -> None:
    scene = Scene()
    scene.see(PIPE, "starting", BEGINS)
    failed = replace(PIPE, health=Health.FAILED, message="too wide")
    assert scene.see(failed, "failed", draft_event(scene.now, "shop", EventKind.FAILED, "too wide")) == ["failed"]
    idle = replace(PIPE, health=Health.IDLE)
    assert scene.see(idle, "paused") == ["paused"]
    assert scene.see(idle, "paused") == []
    scene.restart()
    assert scene.see(idle, "paused") == [], "it was paused before the restart"
    assert scene.see(PIPE, "starting", BEGINS) == ["started"]
    assert scene.see(idle, "stopped") == ["stopped"]
    scene.restart()
    assert scene.see(PIPE, "starting", BEGINS) == ["started"]
    # The process was killed: the next start is an event, too.
    scene.restart()
    assert scene.see(PIPE, "starting", BEGINS) == ["started"]


def test_only_a_longer_wait_is_an_event() -> None:
    scene = Scene()
    waits = replace(AWAY, message="the brokers do not answer")
    assert scene.see(waits, "waiting") == []
    assert scene.see(PIPE) == []
    assert scene.see(waits, "waiting") == []
    assert scene.see(waits, "waiting", after=6.0) == ["waiting"]
    assert scene.see(waits, "waiting", after=600.0) == []
    assert scene.see(PIPE) == []
    assert scene.see(PIPE, after=10.0) == ["recovered"]
    assert scene.stored[-1].text == "runs again, after 10 min 7 s"


def test_snapshots_are_recorded_once_over_retries() -> None:
    scene = Scene()
    begins = draft_event(START, "shop", EventKind.SNAPSHOT_STARTED, "snapshot of 2 tables")
    ends = draft_event(START, "shop", EventKind.SNAPSHOT_FINISHED, "snapshot complete")
    assert scene.see(PIPE, "snapshot", BEGINS, begins) == ["started", "snapshot_started"]
    assert scene.see(AWAY, "retrying", REFUSED) == ["error"]
    assert scene.see(PIPE, "snapshot", BEGINS, begins) == []
    assert scene.see(PIPE, "streaming", ends) == ["snapshot_finished"]
    assert scene.see(PIPE, "snapshot", begins) == ["snapshot_started"]


def test_schema_changes_are_recorded_once_also_over_restarts() -> None:
    scene = Scene()
    change = SchemaChange(START + 1, "shop.a", "ALTER TABLE a ADD b INT", "applied")
    changed = replace(PIPE, schema_changes=(change,))
    assert scene.see(changed) == ["schema_change"]
    assert (scene.stored[0].place, scene.stored[0].text) == ("shop.a", "ALTER TABLE a ADD b INT (applied)")
    assert scene.see(changed) == []
    scene.now += 100
    scene.restart()
    # The ledger of the sink has a time of its own.
    ledger = replace(PIPE, schema_changes=(replace(change, at=START + 3),))
    assert scene.see(ledger) == []
    scene.now += 400
    # The same statement later is another change.
    assert scene.see(replace(PIPE, schema_changes=(replace(change, at=scene.now), *ledger.schema_changes))) == ["schema_change"]


def test_a_comparison_of_several_tables_is_one_event() -> None:
    scene = Scene()
    running = LastComparison("shop.b", "running", START)
    assert scene.see(replace(PIPE, comparisons=(LastComparison("shop.a", "equal", START + 1), running))) == []
    done = (
        LastComparison("shop.a", "equal", START + 1),
        LastComparison("shop.b", "different", START + 2, 1200),
        LastComparison("shop.c", ""),
    )
    assert scene.see(replace(PIPE, comparisons=done)) == ["differences"]
    assert scene.stored[0].text == "1,200 rows differ in shop.b; 1 table is equal"
    scene.restart()
    assert scene.see(replace(PIPE, comparisons=done)) == []
    equal = tuple(LastComparison(f"shop.{name}", "equal", START + 9) for name in "abc")
    assert scene.see(replace(PIPE, comparisons=equal)) == ["verified"]
    assert scene.stored[-1].text == "3 tables are equal"
    undecided = tuple(LastComparison(f"shop.{at}", "undecided", START + 20) for at in range(5))
    assert scene.see(replace(PIPE, comparisons=undecided)) == ["verified"]
    assert scene.stored[-1].text == "undecided: shop.0, shop.1, shop.2 and 2 more"
