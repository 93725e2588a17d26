"""The bare machine: its parsing of the README, of apt and of output; the set-up installs the programs of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.machine import bare_machine
from testkit.machine.bare_machine import BareMachine, MachineError, debian_sources, named_files, prerequisites

ROOT = Path(__file__).parents[2]


def test_the_readme_names_its_prerequisites() -> None:
    assert prerequisites((ROOT / "README.md").read_text()) == ["make", "git"]
    with pytest.raises(MachineError, match="names no prerequisites"):
        prerequisites("make demo")


def test_only_debian_s_own_sources_are_taken() -> None:
    targets = "\n".join(
        [
            "Debian|bookworm|main|http://mirror/debian/",
            "Debian|bookworm|main|http://mirror/debian/",
            "Debian|bookworm-security|main|http://mirror/security/",
            "Debian|trixie|main|http://mirror/debian/",
            "Vendor|bookworm|tools|http://vendor/",
        ]
    )
    expected = ["deb http://mirror/debian/ bookworm main", "deb http://mirror/security/ bookworm-security main"]
    assert debian_sources(targets) == expected
    with pytest.raises(MachineError, match="apt has no index of Debian bookworm"):
        debian_sources("")


def test_files_and_programs_that_the_output_names() -> None:
    output = (
        "Can't open shared library '/usr/lib/mysql/plugin/auth_ed25519.so' (errno: 2).\n"
        "/bin/sh: 1: fish: not found\nbash: line 1: zsh: command not found\nmake: groff: No such file or directory\n"
        "at https://host/usr/share and /root/usr/x\n"
        "node: error while loading shared libraries: libatomic.so.1: cannot open shared object file: No such file or directory\n"
    )
    assert named_files(output) == {"/usr/lib/mysql/plugin/auth_ed25519.so", "/bin/sh"}
    assert bare_machine._not_found(output) == ["fish", "groff", "zsh"]
    assert bare_machine._missing_libraries(output) == ["libatomic.so.1"]


def test_programs_that_are_not_found_are_recorded(tmp_path: Path) -> None:
    """The recorder reports missing programs of `shutil.which` and of started processes, and changes no result."""
    (tmp_path / "sitecustomize.py").write_bytes(bare_machine.RECORDER.read_bytes())
    log = tmp_path / "misses"
    script = """
import shutil, subprocess
assert shutil.which("sh") and shutil.which("no-such-shell") is None
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    assert error.filename == "no-such-program"
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HEADRACE_MISSES": str(log), "PYTEST_CURRENT_TEST": "a.py::b (call)"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    misses = [json.loads(line) for line in log.read_text().splitlines()]
    assert misses == [{"program": "no-such-shell", "by": "a.py::b"}, {"program": "no-such-program", "by": "a.py::b"}]


def test_a_program_that_the_set_up_installed_later_is_not_missing(tmp_path: Path) -> None:
    machine = BareMachine(tmp_path, {})
    log = Path(f"{tmp_path}{bare_machine.MISSES}")
    log.parent.mkdir()
    lines = [{"program": name, "by": f"test {number}"} for number, name in enumerate(("java", "fish", "fish", "google-chrome", "/x/y"))]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/java").touch()
    assert machine.misses() == {"fish": "test 1"}
