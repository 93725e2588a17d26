"""Runs every command block of the README and of the tutorial, unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from testkit.documents.command_blocks import OUTPUTS, Reader, Step, Unfit, steps_of
from testkit.documents.shown_output import missing_lines

ROOT = Path(__file__).parents[1]
ALONE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def may_live_alone() -> bool:
    """Whether namespaces can be created: it needs root, or a kernel that allows it for users."""
    return shutil.which("unshare") is not None and subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("document", "options"),
    [
        ("README.md", ("mysql", "kafka")),
        pytest.param(
            "docs/tutorial.md",
            (OUTPUTS,),
            marks=pytest.mark.slow(
                because="test_readme_and_tutorial_commands_succeed runs the README; test_steps_of_a_document reads both"
            ),
        ),
    ],
)
@pytest.mark.timeout(900)
def test_readme_and_tutorial_commands_succeed(document: str, options: tuple[str, ...]) -> None:
    if not may_live_alone():
        reason = "NOT TESTED: the documents' commands need network namespaces (unshare), which are not allowed here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    command = [*ALONE, sys.executable, "-m", "testkit.documents.command_blocks", document, str(ROOT), *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr
    assert "UNFIT" not in ended.stdout


def test_steps_of_a_document() -> None:
    document = (
        "```sh\na\n```\ntext\n```\nshown\n```\n```toml\nno output\n```\n<!-- terminal: second -->\n```sh\nb\n```\n<!-- until: seen -->\n"
        "<!-- not here: far away -->\n```sh\nc\n```\n```\nof c\n```\n<!-- Ctrl-C: b -->\n"
    )
    assert steps_of(document) == [
        Step("run", "a\n", shown="shown\n"),
        Step("start", "b\n", "seen", terminal="second"),
        Step("pass over", "c\n", "far away"),
        Step("Ctrl-C", text="b"),
    ]
    for page in ("README.md", "docs/tutorial.md"):
        assert len([step for step in steps_of((ROOT / page).read_text()) if step.verb in ("run", "start")]) > 3
    started = [step for step in steps_of((ROOT / "docs/tutorial.md").read_text()) if step.verb == "start"]
    assert [step.terminal for step in started] == ["second", "third", "third"]


RUNS_ON = """bash -c 'trap "exit 130" INT; echo "begun: FIRST=$FIRST OWN=$OWN $(basename "$PWD")"; while true; do sleep 0.05; done'\n"""


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader on a machine whose tests run in an activated environment."""
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("HEADRACE_SOURCE_PASSWORD", "of-the-tests")
    found = Reader(tmp_path, compares=True)
    yield found
    found.leave()


def test_each_terminal_begins_with_the_environment_of_a_login(reader: Reader) -> None:
    said = reader.run(Step("run", 'echo "[$VIRTUAL_ENV$HEADRACE_SOURCE_PASSWORD$PYTEST_CURRENT_TEST] $HOME"; type headrace || true\n'))
    assert said.startswith(f"[] {os.environ['HOME']}\n")
    assert "headrace: not found" in said
    reader.run(Step("run", "export FIRST=1; mkdir inner; cd inner\n"))
    reader.start(Step("start", f"export OWN=2\n{RUNS_ON}", "begun: FIRST= OWN=2 inner", "second"))
    with pytest.raises(Unfit, match="a command runs in the terminal 'second'"):
        reader.start(Step("start", RUNS_ON, "begun", "second"))
    reader.end("bash")
    # The terminal keeps its variables, and the first one does not get them.
    reader.start(Step("start", RUNS_ON, "begun: FIRST= OWN=2 inner", "second"))
    reader.end("bash")
    reader.start(Step("start", RUNS_ON, "begun: FIRST=1 OWN= inner"))
    reader.end("bash")


def test_a_terminal_without_its_activation_fails(reader: Reader) -> None:
    reader.run(Step("run", f". {sys.prefix}/bin/activate; headrace --version\n"))
    with pytest.raises(Unfit, match="headrace: not found"):
        reader.start(Step("start", "headrace demo --shop\n", "for yourself", "second"))


def test_output_that_the_document_does_not_show_is_reported(reader: Reader) -> None:
    reader.follow([Step("run", "printf 'a 17 s\\nb\\n'\n", shown="a 4.5 s\n")])
    assert reader.faults == []
    reader.follow([Step("run", "echo other\n", shown="shown\n")])
    assert "does not have these lines of the document:\nshown" in reader.faults[0]


def test_compared_output() -> None:
    real = "2026-11-19 10:00:00 INFO shop: 1,234 rows in 3 m 4 s (7 rows/s)\nmore\n┏━━━━━┓\n│ a   │ 12 kB │\nhttp://127.0.0.1:8088/#token=abc\n"
    shown = "shop: 9 rows in 15.8 s (17,698 rows/s)\n…\n┏━━┓\n│ a │ 9 B │\nhttp://127.0.0.1:8088/#token=…\n"
    assert missing_lines(shown, real) == []
    assert missing_lines("more\nshop: 1 rows in 1 s (1 rows/s)\n", real) == ["shop: 1 rows in 1 s (1 rows/s)"]
    assert missing_lines("ore\n│ b │ 9 B │\n", real) == ["ore", "│ b │ 9 B │"]


def of_the_base() -> set[str]:
    """Return the packages that `pip install .` installs: those that the base demands, and those that they demand."""
    found: set[str] = set()
    new = {"headrace"}
    while new:
        name = new.pop()
        found.add(name)
        demanded = [
            demand
            for demand in map(Requirement, distribution(name).requires or ())
            if not demand.marker or demand.marker.evaluate({"extra": ""})
        ]
        new |= {demand.name.lower() for demand in demanded} - found
    return found


def megabytes(name: str) -> float:
    """Return the size of an installed package."""
    package = distribution(name)
    files = (Path(str(package.locate_file(file))) for file in package.files or ())
    return sum(file.stat().st_blocks * 512 for file in files if file.exists()) / 1e6


def test_the_readme_names_the_largest_packages_of_the_base() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    named = re.findall(r"(\w+) \((\d+) MB\)", text[text.index("The largest packages of the base are") : text.index("; the others have")])
    sizes = sorted(((megabytes(name), name) for name in of_the_base()), reverse=True)
    assert [name for name, _ in named] == [name for _, name in sizes[: len(named)]]
    for (_, shown), (size, name) in zip(named, sizes, strict=False):
        assert int(shown) == pytest.approx(size, rel=0.15), name
