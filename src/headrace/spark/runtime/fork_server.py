"""A fork server for the source processes of streaming queries.

Spark starts a Python process for the source of every streaming query. Each costs a second of CPU and 200 MB, nearly all of it for the same
imports. If one driver runs many pipes, the fork server imports the modules once. Spark then starts a shell, which requests a fork from the
server and waits until the fork exits. (Measured: see docs/decisions/0040.)

Invariant: a fork lives no longer than its shell and Spark's Java process, however these end. Without a fork server, the shell starts
Python.
"""

from __future__ import annotations

import importlib
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from headrace.spark.runtime.worker_daemon import prefer_installed_spark, preload

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
FOLDER: Final = "forks"
_REQUESTS: Final = "requests"
FORKABLE: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Keeps libraries from starting threads when they are imported: a process with threads must not fork."""


def python_script(scratch: Path, python_path: str) -> str:
    """Return the script that Spark starts as Python: a stream's source requests a fork if there is a server."""
    folder = shlex.quote(str(scratch / FOLDER))
    start = f'PYTHONPATH={shlex.quote(python_path)} exec {shlex.quote(sys.executable)} "$@"'
    # The fork holds the other end of the pipe that is named after this shell: the read ends when the fork exits.
    return f"""#!/bin/sh
if [ "$2" = {RUNNER} ] && [ -p {folder}/{_REQUESTS} ]; then
  mkfifo -m 600 {folder}/$$ && echo $$ >> {folder}/{_REQUESTS} && read -r _ < {folder}/$$
  rm -f {folder}/$$
  exit 1
fi
{start}
"""


class ForkServer:
    def __init__(self, scratch: Path, modules: Sequence[str]) -> None:
        self._folder, self._modules = scratch / FOLDER, tuple(modules)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server; shells that request a fork before it is ready wait."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _release(self._folder)
        os.mkfifo(self._folder / _REQUESTS, 0o600)
        package_root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(dict.fromkeys(filter(None, [package_root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])))
        # A session of its own: Ctrl-C is for the driver, which ends everything in order. Its end of the pipe closes with the driver.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.spark.runtime.fork_server", str(self._folder), ",".join(self._modules)],
            stdin=subprocess.PIPE,
            env={**os.environ, **FORKABLE, "PYTHONPATH": path},
            start_new_session=True,
        )

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _release(self._folder)


def _release(folder: Path) -> None:
    """Remove the pipes and release the shells that wait for a fork: they exit, and Spark reports it."""
    held = []
    for left in folder.iterdir():
        # No shell blocks while both ends are open here, and no shell can open a pipe that is removed.
        with suppress(FileNotFoundError):
            held.append(os.open(left, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            left.unlink()
    for one in held:
        os.close(one)


def serve(folder: Path, modules: str) -> None:
    """Fork for each process id that a shell writes to the pipe, until the driver exits."""
    # The shells wait for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Open both ends, so that the pipe never reaches its end.
    requests = os.open(folder / _REQUESTS, os.O_RDWR | os.O_CLOEXEC)
    preload(modules)
    received = b""
    while True:
        ready = select.select([requests, 0], [], [])[0]
        if 0 in ready and not os.read(0, 1):
            return
        if requests in ready:
            received += os.read(requests, 4096)
            *whole, received = received.split(b"\n")
            for number in whole:
                if os.fork() == 0:
                    os.close(requests)
                    _replace_shell(folder, int(number))


def _replace_shell(folder: Path, shell: int) -> NoReturn:
    """Take over the streams, environment and directory of a shell, run the source, and exit with the shell."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process = Path(f"/proc/{shell}")
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        _exit_with(shell, parent)
        # The shell waits until this end closes.
        os.open(folder / str(shell), os.O_RDWR)
        for number in range(3):
            os.dup2(os.open(process / "fd" / str(number), os.O_RDONLY if number == 0 else os.O_WRONLY), number)
        # Python's own streams were opened for the server.
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
        found = (process / "environ").read_bytes().split(b"\0")
        os.environ.clear()
        for name, _, value in (entry.partition(b"=") for entry in found if b"=" in entry):
            os.environb[name] = value
        os.chdir(process / "cwd")
        _run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        # Never return to the loop of the server.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def _run() -> None:
    runner = importlib.import_module(RUNNER)
    with runner.get_sock_file_to_executor(timeout=None) as channel:
        runner.main(channel, channel)


def _exit_with(*pids: int) -> None:
    watched = [os.pidfd_open(pid) for pid in pids]

    def watch() -> None:
        select.select(watched, [], [])
        os._exit(1)

    threading.Thread(target=watch, name="headrace-shell", daemon=True).start()


if __name__ == "__main__":
    prefer_installed_spark()
    serve(Path(sys.argv[1]), sys.argv[2])
