"""Every package has a README that names all of its modules, and no other ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
PACKAGES = sorted(file.parent for file in ROOT.rglob("__init__.py"))
FEWEST_LINES, MOST_LINES = 8, 60
_NAMED = re.compile(r"`([a-z][a-z0-9_]*)(?:\.py|/)?`")


def name_of(package: Path) -> str:
    return ".".join(package.relative_to(ROOT.parent).parts)


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_the_readme_names_every_module(package: Path) -> None:
    readme = (package / "README.md").read_text()
    lines = readme.splitlines()
    assert lines[0] == f"# {name_of(package)}"
    assert FEWEST_LINES <= len(lines) <= MOST_LINES
    modules = {file.stem for file in package.glob("*.py")} - {"__init__", "__main__"}
    assert modules - set(re.findall(r"`([a-z0-9_]+)(?:\.py|\.[A-Za-z_.]+)?(?:\([^`]*\))?`", readme)) == set()


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_the_first_column_of_its_table_exists(package: Path) -> None:
    """A renamed or deleted module leaves the README."""
    rows = [line.split("|")[1] for line in (package / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in _NAMED.findall(row)}
    assert {name for name in named if not (package / name).is_dir() and not (package / f"{name}.py").is_file()} == set()
