"""Starts the embedded server as a child process, or finds a running one.

The child holds one end of a pipe and stops when the other end closes, that is, when its owner ends in any way. So no orphan keeps the
directory. The child has its own session: Ctrl-C reaches only the owner, which then finishes its work while the server still runs.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar, Final, Self

from headrace.embedded.access.credentials import read_account
from headrace.embedded.engine.directory_lock import DirectoryInUse, ServingProcess, in_use, make_directory, read_serving_process
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.extras import EMBEDDED, require_extra
from headrace.shortage import full_directory, shortage_in
from headrace.stage_report import enter_stage

log = logging.getLogger(__name__)

PASSWORD_VARIABLE: Final = "HEADRACE_SERVE_PASSWORD"
_LOG_NAME: Final = "headrace-server.log"
_LOG_TAIL_BYTES: Final = 2000
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_CRASH_SIGNALS: Final = frozenset(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE))
_START_ATTEMPTS: Final = 3
_START_S, _FIND_S = 60.0, 30.0


class EngineCrashed(TransientError):
    """The engine crashed while it started, before it served a request."""


class EmbeddedServer:
    """A server on a directory: started here (`EmbeddedServer(path)`), or found running (`connect_or_start`).

    `password` is the server's password; if empty: HEADRACE_SERVE_PASSWORD, the stored password, or a random one, in this order. Once the
    server runs, `user` and `password` are its credentials. `hosts_pipes`: as in `server.serve`.
    """

    _program: ClassVar = ("-m", "headrace.embedded")
    """Arguments of the child's interpreter."""

    def __init__(
        self,
        path: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        user: str = "default",
        password: str = "",
        lock_wait_seconds: float = 10.0,
        hosts_pipes: bool = False,
    ) -> None:
        self.path = path.resolve()
        self.host = host
        self.user = user
        self.password = password
        self.port = port
        self.owned = True
        self._lock_wait = lock_wait_seconds
        self._hosts_pipes = hosts_pipes
        self._child: subprocess.Popen[bytes] | None = None
        self._parent_pipe = -1
        self._log_start = 0

    @classmethod
    def connect_or_start(cls, path: Path, *, hosts_pipes: bool = False) -> EmbeddedServer:
        """Return the directory's running server, or start one; it is ready. `stop` only stops a server that was started here."""
        server = cls(path, lock_wait_seconds=1.0, hosts_pipes=hosts_pipes)
        deadline = time.monotonic() + _FIND_S
        while True:
            serving = read_serving_process(server.path)
            if serving is None:
                try:
                    return server.start()
                except DirectoryInUse:
                    # Another process was faster, or holds the directory without serving.
                    if time.monotonic() >= deadline:
                        raise
            elif serving.port and ping(serving.host, serving.port):
                return server._adopt(serving)
            elif time.monotonic() >= deadline:
                raise in_use(server.path, serving)
            time.sleep(0.05)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def pid(self) -> int:
        """The child's process id; 0 if the server was found running."""
        return self._child.pid if self._child is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the server answers now."""
        return ping(self.host, self.port)

    def start(self) -> Self:
        """Start the child and wait until it answers.

        The engine may crash in a start (a cause that is gone: `place_after_environment`). A failed start has no effect, so it is repeated.
        """
        require_extra(EMBEDDED)
        make_directory(self.path)
        enter_stage(f"starting an embedded ClickHouse in {self.path}")
        for _ in range(_START_ATTEMPTS - 1):
            try:
                return self._start_once()
            except EngineCrashed as crash:
                log.warning("%s; it is started again", crash)
        return self._start_once()

    def _start_once(self) -> Self:
        lifeline_reader, self._parent_pipe = os.pipe()
        ready, ready_writer = os.pipe()
        try:
            self._spawn(lifeline_reader, ready_writer)
        finally:
            os.close(lifeline_reader)
            os.close(ready_writer)
        try:
            self._await_ready(ready)
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(ready)
        return self

    def stop(self, timeout_seconds: float = 45.0) -> None:
        """Stop the child; kill it if it does not end in time. Does nothing to a server that was found running."""
        child, self._child = self._child, None
        if child is not None:
            child.terminate()
            try:
                child.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self._parent_pipe >= 0:
            os.close(self._parent_pipe)
            self._parent_pipe = -1

    def __enter__(self) -> Self:
        return self if self._child is not None or not self.owned else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _adopt(self, serving: ServingProcess) -> EmbeddedServer:
        self.host, self.port, self.owned = serving.host, serving.port, False
        self._take_account()
        return self

    def _take_account(self) -> None:
        account = read_account(self.path)
        self.user, self.password = account.user, account.password

    def _spawn(self, parent_pipe: int, ready: int) -> None:
        # -P: a module in the working directory must not shadow one of Headrace's.
        # faulthandler: after a crash of the engine, the log shows where it happened.
        command = [
            sys.executable,
            "-P",
            "-X",
            "faulthandler",
            *self._program,
            str(self.path),
            "--host",
            self.host,
            "--port",
            str(self.port),
        ]
        command += ["--user", self.user, "--lock-wait", str(self._lock_wait), "--lifeline-fd", str(parent_pipe), "--ready-fd", str(ready)]
        command += ["--host-pipes"] if self._hosts_pipes else []
        # The child must import this same package, however this process found it.
        found = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": found}
        if self.password:
            environment[PASSWORD_VARIABLE] = self.password
        with os.fdopen(os.open(self.path / _LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            self._log_start = os.fstat(log.fileno()).st_size
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(parent_pipe, ready),
                start_new_session=True,
            )

    def _await_ready(self, ready: int) -> None:
        deadline = time.monotonic() + _START_S
        message = b""
        while not message.endswith(b"\n"):
            if not select.select([ready], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TransientError("the embedded server did not start in time", place=str(self.path), hint=f"see {_LOG_NAME} in it")
            piece = os.read(ready, 4096)
            if not piece:
                raise self._failed_start()
            message += piece
        report = json.loads(message)
        if "error" in report:
            kind = {"in use": DirectoryInUse, "transient": TransientError}.get(report["kind"], DefiniteError)
            raise kind(report["error"], place=report["place"], hint=report["hint"])
        self.port = int(report["port"])
        self._take_account()
        while not ping(self.host, self.port):
            if time.monotonic() >= deadline:
                raise TransientError("the embedded server does not answer", place=self.url, hint=f"see {_LOG_NAME} in {self.path}")
            time.sleep(0.02)

    def _failed_start(self) -> HeadraceError:
        """Return why the child ended without a report: from its log, or because the disk is full."""
        assert self._child is not None
        code, tail, place = self._child.wait(), self._log_tail(), str(self.path)
        short = shortage_in("No space left on device" if full_directory([self.path]) else tail, place)
        if short is not None:
            return short
        if code == -signal.SIGKILL:
            hint = "the kernel kills processes when memory runs out (dmesg shows it): give the machine or its control group more"
            return TransientError("the embedded server was killed while it started", place=place, hint=hint)
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            kind = EngineCrashed if code in _CRASH_SIGNALS else TransientError
            return kind(f"the embedded server was ended by {name} while it started:\n{tail}".rstrip(":\n"), place=place)
        return DefiniteError(f"the embedded server ended with exit code {code} while it started:\n{tail}".rstrip(":\n"), place=place)

    def _log_tail(self) -> str:
        data = (self.path / _LOG_NAME).read_bytes()[self._log_start :]
        return data[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()


def ping(host: str, port: int, timeout_seconds: float = 5.0) -> bool:
    """Whether a server answers."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
