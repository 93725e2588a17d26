"""A standalone Spark cluster of our own on 127.0.0.1: one master, some workers, each a process with a directory and ports of its own.

Executors run with an interpreter that has our dependencies and not Headrace itself (`bare_python`), in an environment that knows nothing of
ours: what they run of Headrace was sent to them. All on one machine, so what it proves about files is only what is asked for with
`spark.headrace.fetch=always`. Everyone must show a secret (`spark.authenticate`).
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
from testkit.machine.waiting import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"


def bare_python(directory: Path) -> Path:
    """An interpreter with all that is installed for this one, except what is installed in place (as Headrace is)."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    # Paths in a .pth file are imported from, but .pth files in them are not read: so nothing is found that is installed in place.
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
        """What its page shows."""
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
        """Where its executors live, each in a directory of its own."""
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
    """What executors find by its bare name."""
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
        """What an application must be told to run here."""
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
        """Serving, with all workers known to the master; everything ends with the block."""
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
        """SIGKILL an executor of a worker; its process id, 0 if there was none."""
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
