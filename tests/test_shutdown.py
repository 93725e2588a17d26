"""Shutdown without a database: the entry point handles signals before it imports anything slow."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from testkit.faults.interruptions import Interruption, interrupt

_FAMILY = """
import subprocess, sys, time
from headrace import shutdown
shutdown.install()
nested = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", nested], start_new_session=True)
with subprocess.Popen([sys.executable, "-c", ignoring], start_new_session=True, stdout=subprocess.PIPE) as stubborn:
    stubborn.stdout.readline()
{stop}
    print("ready", flush=True)
{more}
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2, 0.4])
def test_while_importing(tmp_path: Path, after_s: float, number: signal.Signals) -> None:
    done = interrupt(["check", "mysql://root@127.0.0.1:1/shop"], tmp_path, Interruption(after_s, number, group=True))
    assert done.ended_before or done.took_s < 2


def _family(stop: str = "", more: str = "") -> subprocess.Popen[str]:
    program = _FAMILY.format(stop=textwrap.indent(stop, "    "), more=textwrap.indent(more, "    "))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _descendants(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return children + [found for child in children for found in _descendants(child)]


def _alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()]


@pytest.mark.parametrize("stop", ["", "shutdown.stop_on_signal(lambda: None, grace_s=0.3)"], ids=["at once", "after the grace time"])
def test_no_descendant_remains(stop: str) -> None:
    """Also processes in another session, without a parent, or that ignore SIGTERM."""
    with _family(stop) as process:
        family = _descendants(process.pid)
        while len(family) < 3:
            family = _descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
        assert _alive(family) == []


def test_a_second_signal_does_not_wait() -> None:
    with _family("shutdown.stop_on_signal(lambda: print('stopping', flush=True), grace_s=60)") as process:
        family = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
        assert _alive(family) == []


def test_a_batch_is_finished() -> None:
    """The grace time begins when the batch is written."""
    batch = "with shutdown.finishing():\n    print('writing', flush=True)\n    time.sleep(1.5)\nprint('written', flush=True)"
    with _family("shutdown.stop_on_signal(lambda: None, grace_s=0.3)", batch) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "written\n"
        assert process.wait(5) == 143


@pytest.mark.parametrize("stop", ["", "shutdown.stop_on_signal(lambda: None, grace_s=0.3)", "shutdown.stop_on_signal(lambda: 1 / 0)"])
def test_a_reader_that_does_not_read_holds_nothing_up(stop: str) -> None:
    """A stop function that fails does not prevent it."""
    with _family(stop, "print('x' * 10_000_000)") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 143


def test_temporary_directories_are_removed(tmp_path: Path) -> None:
    made = "scratch = shutdown.temporary_directory('headrace-')\nscratch.__enter__()\nprint('made', flush=True)"
    more = f"import tempfile\ntempfile.tempdir = {str(tmp_path)!r}\n{made}"
    with _family(more=more) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_the_main_thread_exits() -> None:
    """The command has stopped after the first signal; a second one comes while its descendants are ended."""
    program = """
import os, signal, subprocess, sys, threading, time
from headrace import shutdown
shutdown.install()
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
stubborn = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
stubborn.stdout.readline()
shutdown._shutdown.number = signal.SIGTERM
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
shutdown.run(lambda: 0)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert done.returncode == 143


_RELOADING = """
import os, sys, time
from headrace import shutdown
shutdown.install()
shutdown.reload_on_signal(lambda: os.write({output}, b"reloaded\\n"))
os.write({output}, b"ready\\n")
time.sleep(60)
"""


def test_sighup_reloads_and_the_command_runs_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RELOADING.format(output=1)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            assert process.stdout.readline() == "reloaded\n"
        process.terminate()
        assert process.wait(20) == 143


def test_sighup_stays_ignored_under_nohup() -> None:
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{_RELOADING.format(output=1)}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.terminate()
        assert process.stdout.read() == ""
        assert process.wait(20) == 143


def test_a_closed_terminal_ends_the_command() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _RELOADING.format(output=writer)])
    os.close(writer)
    with os.fdopen(reader) as output:
        assert output.readline() == "ready\n"
        os.close(terminal)
        assert output.read() == "", "a closed terminal is no request to reload"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
