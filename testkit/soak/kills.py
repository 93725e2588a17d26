"""Rounds of `kill -9` through every kind of pipe (`testkit.soak.kill_routes`), drawn from a seed.

A round changes the source, starts `headrace replicate`, changes the source further, and kills at a random moment: all processes at once, or
one of them and then the rest. The next round of the pipe starts from the state after the kill. After some rounds the pipe runs to its end
(`--once`) and both ends are compared row by row. A run that ends by itself, processes that outlive their driver, and a comparison that
fails are findings.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from testkit.pipelines.pipeline import Run, command_lines
from testkit.soak.kill_peers import KillPeers
from testkit.soak.kill_routes import ROUTES, KillRoute
from testkit.soak.operator import DAEMON, DRIVER, EMBEDDED, JAVA, WORKER, processes_of

COMPARE_EVERY = 5
"""Rounds of a pipe between two comparisons."""
NEW_PIPE_SHARE = 0.5
"""The probability of a new pipe, which starts with a snapshot, after a comparison."""
_ALL = "all processes"
_TARGETS = {_ALL: 12, DRIVER: 3, JAVA: 2, WORKER: 2, DAEMON: 1, EMBEDDED: 2}
"""The targets of kills, with their weights."""
_AIMED_SHARE = 0.4
_ORPHANS_S = 60.0
_FINISH_S = 900.0
_FIRST_GUESS_S = 8.0


@dataclass(frozen=True, slots=True)
class Kill:
    """One round."""

    route: str
    target: str
    phase: str
    after_s: float


@dataclass(slots=True)
class KillOutcome:
    """The outcome of all rounds."""

    seed: int
    asked: int
    kills: list[Kill] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    comparisons: Counter[str] = field(default_factory=Counter)
    """By route."""
    rows: Counter[str] = field(default_factory=Counter)
    """Compared, by route."""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.findings and len(self.kills) == self.asked


class KillRounds:
    """Goes round-robin through the routes."""

    def __init__(self, seed: int, directory: Path, say: Callable[[str], None], only: Sequence[str] = ()) -> None:
        self._random, self._directory, self._say = random.Random(), directory, say
        self._only = only
        self._usual_s: dict[str, float] = {}
        self._to_compare: Counter[str] = Counter()
        """Rounds until the next comparison, by route."""
        self.outcome = KillOutcome(seed, 0)

    def run(self, rounds: int) -> KillOutcome:
        self.outcome.asked = rounds
        begun = time.monotonic()
        chosen = [kind for kind in ROUTES if not self._only or kind.__name__ in self._only]
        with KillPeers(self._directory) as peers:
            routes = [kind(peers) for kind in chosen]
            # Distribute the first comparisons, which measure the duration of a run.
            self._to_compare.update({route.title: 1 + place % COMPARE_EVERY for place, route in enumerate(routes)})
            for number in range(rounds):
                self._round(number, routes[number % len(routes)])
                self.outcome.seconds = time.monotonic() - begun
            for route in routes:
                if route.cycle and self._to_compare[route.title] < COMPARE_EVERY:
                    self._finish(route)
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def _round(self, number: int, route: KillRoute) -> None:
        # Each round has its own seed: the duration of earlier rounds does not change it.
        self._random.seed(f"{self.outcome.seed} kills {number}")
        if not route.cycle:
            route.begin()
        begun, known = time.monotonic(), len(self.outcome.findings)
        kill = self._kill(route)
        self.outcome.kills.append(kill)
        self._to_compare[route.title] -= 1
        self._say(
            f"{number}: {route.title}, pipe {route.cycle}: killed {kill.target} at {kill.after_s:.1f} s, {kill.phase}; "
            f"the round took {time.monotonic() - begun:.1f} s"
        )
        if len(self.outcome.findings) > known:
            self._begin_again(route, keep=True)
        elif not self._to_compare[route.title]:
            self._finish(route)

    def _kill(self, route: KillRoute) -> Kill:
        chooser = self._random
        route.change(chooser)
        steps, was_open = route.steps(), route.pipeline.batch_is_open()
        with route.changing(chooser.randrange(1 << 30)), route.pipeline.running() as run:
            begun = time.monotonic()
            self._await_moment(route, run, steps)
            after_s = time.monotonic() - begun
            target = chooser.choices(list(_TARGETS), list(_TARGETS.values()))[0]
            pids = [pid for pid, kind in processes_of(run).items() if kind == target]
            target = target if pids else _ALL
            if run.code is not None:
                return Kill(route.title, "nothing", self._ended(route, run), after_s)
            if target == _ALL:
                run.signal_all(signal.SIGSTOP)
            phase = _phase(route, run, steps, was_open=was_open)
            if target == _ALL:
                run.kill()
            else:
                _send(chooser.choice(pids))
                self._await_rest(route, run, target)
        return Kill(route.title, target, phase, after_s)

    def _await_moment(self, route: KillRoute, run: Run, steps: tuple[int, int]) -> None:
        """Wait for a moment of a run's usual duration, or until its state files show some steps."""
        usual_s = self._usual_s.get(route.title) or fmean(self._usual_s.values() or (_FIRST_GUESS_S,))
        if self._random.random() >= _AIMED_SHARE:
            _sleep(run, self._random.uniform(0, 1.1 * usual_s))
            return
        deadline = time.monotonic() + 3 * usual_s
        for _ in range(self._random.choice((1, 1, 2, 4))):
            while run.code is None and route.steps() == steps and time.monotonic() < deadline:
                time.sleep(0.005)
            steps = route.steps()
        _sleep(run, self._random.choice((0.0, 0.02, 0.1, 0.4)))

    def _await_rest(self, route: KillRoute, run: Run, target: str) -> None:
        """After the kill of one process: all must end with the driver; otherwise the run may continue for a while."""
        if target != DRIVER:
            _sleep(run, self._random.choice((0.0, 0.5, 3.0)))
            return
        deadline = time.monotonic() + _ORPHANS_S
        while (left := run.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        if left:
            self._find(route, f"these processes outlived their driver by {_ORPHANS_S:.0f} s:\n{command_lines(left)}")

    def _ended(self, route: KillRoute, run: Run) -> str:
        if run.code != 0:
            self._find(route, f"the run ended with code {run.code}:\n{run.output[-3000:]}")
        return "the run had ended"

    def _finish(self, route: KillRoute) -> None:
        """Let the pipe catch up, compare, and possibly begin another pipe."""
        self._to_compare[route.title] = COMPARE_EVERY
        begun = time.monotonic()
        differs = True
        try:
            route.settle()
            started = time.monotonic()
            done = route.pipeline.once(timeout_s=_FINISH_S)
            took_s = time.monotonic() - started
            assert done.code == 0, f"exit code {done.code}:\n{done.output[-3000:]}"
            rows = route.compare()
            differs = False
        # A target that cannot be read is a finding, too; the other pipes continue.
        except Exception as error:  # noqa: BLE001
            self._find(route, str(error) if isinstance(error, AssertionError) else repr(error))
        else:
            self._usual_s[route.title] = took_s
            self.outcome.rows[route.title] += rows
            self._say(f"{route.title}: 0 differences in {rows} rows after {time.monotonic() - begun:.1f} s, --once took {took_s:.1f} s")
        self.outcome.comparisons[route.title] += 1
        if differs or self._random.random() < NEW_PIPE_SHARE:
            self._begin_again(route, keep=differs)

    def _begin_again(self, route: KillRoute, *, keep: bool) -> None:
        self._to_compare[route.title] = COMPARE_EVERY
        route.begin(keep=keep)

    def _find(self, route: KillRoute, what: str) -> None:
        self.outcome.findings.append(f"{route.title}, pipe {route.cycle}: {what}")
        self._say(f"FINDING: {self.outcome.findings[-1]}")


def _phase(route: KillRoute, run: Run, steps: tuple[int, int], *, was_open: bool) -> str:
    """Return the phase of the run from its processes and state files."""
    pipeline, now = route.pipeline, route.steps()
    if JAVA not in processes_of(run).values():
        return "before Spark starts"
    if now == steps:
        return "before a batch is repeated" if was_open and pipeline.batch_is_open() else "Spark starts, plans"
    if now[1] < 0 or pipeline.chunks_done() < pipeline.chunks_planned():
        return "snapshot"
    return "batch, not committed" if pipeline.batch_is_open() else "after a checkpoint"


def _sleep(run: Run, seconds: float) -> None:
    """Sleep, but not beyond the end of the run."""
    deadline = time.monotonic() + seconds
    while run.code is None and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))


def _send(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def render_kills(outcome: KillOutcome, when: str, commit: str, machine: str) -> str:
    """The report: rounds, kills by kind of pipe, phase and process, comparisons, findings."""
    kills = outcome.kills
    minutes, each_s = outcome.seconds / 60, outcome.seconds / max(len(kills), 1)
    landed = [kill for kill in kills if kill.target != "nothing"]
    lines = [
        f"**{'Passed' if outcome.passed else 'FAILED'}**: {when}, commit `{commit}`, seed {outcome.seed}, on {machine}. "
        f"{len(kills)} of {outcome.asked} rounds in {minutes:.0f} minutes ({each_s:.1f} s each, comparisons included); "
        f"{len(landed)} kills; {sum(outcome.comparisons.values())} comparisons of {sum(outcome.rows.values()):,} rows; "
        f"{len(outcome.findings)} findings.",
        "",
        "| pipe | rounds | kills | comparisons | rows compared |",
        "|---|---|---|---|---|",
    ]
    for title in dict.fromkeys(kill.route for kill in kills):
        rounds, hit = sum(kill.route == title for kill in kills), sum(kill.route == title for kill in landed)
        lines.append(f"| {title} | {rounds} | {hit} | {outcome.comparisons[title]} | {outcome.rows[title]:,} |")
    for head, counts in (
        ("moment", Counter(kill.phase for kill in landed)),
        ("killed", Counter(kill.target if kill.target == _ALL else f"{kill.target}, then the rest" for kill in landed)),
    ):
        lines += ["", f"| {head} | kills |", "|---|---|", *(f"| {name} | {times} |" for name, times in counts.most_common())]
    if outcome.findings:
        lines += ["", "Findings:", "", *(f"- {one.splitlines()[0][:300]}" for one in outcome.findings)]
    return "\n".join(lines) + "\n"
