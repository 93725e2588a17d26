"""Where the dashboard's editor can replace the pipe file: in a directory of its user, and not where the file itself is a mount."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EDIT = """
import sys
from pathlib import Path
from headrace.editor.pipe_file import read_pipe_file, replace_pipe_file
from headrace.errors import DefiniteError
try:
    replace_pipe_file(read_pipe_file(Path(sys.argv[1])), "edited = true")
except DefiniteError as error:
    print(error.message)
"""
MOUNT = """
mount --bind of-the-host.toml mounted/headrace.toml
"$@" mounted/headrace.toml
mount -o remount,bind,ro mounted/headrace.toml
"$@" mounted/headrace.toml
mount --bind of-the-host volume
"$@" volume/headrace.toml
"""


def test_a_mounted_file_cannot_be_replaced(tmp_path: Path) -> None:
    """With `:ro` or without it. A file in a mounted directory can."""
    unshare = ["unshare", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        reason = "NOT TESTED: mounts need a mount namespace (unshare), which is not allowed here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    for folder in ("mounted", "volume", "of-the-host"):
        (tmp_path / folder).mkdir()
    for name in ("of-the-host.toml", "mounted/headrace.toml", "of-the-host/headrace.toml"):
        (tmp_path / name).write_text("edited = false")
    command = [*unshare, "sh", "-e", "-c", MOUNT, "sh", sys.executable, "-c", EDIT]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [f"the file cannot be written: {reason}" for reason in ("Device or resource busy",) * 2]
    assert (tmp_path / "of-the-host.toml").read_text() == "edited = false"
    assert (tmp_path / "of-the-host/headrace.toml").read_text() == "edited = true"
