"""A fork server for the Python processes that Spark starts on this machine.

Spark starts a Python process for the source of every streaming query, a daemon for the workers, and a daemon each that look up, create and
plan the data source. Each costs up to two seconds of CPU and 200 MB, nearly all of it for the same imports. The fork server imports the
modules once, while Java starts. Spark then starts a shell, which requests a fork from the server and waits until the fork exits.
(Measured: see docs/decisions/0064.)

Invariant: a fork lives no longer than Spark's Java process, however that ends. A source exits with its shell, too. A daemon must have no
thread, because it forks, so it does not watch its shell: it ends when Java closes its input. Without a fork server, the shell starts
Python.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
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

from headrace.shortage import SPARK_FILES, check_file_limit, end_before_driver
from headrace.spark.runtime.worker_daemon import prefer_installed_spark, preload

log = logging.getLogger("headrace")

RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
DAEMONS: Final = ("headrace.spark.runtime.worker_daemon", "pyspark.daemon")
"""The daemons of workers, and of the processes that look up, create and plan the data source."""
SPARK_MODULES: Final = (
    RUNNER,
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "headrace.spark.runtime.split_source",
)
"""What the processes of a stream import, in addition to the modules of workers."""
FOLDER: Final = "forks"
_REQUESTS: Final = "requests"
_INPUT: Final = 3
"""Where the shell keeps its standard input, which it replaces while it waits."""
FORKABLE: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Keeps libraries from starting threads when they are imported: a process with threads must not fork."""


def python_script(scratch: Path, python_path: str) -> str:
    """Return the script that Spark starts as Python: a stream's source and a daemon request a fork if there is a server."""
    folder = shlex.quote(str(scratch / FOLDER))
    start = f'PYTHONPATH={shlex.quote(python_path)} exec {shlex.quote(sys.executable)} "$@"'
    # The fork holds the other end of the pipe that is named after this shell: the read ends when the fork exits.
    return f"""#!/bin/sh
case "$2" in
{"|".join((RUNNER, *DAEMONS))}) forked=1 ;;
esac
if [ "$forked" ] && [ -p {folder}/{_REQUESTS} ]; then
  exec {_INPUT}<&0
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
        check_file_limit("Spark", SPARK_FILES)
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
        end_before_driver(self._process.pid)
        threading.Thread(target=self._release_at_exit, args=(self._process,), name="headrace-forks", daemon=True).start()

    def _release_at_exit(self, process: subprocess.Popen[bytes]) -> None:
        """Release the shells that wait for a fork if the server has ended: Spark reports it, and the next attempt starts Python."""
        code = process.wait()
        if self._process is process:
            log.debug("the fork server has ended with code %d; Spark starts Python itself", code)
            _release(self._folder)

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
    for left in list(folder.iterdir()) if folder.exists() else []:
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
    try:
        preload(modules)
    except (ImportError, MemoryError, OSError, RuntimeError):
        # Python, which Spark starts instead, reports what is missing.
        sys.exit(1)
    received = b""
    while True:
        ready = select.select([requests, 0], [], [])[0]
        if 0 in ready and not os.read(0, 1):
            return
        if requests in ready:
            received += os.read(requests, 4096)
            *whole, received = received.split(b"\n")
            for number in whole:
                # The shell waits until no process holds this end.
                try:
                    held = os.open(folder / number.decode(), os.O_RDWR)
                except FileNotFoundError:
                    # The driver has released the shell.
                    continue
                if os.fork() == 0:
                    os.close(requests)
                    _replace_shell(held, int(number))
                os.close(held)


def _replace_shell(held: int, shell: int) -> NoReturn:
    """Take over the arguments, streams, environment and directory of a shell, run its module, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process = Path(f"/proc/{shell}")
        _, _, *arguments = (process / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        _rename([sys.executable, *arguments])
        module = arguments[1]
        if module == RUNNER:
            _exit_with(shell, int((process / "stat").read_text().rpartition(")")[2].split()[1]))
        # The workers that a daemon forks close it: the shell waits for the daemon only.
        ends = [held]
        os.register_at_fork(after_in_child=lambda: os.close(ends.pop()) if ends else None)
        for theirs, mine, mode in ((_INPUT, 0, os.O_RDONLY), (1, 1, os.O_WRONLY), (2, 2, os.O_WRONLY)):
            opened = os.open(process / "fd" / str(theirs), mode)
            os.dup2(opened, mine)
            os.close(opened)
        # Python's own streams were opened for the server.
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", buffering=1, closefd=False)
        found = (process / "environ").read_bytes().split(b"\0")
        os.environ.clear()
        for name, _, value in (entry.partition(b"=") for entry in found if b"=" in entry):
            os.environb[name] = value
        os.chdir(process / "cwd")
        if module == RUNNER:
            _run_source()
        else:
            sys.argv = [sys.executable, *arguments[2:]]
            importlib.import_module("pyspark.daemon").manager()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        # Never return to the loop of the server.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def _rename(arguments: Sequence[str]) -> None:
    """Show these arguments in lists of processes, as if Spark had started Python."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(argument.encode() for argument in arguments)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _run_source() -> None:
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
