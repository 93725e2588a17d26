"""The executors of a cluster: how many tasks they run at the same time, and whether they can run Headrace's tasks.

A session checks its executors before it reads or writes anything. The error names the host and the remedy: another Python, missing
packages, another version of Headrace.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import platform
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, TransientError
from headrace.retry import WAITING, current_wait, pause
from headrace.spark.runtime.cluster import HeadraceSparkSettings, is_local

log = logging.getLogger("headrace")

REQUIRED_MODULES: Final = (
    "numpy",
    "numba",
    "llvmlite",
    "pyarrow",
    "pandas",
    "clickhouse_connect",
    "pymysql",
    "confluent_kafka",
    "orjson",
    "cassandra",
    "duckdb",
)
_SETTLED_S: Final = 1.0
_STILL_COMING_S: Final = 20.0
_TELL_EVERY_S: Final = 15.0
_POLL_S: Final = 0.1
_WATCH_S: Final = 2.0
_NO_MODULE: Final = re.compile(r"No module named '?([\w.]+)'?")
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_VERSIONS: Final = re.compile(r"PYTHON_VERSION_MISMATCH\][^\n]*")
_HOST: Final = re.compile(r"\(TID \d+\) \(([^) ]+)")
SHIP_HINT: Final = "install Headrace's dependencies for that Python on every machine, or send them: --conf spark.headrace.ship=env"


@dataclass(frozen=True, slots=True)
class Executor:
    """The description that an executor returns of itself."""

    host: str
    directory: str
    python: str
    package: str
    """The directory from which it imports Headrace."""
    cpu: str
    missing: tuple[str, ...] = ()


def count_task_slots(session: SparkSession) -> int:
    """Return how many tasks run at the same time: the cores of all current executors, divided by the cores per task."""
    context = session.sparkContext
    return max(int(context.defaultParallelism) // int(context.getConf().get("spark.task.cpus", "1") or 1), 1)


def await_executors(session: SparkSession, within_s: float) -> int:
    """Wait until a cluster has started executors and no more are starting; return their number."""
    begun = logged_at = time.monotonic()
    since, count = begun, 0
    while not current_wait().ending:
        now, found = time.monotonic(), _count(session)
        if found != count:
            since, count = now, found
        if count and (now - since > _SETTLED_S or now - begun > _STILL_COMING_S):
            return count
        if not count and now - begun > within_s:
            raise TransientError(
                f"the cluster has given us no executor within {within_s:.0f} s",
                place=str(session.sparkContext.master),
                hint="see the master's page: are workers alive, are cores and memory free (spark.cores.max, spark.executor.memory)?",
            )
        if not count and now - logged_at > _TELL_EVERY_S:
            logged_at = now
            reason = "the Spark master has given us no executor yet"
            current_wait().note(reason)
            log.warning("%s%s (%.0f s so far)", WAITING, reason, now - begun)
        pause(_POLL_S)
    if not count:
        # Without an executor, a task would wait without end.
        raise TransientError("asked to end before the cluster has given us an executor", place=str(session.sparkContext.master))
    return count


def is_stopped(session: SparkSession) -> bool:
    """Whether a session has stopped, or its Java process does not answer."""
    try:
        return bool(session.sparkContext._jsc is None or session.sparkContext._jsc.sc().isStopped())
    except (Py4JError, OSError):
        return True


def watch_executors(session: SparkSession, within_s: float) -> None:
    """In the background, warn when a cluster has no executor for the session, and stop the session after `within_s` without one.

    A restarted master does not know the session and would never start executors for it. A new session registers with it.
    """
    threading.Thread(target=_watch, args=(session, within_s), name="headrace-executors", daemon=True).start()


def _watch(session: SparkSession, within_s: float) -> None:
    since = logged_at = time.monotonic()
    while not is_stopped(session):
        now = time.monotonic()
        try:
            if _count(session):
                since = logged_at = now
            elif now - since > within_s:
                log.warning("the cluster has left us without executors for %.0f s: the session ends", now - since)
                session.stop()
                return
            elif now - logged_at > _TELL_EVERY_S:
                logged_at = now
                log.warning("%sthe cluster has left us no executor (%.0f s so far)", WAITING, now - since)
        except (Py4JError, OSError):
            # The Java process has exited.
            return
        time.sleep(_WATCH_S)


def _count(session: SparkSession) -> int:
    # The driver's own entry is among them.
    return len(session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1


def check_executors(session: SparkSession) -> list[Executor]:
    """Return the descriptions of all executors; raise `DefiniteError` if one cannot run Headrace's tasks."""
    tasks = count_task_slots(session)
    try:
        rows = session.range(0, tasks, 1, tasks).mapInArrow(describe_executor, "found string").collect()
    except (PySparkException, Py4JError) as error:
        # Only the Java stack trace names the host.
        fault = explain_executor_error(f"{error}\n{getattr(error, '_stackTrace', '')}", str(session.sparkContext.master))
        raise fault or TransientError(
            f"Spark cannot run a first task: {str(error)[:2000]}", place=str(session.sparkContext.master)
        ) from error
    found = {Executor(**{**raw, "missing": tuple(raw["missing"])}) for raw in (json.loads(row[0]) for row in rows)}
    for one in found:
        if one.missing:
            names = ", ".join(one.missing)
            raise DefiniteError(f"the executors' Python {one.python} lacks {names}", place=f"executor on {one.host}", hint=SHIP_HINT)
    _warn_about_other_cpus(found)
    return sorted(found, key=lambda one: (one.host, one.directory))


def _warn_about_other_cpus(found: Iterable[Executor]) -> None:
    ours = cpu_name()
    others = sorted({f"{one.host} ({one.cpu})" for one in found if one.cpu and one.cpu != ours})
    if others:
        log.warning(
            "executors have other CPUs than this machine (%s): %s; each compiles its kernels at its start, which takes minutes: "
            "install Headrace there and compile once (docs/scaling.md)",
            ours,
            ", ".join(others),
        )


def describe_executor(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the description of this executor, for each row. Runs in executors."""
    import headrace

    for batch in batches:
        missing = tuple(name for name in REQUIRED_MODULES if importlib.util.find_spec(name) is None)
        cpu = "" if missing else cpu_name()
        package = str(Path(headrace.__file__).parent)
        here = Executor(socket.gethostname(), str(Path.cwd()), platform.python_version(), package, cpu, missing)
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(asdict(here))] * batch.num_rows})


def cpu_name() -> str:
    """Return the CPU that numba compiles for."""
    from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]

    return os.environ.get("NUMBA_CPU_NAME") or str(get_host_cpu_name())


def explain_executor_error(text: str, master: str) -> DefiniteError | None:
    """Translate Spark's message about a Python that does not start on an executor."""
    host = _HOST.search(text)
    place = f"executor on {host[1]}" if host else master
    module, program, versions = _NO_MODULE.search(text), _NO_PROGRAM.search(text), _VERSIONS.search(text)
    if program:
        hint = "install it there, or name the one that is there: --conf spark.pyspark.python=PATH"
        return DefiniteError(f"there is no {program[1]} on the executor's machine", place=place, hint=hint)
    if versions:
        hint = f"executors need Python {platform.python_version_tuple()[0]}.{platform.python_version_tuple()[1]}, as here: "
        return DefiniteError(
            f"the executors' Python has another version: {versions.group()}", place=place, hint=f"{hint}--conf spark.pyspark.python=PATH"
        )
    if module:
        return DefiniteError(f"the executors' Python has no module {module[1]}", place=place, hint=SHIP_HINT)
    return None


def is_local_session(session: SparkSession) -> bool:
    """Whether all tasks run on this machine."""
    return is_local(str(session.sparkContext.master))


def always_fetches_segments(session: SparkSession) -> bool:
    """Whether tasks always fetch log segments from the source."""
    return HeadraceSparkSettings.parse(dict(session.sparkContext.getConf().getAll())).fetch
