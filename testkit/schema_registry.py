"""A schema registry of our own: Apicurio, in memory, with the HTTP interface of Confluent's, on a free port of 127.0.0.1.

It dies with the process that started it, and forgets everything when it ends.
"""

from __future__ import annotations

import http.client
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.demo.server import find_free_port, spawn_reaper
from headrace.errors import DefiniteError, TransientError
from testkit.maven_fetch import fetch_registry, java_program

START_TIMEOUT_S, POLL_S = 90.0, 0.1
PATH = "/apis/ccompat/v7"
JAVA = (java_program(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class PrivateRegistry:
    """One registry; `url` is what clients of a Confluent registry are given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.port = find_free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    @property
    def log_file(self) -> Path:
        return self.directory / "registry.log"

    def start(self) -> Self:
        """Start it, empty, and return once it answers."""
        program = next(fetch_registry().glob("*-runner.jar"))
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.log.level": "WARN",
            "quarkus.http.access-log.enabled": "false",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": "jdbc:h2:mem:registry",
        }
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*JAVA, *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(program)],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._reaper = spawn_reaper(self._process.pid)
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """End it at once: it has nothing to keep."""
        for process in (self._process, self._reaper):
            if process is not None:
                process.kill()
                process.wait()
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._process = self._reaper = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            tail = "\n".join(self.log_file.read_text(errors="replace").splitlines()[-15:])
            if self._process.poll() is not None:
                raise DefiniteError(f"the registry ended with code {self._process.returncode}; its log ends with:\n{tail}")
            if time.monotonic() > deadline:
                raise TransientError(f"the registry does not answer after {START_TIMEOUT_S:.0f} s; its log ends with:\n{tail}")
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", f"{PATH}/subjects")
            with connection.getresponse() as answer:
                return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
