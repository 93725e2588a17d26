"""`python -m testkit.soak`: runs the soak, judges it, and writes the report."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.demo.private_process import find_free_port
from testkit.pipelines.embedded_access import set_password
from testkit.soak.chaos import Chaos, Event
from testkit.soak.criteria import STUCK_S, Outcome, SoakComparison, compare, judge
from testkit.soak.kill_routes import ROUTES
from testkit.soak.kills import KillRounds, render_kills
from testkit.soak.monitors import Clock, Watch
from testkit.soak.operator import Operator, Unit
from testkit.soak.report import KILLS_BEGIN, KILLS_END, Facts, render, update
from testkit.soak.routes import Plan, make_plan
from testkit.soak.world import World

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
CALM_FROM = 0.55
"""After this share of the time, Headrace's long-lived processes are not killed, so that the growth of their memory can be measured."""
FIRST_ROWS_S, CATCH_UP_S, LOOKS = 420.0, 900.0, 3


@dataclass(slots=True)
class Options:
    """The options of the command line."""

    seconds: float
    seed: int
    mode: str
    pause_s: float
    patience_s: float
    directory: Path
    report: Path
    keep: bool


class Teller:
    """Prints events with their time on standard output and in a file."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file, self._clock, self._lock = file, clock, threading.Lock()

    def __call__(self, text: str) -> None:
        line = f"{datetime.now(UTC):%H:%M:%S} {self._clock():7.1f} {text}"
        with self._lock:
            print(line, flush=True)
            with self._file.open("a") as file:
                file.write(line + "\n")


class Soak:
    """One run."""

    def __init__(self, options: Options) -> None:
        self.options, self.clock = options, Clock()
        options.directory.mkdir(parents=True, exist_ok=True)
        self.say = Teller(options.directory / "soak.log", self.clock)
        self.stuck: list[str] = []

    def run(self) -> bool:
        """Return whether it passed."""
        options = self.options
        self.say(f"soak: {options.seconds:.0f} s, seed {options.seed}, `{options.mode}`, in {options.directory}")
        with ExitStack() as stack:
            world = stack.enter_context(World(options.directory))
            plan = make_plan(world, options.seed, options.pause_s, f"127.0.0.1:{find_free_port()}")
            for route in plan.routes:
                route.traffic.prepare()
            operator = Operator(self._units(plan), self.say, plan.state / "control.json" if options.mode == "run" else None)
            stack.callback(operator.kill)
            operator.start()
            for route in plan.routes:
                stack.callback(route.traffic.stop)
                route.traffic.start()
            watch = stack.enter_context(Watch(plan.routes, operator, plan.state, options.directory / "samples.jsonl", self.clock))
            gates = {
                flavour: [one.traffic.gate for one in plan.routes if one.traffic.server.flavour == flavour]
                for flavour in ("mariadb", "mysql")
            }
            chaos = Chaos(world, operator, gates, options.seed, self.say, self.clock)
            self._await_visible(plan, watch, datetime.now(UTC), FIRST_ROWS_S)
            self._break_things(plan, watch, chaos)
            finish_s = self._finish(plan, watch)
            comparisons = self._compare(plan)
            watch.tending = False
            wrong = operator.stop()
        failures = [str(error) for route in plan.routes for error in route.traffic.failures] + [str(error) for error in watch.failures]
        outcome = Outcome(chaos.events, watch.samples, comparisons, self.stuck, wrong, failures, operator.resumed, options.patience_s)
        return self._tell(plan, operator, chaos, outcome, finish_s)

    def _units(self, plan: Plan) -> Sequence[Unit]:
        directory, environment = self.options.directory, plan.environment
        if self.options.mode == "run":
            file = directory / "headrace.toml"
            file.write_text(plan.toml)
            return [Unit("headrace run", ("run", str(file)), directory / "run.log", environment)]
        return [
            Unit(name, ("replicate", *arguments, "--state", str(plan.state / name)), directory / f"{name}.log", environment)
            for name, arguments in plan.commands.items()
        ]

    def _break_things(self, plan: Plan, watch: Watch, chaos: Chaos) -> None:
        options = self.options
        begun = self.clock()
        while not self.stuck and not self._broken(plan, watch) and (gone := self.clock() - begun) < options.seconds:
            watch.calm = gone > options.seconds * CALM_FROM
            what = chaos.draw(calm=watch.calm)
            at = self.clock()
            seconds = chaos.strike(what)
            if chaos.is_hasty():
                chaos.events.append(Event(at, what, seconds, {}))
                continue
            recovery = self._await_visible(plan, watch, datetime.now(UTC), options.patience_s)
            chaos.events.append(Event(at, what, seconds, recovery))
            time.sleep(chaos.gap_s())

    def _broken(self, plan: Plan, watch: Watch) -> bool:
        """Whether the traffic or the watch has failed: then the soak ends."""
        failures = [(route.name, error) for route in plan.routes for error in route.traffic.failures] + [
            ("watch", one) for one in watch.failures
        ]
        for name, error in failures:
            self.say(f"ending early: {name} failed: {error!r}")
        return bool(failures)

    def _await_visible(self, plan: Plan, watch: Watch, moment: datetime, patience_s: float) -> dict[str, float]:
        """Wait until every copy shows a change made after the moment; return the seconds of each."""
        begun, found = time.monotonic(), dict[str, float]()
        while len(found) < len(plan.routes) and time.monotonic() - begun < patience_s and not self._broken(plan, watch):
            for route in plan.routes:
                shown = watch.seen(route.name)
                if route.name not in found and shown is not None and shown > moment:
                    found[route.name] = round(time.monotonic() - begun, 1)
            time.sleep(0.2)
        late = [route.name for route in plan.routes if route.name not in found]
        if late and time.monotonic() - begun >= patience_s:
            self.stuck.append(f"{', '.join(late)} showed nothing new for {patience_s:.0f} s at {self.clock():.0f} s")
            self.say(f"STUCK: {self.stuck[-1]}")
        elif not late:
            self.say("visible after " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.items()))
        return found

    def _finish(self, plan: Plan, watch: Watch) -> float:
        """Stop the traffic and wait until all pipes have caught up; return the seconds."""
        for route in plan.routes:
            route.traffic.stop()
        self.say("the traffic has ended")
        begun = time.monotonic()
        for route in plan.routes:
            # The copy must show the newest heartbeat, by the source's clock.
            last = route.traffic.newest_beat()
            while (shown := watch.seen(route.name)) is None or shown < last - timedelta(microseconds=1):
                if time.monotonic() - begun > CATCH_UP_S:
                    self.stuck.append(f"{route.name} did not catch up within {CATCH_UP_S:.0f} s")
                    break
                time.sleep(0.2)
        return time.monotonic() - begun

    def _compare(self, plan: Plan) -> list[SoakComparison]:
        found = []
        for route in plan.routes:
            for look in range(LOOKS):
                # For topics there is no log position to wait for: wait a fixed time.
                time.sleep(5 + 15 * look)
                comparison = compare(route)
                looked = f"own look: {comparison.tables} tables, {comparison.rows} rows"
                self.say(f"{route.name}: {comparison.verdict} (code {comparison.verify_code}); {looked}")
                for line in comparison.different:
                    self.say(f"  {line}")
                if comparison.is_equal:
                    break
            found.append(comparison)
        return found

    def _tell(self, plan: Plan, operator: Operator, chaos: Chaos, outcome: Outcome, finish_s: float) -> bool:
        traffic = [route.traffic for route in plan.routes]
        facts = Facts(
            when=_now(),
            commit=_commit(),
            seed=self.options.seed,
            seconds=self.options.seconds,
            machine=_machine(),
            mode="one `headrace run` with four pipes" if self.options.mode == "run" else "four `headrace replicate`",
            transactions=sum(one.transactions for one in traffic),
            schema_changes=sum(one.schema_changes for one in traffic),
            lost_connections=sum(one.lost_connections for one in traffic),
            changes=sum(one.changes for one in traffic),
            restarts=operator.starts,
            exits=dict(operator.exits),
            missed=chaos.missed,
            finish_s=finish_s,
        )
        findings = judge(outcome)
        text = render(facts, findings, outcome.events, outcome.samples)
        (self.options.directory / "report.md").write_text(text)
        events = [asdict(event) for event in outcome.events]
        (self.options.directory / "facts.json").write_text(json.dumps({"facts": asdict(facts), "events": events}, indent=1))
        update(self.options.report, text)
        print(text, flush=True)
        return all(finding.met for finding in findings)


def run_kills(rounds: int, seed: int, directory: Path, report: Path, only: Sequence[str]) -> bool:
    """Run the kill rounds; return whether they passed. The report is written also when the rounds end early."""
    directory.mkdir(parents=True, exist_ok=True)
    say = Teller(directory / "kills.log", Clock())
    # A run that is killed cannot remove its temporary files.
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    commit = _commit()
    say(f"kills: {rounds} rounds, seed {seed}, in {directory}")
    drawn = KillRounds(seed, directory / "kills", say, only)
    try:
        drawn.run(rounds)
    finally:
        text = render_kills(drawn.outcome, _now(), commit, _machine())
        update(report, text, KILLS_BEGIN, KILLS_END)
        print(text, flush=True)
    return drawn.outcome.passed


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _machine() -> str:
    return f"{len(os.sched_getaffinity(0))} cores and {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], check=False, capture_output=True, text=True, cwd=PAGE.parent)
    return done.stdout.strip() or "unknown"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testkit.soak", description="An hour of chaos, and rounds of kill -9.")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long things are broken (%(default)s); 0: only kill rounds")
    parser.add_argument("--kills", type=int, default=0, metavar="ROUNDS", help="kill rounds through every kind of pipe (%(default)s)")
    names = [kind.__name__ for kind in ROUTES]
    parser.add_argument("--only", action="append", default=[], choices=names, help="kill rounds of this kind of pipe only")
    parser.add_argument("--seed", type=int, default=None, help="for the same traffic and the same faults again (drawn)")
    parser.add_argument(
        "--mode", choices=("run", "replicate"), default="run", help="one process for all pipes, or one for each (%(default)s)"
    )
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between transactions of a stream of changes (%(default)s)")
    parser.add_argument("--patience", type=float, default=STUCK_S, help="seconds after which a pipe counts as stuck (%(default)s)")
    parser.add_argument("--directory", type=Path, default=None, help="where everything lies meanwhile (a temporary one)")
    parser.add_argument("--report", type=Path, default=PAGE, help="the page that the report goes into (docs/reliability.md)")
    parser.add_argument("--keep", action="store_true", help="leave the directory there even if all went well")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    asked = _parse(arguments)
    set_password()
    # On SIGTERM, end the processes that it started.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    directory = asked.directory or Path(tempfile.mkdtemp(prefix="headrace-soak-"))
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 31)
    passed = True
    if asked.seconds:
        passed = Soak(Options(asked.seconds, seed, asked.mode, asked.pause, asked.patience, directory, asked.report, asked.keep)).run()
    if asked.kills:
        passed = run_kills(asked.kills, seed, directory, asked.report, asked.only) and passed
    print(f"soak: {'passed' if passed else 'FAILED'}, seed {seed}", flush=True)
    if passed and not asked.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"soak: everything lies in {directory}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
