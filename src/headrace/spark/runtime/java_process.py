"""Spark's Java process: start it, explain its exit, and reset pyspark after it.

pyspark reports only that the process "exited". This module keeps the process, so that an error can name the cause: a signal, the heap, a
limit of the machine, or a Java that is missing or too old.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.shortage import shortage_in

GONE_ERRORS = (Py4JError, ConnectionError)
"""What a call raises if the Java process has exited."""
TRAINING_VARIABLE: Final = "HEADRACE_TRAIN_ARCHIVE"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_END_S: Final = 30.0
_LAST_MOMENT_S: Final = 3.0
_HEAP_CODE: Final = 3
"""The exit code of Java with -XX:+ExitOnOutOfMemoryError."""
_OLD: Final = ("UnsupportedClassVersionError", "Unrecognized VM option", "Unrecognized option")
_LAUNCHER_ENDED: Final = "CMD: bad array subscript"
"""Spark's start script prints it if its first Java process, which prints the command of the second, ends without output."""
_KILLS: Final = "the kernel kills processes when memory runs out (dmesg shows it): give the machine or its control group more"
_AGAIN: Final = "start again, unless Headrace does it; if the error recurs, check that the machine has enough memory"
_INSTALL: Final = "install a Java 17 runtime (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"
_SHOWN_LINES: Final = 4
_SHOWN: Final = 2000
_OOM_SCORE: Final = "500"
"""Half of the memory is added to the process's size when the kernel chooses a process to kill."""


class SparkLost(TransientError):
    """A process of Spark's was killed or ran out of memory. The pipe repeats what it was doing."""


class _LastStarted:
    process: subprocess.Popen[bytes] | None = None


def launch(conf: SparkConf, output: int) -> None:
    """Start it with `output` as its output, in a process session of its own: a signal to the driver's process group must not end it."""

    # pyspark does not expose the process before the start has succeeded.
    setattr(java_gateway, "Popen", _start)  # noqa: B010  (mypy knows no such name there)
    try:
        gateway = java_gateway.launch_gateway(conf, {"start_new_session": True, "stdout": output, "stderr": output})
    finally:
        setattr(java_gateway, "Popen", subprocess.Popen)  # noqa: B010
    SparkContext._ensure_initialized(gateway=gateway)


def _start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
    _LastStarted.process = subprocess.Popen(*arguments, **options)
    # When memory runs out, the kernel ends Java or its children, and not this process: it names the cause, and starts Java again.
    with suppress(OSError):
        Path(f"/proc/{_LastStarted.process.pid}/oom_score_adj").write_text(_OOM_SCORE)
    return _LastStarted.process


def kill() -> None:
    """Kill it and all processes of its session."""
    if _LastStarted.process is not None and _LastStarted.process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(_LastStarted.process.pid, signal.SIGKILL)


def describe_exit() -> str:
    """Return how it ended, for an error message; empty if it runs or is unknown."""
    code = None if _LastStarted.process is None else _LastStarted.process.poll()
    if code is None:
        return ""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        return f"ended by {signal.Signals(number).name}"
    return "out of heap memory" if code == _HEAP_CODE else f"exit code {code}"


def lost_process_error(what: str = "Spark's Java process has ended") -> HeadraceError:
    """Return the error to raise if it has exited."""
    code = None
    if _LastStarted.process is not None:
        # It may take a moment to exit after it has closed its connection.
        with suppress(subprocess.TimeoutExpired):
            code = _LastStarted.process.wait(_LAST_MOMENT_S)
    if code == _HEAP_CODE:
        found = shortage_in("Java heap space")
        assert found is not None
        return found
    how = describe_exit()
    hint = f"{_KILLS}; {_AGAIN}" if how.endswith("SIGKILL") else _AGAIN
    return SparkLost(f"{what} ({how})" if how else what, hint=hint)


def describe_start_error(error: Exception) -> str:
    """Return the text of an error of a start; empty if it says only that Java has exited."""
    if isinstance(error, GONE_ERRORS) and not isinstance(error, Py4JJavaError):
        return ""
    try:
        return "\n".join(line for line in str(error).splitlines() if not line.startswith("\tat "))
    except GONE_ERRORS:
        return ""


def explain_start_failure(reason: str, java_output: Sequence[str], packages: str) -> HeadraceError:
    """Return the error of a failed start; `reason`: the text of its exception, `packages`: Maven packages."""
    text = "\n".join(java_output)
    short = shortage_in(f"{text}\n{reason}", "the start of Spark's Java process")
    if short is not None:
        return short
    shown = " / ".join(line.strip() for line in [line for line in java_output if not line.startswith("\tat ")][-_SHOWN_LINES:])
    detail = f" Java says: {shown}" if shown else ""
    if not _java().exists():
        return DefiniteError(f"Spark cannot start: there is no Java ({_java()})", place="the start of Spark's Java process", hint=_INSTALL)
    if any(words in text for words in _OLD):
        return DefiniteError(f"Spark cannot start: Java is too old, or no Java 17.{detail}", place=str(_java()), hint=_INSTALL)
    if _LAUNCHER_ENDED in text:
        return SparkLost("Spark's Java process ended while it started (a signal ended its launcher)", hint=f"{_KILLS}; {_AGAIN}")
    how = describe_exit()
    if not reason or how.startswith("ended by"):
        return lost_process_error("Spark's Java process ended while it started")
    hint = "correct what Java names; --spark-log shows all that it says"
    if packages:
        hint = f"see with --spark-log why {packages} cannot be had; or give a folder of jars: --kafka-jars DIR"
    return DefiniteError(f"Spark cannot start: {reason[:_SHOWN]}{f' ({how})' if how else ''}{detail}", hint=hint)


def reset_gateway() -> None:
    """Reset pyspark, which would otherwise keep using it; end it if it still runs."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with suppress(*GONE_ERRORS, OSError):
            gateway.shutdown()
    process = getattr(gateway, "proc", None) or _LastStarted.process
    if process is not None:
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            kill()
            process.wait()
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")


def cache_dir() -> Path:
    """Return the directory of fetched files and of the class-data archive, which may not exist."""
    return Path(os.environ.get("HEADRACE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace")


def archive_path() -> Path:
    """Return the path of the archive for this version of Spark and Java."""
    java = _java()
    identity = [pyspark.__version__, str(Path(pyspark.__file__).resolve()), str(java.resolve())]
    if java.exists():
        identity.append(str(java.resolve().stat().st_mtime_ns))
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    return cache_dir() / f"spark-{digest}.jsa"


def java_options() -> str:
    """Return the JVM options that write the archive (in a training run) or use it; empty if there is no archive."""
    training = os.environ.get(TRAINING_VARIABLE)
    if training:
        return f"-XX:ArchiveClassesAtExit={training} {_QUIET}"
    archive = archive_path()
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""
