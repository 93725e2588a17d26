"""Spark's settings for a local master and for a cluster.

Invariant: Spark's settings and the environment of executors contain no secrets. Tasks carry the addresses and passwords that they need.

An executor that has lost the connection to the driver exits (`_HEARTBEATS`) before the driver considers it lost (`spark.network.timeout`,
120 s) and runs its tasks elsewhere. So no lost task keeps writing for long, and the rows that it has written do no harm (decision 45).
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
    """Whether tasks always fetch log segments from the source, and never look for the mirror of the log."""
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
