"""The start of Spark's Java process with too few resources, or when it is killed: the error names the cause and the remedy.

Each case is a separate process, because a process has one Java.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_PROGRAM = """
import contextlib, os, resource, signal, sys, threading, time
from pathlib import Path
from headrace.errors import HeadraceError
from headrace.service.log_formats import configure_pipe_logging
from headrace.spark.runtime import java_process
from headrace.spark.session import session
from headrace.spark.runtime.micro_batch import translate_spark_error

configure_pipe_logging()

def java():
    while java_process._LastStarted.process is None:
        time.sleep(0.01)
    return java_process._LastStarted.process.pid

def once(act):
    threading.Thread(target=act, daemon=True).start()

def start(**more):
    return session.start_session("local[1]", Path(sys.argv[1]), spark_log=False, **more)

try:
{body}
    print("STARTED", flush=True)
except HeadraceError as error:
    print(type(error).__name__, error, flush=True)
java_process.reset_gateway()
"""


def said(tmp_path: Path, body: str, *, limits: str = "", environment: dict[str, str] | None = None) -> str:
    program = _PROGRAM.format(body="\n".join(f"    {line}" for line in body.splitlines()))
    for _ in range(5):
        ran = subprocess.run(
            ["sh", "-c", f'{limits} exec "$@"', "sh", sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **(environment or {})},
            timeout=300,
        )
        # A few milliseconds after it has killed Java, the kernel may kill Python too, because Java's memory is not released yet.
        if ran.returncode != -signal.SIGKILL:
            break
    text = ran.stdout + ran.stderr
    assert "Traceback" not in text, text
    return text


@pytest.mark.parametrize("files", [60, 256])
def test_too_few_open_files(tmp_path: Path, files: int) -> None:
    text = said(tmp_path, "start()", limits=f"ulimit -n {files};")
    assert f"DefiniteError Spark needs at least 400 open files, and this process may have {files}" in text
    assert "remedy: raise it: ulimit -n 4096" in text


def test_a_low_soft_limit_is_raised(tmp_path: Path) -> None:
    assert "STARTED" in said(tmp_path, "start()", limits="ulimit -Sn 100;")


def test_no_java_is_installed(tmp_path: Path) -> None:
    text = said(tmp_path, "start()", environment={"JAVA_HOME": str(tmp_path)})
    assert f"DefiniteError Spark cannot start: there is no Java ({tmp_path}/bin/java)" in text
    assert "remedy: install a Java 17 runtime" in text


def test_too_little_heap_to_start(tmp_path: Path) -> None:
    text = said(tmp_path, 'start(memory="100m")')
    assert "Shortage Spark's Java process has too little memory for its heap" in text
    assert "--conf spark.driver.memory=2g" in text


def test_the_heap_runs_out(tmp_path: Path) -> None:
    body = 'found = start(memory="600m")\ntry:\n    found._jvm.java.nio.ByteBuffer.allocate(2**31 - 64)\n'
    body += "except Exception as error:\n    raise translate_spark_error(error)"
    text = said(tmp_path, body)
    assert "Shortage Spark's Java process has too little memory for its heap" in text


def test_too_little_address_space(tmp_path: Path) -> None:
    text = said(tmp_path, "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nstart()")
    assert "Shortage there is not enough memory (at the start of Spark's Java process)" in text
    assert "ulimit -v unlimited" in text


def test_it_is_killed_once(tmp_path: Path) -> None:
    text = said(tmp_path, "once(lambda: os.kill(java(), signal.SIGKILL))\nstart()")
    assert "Spark's Java process ended while it started (ended by SIGKILL); starting it again" in text
    assert "STARTED" in text


def test_the_launcher_is_killed(tmp_path: Path) -> None:
    """Spark's start script runs a Java process first that only prints the command of the second one."""
    real, java = shutil.which("java"), tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    once = f'case "$*" in *launcher.Main*) mkdir {tmp_path}/killed 2>/dev/null && kill -9 $$ ;; esac'
    java.write_text(f'#!/bin/sh\n{once}\nexec {real} "$@"\n')
    java.chmod(0o755)
    text = said(tmp_path, "start()", environment={"JAVA_HOME": str(tmp_path / "home")})
    assert "Spark's Java process ended while it started (a signal ended its launcher); starting it again" in text
    assert "STARTED" in text


def test_it_is_killed_each_time(tmp_path: Path) -> None:
    body = "def kill():\n    while True:\n        time.sleep(0.3)\n        java_process.kill()\nonce(kill)\nstart()"
    text = said(tmp_path, body)
    assert text.count("starting it again") == 2
    assert "SparkLost Spark's Java process ended while it started (ended by SIGKILL)" in text
    assert "remedy: the kernel kills processes when memory runs out" in text


def test_it_is_slow(tmp_path: Path) -> None:
    """On an overloaded machine the start continues; the log names what it waits for."""
    stop = "def stop():\n    os.kill(java(), signal.SIGSTOP)\n    time.sleep(3)\n    os.kill(java(), signal.SIGCONT)\n"
    text = said(tmp_path, f"session._SLOW_S = 1.0\n{stop}once(stop)\nstart()")
    assert "waiting: Spark's Java process has been starting for" in text
    assert "STARTED" in text


def test_java_never_starts(tmp_path: Path) -> None:
    # Until Java is killed, which may happen between the search for it and the signal.
    stop = (
        "def stop():\n    with contextlib.suppress(ProcessLookupError):\n        while True:\n            os.kill(java(), signal.SIGSTOP)\n"
    )
    stop += "            time.sleep(0.1)\n"
    text = said(tmp_path, f"session._SLOW_S, session._START_S, session._STARTS = 0.5, 1.0, 1\n{stop}once(stop)\nstart()")
    assert "SparkLost Spark's Java process ended while it started (ended by SIGKILL)" in text


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group (version 1 or 2) with a memory limit."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = root / f"headrace-test-{secrets.token_hex(4)}"
        limit = group / ("memory.limit_in_bytes" if root.name == "memory" else "memory.max")
        try:
            group.mkdir()
            limit.write_text(str(450 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("NOT TESTED: a memory limit of a control group; none can be made here")


def test_a_control_group_has_too_little_memory(tmp_path: Path, memory_group: Path) -> None:
    greedy = 'start(more={"spark.driver.extraJavaOptions": "-Xms700m -XX:+AlwaysPreTouch"})'
    text = said(tmp_path, greedy, limits=f"echo $$ > {memory_group}/cgroup.procs;")
    assert "SparkLost Spark's Java process ended while it started (ended by SIGKILL)" in text
    assert "give the machine or its control group more" in text
