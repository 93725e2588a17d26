"""The process of each stream's source, forked from one that has everything imported.

Spark starts a Python process for the source of every streaming query: a second of CPU and 200 MB for each, nearly all of it the same
imports. Where one process runs many pipes, a process beside the driver imports them once; what Spark starts is a shell that asks it for a
copy of itself and waits for the copy's end. (Measured: see docs/decisions/0040.)

Invariant: a copy lives no longer than the shell that stands for it, nor than Spark's Java process, however these end; without the process
beside the driver, the shell is what it always was: a start of Python.
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
_REQUESTS: Final = "asked"
_QUIET: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Libraries that would start threads when they are imported: what has threads must not fork."""


def python_script(scratch: Path, python_path: str) -> str:
    """What Spark starts as Python: ours, or for a stream's source a copy of the process that has its imports, if there is one."""
    folder = shlex.quote(str(scratch / FOLDER))
    start = f'PYTHONPATH={shlex.quote(python_path)} exec {shlex.quote(sys.executable)} "$@"'
    # The copy holds the other end of the pipe with this shell's number: reading it ends when the copy does.
    return f"""#!/bin/sh
if [ "$2" = {RUNNER} ] && [ -p {folder}/{_REQUESTS} ]; then
  mkfifo -m 600 {folder}/$$ && echo $$ >> {folder}/{_REQUESTS} && read -r _ < {folder}/$$
  rm -f {folder}/$$
  exit 1
fi
{start}
"""


class ForkServer:
    """The process beside the driver, as the driver sees it."""

    def __init__(self, scratch: Path, modules: Sequence[str]) -> None:
        self._folder, self._modules = scratch / FOLDER, tuple(modules)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; whoever asks before it is ready waits for it."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _release(self._folder)
        os.mkfifo(self._folder / _REQUESTS, 0o600)
        package_root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(dict.fromkeys(filter(None, [package_root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])))
        # A session of its own: Ctrl-C is for the driver, which ends everything in order. Its end of the pipe closes with the driver.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.spark.runtime.fork_server", str(self._folder), ",".join(self._modules)],
            stdin=subprocess.PIPE,
            env={**os.environ, **_QUIET, "PYTHONPATH": path},
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
    """Take the pipes away, and let shells go that wait at one for a copy that does not come: they end, and Spark hears of it."""
    held = []
    for left in folder.iterdir():
        # With both ends held here nobody waits for the other; what is opened after that is not there.
        with suppress(FileNotFoundError):
            held.append(os.open(left, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            left.unlink()
    for one in held:
        os.close(one)


def serve(folder: Path, modules: str) -> None:
    """Fork a copy for each number that is written to the pipe, until whoever started this process is gone."""
    # Copies are waited for by their shells.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Both ends: the pipe has no end while this process reads it.
    asked = os.open(folder / _REQUESTS, os.O_RDWR | os.O_CLOEXEC)
    preload(modules)
    said = b""
    while True:
        ready = select.select([asked, 0], [], [])[0]
        if 0 in ready and not os.read(0, 1):
            return
        if asked in ready:
            said += os.read(asked, 4096)
            *whole, said = said.split(b"\n")
            for number in whole:
                if os.fork() == 0:
                    os.close(asked)
                    _replace_shell(folder, int(number))


def _replace_shell(folder: Path, shell: int) -> NoReturn:
    """Take the place of a shell: its streams, its environment, its directory; and end when it does."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        process = Path(f"/proc/{shell}")
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        _exit_with(shell, parent)
        # Held until the end: the shell waits for that.
        os.open(folder / str(shell), os.O_RDWR)
        for number in range(3):
            os.dup2(os.open(process / "fd" / str(number), os.O_RDONLY if number == 0 else os.O_WRONLY), number)
        # Made for other streams than these.
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
        # Never back into the loop of the process that forked.
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
