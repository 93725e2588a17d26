"""Runs every command block of the README and of the tutorial, unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.documents.command_blocks import Step, steps_of

ROOT = Path(__file__).parents[1]
ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def may_live_alone() -> bool:
    """Whether namespaces can be created: it needs root, or a kernel that allows it for users."""
    return shutil.which("unshare") is not None and subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("document", "services"),
    [
        ("README.md", ("mysql", "kafka")),
        pytest.param(
            "docs/tutorial.md",
            (),
            marks=pytest.mark.slow(
                because="test_readme_and_tutorial_commands_succeed runs the README; test_steps_of_a_document reads both"
            ),
        ),
    ],
)
@pytest.mark.timeout(900)
def test_readme_and_tutorial_commands_succeed(document: str, services: tuple[str, ...]) -> None:
    if not may_live_alone():
        reason = "NOT TESTED: the documents' commands need network namespaces (unshare), which are not allowed here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [*ALONE, sys.executable, "-m", "testkit.documents.command_blocks", document, str(ROOT), *services]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr
    assert "UNFIT" not in ended.stdout
    if document == "docs/tutorial.md":
        for shown in ("check: 0 errors, 0 warnings", "headrace: 3 errors in wrong.toml", "did you mean [pipes.shop]?"):
            assert shown in ended.stdout


def test_steps_of_a_document() -> None:
    document = "```sh\na\n```\ntext\n```sh\nb\n```\n<!-- until: seen -->\n<!-- not here: far away -->\n```sh\nc\n```\n<!-- Ctrl-C: b -->\n"
    assert steps_of(document) == [
        Step("run", "a\n"),
        Step("start", "b\n", "seen"),
        Step("pass over", "c\n", "far away"),
        Step("Ctrl-C", text="b"),
    ]
    for page in ("README.md", "docs/tutorial.md"):
        assert len([step for step in steps_of((ROOT / page).read_text()) if step.verb in ("run", "start")]) > 3
