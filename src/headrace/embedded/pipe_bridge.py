"""Runs statements about databases that are pipes in another process, the bridge.

The engine's process is confined: it starts no program and opens no TCP connection, and a pipe needs both. So the bridge is started before
the process is confined (ClickHouse has such bridges for ODBC and for libraries). The bridge has no state: each request gets its own socket
and its own process. It ends with the server, however the server ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from headrace.embedded.engine.errors import ErrorCode, QueryFailure, named_error
from headrace.http.server import StopEvent

PIPES: Final = Path("headrace", "pipes")
"""The pipes of databases, in a server's directory."""
STOP_PIPES_S: Final = 20.0
"""How long pipes may take to stop before their server does."""
# By name: the package is above this one, and runs in its own process.
_PROGRAM: Final = "headrace.materialize_mysql.bridge"
_REQUEST: Final = b"r"
_HOSTING: Final = b"h"
"""The bridge runs the request of this message when no earlier bridge stops pipes any more."""
_SECRETS: Final = ("HEADRACE_SERVE_PASSWORD", "HEADRACE_SOURCE_PASSWORD", "HEADRACE_SINK_PASSWORD")
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_END_S: Final = 10.0
_STATEMENTS: Final = 8
"""Each running statement has a process."""
_TURN_S: Final = 60.0
_STATEMENT_S: Final = 600.0
"""Longer than all steps of a statement, each of which has its own limit."""


class PipeBridge:
    """The bridge process of a server. `hosts`: the pipes of the directory's databases start and stop with the server."""

    def __init__(self, root: Path, *, hosts: bool) -> None:
        self._root = root
        self.hosts = hosts
        found = os.pathsep.join(filter(None, [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]))
        # A client must not make the bridge send a password of this process to a host that the client chooses.
        environment = {name: value for name, value in os.environ.items() if name not in _SECRETS} | {"PYTHONPATH": found}
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(root), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,
            )
        self._sending = threading.Lock()
        self._must_resume = False
        self._turns = threading.BoundedSemaphore(_STATEMENTS)
        self._open: set[socket.socket] = set()

    def run_statement(self, request: dict[str, str]) -> None:
        """Run a client's statement. Few run at a time, and each has a limited time."""
        if not self._turns.acquire(timeout=_TURN_S):
            raise ErrorCode.TIMEOUT_EXCEEDED.failure(f"{_STATEMENTS} statements about databases are running; repeat this one later")
        try:
            self.run(request, _STATEMENT_S)
        except TimeoutError as error:
            message = f"The statement has not ended within {_STATEMENT_S:g} s; the log of its pipe shows why, and it can be repeated"
            raise ErrorCode.TIMEOUT_EXCEEDED.failure(message) from error
        finally:
            self._turns.release()

    def end_requests(self) -> None:
        """End the wait for running requests, so that they do not delay the server's stop. The bridge ends their processes."""
        for waiting in list(self._open):
            with contextlib.suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)

    def run(self, request: dict[str, str], timeout_s: float | None = None, message: bytes = _REQUEST) -> dict[str, Any]:
        """Run a request and return the answer; raise `QueryFailure` if it fails."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._sending:
                try:
                    socket.send_fds(self._control, [message], [theirs.fileno()])
                except OSError as error:
                    raise ErrorCode.UNKNOWN_EXCEPTION.failure("The process that runs pipes has ended; restart the server") from error
            ours.settimeout(timeout_s)
            self._open.add(ours)
            try:
                ours.sendall(json.dumps(request).encode() + b"\n")
                with ours.makefile("rb") as stream:
                    line = stream.readline()
            except ConnectionError:
                line = b""
            finally:
                self._open.discard(ours)
        if not line:
            raise ErrorCode.UNKNOWN_EXCEPTION.failure("The statement's process has ended without an answer; the server's log shows why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise named_error(answer["code"], answer["name"], answer["error"])
        return answer

    def pipe_names(self) -> frozenset[str]:
        """Return the databases that are pipes, from the names of their directories."""
        try:
            return frozenset(unquote(directory.name) for directory in (self._root / PIPES).iterdir())
        except FileNotFoundError:
            return frozenset()

    def take_over(self) -> None:
        """Stop the background pipes if one of them serves the directory, so that this server can.

        They resume as clients of this server, or on their own if it cannot start.
        """
        if self.hosts and self._has_pipes:
            self._must_resume = self.run({"run": "take over"})["stopped"]

    def resume(self) -> None:
        """Start the pipes of the directory's databases, in the background. From now on, the bridge stops them when the server ends."""
        if not self.hosts:
            return
        self._must_resume = False
        if self._has_pipes:
            threading.Thread(target=self._resume, args=(_HOSTING,), name="resume", daemon=True).start()
            return
        # Statements report a bridge that has ended; queries do not need it.
        with self._sending, contextlib.suppress(OSError):
            self._control.sendall(_HOSTING)

    @contextlib.contextmanager
    def stopping_pipes(self, stop: StopEvent) -> Iterator[StopEvent]:
        """Yield an event that is set after `stop` is set and the hosted pipes have stopped: they need the server for their last batch."""
        if not self.hosts:
            yield stop
            return
        ended = StopEvent()
        thread = threading.Thread(target=self._stop_pipes, args=(stop, ended), name="stop-pipes", daemon=True)
        thread.start()
        try:
            yield ended
        finally:
            stop.set()
            thread.join()
            ended.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._must_resume:
            self._resume()
        self._control.close()
        try:
            self._process.wait(_END_S + (STOP_PIPES_S if self.hosts else 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def _has_pipes(self) -> bool:
        return (self._root / PIPES).is_dir()

    def _resume(self, message: bytes = _REQUEST) -> None:
        # The bridge prints why a pipe did not resume; the server must not end for it.
        with contextlib.suppress(QueryFailure):
            self.run({"run": "resume"}, message=message)

    def _stop_pipes(self, stop: StopEvent, ended: StopEvent) -> None:
        select.select([stop.reader], [], [])
        try:
            if self._has_pipes:
                self.run({"run": "stop"}, STOP_PIPES_S)
        except (QueryFailure, OSError):
            # The bridge stops them when the server has ended.
            return
        finally:
            ended.set()
