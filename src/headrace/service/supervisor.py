"""All pipes of a file in one process: starts them, watches them, and does what is asked of them (`Control`).

Each part of each pipe has a thread, all share one Spark session and the embedded servers; one thread beside them takes the samples, and a
few ask sources and sinks how things stand. Nothing that one part does or suffers ends another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self

from headrace import __version__
from headrace.config.configuration import Configuration
from headrace.errors import DefiniteError, HeadraceError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection
from headrace.pipes.factory import BuiltPipe, PipeSpec, open_pipe, shown_sink, shown_source, spark_needs, workers_import
from headrace.pipes.lifecycle.progress_view import ProgressView
from headrace.pipes.state.event_skips import request_skip
from headrace.pipes.state.pipe_state import StateDirectory
from headrace.pipes.state.resync_requests import ask_for_resync
from headrace.retry import WaitState, use_wait_state
from headrace.service.embedded_servers import SCHEME, Warehouses
from headrace.service.merge_tables import MergeGauge
from headrace.service.pipe_groups import merged, merged_history
from headrace.service.pipe_runner import Addresses, Build, Part
from headrace.service.probes import Gauge, Looking, gauges_of
from headrace.service.process_stats import usage
from headrace.service.readonly_query import ask
from headrace.service.status import PipeStatus, Sample, ServiceStatus, VerifyResult
from headrace.service.verify_jobs import check_comparable, check_rereadable, compare, verdict
from headrace.sinks.url_schemes import CLICKHOUSE
from headrace.spark.session.session_provider import SessionProvider, SharedSessionProvider
from headrace.verify.view import result_lines

log = logging.getLogger("headrace")

_SPARK_DIRECTORY: Final = ".spark"
_SAMPLE_S, _LOOK_S, _USAGE_S, _POLL_S = 1.0, 2.0, 10.0, 0.2


class Supervisor:
    """Runs a configuration. Safe for threads; use it as a context manager."""

    def __init__(self, configuration: Configuration, *, build: Build | None = None, spark: SessionProvider | None = None) -> None:
        self.configuration = configuration
        self._warehouses = Warehouses()
        self._own_spark = None if spark is not None else _shared_spark(configuration)
        host: SessionProvider = spark if spark is not None else self._own_spark  # type: ignore[assignment]
        process = configuration.process
        self.parts: dict[str, Part] = {}
        for pipe in configuration.pipes:
            for spec in pipe.parts:
                shown = Addresses(pipe.name, shown_source(spec.source), shown_sink(spec.sink))
                spec_here = replace(spec, settings=replace(spec.settings, master=process.master, spark_log=process.spark_log))
                self.parts[spec.name] = Part(
                    spec_here, shown, host, build or self._built, enabled=pipe.enabled, retry_s=process.retry_seconds
                )
        self._started = time.time()
        self._asked_to_end = False
        self._ended = threading.Event()
        self._usage, self._usage_due, self._asked_at = usage(os.getpid()), 0.0, 0.0
        self._comparing: dict[str, WaitState] = {}
        self._begin_comparing = threading.Lock()
        self._beside = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-verify")
        self._looking = Looking([*gauges_of(list(self.parts.values()), self._warehouses), *self._merging()] if spark is None else [])
        self._sampler = threading.Thread(target=self._sample, name="headrace-samples", daemon=True)

    # -- its life

    def __enter__(self) -> Self:
        self._started = time.time()
        for part in self.parts.values():
            part.start()
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def end(self) -> None:
        """Ask all pipes to end after what they are doing; safe in a signal handler."""
        self._asked_to_end = True

    def wait(self) -> bool:
        """Wait until asked to end, or until nothing is left to run; whether no pipe failed."""
        while not self._asked_to_end and not all(part.is_over for part in self.parts.values()):
            time.sleep(_POLL_S)
        return not any(part.has_failed for part in self.parts.values())

    def close(self) -> None:
        """End all pipes in order, then what they shared."""
        if self._ended.is_set():
            return
        for part in self.parts.values():
            part.end()
        for waits in list(self._comparing.values()):
            waits.ending = True
        for part in self.parts.values():
            part.join()
        self._beside.shutdown(wait=True, cancel_futures=True)
        self._ended.set()
        if self._sampler.ident is not None:
            self._sampler.join()
        self._looking.close()
        if self._own_spark is not None:
            self._own_spark.close()
        self._warehouses.close()

    # -- Control

    def status(self) -> ServiceStatus:
        self._asked_at = time.monotonic()
        pipes = tuple(part.status() for part in self.parts.values())
        return ServiceStatus(__version__, os.getpid(), self._started, self.configuration.file, *self._usage, pipes)

    def pipe(self, name: str) -> PipeStatus:
        return merged(name, [part.status() for part in self._named(name)])

    def history(self, name: str) -> Sequence[Sample]:
        return merged_history([part.history.samples() for part in self._named(name)])

    def pause(self, name: str) -> None:
        self._each(name, Part.pause, "pause")

    def resume(self, name: str) -> None:
        self._each(name, Part.resume, "resume")

    def stop(self, name: str) -> None:
        self._each(name, Part.stop, "stop")

    def resync(self, name: str, tables: Sequence[str]) -> None:
        unclear = next((table for table in tables if "." not in table), None)
        if unclear is not None:
            raise DefiniteError(f"{unclear!r} has no database", place=f"pipe {name}", hint="write database.table")
        parts = self._named(name)
        for part in parts:
            part.check_enabled()
            check_rereadable(part.spec)
        for part in parts:
            ask_for_resync(StateDirectory(part.spec.settings.state), tuple(tables))
            log.info("%s: asked to read again: %s", part.name, ", ".join(tables))

    def skip(self, name: str, place: str) -> str:
        parts = self._named(name)
        part = next((part for part in parts if part.error is not None and part.error.skippable), parts[0])
        if part.is_running:
            raise DefiniteError("the pipe does not halt at an event: it runs", place=f"pipe {part.name}", hint="see its status")
        told = request_skip(part.spec.settings.state, place, "the control API")
        log.warning("%s: %s", part.name, told)
        part.resume()
        return told

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        parts = self._named(name)
        with self._begin_comparing:
            for part in parts:
                check_comparable(part.spec)
                if part.name in self._comparing:
                    raise DefiniteError("its tables are being compared already", place=f"pipe {part.name}", hint="wait for the result")
            for part in parts:
                self._comparing[part.name] = WaitState(pipe=part.name)
                self._beside.submit(self._compare, part, tuple(tables))

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        spec = self._named(name)[0].spec
        if not spec.sink.startswith((*CLICKHOUSE, SCHEME)):
            raise DefiniteError("only ClickHouse can be queried", place=f"pipe {name}", hint="look at a topic with headrace tail")
        self._warehouses.ensure(spec.sink)
        return ask(spec.sink, sql)

    # -- inside

    def _merging(self) -> list[Gauge]:
        """What keeps tables that show several sources' rows together."""
        pipes = [pipe for pipe in self.configuration.pipes if pipe.merged and pipe.enabled]
        return [
            MergeGauge(pipe.prefix, [self.parts[spec.name] for spec in pipe.parts], self._warehouses)
            for pipe in pipes
            if pipe.parts[0].sink.startswith((*CLICKHOUSE, SCHEME))
        ]

    def _named(self, name: str) -> list[Part]:
        """A part by its name, or all parts of a pipe."""
        found = [part for part in self.parts.values() if name in (part.name, part.shown.group)]
        if not found:
            known = ", ".join(sorted({part.shown.group for part in self.parts.values()} | set(self.parts))) or "none"
            raise UnknownPipe(f"there is no pipe {name!r}", place=self.configuration.file, hint=f"pipes that run here: {known}")
        return found

    def _each(self, name: str, do: Callable[[Part], None], what: str) -> None:
        for part in self._named(name):
            do(part)
            log.info("%s: asked to %s", part.name, what)

    def _compare(self, part: Part, tables: Sequence[str]) -> None:
        """Compare tables and tell the status, each as soon as it is sure."""
        began, mine = time.time(), self._comparing[part.name]
        with use_wait_state(mine):
            asked = Selection(tuple(tables) or ("*",))
            todo = {name for name in part.view.targets() if asked(TableName(*name.split(".", 1)))}
            for name in todo:
                part.view.compared(name, VerifyResult(began, "running"))
            try:
                self._warehouses.ensure(part.spec.sink)
                for result in compare(part.spec, tables):
                    name = str(result.schema.name)
                    part.view.compared(name, verdict(result, time.time()))
                    todo.discard(name)
                    log.info("verify: %s", "; ".join(result_lines(result)))
            except HeadraceError as error:
                if not mine.ending:
                    log.error("verify: %s", error)
                    part.fail(error)
            # The last resort: nobody would hear of it otherwise.
            except Exception as error:
                log.exception("verify ended by an error that nobody foresaw")
                part.fail(DefiniteError(f"verify: {type(error).__name__}: {error}", hint="please report it with the log"))
            finally:
                for name in todo:
                    part.view.compared(name, VerifyResult(time.time(), "undecided"))
                del self._comparing[part.name]

    @contextmanager
    def _built(self, spec: PipeSpec, view: ProgressView) -> Iterator[BuiltPipe]:
        self._warehouses.ensure(spec.sink)
        with open_pipe(spec, view) as ready:
            yield ready

    def _sample(self) -> None:
        """Once a second, until the end: the histories; now and then: what the processes use, and whether sinks are still there."""
        rounds, told = 0, ""
        while not self._ended.wait(_SAMPLE_S - time.time() % _SAMPLE_S):
            for part in self.parts.values():
                try:
                    part.sample()
                    if rounds % int(_LOOK_S / _SAMPLE_S) == 0:
                        part.look_after()
                # The last resort: what is wrong with one part's figures leaves the others theirs.
                except Exception as error:
                    if told != (told := f"{part.name}: {type(error).__name__}: {error}"):
                        log.exception("%s: its figures cannot be had", part.name)
            self._looking.poll()
            if time.monotonic() - self._asked_at < _USAGE_S and time.monotonic() >= self._usage_due:
                # It takes a while with many processes: only for those who look.
                self._usage, self._usage_due = usage(os.getpid()), time.monotonic() + _USAGE_S
            rounds += 1


class UnknownPipe(DefiniteError):
    """Nothing of that name runs here."""


def _shared_spark(configuration: Configuration) -> SharedSessionProvider:
    specs = [spec for pipe in configuration.pipes if pipe.enabled for spec in pipe.parts]
    needs = _needs_of(specs)
    preload = [module for spec in specs for module in workers_import(spec)]
    process = configuration.process
    directory = process.state / _SPARK_DIRECTORY
    # Jars of one's own come beside those that pipes need.
    own = {name: f"{needs[name]},{value}" if name in needs else value for name, value in process.spark.items()}
    return SharedSessionProvider(process.master, directory, spark_log=process.spark_log, preload=preload, more={**needs, **own})


def _needs_of(specs: Sequence[PipeSpec]) -> dict[str, str]:
    """What the pipes' session must have from its start: one connector for all of them."""
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
