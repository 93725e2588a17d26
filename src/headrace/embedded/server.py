"""The embedded server: owns the directory and serves it until it is stopped.

The engine is closed after the last request. A kill is safe too: an acknowledged insert is a complete part, and an incomplete part is
dropped at the next start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.embedded.access.credentials import store_account
from headrace.embedded.access.privileges import render_users
from headrace.embedded.access.sandbox import confine
from headrace.embedded.database_statements import DatabaseStatements
from headrace.embedded.engine.directory_lock import DirectoryLock, in_use, make_directory, read_serving_process, restrict_permissions
from headrace.embedded.engine.engine import Engine, read_auxiliary_vector, render_config, wait_for_directory
from headrace.embedded.handler import EmbeddedHandler
from headrace.embedded.pipe_bridge import STOP_PIPES_S, PipeBridge
from headrace.errors import DefiniteError
from headrace.http.origin_check import OriginCheck
from headrace.http.request import HeadLimits
from headrace.http.server import HttpLimits, HttpServer, StopEvent, listen
from headrace.shortage import SERVER_FILES, check_file_limit

log = logging.getLogger(__name__)

_LIMITS: Final = HttpLimits(connections=512, reserved=32, idle_s=60, receive_s=30, io_s=300, grace_s=30, hurry_s=5, head=HeadLimits())
STOP_S: Final = STOP_PIPES_S + _LIMITS.grace_s + 2 * _LIMITS.hurry_s
"""The longest duration of a stop."""


def serve(
    path: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    user: str = "default",
    password: str = "",
    on_ready: Callable[[int], None] | None = None,
    lock_wait_seconds: float = 5.0,
    allowed_hosts: Sequence[str] = (),
    *,
    hosts_pipes: bool = False,
) -> None:
    """Serve the directory until SIGTERM or SIGINT; `on_ready` gets the port once requests are served. Call it in the main thread.

    Without a password, the server uses the stored one, or generates and stores a random one. `hosts_pipes`: the pipes of databases that
    were created by statement start and stop with the server.
    """
    # Other users must not read rows or password, whatever mode the engine requests.
    os.umask(0o077)
    root = path.resolve()
    if "?" in str(root):
        raise DefiniteError("the directory's name contains a question mark", place=str(root), hint="choose another name")
    make_directory(root)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_stop_signals())
        bridge = stack.enter_context(PipeBridge(root, hosts=hosts_pipes))
        bridge.take_over()
        deadline = time.monotonic() + lock_wait_seconds
        lock = DirectoryLock(root, deadline)
        stack.callback(lock.release)
        if not wait_for_directory(root, deadline):
            raise in_use(root, read_serving_process(root))
        restrict_permissions(root)
        account = store_account(root, user, password)
        listener = stack.enter_context(_listen(host, port))
        scratch = _make_scratch(root)
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        config, users = scratch / "engine.xml", scratch / "users.xml"
        config.write_text(render_config())
        # The engine reads a config.xml of the working directory; the scratch directory has none. Its import creates a temporary directory.
        os.chdir(scratch)
        os.environ["TMPDIR"] = str(scratch)
        # A wide table with many parts needs thousands of files.
        check_file_limit("an embedded ClickHouse", SERVER_FILES)
        auxiliary_vector = read_auxiliary_vector()
        if not confine(root):
            log.warning("this kernel has no Landlock: only the engine's own rules keep SQL from files outside of %s", root)
        users.write_text(render_users())
        engine = Engine(root, config, users, scratch, auxiliary_vector)
        stack.callback(engine.close)
        databases = DatabaseStatements(engine, bridge)
        handler = EmbeddedHandler(engine, account, OriginCheck(host, allowed_hosts), scratch, databases)
        stack.callback(handler.close)

        def cancel() -> None:
            bridge.end_requests()
            engine.cancel()

        server = HttpServer(listener, handler, _LIMITS, cancel)
        bound = int(listener.getsockname()[1])
        lock.publish(host, bound)
        if on_ready is not None:
            on_ready(bound)
        bridge.resume()
        with bridge.stopping_pipes(stop) as ended:
            server.run(ended)


@contextlib.contextmanager
def _stop_signals() -> Iterator[StopEvent]:
    stop = StopEvent()
    before = {number: signal.signal(number, lambda _number, _frame: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
        stop.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise DefiniteError(
            f"cannot listen: {error.strerror or error}", place=f"{host}:{port}", hint="choose a free port, or 0 for any, and an own address"
        ) from error


def _make_scratch(root: Path) -> Path:
    """Create an empty directory for the engine's configuration and spooled results; files of a killed server are removed."""
    scratch = root / "headrace-scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    return scratch
