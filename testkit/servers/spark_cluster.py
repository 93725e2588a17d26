"""A private standalone Spark cluster on 127.0.0.1: one master, some workers, each a process with its own directory and ports.

Executors run with an interpreter that has Headrace's dependencies but not Headrace (`bare_python`), in an environment without variables of
the test: Headrace's code is sent to them. All processes share one machine, so access to remote files is tested only with
`spark.headrace.fetch=always`. Every process needs the secret (`spark.authenticate`).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyspark

from headrace.demo.private_process import PrivateProcess, find_free_port
from testkit.machine.wait_condition import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"


def bare_python(directory: Path) -> Path:
    """Return an interpreter with the installed packages of this one, except editable installs such as Headrace."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    # Python imports from the paths in a .pth file, but does not read .pth files in them: editable installs are not found.
    paths = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return directory / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"


class _Part(PrivateProcess):
    """A master or a worker."""

    kind: ClassVar[str]

    def __init__(self, directory: Path, secret: str, path: str = "") -> None:
        super().__init__(f"the Spark {self.kind}", directory)
        self.port, self._page, self._secret, self._path = find_free_port(), find_free_port(), secret, path

    @property
    def status(self) -> dict[str, Any]:
        """Return the status of its web page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def _command(self) -> Sequence[str]:
        main = f"org.apache.spark.deploy.{self.kind}.{self.kind.capitalize()}"
        properties = self.directory / "spark.conf"
        properties.write_text(f"spark.authenticate true\nspark.authenticate.secret {self._secret}\n")
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._page), "--properties-file", str(properties))
        return (str(SPARK_HOME / "bin" / "spark-class"), main, *place, *self._more())

    def _more(self) -> Sequence[str]:
        return ()

    def _popen_options(self) -> dict[str, Any]:
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG") if name in os.environ}
        own = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": _JAVA, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK_HOME)}
        return {"env": {**kept, **own, "PATH": f"{self._path}:/usr/local/bin:/usr/bin:/bin".lstrip(":")}}

    def _answers(self) -> bool:
        try:
            return bool(self.status)
        except (OSError, ValueError) as error:
            self._refusal = str(error)
            return False


class SparkMaster(_Part):
    kind = "master"

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"


class SparkWorker(_Part):
    kind = "worker"

    def __init__(self, directory: Path, secret: str, path: str, master: str, cores: int, memory: str) -> None:
        super().__init__(directory, secret, path)
        self._master, self._cores, self._memory = master, cores, memory

    @property
    def work(self) -> Path:
        """The directory of its executors, each in its own subdirectory."""
        return self.directory / "work"

    @property
    def executors(self) -> list[int]:
        """The process ids of its executors."""
        mark = f"spark://Worker@127.0.0.1:{self.port}".encode()
        return [pid for pid, line in command_lines() if mark in line and b"CoarseGrainedExecutorBackend" in line and pid != self.pid]

    def _more(self) -> Sequence[str]:
        return ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.work), self._master)


@dataclass(slots=True)
class SparkCluster:
    """One master and its workers."""

    directory: Path
    python: Path
    """Programs that executors find by name."""
    workers: int = 2
    cores: int = 1
    memory: str = "1g"
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    master: SparkMaster = field(init=False)
    parts: list[SparkWorker] = field(init=False, default_factory=list)

    @property
    def url(self) -> str:
        return self.master.url

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings of an application on this cluster."""
        return {
            "spark.authenticate": "true",
            "spark.authenticate.secret": self.secret,
            "spark.network.crypto.enabled": "true",
            "spark.executor.memory": "512m",
            "spark.pyspark.python": self.python.name,
            "spark.executor.extraJavaOptions": _JAVA,
        }

    @contextmanager
    def running(self) -> Iterator[SparkCluster]:
        """Run the cluster, with all workers registered, until the end of the block."""
        path = str(self.python.parent)
        self.master = SparkMaster(self.directory / "master", self.secret)
        try:
            self.master.start()
            for number in range(self.workers):
                self.parts.append(SparkWorker(self.directory / f"worker{number}", self.secret, path, self.url, self.cores, self.memory))
                self.parts[-1].start()
            self.await_workers(self.workers)
            yield self
        finally:
            for part in (*self.parts, self.master):
                part.kill()

    def await_workers(self, count: int, timeout_s: float = 60.0) -> None:
        wait_until(lambda: self.master.status["aliveworkers"] == count, timeout_s, message=lambda: self.master.status)

    def kill_executor(self, worker: int) -> int:
        """Send SIGKILL to an executor of a worker; return its process id, 0 if there was none."""
        found = self.parts[worker].executors
        if found:
            os.kill(found[0], signal.SIGKILL)
        return found[0] if found else 0


def command_lines() -> Iterator[tuple[int, bytes]]:
    """All processes with their command lines."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes()
            except OSError:
                continue
