"""Supervised pipes that follow a script, without a source or a sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.config.configuration import Configuration, ConfiguredPipe, ProcessSettings
from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.base import Pipe
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.retry import current_wait
from headrace.runtime.interface import Runtime
from headrace.runtime.reports import TableWrites
from headrace.service.status import PipeStage
from headrace.service.supervisor import Supervisor
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.base import ProgressStore
from headrace.spark.spark_runtime import SparkRuntime

PATIENCE_S = 20.0


class Scenario:
    """The script of the runs of one pipe, and the record of its runs."""

    def __init__(self, *acts: Exception | str) -> None:
        self.acts = list(acts)
        self.runs = 0
        self.seen: list[str] = []
        self.waited = ""


class ScriptedPipe(Pipe):
    """Raises, ends, or runs until it is stopped, as its script says; the last entry applies to all later runs."""

    def __init__(self, scenario: Scenario, settings: PipeSettings, view: ProgressView) -> None:
        super().__init__("sink", settings, view)
        self._scenario = scenario

    def _run(self, directory: StateDirectory) -> None:
        assert directory.is_owned
        scenario = self._scenario
        act = scenario.acts[min(scenario.runs, len(scenario.acts) - 1)]
        scenario.runs += 1
        scenario.seen.append(current_wait().pipe)
        if isinstance(act, Exception):
            raise act
        self._view.tables({"shop.orders": "shop.orders"})
        self._view.written([TableWrites("shop.orders", 7, 70, 1_000_000)])
        self._view.batch(7, 0.0, "binlog.000001:4")
        if act == "end":
            return
        while not self._stop.wait(0.02):
            if scenario.waited:
                current_wait().note(scenario.waited)
            self._view.waiting(current_wait().current())

    @property
    def _progress_store(self) -> ProgressStore:
        raise NotImplementedError

    @property
    def _worker_sink(self) -> object:
        raise NotImplementedError


def configuration(state: Path, *pipes: tuple[str, tuple[str, ...]], disabled: tuple[str, ...] = ()) -> Configuration:
    def spec(name: str) -> PipeSpec:
        settings = PipeSettings(Selection(("shop.*",)), state / name, name=name)
        return PipeSpec("mysql://repl:secret@db:3306/shop", "clickhouse://u:secret@ch:8123/", settings)

    found = tuple(ConfiguredPipe(name, tuple(map(spec, parts)), enabled=name not in disabled) for name, parts in pipes)
    return Configuration("headrace.toml", ProcessSettings(state, retry_seconds=0.05), found)


@contextmanager
def supervised(
    asked: Configuration, scenarios: dict[str, Scenario], read_again: Callable[[], Configuration] | None = None
) -> Iterator[Supervisor]:
    @contextmanager
    def build(spec: PipeSpec, view: ProgressView, _: Runtime) -> Iterator[BuiltPipe]:
        yield BuiltPipe(ScriptedPipe(scenarios[spec.name], spec.settings, view), lambda: False)

    with Supervisor(asked, build=build, runtime=SparkRuntime(), read_again=read_again) as supervisor:
        yield supervisor


def stage(supervisor: Supervisor, name: str) -> PipeStage:
    return supervisor.pipe(name).stage
