"""`Control` over the HTTP API of a running process.

An error response becomes the same exception as in the process, with place and remedy. Unknown fields from a newer process are ignored.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit

from headrace.errors import DefiniteError, TransientError
from headrace.service.client.endpoint import ControlEndpoint
from headrace.service.status import MetricSample, PipeStatus, ServiceStatus

TIMEOUT_S: Final = 60.0


class HttpControl:
    """Controls one process; opens a connection per request."""

    def __init__(self, endpoint: ControlEndpoint) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DefiniteError(f"{endpoint.url!r} is no address of a process", place="--url", hint="write it as http://127.0.0.1:8088")
        self._host, self._port, self._tls, self._base = parts.hostname, parts.port, parts.scheme == "https", parts.path.rstrip("/")

    def status(self) -> ServiceStatus:
        return ServiceStatus.from_json(self._get("/api/status"))

    def pipe(self, name: str) -> PipeStatus:
        return PipeStatus.from_json(self._get(f"/api/pipes/{_quoted(name)}"))

    def history(self, name: str) -> Sequence[MetricSample]:
        return [MetricSample(*sample) for sample in self._get(f"/api/pipes/{_quoted(name)}/history")["samples"]]

    def pause(self, name: str) -> None:
        self._act(name, "pause")

    def resume(self, name: str) -> None:
        self._act(name, "resume")

    def stop(self, name: str) -> None:
        self._act(name, "stop")

    def resync(self, name: str, tables: Sequence[str]) -> None:
        self._act(name, "resync", tables=list(tables))

    def skip(self, name: str, place: str) -> str:
        return str(self._act(name, "skip", place=place)["skipped"])

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        self._act(name, "verify", tables=list(tables))

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        answer = self._post("/api/query", {"pipe": name, "sql": sql})
        return answer["columns"], answer["rows"]

    def _act(self, name: str, action: str, **document: Any) -> Any:
        return self._post(f"/api/pipes/{_quoted(name)}/{action}", document)

    def _get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def _post(self, path: str, document: Mapping[str, Any]) -> Any:
        if not self._endpoint.token:
            raise DefiniteError("this needs the process's token", place=self._endpoint.url, hint="put it into the variable HEADRACE_TOKEN")
        return self._request("POST", path, json.dumps(document))

    def _request(self, method: str, path: str, body: str | None) -> Any:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers |= {"Authorization": f"Bearer {self._endpoint.token}", "Content-Type": "application/json"}
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, self._base + path, body, headers)
            answer = connection.getresponse()
            return self._read(answer.status, answer.read())
        except TimeoutError as error:
            raise TransientError(
                f"the process has not answered for {TIMEOUT_S:.0f} s", place=self._endpoint.url, hint="see its log; try again"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise DefiniteError(
                f"no process answers: {str(error) or type(error).__name__}",
                place=self._endpoint.url,
                hint="start it with `headrace run`; if it runs, see its log",
            ) from error
        finally:
            connection.close()

    def _read(self, status: int, body: bytes) -> Any:
        try:
            document = json.loads(body)
        except ValueError as error:
            hint = "give the address that `headrace run` prints"
            raise DefiniteError("something else than Headrace answers", place=self._endpoint.url, hint=hint) from error
        if status == HTTPStatus.OK:
            return document
        problem = document.get("error", {}) if isinstance(document, dict) else {}
        kind = TransientError if status == HTTPStatus.SERVICE_UNAVAILABLE else DefiniteError
        raise kind(str(problem.get("message", f"HTTP {status}")), place=str(problem.get("place", "")), hint=str(problem.get("remedy", "")))


def _quoted(name: str) -> str:
    return quote(name, safe="")
