"""The process that runs on a state directory: its lock, its address and token, and `Control` over its HTTP API.

Address and token are published in `control.json` of the directory. Invariant: only the user who runs the process can read the file (0600).
The process removes it at exit; a file that a killed process left behind is detected by its process id. Clients read only `[headrace] state`
of a pipe file, so they do not need the secrets of the pipes.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from headrace.errors import DefiniteError, TransientError
from headrace.service.status import MetricSample, PipeStatus, ReloadResult, ServiceStatus
from headrace.terminal_text import escape_text

if TYPE_CHECKING:
    from headrace.alerts.status import AlertsStatus
    from headrace.telemetry.event import PipeEvent
    from headrace.telemetry.log_reader import LogPage, LogQuery
    from headrace.telemetry.metrics import Series
    from headrace.telemetry.table_rates import TableSeries

_LOCK: Final = "run.lock"


@contextmanager
def hold_instance_lock(directory: Path) -> Iterator[None]:
    """Hold the lock of a state directory; create the directory with owner-only access if it does not exist."""
    _create_directory(directory)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DefiniteError(
                "another headrace process runs on this state directory",
                place=str(directory),
                hint='use that one (headrace status), stop it, or choose another: state = "DIR" under [headrace]',
            ) from None
        yield


def _create_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = 'choose another: state = "DIR" under [headrace]'
        raise DefiniteError(f"the state directory cannot be made: {error}", place=str(directory), hint=hint) from error
    # chmod fails on a directory of another user; the files inside are owner-only anyway.
    with suppress(PermissionError):
        directory.chmod(0o700)


CONTROL_FILE: Final = "control.json"
TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
DEFAULT_FILE: Final = "headrace.toml"
_STATE: Final = "headrace-state"
_RUN: Final = "start it with `headrace run`, or say where it is: its file, --state DIR, or --url URL with HEADRACE_TOKEN"


@dataclass(frozen=True, slots=True)
class ControlEndpoint:
    """Address, token and process id of a running process."""

    url: str
    token: str = field(repr=False)
    pid: int = 0


def new_token() -> str:
    return secrets.token_urlsafe(32)


@contextmanager
def publish_endpoint(state: Path, url: str, token: str) -> Iterator[ControlEndpoint]:
    """Publish this process's endpoint in the state directory while the context is open."""
    endpoint = ControlEndpoint(url, token, os.getpid())
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state / CONTROL_FILE
    temporary = state / f".{CONTROL_FILE}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    # Created with its final mode, so that other users can never read it.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(endpoint), file)
    temporary.replace(path)
    try:
        yield endpoint
    finally:
        # Another process may have published its own file since.
        with contextlib.suppress(DefiniteError):
            if read_endpoint(state).pid == endpoint.pid:
                path.unlink(missing_ok=True)


def read_endpoint(state: Path) -> ControlEndpoint:
    """Return the endpoint of the process that runs on a state directory."""
    path = state / CONTROL_FILE
    try:
        content: Any = json.loads(path.read_text())
        endpoint = ControlEndpoint(str(content["url"]), str(content["token"]), int(content["pid"]))
    except FileNotFoundError as error:
        raise DefiniteError("no process runs here", place=str(state), hint=_RUN) from error
    except PermissionError as error:
        raise DefiniteError("the process belongs to another user", place=str(path), hint="run the command as that user") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DefiniteError(f"this is no control file: {error}", place=str(path), hint="remove it and start the process again") from error
    if not _is_running(endpoint.pid):
        raise DefiniteError(f"the process that ran here, {endpoint.pid}, is no more", place=str(state), hint=_RUN)
    return endpoint


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def find_process(file: str = "", state: str = "", url: str = "") -> ControlEndpoint:
    """Return the endpoint of the process; `url` takes precedence over `state`, `state` over `file`. `DefiniteError` if none runs."""
    if url:
        return ControlEndpoint(url.rstrip("/"), os.environ.get(TOKEN_VARIABLE, ""))
    if state:
        return read_endpoint(Path(state))
    if file:
        return read_endpoint(read_state_directory(Path(file)))
    if Path(DEFAULT_FILE).exists():
        return read_endpoint(read_state_directory(Path(DEFAULT_FILE)))
    if (Path(_STATE) / CONTROL_FILE).exists():
        return read_endpoint(Path(_STATE))
    raise DefiniteError(
        f"there is no {DEFAULT_FILE} here",
        place=str(Path.cwd()),
        hint=f"name the file of pipes, or --state DIR, or --url URL with {TOKEN_VARIABLE}",
    )


def read_state_directory(path: Path) -> Path:
    """Return the state directory named in a pipe file; a relative path is relative to the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else f"the file cannot be read: {error}"
        raise DefiniteError(reason, place=str(path), hint="name the file of pipes, or its state: --state DIR") from error
    directory = path.resolve().parent
    if path.suffix != ".toml":
        # Files of other tools have no state setting.
        return directory / _STATE
    try:
        section = tomllib.loads(text).get("headrace", {})
    except tomllib.TOMLDecodeError as error:
        raise DefiniteError(f"the file is not TOML: {error}", place=str(path), hint="see `headrace config check`") from error
    named = section.get("state", _STATE) if isinstance(section, dict) else _STATE
    if not isinstance(named, str):
        raise DefiniteError("[headrace] state is no text", place=str(path), hint="see `headrace config check`")
    if "${" in named:
        from headrace.config.document import References

        named = References(directory).resolve(named, f"{path}, headrace.state")
    return directory / named


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

    def reload(self) -> ReloadResult:
        return ReloadResult.from_json(self._post("/api/reload", {}))

    def alerts(self) -> AlertsStatus:
        from headrace.alerts.status import AlertsStatus

        return AlertsStatus.from_json(self._get("/api/alerts"))

    def events(self, name: str, limit: int) -> Sequence[PipeEvent]:
        from headrace.telemetry.event import parse_event

        return [parse_event(event) for event in self._get(f"/api/events?pipe={_quoted(name)}&limit={limit}")["events"]]

    def metrics(self, name: str, span: str) -> Series:
        from headrace.telemetry.metrics import Measurement, Series

        answer = self._get(f"/api/history?pipe={_quoted(name)}&range={span}")
        points = (Measurement(at, rate, copied, lag_s, behind) for at, rate, lag_s, behind, copied in answer["samples"])
        return Series(answer["step_s"], tuple(points))

    def log(self, name: str, query: LogQuery) -> LogPage:
        from headrace.telemetry.log_reader import LogPage

        given = {"pipe": name, "level": query.level, "search": query.search, "limit": str(query.limit)}
        given |= {key: str(value) for key, value in (("before", query.before), ("after", query.after)) if value is not None}
        return LogPage.from_json(self._get(f"/api/log?{urlencode(given)}"))

    def table_rates(self, name: str) -> TableSeries:
        from headrace.telemetry.table_rates import TableSeries

        return TableSeries.from_json(self._get(f"/api/table_rates?pipe={_quoted(name)}"))

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
        message = str(problem.get("message", f"HTTP {status}"))
        if "\n" in message:
            # All mistakes of a file, one a line.
            from headrace.config.document import ErrorList

            raise ErrorList("\n".join(map(escape_text, message.split("\n"))))
        kind = TransientError if status == HTTPStatus.SERVICE_UNAVAILABLE else DefiniteError
        raise kind(message, place=str(problem.get("place", "")), hint=str(problem.get("remedy", "")))


def _quoted(name: str) -> str:
    return quote(name, safe="")
