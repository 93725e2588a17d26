"""Runs all pipes of a file in one process: starts them, monitors them, and executes control requests (`Control`).

Each source of each pipe has a runner with its own thread. All share one Spark session and the embedded servers. One more thread takes
samples, and a few run probes. A failed runner never ends another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from headrace import __version__
from headrace.alerts.status import AlertsStatus
from headrace.config.configuration import Configuration
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.factory import open_pipe, shown_source, spark_needs, workers_import
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.spec import BuiltPipe, PipeSpec
from headrace.pipes.state.event_skips import request_skip
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import request_resync
from headrace.retry import WaitState, use_wait_state
from headrace.runtime.interface import Runtime
from headrace.service.alert_monitor import AlertMonitor
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.merge_tables import MergeTableProbe
from headrace.service.pipe_logs import PipeLogs
from headrace.service.pipe_runner import DisplayNames, PipeOpener, PipeRunner
from headrace.service.probes import Probe, ProbeScheduler, create_probes
from headrace.service.readonly_query import run_readonly_query
from headrace.service.reload_plan import ReloadPlan, apply_settings, plan_reload
from headrace.service.status import MetricSample, PipeStatus, ReloadResult, ServiceStatus, VerifyResult
from headrace.service.status_collector import merge_history, merge_status
from headrace.service.telemetry_recorder import TelemetryRecorder
from headrace.service.verify_jobs import check_resyncable, check_verifiable, verify_pipe
from headrace.sinks.registry import has_table_store, redact_sink
from headrace.spark.spark_runtime import SharedSessionProvider, SparkRuntime
from headrace.telemetry.event import PipeEvent
from headrace.telemetry.log_reader import LogPage, LogQuery
from headrace.telemetry.metrics import Series
from headrace.telemetry.table_rates import TableSeries
from headrace.verify.records import VerifyRecord
from headrace.verify.view import result_lines

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat after the name."""


def measure_usage(root: int) -> tuple[int, float]:
    """Return bytes of memory (shared memory counted once) and CPU seconds of a process and its descendants."""
    stats = {int(entry.name): found for entry in Path("/proc").iterdir() if entry.name.isdigit() and (found := _stat(entry))}
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    memory, ticks, todo = 0, 0, [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            todo += children.get(pid, [])
            memory += _memory(pid)
            # The CPU time of an ended process is counted with the parent that waited for it.
            ticks += sum(int(stats[pid][field]) for field in (_USER, _SYSTEM, _CHILD_USER, _CHILD_SYSTEM))
    return memory, ticks / _TICKS


def _stat(entry: Path) -> list[str]:
    try:
        # The kernel cuts names to 15 bytes, perhaps within a UTF-8 character.
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        # The process has ended.
        return []


def _memory(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # The process has ended, or belongs to another user.
        return 0
    return 0


log = logging.getLogger("headrace")

_SPARK_DIRECTORY: Final = ".spark"
_SAMPLE_S, _LOOK_S, _USAGE_S, _POLL_S = 1.0, 2.0, 10.0, 0.2


class Supervisor:
    """Runs a configuration. Thread-safe; use it as a context manager."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        build: PipeOpener | None = None,
        runtime: Runtime | None = None,
        read_again: Callable[[], Configuration] | None = None,
    ) -> None:
        """`read_again` returns what the pipe file says now, for a reload; None: there is no file."""
        self.configuration = configuration
        self._embedded_servers = EmbeddedServers()
        self._own_spark = None if runtime is not None else _shared_spark(configuration)
        self._runtime: Runtime = SparkRuntime(self._own_spark) if runtime is None else runtime
        self._spark_needs = {} if self._own_spark is None else _spark_requirements(_enabled_specs(configuration))
        self._build, self._read_again = build or self._open_pipe, read_again
        self.runners: Mapping[str, PipeRunner] = self._create_runners(configuration)
        self._reload_lock = threading.Lock()
        self._ending: dict[str, PipeRunner] = {}
        """By name: the last runner that a reload has ended. The next one with its state waits for it."""
        self._started = time.time()
        self.alert_monitor = AlertMonitor(configuration, list(self.runners.values()), self._started)
        self._telemetry = TelemetryRecorder(configuration.process.state, list(self.runners.values()), self._started)
        self._logs = PipeLogs(configuration.process.state, list(self.runners), self._started)
        self._end_requested = False
        self._ended = threading.Event()
        self._usage, self._usage_due, self._status_requested_at = measure_usage(os.getpid()), 0.0, 0.0
        self._verifying: dict[str, WaitState] = {}
        self._verify_lock = threading.Lock()
        self._verify_pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-verify")
        self._probes = self._create_probes()
        self._probe_lock = threading.Lock()
        """Held while the probes are used or replaced."""
        self._retired_probes: list[threading.Thread] = []
        self._sampler = threading.Thread(target=self._sample_loop, name="headrace-samples", daemon=True)

    # -- life cycle

    def __enter__(self) -> Self:
        self._started = time.time()
        self._logs.start()
        with self._reload_lock:
            for runner in self.runners.values():
                runner.start()
            self._sampler.start()
        self._telemetry.start()
        self.alert_monitor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self) -> None:
        """Request all pipes to stop after their current batch; safe in a signal handler."""
        self._end_requested = True

    def wait(self) -> bool:
        """Wait until `end` is called or no pipe is left to run; return whether no pipe failed."""
        while not self._end_requested and not all(runner.is_over for runner in self.runners.values()):
            time.sleep(_POLL_S)
        return not any(runner.has_failed for runner in self.runners.values())

    def close(self) -> None:
        """Stop all pipes in order, then their shared resources."""
        if self._ended.is_set():
            return
        with self._reload_lock:
            # No reload starts a pipe from now on.
            self._end_requested = True
        # A pipe that has just failed is reported, while the others end.
        self.alert_monitor.observe()
        for runner in self.runners.values():
            runner.end()
        for waits in list(self._verifying.values()):
            waits.ending = True
        for runner in (*self.runners.values(), *self._ending.values()):
            runner.join()
        self._verify_pool.shutdown(wait=True, cancel_futures=True)
        self._ended.set()
        if self._sampler.ident is not None:
            self._sampler.join()
        self._telemetry.close()
        self.alert_monitor.close()
        self._probes.close()
        for thread in self._retired_probes:
            thread.join()
        if self._own_spark is not None:
            self._own_spark.close()
        self._embedded_servers.close()
        self._logs.close()

    # -- Control

    def status(self) -> ServiceStatus:
        self._status_requested_at = time.monotonic()
        pipes = tuple(runner.status() for runner in self.runners.values())
        return ServiceStatus(__version__, os.getpid(), self._started, self.configuration.file, *self._usage, pipes)

    def pipe(self, name: str) -> PipeStatus:
        return merge_status(name, [runner.status() for runner in self._find_runners(name)])

    def history(self, name: str) -> Sequence[MetricSample]:
        return merge_history([runner.history.samples() for runner in self._find_runners(name)])

    def pause(self, name: str) -> None:
        self._each(name, PipeRunner.pause, "pause")

    def resume(self, name: str) -> None:
        self._each(name, PipeRunner.resume, "resume")

    def stop(self, name: str) -> None:
        self._each(name, PipeRunner.stop, "stop")

    def resync(self, name: str, tables: Sequence[str]) -> None:
        unclear = next((table for table in tables if "." not in table), None)
        if unclear is not None:
            raise DefiniteError(f"{unclear!r} has no database", place=f"pipe {name}", hint="write database.table")
        runners = self._find_runners(name)
        for runner in runners:
            runner.check_enabled()
            check_resyncable(runner.spec)
        for runner in runners:
            request_resync(StateDirectory(runner.spec.settings.state), tuple(tables))
            with use_wait_state(WaitState(pipe=runner.name)):
                log.info("resync requested: %s", ", ".join(tables))

    def skip(self, name: str, place: str) -> str:
        runners = self._find_runners(name)
        runner = next((runner for runner in runners if runner.error is not None and runner.error.skippable), runners[0])
        if runner.is_running:
            raise DefiniteError("the pipe does not halt at an event: it runs", place=f"pipe {runner.name}", hint="see its status")
        skipped = request_skip(runner.spec.settings.state, place, "the control API")
        with use_wait_state(WaitState(pipe=runner.name)):
            log.warning("%s", skipped)
        runner.resume()
        return skipped

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        runners = self._find_runners(name)
        with self._verify_lock:
            for runner in runners:
                check_verifiable(runner.spec)
                if runner.name in self._verifying:
                    raise DefiniteError("its tables are being compared already", place=f"pipe {runner.name}", hint="wait for the result")
            for runner in runners:
                self._verifying[runner.name] = WaitState(pipe=runner.name)
                self._verify_pool.submit(self._verify, runner, tuple(tables))

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        spec = self._find_runners(name)[0].spec
        if not has_table_store(spec.sink):
            raise DefiniteError("only ClickHouse can be queried", place=f"pipe {name}", hint="look at a topic with headrace tail")
        self._embedded_servers.ensure(spec.sink)
        return run_readonly_query(spec.sink, sql)

    def reload(self) -> ReloadResult:
        with self._reload_lock:
            if self._read_again is None or self._end_requested:
                reason = "the process ends" if self._end_requested else "this process has no pipe file"
                raise DefiniteError(f"nothing is reloaded: {reason}", place=self.configuration.file, hint="start headrace run again")
            if self._sampler.ident is None:
                raise TransientError("the process is still starting", place=self.configuration.file, hint="try again in a moment")
            wanted = self._read_again()
            self._check_spark(wanted)
            after, settings = apply_settings(self.configuration, wanted)
            plan = plan_reload(self.runners, self._create_runners(after), settings)
            self.configuration = after
            self._apply(plan)
        return plan.result

    def alerts(self) -> AlertsStatus:
        return self.alert_monitor.status()

    def events(self, name: str, limit: int) -> Sequence[PipeEvent]:
        return self._telemetry.events([runner.name for runner in self._find_runners(name)] if name else None, limit)

    def metrics(self, name: str, span: str) -> Series:
        return self._telemetry.metrics([runner.name for runner in self._find_runners(name)], span)

    def log(self, name: str, query: LogQuery) -> LogPage:
        runners = self._find_runners(name)
        if len(runners) > 1:
            parts = ", ".join(runner.name for runner in runners)
            raise DefiniteError(
                "the pipe has several sources, each with a log of its own", place=f"pipe {name}", hint=f"name one of {parts}"
            )
        return self._logs.page(runners[0].name, query)

    def table_rates(self, name: str) -> TableSeries:
        parts = [runner.table_rates.series() for runner in self._find_runners(name)]
        changes = {table: points for part in parts for table, points in part.changes.items()}
        return replace(parts[0], end=max(part.end for part in parts), changes=changes)

    # -- implementation

    def _create_runners(self, configuration: Configuration) -> dict[str, PipeRunner]:
        """Return a runner for each source of each pipe; none is started."""
        process, found = configuration.process, {}
        for pipe in configuration.pipes:
            for spec in pipe.specs:
                shown = DisplayNames(pipe.name, shown_source(spec.source), redact_sink(spec.sink))
                settings = replace(spec.settings, master=process.master, spark=process.spark, spark_log=process.spark_log)
                found[spec.name] = PipeRunner(
                    replace(spec, settings=settings), shown, self._runtime, self._build, enabled=pipe.enabled, retry_s=process.retry_seconds
                )
        return found

    def _create_probes(self) -> ProbeScheduler:
        if self._own_spark is None:
            return ProbeScheduler([])
        return ProbeScheduler([*create_probes(list(self.runners.values()), self._embedded_servers), *self._merge_probes()])

    def _check_spark(self, wanted: Configuration) -> None:
        """Raise `DefiniteError` if a pipe needs a setting that the running Spark was started without."""
        if self._own_spark is not None and _spark_requirements(_enabled_specs(wanted)) not in ({}, self._spark_needs):
            raise DefiniteError(
                "a new pipe reads Kafka, and the running Spark was started without the connector for it",
                place=wanted.file,
                hint="start headrace run again: nothing was changed",
            )

    def _apply(self, plan: ReloadPlan) -> None:
        """Replace the runners and the alert rules. A changed pipe starts when its old runner has finished its batch; the caller does not
        wait.
        """
        for runner in plan.ended:
            runner.end()
            self._ending[runner.name] = runner
            comparison = self._verifying.get(runner.name)
            if comparison is not None:
                comparison.ending = True
        runners = list(plan.runners.values())
        # The sampler hands the statuses of all runners to the recorder.
        self._telemetry.set_runners(runners)
        self._logs.add_pipes(plan.runners)
        self.runners = plan.runners
        for runner in runners:
            runner.retry_s = self.configuration.process.retry_seconds
        self.alert_monitor.configure(self.configuration, runners)
        for runner in plan.started:
            runner.start(self._ending.get(runner.name))
        if plan.ended or plan.started:
            with self._probe_lock:
                retired, self._probes = self._probes, self._create_probes()
            # A probe that waits for its server must not delay the reload.
            self._retired_probes.append(threading.Thread(target=retired.close, name="headrace-retired-probes", daemon=True))
            self._retired_probes[-1].start()
        for line in plan.result.lines():
            log.info("reload: %s", line)

    def _merge_probes(self) -> list[Probe]:
        """Return the probes that maintain `Merge` tables over several sources."""
        pipes = [pipe for pipe in self.configuration.pipes if pipe.merged and pipe.enabled]
        return [
            MergeTableProbe(pipe.prefix, [self.runners[spec.name] for spec in pipe.specs], self._embedded_servers)
            for pipe in pipes
            if has_table_store(pipe.specs[0].sink)
        ]

    def _find_runners(self, name: str) -> list[PipeRunner]:
        """Return the runner of this name (`NAME/SOURCE`), or all runners of a pipe."""
        found = [runner for runner in self.runners.values() if name in (runner.name, runner.shown.group)]
        if not found:
            known = ", ".join(sorted({runner.shown.group for runner in self.runners.values()} | set(self.runners))) or "none"
            raise UnknownPipe(f"there is no pipe {name!r}", place=self.configuration.file, hint=f"pipes that run here: {known}")
        return found

    def _each(self, name: str, do: Callable[[PipeRunner], None], what: str) -> None:
        for runner in self._find_runners(name):
            do(runner)
            with use_wait_state(WaitState(pipe=runner.name)):
                log.info("%s requested", what)

    def _verify(self, runner: PipeRunner, tables: Sequence[str]) -> None:
        """Compare tables and set each result in the status as soon as it is final."""
        began, mine = time.time(), self._verifying[runner.name]
        with use_wait_state(mine):
            selection = Selection(tuple(tables) or ("*",))
            todo = {name for name in runner.view.targets() if selection(TableName(*name.split(".", 1)))}
            for name in todo:
                runner.view.set_verify_result(name, VerifyResult(began, "running"))
            try:
                self._embedded_servers.ensure(runner.spec.sink)
                for result, record in verify_pipe(runner.spec, tables):
                    name = str(result.schema.name)
                    shown = VerifyRecord.of_result(result, time.time()) if record is None else record
                    runner.load_verify_records()
                    runner.view.set_verify_result(name, VerifyResult.from_json(shown.to_json()), recorded=record is not None)
                    todo.discard(name)
                    log.info("verify: %s", "; ".join(result_lines(result)))
            except HeadraceError as error:
                if not mine.ending:
                    log.error("verify: %s", error)
                    runner.add_error(error)
            # Last resort: the pool would swallow the error.
            except Exception as error:
                log.exception("an unexpected error ended the verification")
                runner.add_error(DefiniteError(f"verify: {type(error).__name__}: {error}", hint="please report it with the log"))
            finally:
                for name in todo:
                    runner.view.set_verify_result(name, VerifyResult(time.time(), "undecided"))
                del self._verifying[runner.name]

    @contextmanager
    def _open_pipe(self, spec: PipeSpec, view: ProgressView, runtime: Runtime) -> Iterator[BuiltPipe]:
        self._embedded_servers.ensure(spec.sink)
        with open_pipe(spec, view, runtime) as ready:
            yield ready

    def _sample_loop(self) -> None:
        """Take samples once a second; less often, check embedded sinks, start probes and measure the processes."""
        rounds, last_error = 0, ""
        while not self._ended.wait(_SAMPLE_S - time.time() % _SAMPLE_S):
            for runner in self.runners.values():
                try:
                    self._telemetry.observe(runner, runner.sample())
                    if rounds % int(_LOOK_S / _SAMPLE_S) == 0:
                        runner.check_sink()
                # Last resort: an error in one runner's status must not stop the samples of the others.
                except Exception as error:
                    if last_error != (last_error := f"{runner.name}: {type(error).__name__}: {error}"):
                        log.exception("%s: its status cannot be read", runner.name)
            with self._probe_lock:
                self._probes.poll()
            if time.monotonic() - self._status_requested_at < _USAGE_S and time.monotonic() >= self._usage_due:
                # It is slow with many processes: measured only while a client reads the status.
                self._usage, self._usage_due = measure_usage(os.getpid()), time.monotonic() + _USAGE_S
            rounds += 1


class UnknownPipe(DefiniteError):
    """This process runs no pipe of that name."""


def _shared_spark(configuration: Configuration) -> SharedSessionProvider:
    specs = _enabled_specs(configuration)
    needs = _spark_requirements(specs)
    preload = [module for spec in specs for module in workers_import(spec)]
    process = configuration.process
    directory = process.state / _SPARK_DIRECTORY
    # The user's jars are added to those that the pipes need.
    own = {name: f"{needs[name]},{value}" if name in needs else value for name, value in process.spark.items()}
    return SharedSessionProvider(process.master, directory, spark_log=process.spark_log, preload=preload, more={**needs, **own})


def _enabled_specs(configuration: Configuration) -> list[PipeSpec]:
    return [spec for pipe in configuration.pipes if pipe.enabled for spec in pipe.specs]


def _spark_requirements(specs: Sequence[PipeSpec]) -> dict[str, str]:
    """Return the Spark settings that the shared session needs from its start: one Kafka connector for all pipes."""
    needs: dict[str, str] = {}
    for spec in specs:
        wanted = spark_needs(spec)
        if needs and wanted and wanted != needs:
            raise DefiniteError(
                "pipes of one process share their Spark, and these want different connectors for Kafka",
                place=f"pipe {spec.name}, kafka_jars",
                hint="give all sources in Kafka the same kafka_jars, or run this pipe in a process of its own, with another state",
            )
        needs |= wanted
    return needs
