"""A class-data archive of Spark's Java classes: it more than halves the start-up time of the JVM.

`python -m headrace.spark.session.class_data_archive` (part of set-up) runs a small stream (see `class_data_training`), and the JVM dumps
the classes that it loaded. Sessions use the archive if it exists. The JVM ignores an archive that does not fit its version or class path.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pyspark

from headrace.errors import DefiniteError, TransientError

TRAINING_VARIABLE: Final = "HEADRACE_TRAIN_ARCHIVE"
_TRAINING_MODULE: Final = "headrace.spark.session.class_data_training"
_QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
DUMP_TIMEOUT_S: Final = 180.0


def archive_path() -> Path:
    """Return the path of the archive for this version of Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    identity = [pyspark.__version__, str(Path(pyspark.__file__).resolve()), str(java.resolve())]
    if java.exists():
        identity.append(str(java.resolve().stat().st_mtime_ns))
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    root = os.environ.get("HEADRACE_CACHE") or str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headrace")
    return Path(root) / f"spark-{digest}.jsa"


def java_options() -> str:
    """Return the JVM options that write the archive (in a training run) or use it; empty if there is no archive."""
    training = os.environ.get(TRAINING_VARIABLE)
    if training:
        return f"-XX:ArchiveClassesAtExit={training} {_QUIET}"
    archive = archive_path()
    return f"-XX:SharedArchiveFile={archive} {_QUIET}" if archive.exists() else ""


def make_archive() -> Path:
    """Create the archive unless it exists."""
    archive = archive_path()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=archive.parent) as home:
        made = Path(home) / "made.jsa"
        command = [sys.executable, "-m", _TRAINING_MODULE, home]
        training = subprocess.run(command, env={**os.environ, TRAINING_VARIABLE: str(made)}, check=False)
        if training.returncode:
            raise DefiniteError(f"the training run ended with exit code {training.returncode}", hint="check that Java 17 is installed")
        _await_dump(made, int((Path(home) / "java.pid").read_text()))
        made.replace(archive)
    return archive


def _await_dump(made: Path, java: int) -> None:
    """Wait until the JVM has written the archive, which it does while it exits, after the training process has ended."""
    deadline = time.monotonic() + DUMP_TIMEOUT_S
    while Path(f"/proc/{java}").exists() or not made.exists():
        if time.monotonic() > deadline:
            raise TransientError("the JVM did not write its class archive in time")
        time.sleep(0.1)


if __name__ == "__main__":
    make_archive()
