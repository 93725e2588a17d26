"""A private schema registry: Apicurio, in memory, with the HTTP interface of Confluent's, on a free port of 127.0.0.1.

It stores nothing.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from types import TracebackType

from headrace.demo.private_process import PrivateProcess, find_free_port
from testkit.servers.maven_fetch import fetch_registry, java_program

PATH = "/apis/ccompat/v7"
JAVA = (java_program(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class PrivateRegistry(PrivateProcess):
    """One registry; `url` is the address for clients of a Confluent registry."""

    log_name = "registry.log"
    poll_s = 0.1

    def __init__(self, directory: Path) -> None:
        super().__init__("the registry", directory)
        self.port = find_free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()  # (it has nothing to keep)

    def _command(self) -> list[str]:
        program = next(fetch_registry().glob("*-runner.jar"))
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.log.level": "WARN",
            "quarkus.http.access-log.enabled": "false",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": "jdbc:h2:mem:registry",
        }
        return [*JAVA, *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(program)]

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
