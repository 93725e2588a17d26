"""The process that keeps a pipe running in the background: real processes, with a small program in the place of a pipe."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import DefiniteError, TransientError
from headrace.materialize_mysql import keeper
from headrace.materialize_mysql.background_pipe import BackgroundPipe
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.pipeline import command_lines

# A fake pipe: it locks its state directory, does what `script` lists, and ends in order on a signal.
PIPE = """
import os, signal, sys
from pathlib import Path
from headrace.errors import DefiniteError, TransientError
from headrace.materialize_mysql.keeper import open_keeper_link
from headrace.pipes.state.pipe_state import StateDirectory

directory = Path(sys.argv[sys.argv.index("--state") + 1])
ended, end = os.pipe()
signal.signal(signal.SIGTERM, lambda *_: os.write(end, b"!"))
owner = StateDirectory(directory).acquire()
with open_keeper_link(int(sys.argv[sys.argv.index("--keeper-fd") + 1])) as line:
    runs = directory / "runs"
    with runs.open("a") as file:
        file.write(f"{os.getpid()} {os.environ['HEADRACE_SOURCE_PASSWORD']}\\n")
    words = (directory / "script").read_text().split()
    word = words[min(len(runs.read_text().splitlines()), len(words)) - 1]
    if word == "definite":
        raise DefiniteError("the data is wrong", place="here", hint="mend it")
    if word == "transient":
        raise TransientError("the source is away", place="there", hint="wait")
    if word == "crash":
        os._exit(9)
    line.is_in_vain = lambda: word == "vain"
    line.begun()
    os.read(ended, 1)
owner.release()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BackgroundPipe]]:
    pipe = BackgroundPipe(tmp_path / "headrace" / "pipes" / "p")

    def begin(script: str, retry_ms: int = 50) -> BackgroundPipe:
        pipe.write((sys.executable, "-c", PIPE), {}, {"HEADRACE_SOURCE_PASSWORD": "s3cret"}, retry_ms)
        (pipe.directory / "script").write_text(script)
        pipe.start(("HEADRACE_SOURCE_PASSWORD",))
        return pipe

    yield begin
    pipe.stop()


def runs(pipe: BackgroundPipe) -> list[int]:
    return [int(line.split()[0]) for line in (pipe.directory / "runs").read_text().splitlines()]


def test_a_pipe_that_fails_or_dies_is_started_again_until_it_is_stopped(start: Callable[..., BackgroundPipe]) -> None:
    pipe = start("transient crash vain run")
    with pytest.raises(TransientError) as caught:
        # The waiting caller gets the first failure, although the keeper tries again.
        pipe.await_started(even_without_source=False)
    assert (caught.value.message, caught.value.place) == ("the source is away", "there")
    wait_until(lambda: len(runs(pipe)) == 4 and pipe.status["state"] == keeper.RUNNING, 60)
    pipe.await_started(even_without_source=False)
    assert (pipe.directory / "runs").read_text().count("s3cret") == 4

    keeper_pid = int((pipe.directory / keeper.LOCK).read_text())
    assert os.getsid(keeper_pid) == keeper_pid
    assert "s3cret" not in command_lines([keeper_pid, *runs(pipe)])
    assert b"s3cret" not in Path(f"/proc/{keeper_pid}/environ").read_bytes()

    os.kill(pipe.status["pid"], signal.SIGKILL)
    wait_until(lambda: len(runs(pipe)) == 5 and pipe.status["state"] == keeper.RUNNING, 60)
    pipe.stop()
    assert (pipe.is_running, pipe.status["state"]) == (False, keeper.STOPPED)
    pipe.stop()
    pipe.remove()
    assert not pipe.directory.parent.parent.exists()


def test_a_definite_error_ends_it(start: Callable[..., BackgroundPipe]) -> None:
    pipe = start("definite run")
    with pytest.raises(DefiniteError) as caught:
        pipe.await_started(even_without_source=True)
    assert (caught.value.message, caught.value.place, caught.value.hint) == ("the data is wrong", "here", "mend it")
    wait_until(lambda: not pipe.is_running, 60)
    assert len(runs(pipe)) == 1
    assert "the data is wrong" in pipe.log.read_text()
    assert pipe.log.stat().st_mode & 0o777 == 0o600
    # Started again, it runs.
    pipe.start(())
    pipe.await_started(even_without_source=False)
    assert len(runs(pipe)) == 2


def test_a_transient_error_without_retries_ends_the_pipe(start: Callable[..., BackgroundPipe]) -> None:
    pipe = start("transient run", retry_ms=-1)
    with pytest.raises(TransientError):
        pipe.await_started(even_without_source=True)
    wait_until(lambda: not pipe.is_running, 60)
    assert json.loads((pipe.directory / keeper.STATUS).read_text())["state"] == keeper.FAILED


def test_the_pipe_ends_with_its_keeper_and_one_keeper_is_enough(start: Callable[..., BackgroundPipe]) -> None:
    pipe = start("run")
    pipe.await_started(even_without_source=False)
    first = int((pipe.directory / keeper.LOCK).read_text())
    with pytest.raises(DefiniteError):
        BackgroundPipe(pipe.directory)._await_exit(0.1)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not pipe.is_running, 60)
    assert pipe.status["state"] == keeper.RUNNING, "no process was left to change it"
    pipe.start(())
    pipe.await_started(even_without_source=False)
    assert int((pipe.directory / keeper.LOCK).read_text()) != first
    assert len(runs(pipe)) == 2
