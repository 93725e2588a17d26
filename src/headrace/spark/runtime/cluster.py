"""Spark's settings for a local master and for a cluster, and the executors of a cluster.

Invariant: Spark's settings and the environment of executors contain no secrets. Tasks carry the addresses and passwords that they need.

An executor that has lost the connection to the driver exits (`_HEARTBEATS`) before the driver considers it lost (`spark.network.timeout`,
120 s) and runs its tasks elsewhere. So no lost task keeps writing for long, and the rows that it has written do no harm (decision 45).

A session checks its executors before it reads or writes anything. The error names the host and the remedy: another Python, missing
packages, another version of Headrace. Executors that lack dependencies of Headrace import this module: it imports pyspark only.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, TransientError
from headrace.extras import is_installed
from headrace.retry import WAITING, current_wait, pause
from headrace.spark.runtime.fork_server import python_script

SETTING_PREFIX: Final = "spark.headrace."
"""The prefix of Headrace's settings among Spark's."""
_FETCH: Final = f"{SETTING_PREFIX}fetch"
SPARK_SUBMIT_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
"""An environment variable that spark-submit sets, which has started the JVM."""
_ATTEMPTS: Final = 4
"""How often Spark starts a task whose executor is lost. (Headrace errors come back as reports: Spark does not retry them.)"""
_HEARTBEATS: Final = 4
"""An executor exits after this many failed heartbeats, ten seconds each."""
_DEFAULT_MASTER: Final = "local[2]"
_UNROUTABLE: Final = ("", "0.0.0.0")

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


class ShipMode(StrEnum):
    """Which packages the driver sends to executors."""

    PACKAGE = "package"
    """Headrace itself; the executors' Python has its dependencies."""
    ENV = "env"
    """Headrace and its dependencies; executors have only a Python of the same version."""
    NONE = "none"
    """Nothing; the same version of Headrace is installed on executors."""


@dataclass(frozen=True, slots=True)
class HeadraceSparkSettings:
    """Headrace's settings among Spark's, parsed."""

    ship: ShipMode = ShipMode.PACKAGE
    fetch: bool = False
    """Whether tasks always fetch log segments from the source, and never read the relay's copy of the log."""
    executors_within_s: float = 300.0
    """How long to wait for the first executor of a cluster."""

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> HeadraceSparkSettings:
        """Parse the settings; raise `DefiniteError` for an unknown one."""
        given = {name.removeprefix(SETTING_PREFIX): value for name, value in settings.items() if name.startswith(SETTING_PREFIX)}
        ship, fetch, within = given.pop("ship", ShipMode.PACKAGE), given.pop("fetch", "auto"), given.pop("executors.within", "300")
        for name in given:
            raise DefiniteError(
                f"{SETTING_PREFIX}{name} is no setting",
                hint=f"{SETTING_PREFIX}ship, {SETTING_PREFIX}fetch and {SETTING_PREFIX}executors.within are known",
            )
        if ship not in list(ShipMode):
            raise DefiniteError(f"{SETTING_PREFIX}ship cannot be {ship!r}", hint=f"choose one of {', '.join(ShipMode)}")
        if fetch not in ("auto", "always"):
            raise DefiniteError(f"{_FETCH} cannot be {fetch!r}", hint="choose auto or always")
        if not within.removesuffix("s").isdigit():
            raise DefiniteError(f"{SETTING_PREFIX}executors.within cannot be {within!r}", hint="give a number of seconds")
        return cls(ShipMode(ship), fetch == "always", float(within.removesuffix("s")))


def is_local(master: str) -> bool:
    """Whether tasks run on this machine, in the driver's own JVM."""
    return master.startswith("local") and not master.startswith("local-cluster")


def submitted_settings() -> dict[str, str]:
    """Return the settings of spark-submit, if it started this process."""
    if SPARK_SUBMIT_VARIABLE not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def effective_master(master: str, given: Mapping[str, str]) -> str:
    """Return the master to use: the one of spark-submit, unless the user named another."""
    return given.get("spark.master", master) if master == _DEFAULT_MASTER else master


def driver_host(master: str, requested: Mapping[str, str]) -> str:
    """Return the address at which tasks reach the driver."""
    chosen = {**submitted_settings(), **requested}
    master_url = effective_master(master, chosen)
    found = "127.0.0.1" if is_local(master_url) else cluster_settings(master_url, chosen).get("spark.driver.host", "")
    return found or _own_address(master_url)


def java_bind_address(master: str) -> str:
    """Return an address of this machine for the driver's JVM if the JVM cannot resolve the host name, else an empty text."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return find_local_address(master)
    return ""


def _own_address(master: str) -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise DefiniteError(
            f"the name of this machine, {socket.gethostname()}, has no address: {error}",
            place=master,
            hint="add it to /etc/hosts, or set SPARK_LOCAL_IP to an address that the executors reach",
        ) from error


def cluster_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a cluster needs in addition to, or instead of, those of every session."""
    host = given.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or find_local_address(master)
    found = {
        "spark.task.maxFailures": str(_ATTEMPTS),
        # Two attempts of a task at the same time would write the same rows twice, and never help.
        "spark.speculation": "false",
        "spark.executor.heartbeat.maxFailures": str(_HEARTBEATS),
        # One failure of a machine is no reason to exclude it.
        "spark.excludeOnFailure.enabled": "false",
    }
    if host:
        found |= {"spark.driver.host": host, "spark.driver.bindAddress": host}
    return found


def find_local_address(master: str) -> str:
    """Return the local address of the route to a master; empty if the master's address has no host (Spark then finds one)."""
    host, port = _host_of(master)
    if not host:
        return ""
    # A connected datagram socket knows its own address. It sends nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise DefiniteError(f"the Spark master's host cannot be found: {error}", place=master, hint="check --master") from error
        found = str(probe.getsockname()[0])
    return "" if found in _UNROUTABLE else found


def is_remote_master(master: str) -> bool:
    """Whether a master runs on another machine; its workers are then assumed to do so as well."""
    host, _ = _host_of(master)
    ours = find_local_address(master)
    return not host or (not ours.startswith("127.") and socket.gethostbyname(host) != ours)


def _host_of(master: str) -> tuple[str, int]:
    """Return the first host in a master's address, and its port."""
    first = master.removeprefix("k8s://").split(",")[0]
    try:
        parts = urlsplit(first if "://" in first else f"//{first}")
        host, port = parts.hostname or "", parts.port or 7077
    except ValueError:
        return "", 0
    return ("", 0) if master == "yarn" else (host, port)


def choose_executor_python(master: str, given: Mapping[str, str], scratch: Path) -> str:
    """What executors start as Python. The source's own process is started by it too, here: so it must be found on this machine as well."""
    python = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if "/" not in python:
        _link_own_python(python, scratch)
    elif not os.access(python, os.X_OK):
        raise DefiniteError(
            f"the executors' Python {python} is not on this machine, where a part of the work is done with it too",
            place=master,
            hint=f"give a bare name, such as python{sys.version_info[0]}.{sys.version_info[1]}, that each machine finds in its PATH",
        )
    return python


def _link_own_python(name: str, scratch: Path) -> None:
    """Make a bare name run this interpreter on this machine, with the installed pyspark (see `session._python`)."""
    folder = scratch / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    link.unlink(missing_ok=True)
    link.write_text(python_script(scratch, os.environ.get("PYTHONPATH", "")))
    link.chmod(0o700)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])


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
        # Tasks use no package of an extra that is not installed here.
        required = tuple(filter(is_installed, REQUIRED_MODULES))
        describe = functools.partial(describe_executor, required)
        rows = session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(describe).collect()
    except (PySparkException, Py4JError) as error:
        # Only the Java stack trace names the host.
        fault = explain_executor_error(f"{error}\n{getattr(error, '_stackTrace', '')}", str(session.sparkContext.master))
        raise fault or TransientError(
            f"Spark cannot run a first task: {str(error)[:2000]}", place=str(session.sparkContext.master)
        ) from error
    found = {Executor(**{**raw, "missing": tuple(raw["missing"])}) for raw in map(json.loads, rows)}
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


def describe_executor(required: Sequence[str], numbers: Iterable[int]) -> Iterator[str]:
    """Return the description of this executor, for each number. Runs in executors."""
    import headrace

    for _ in numbers:
        missing = tuple(name for name in required if not is_installed(name))
        cpu = "" if missing else cpu_name()
        package = str(Path(headrace.__file__).parent)
        here = Executor(socket.gethostname(), str(Path.cwd()), platform.python_version(), package, cpu, missing)
        yield json.dumps(asdict(here))


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
        hint = "install it there, or name the installed one: --conf spark.pyspark.python=PATH"
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
    return is_local(str(session.sparkContext.master))
