"""`python -m headrace.embedded`: the child process that `EmbeddedServer` starts. Users run `headrace serve`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path

from headrace.embedded.engine.directory_lock import DirectoryInUse
from headrace.embedded.process import PASSWORD_VARIABLE
from headrace.embedded.server import serve
from headrace.errors import HeadraceError, TransientError
from headrace.shortage import shortages_at

_PARENT_POLL_MS = 1000


def main() -> int:
    options = _read_arguments()
    if options.lifeline_fd >= 0:
        threading.Thread(target=_follow_parent, args=(options.lifeline_fd, os.getppid()), name="lifeline", daemon=True).start()
    # Removed from the environment: the engine and its children must not see it.
    password = os.environ.pop(PASSWORD_VARIABLE, "")

    try:
        with shortages_at(options.path):
            serve(
                options.path,
                options.host,
                options.port,
                options.user,
                password,
                lambda port: _report(options.ready_fd, {"port": port}),
                options.lock_wait,
                hosts_pipes=options.host_pipes,
            )
    except HeadraceError as error:
        kind = "in use" if isinstance(error, DirectoryInUse) else "transient" if isinstance(error, TransientError) else "definite"
        _report(options.ready_fd, {"error": error.message, "place": error.place, "hint": error.hint, "kind": kind})
        print(error, file=sys.stderr)
        return 2
    return 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.embedded")
    parser.add_argument("path", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--user", default="default")
    parser.add_argument("--lock-wait", type=float, default=5.0)
    parser.add_argument("--host-pipes", action="store_true")
    parser.add_argument("--lifeline-fd", type=int, default=-1)
    parser.add_argument("--ready-fd", type=int, default=-1)
    return parser.parse_args()


def _report(fd: int, message: dict[str, object]) -> None:
    if fd >= 0:
        # The parent may have timed out and closed its end.
        with contextlib.suppress(BrokenPipeError):
            os.write(fd, json.dumps(message).encode() + b"\n")
        os.close(fd)


def _follow_parent(parent_pipe: int, parent: int) -> None:
    """Stop this process when its parent has ended: the pipe closes or, if a fork of the parent still holds it, the parent id changes."""
    poller = select.poll()
    poller.register(parent_pipe, select.POLLIN | select.POLLHUP)
    while not poller.poll(_PARENT_POLL_MS) and os.getppid() == parent:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
