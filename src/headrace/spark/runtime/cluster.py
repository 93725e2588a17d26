"""Where Spark runs what we give it: in this process's own JVM, or on the machines of a cluster; and what it is told for the latter.

Invariant: nothing secret is in Spark's settings or in the environment of its executors. What tasks need to know (addresses with their
passwords) travels inside of them.

An executor that is cut off from us ends itself (`_HEARTBEATS`) before we take it for lost (Spark's `spark.network.timeout`, 120 s) and have
its tasks run elsewhere, so no task writes on behind our back for long; what it wrote by then does no harm (see decision 45).
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext

from headrace.errors import DefiniteError
from headrace.spark.runtime.fork_server import python_script

SETTING_PREFIX: Final = "spark.headrace."
"""How our own settings among Spark's begin."""
_FETCH: Final = f"{SETTING_PREFIX}fetch"
SPARK_SUBMIT_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"
"""Set in the environment by spark-submit, which has started the JVM."""
_ATTEMPTS: Final = 4
"""Of a task whose executor is lost. (An error of ours comes back as a report: it is not tried again by Spark.)"""
_HEARTBEATS: Final = 4
"""An executor that could not reach us so many times, ten seconds each, ends."""
_DEFAULT_MASTER: Final = "local[2]"
_UNROUTABLE: Final = ("", "0.0.0.0")


class ShipMode(StrEnum):
    """What executors are sent."""

    PACKAGE = "package"
    """Our own package: their Python has what it needs."""
    ENV = "env"
    """That and all packages that tasks need: they have a Python of the same version, and nothing else."""
    NONE = "none"
    """Nothing: Headrace is installed there, in the same version."""


@dataclass(frozen=True, slots=True)
class HeadraceSparkSettings:
    """Our own among Spark's settings, read."""

    ship: ShipMode = ShipMode.PACKAGE
    fetch: bool = False
    """Whether tasks never look for the mirror of the log, and always fetch their part from the source."""
    executors_within_s: float = 300.0
    """How long a cluster may take to give us the first executor."""

    @classmethod
    def parse(cls, settings: Mapping[str, str]) -> HeadraceSparkSettings:
        """Raises `DefiniteError` for what is not known."""
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
    """What spark-submit was told, if we were started by it."""
    if SPARK_SUBMIT_VARIABLE not in os.environ:
        return {}
    SparkContext._ensure_initialized()
    return dict(SparkConf(_jvm=SparkContext._jvm).getAll())


def effective_master(master: str, given: Mapping[str, str]) -> str:
    """The master that counts: under spark-submit its own, unless another was asked for."""
    return given.get("spark.master", master) if master == _DEFAULT_MASTER else master


def driver_host(master: str, asked: Mapping[str, str]) -> str:
    """Where tasks find the driver: on this machine, or at the address that a cluster is told."""
    chosen = {**submitted_settings(), **asked}
    told = effective_master(master, chosen)
    found = "127.0.0.1" if is_local(told) else cluster_settings(told, chosen).get("spark.driver.host", "")
    return found or _own_address(told)


def java_bind_address(master: str) -> str:
    """The address of this machine for the driver's Java; empty if Java finds one: it exits if it cannot resolve the machine's own name."""
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
    """What Spark is told on a cluster, besides and instead of what it is told everywhere."""
    host = given.get("spark.driver.host") or os.environ.get("SPARK_LOCAL_IP") or find_local_address(master)
    found = {
        "spark.task.maxFailures": str(_ATTEMPTS),
        # Two attempts of a task at once would write the same twice: harmless to merging tables, and never of use.
        "spark.speculation": "false",
        "spark.executor.heartbeat.maxFailures": str(_HEARTBEATS),
        # A machine or a moment that is bad is no reason to shut the others out.
        "spark.excludeOnFailure.enabled": "false",
    }
    if host:
        found |= {"spark.driver.host": host, "spark.driver.bindAddress": host}
    return found


def find_local_address(master: str) -> str:
    """The address of ours that a master sees; empty where the master's address does not tell (Spark finds one then)."""
    host, port = _host_of(master)
    if not host:
        return ""
    # Nothing is sent: a datagram socket that is connected knows its own address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError as error:
            raise DefiniteError(f"the Spark master's host cannot be found: {error}", place=master, hint="check --master") from error
        found = str(probe.getsockname()[0])
    return "" if found in _UNROUTABLE else found


def is_remote_master(master: str) -> bool:
    """Whether a master is on another machine, and so are its workers, as far as we know."""
    host, _ = _host_of(master)
    ours = find_local_address(master)
    return not host or (not ours.startswith("127.") and socket.gethostbyname(host) != ours)


def _host_of(master: str) -> tuple[str, int]:
    """The first host that a master's address names, and its port."""
    first = master.removeprefix("k8s://").split(",")[0]
    try:
        parts = urlsplit(first if "://" in first else f"//{first}")
        host, port = parts.hostname or "", parts.port or 7077
    except ValueError:
        return "", 0
    return ("", 0) if master == "yarn" else (host, port)


def choose_executor_python(master: str, given: Mapping[str, str], scratch: Path) -> str:
    """What executors start as Python. The source's own process is started by it too, here: so it must be found on this machine as well."""
    asked = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if "/" not in asked:
        _link_own_python(asked, scratch)
    elif not os.access(asked, os.X_OK):
        raise DefiniteError(
            f"the executors' Python {asked} is not on this machine, where a part of the work is done with it too",
            place=master,
            hint=f"give a bare name, such as python{sys.version_info[0]}.{sys.version_info[1]}, that each machine finds in its PATH",
        )
    return asked


def _link_own_python(name: str, scratch: Path) -> None:
    """On this machine a bare name means our own interpreter, with pyspark imported from where it is installed (see `session._python`)."""
    folder = scratch / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    link.unlink(missing_ok=True)
    link.write_text(python_script(scratch, os.environ.get("PYTHONPATH", "")))
    link.chmod(0o700)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
