"""Runs `headrace` as a process, observed through its files, its sink and the kernel.

An environment variable marks a run. Every descendant inherits it, so the whole process tree is found even when a process in between has
ended and its children belong to init.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.embedded.process import EmbeddedServer

PATIENCE_S = 240.0
_MARK = "HEADRACE_TEST_RUN"
_COMMAND = (sys.executable, "-m", "headrace")


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended: its exit code, and all it printed."""

    code: int
    output: str


class Run:
    """A `headrace` process and all its descendants."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: dict[str, str] | None = None, *, lines: Path | None = None
    ) -> None:
        """`lines` gets the standard output; without it, `log` gets both outputs."""
        self.token = secrets.token_hex(8)
        self.log = log
        with log.open("ab") as errors, (lines or log).open("ab") as output:
            self._process = subprocess.Popen(
                [*_COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, **(environment or {}), _MARK: self.token},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = PATIENCE_S) -> Finished:
        """Wait for the end; kill a run that does not end, and fail."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"headrace did not end within {timeout_s:.0f} s:\n{self.output}") from None
        return Finished(code, self.output)

    def until(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S, poll_s: float = 0.02) -> None:
        """Wait until `condition` holds; the run must not end before."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.code is not None:
                raise AssertionError(f"headrace ended with code {self.code}:\n{self.output}")
            if time.monotonic() > deadline:
                raise AssertionError(f"the condition was false for {timeout_s:.0f} s:\n{self.output}")
            time.sleep(poll_s)

    def processes(self) -> list[int]:
        """The ids of the run's living processes."""
        return marked_processes(self.token)

    def signal_all(self, number: int, *, spare: Sequence[int] = ()) -> None:
        for pid in self.processes():
            if pid not in spare:
                _send(pid, number)

    def terminate(self, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> Finished:
        """Send a signal and wait for the end."""
        self._process.send_signal(number)
        return self.wait(timeout_s)

    def interrupt_group(self, timeout_s: float = PATIENCE_S) -> Finished:
        """Send SIGINT to the foreground process group, as a terminal does on Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)
        return self.wait(timeout_s)

    @contextmanager
    def killed(self) -> Iterator[Run]:
        """Kill the process at the end of the block if it still runs."""
        try:
            yield self
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree. As in a crash of the machine, no process can react."""
        while self.processes():
            # Stop all of them first, so that none reacts to the end of another.
            self.signal_all(signal.SIGSTOP)
            self.signal_all(signal.SIGKILL)
            time.sleep(0.01)
        self._process.wait(10)


@dataclass(slots=True)
class Pipeline:
    """The settings of one replication, and its commands."""

    source: str
    sink: str
    state: Path
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()

    def start(self, *options: str) -> Run:
        self.state.parent.mkdir(parents=True, exist_ok=True)
        log = self.state.parent / f"{self.state.name}.log"
        arguments = ["replicate", self.source, self.sink, "--state", str(self.state), *self._tables(), *self.options, *options]
        return Run(arguments, log, self.environment)

    @contextmanager
    def running(self, *options: str) -> Iterator[Run]:
        """A run that is killed at the end if it still runs."""
        run = self.start(*options)
        try:
            yield run
        finally:
            run.kill()

    def once(self, *options: str, timeout_s: float = PATIENCE_S) -> Finished:
        run = self.start("--once", *options)
        return run.wait(timeout_s)

    def verify(self, *options: str, timeout_s: float = PATIENCE_S) -> Finished:
        """Compare both ends; wait for the pipe if it runs."""
        arguments = ("verify", self.source, self.sink, "--state", str(self.state), *self._tables(), *options)
        return run_command(*arguments, timeout_s=timeout_s, environment=self.environment)

    def chunks_done(self) -> int:
        return sum(len(done) for _, done in self._chunks().values())

    def chunks_planned(self) -> int:
        return sum(planned for planned, _ in self._chunks().values())

    def last_planned_batch(self) -> int:
        return _newest(self.state / "checkpoint" / "offsets")

    def last_committed_batch(self) -> int:
        return _newest(self.state / "checkpoint" / "commits")

    def batch_is_open(self) -> bool:
        """Whether a batch is planned and not committed."""
        return self.last_planned_batch() > self.last_committed_batch()

    def committed_position(self) -> tuple[int, int] | None:
        """File number and offset where the last committed batch ended (or where the stream starts)."""
        batch = self.last_committed_batch()
        try:
            if batch >= 0:
                raw = json.loads((self.state / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2])
            else:
                raw = json.loads((self.state / "pipe.json").read_text())["start"]
        except (OSError, IndexError, ValueError):
            return None
        return int(raw["file"].rpartition(".")[2]), int(raw["pos"])

    @contextmanager
    def sink_served(self, path: Path) -> Iterator[str]:
        """The address of a server on the embedded sink."""
        with EmbeddedServer.connect_or_start(path) as server:
            yield server.url

    def _chunks(self) -> dict[str, tuple[int, set[int]]]:
        """How many chunks each table's snapshot has by its last plan, and which are done."""
        file = self.state / "snapshot.jsonl"
        found: dict[str, tuple[int, set[int]]] = {}
        # The last line may be half written.
        for line in file.read_text().split("\n")[:-1] if file.exists() else ():
            entry = json.loads(line)
            if "chunks" in entry:
                found[entry["table"]] = (len(entry["chunks"]), set())
            elif "done" in entry:
                found[entry["table"]][1].add(entry["done"])
        return found

    def _tables(self) -> list[str]:
        return [word for glob in self.tables for word in ("--tables", glob)]


def run_command(*arguments: str, timeout_s: float = PATIENCE_S, environment: dict[str, str] | None = None) -> Finished:
    """Any `headrace` command, run to its end."""
    done = subprocess.run(
        [*_COMMAND, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
        timeout=timeout_s,
    )
    return Finished(done.returncode, done.stdout.decode(errors="replace"))


def marked_processes(token: str) -> list[int]:
    """The ids of the living processes that have a run's mark in their environment."""
    mark = f"{_MARK}={token}".encode()
    return [pid for pid in _all_processes() if mark in _environment(pid) and not _is_zombie(pid)]


def command_lines(pids: Sequence[int]) -> str:
    """Return the command lines of these processes."""
    found = []
    for pid in pids:
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def resident_bytes(pids: Sequence[int]) -> dict[int, int]:
    """Peak memory of each process."""
    peaks = {}
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        if lines:
            peaks[pid] = int(lines[0].split()[1]) << 10
    return peaks


def _newest(directory: Path) -> int:
    return max((int(file.name) for file in directory.glob("*") if file.name.isdigit()), default=-1)


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
