"""Every relative link, anchor and source path in the documentation exists, and prose lines have at most 120 characters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")])
USER_PAGES = [page for page in PAGES if page.name not in ("CHANGELOG.md", "configuration.md") and "src" not in page.parts]
SOURCE = ROOT / "src" / "headrace"
_LINK = re.compile(r"!?\[(?:[^\]`]|`[^`]*`)*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"^<!-- [^\n]*: begin -->$.*?^<!-- [^\n]*: end -->$", re.MULTILINE | re.DOTALL)
_NAME_IN_FILE = re.compile(r"`([A-Za-z_]+)(?:\.([a-z_]+))?`, `((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")
_SOURCE_PATH = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`")
MOST_CHARACTERS = 120


def without_code(text: str) -> str:
    """The text with fenced blocks and generated reports replaced by empty lines, so that line numbers stay."""
    for pattern in (_FENCE, _GENERATED):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    return text


def anchor_of(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors_of(page: Path) -> frozenset[str]:
    text = without_code(page.read_text())
    counts: dict[str, int] = {}
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in _HEADING.findall(text):
        anchor = anchor_of(heading)
        number = counts.get(anchor, 0)
        counts[anchor] = number + 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return frozenset(found)


def broken_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and other.suffix == ".md" and anchor not in anchors_of(other)):
            yield target


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_exist(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_source_paths_exist(page: Path) -> None:
    """A path such as `model/version.py` is relative to src/headrace, to a package in it, or to the checkout."""
    paths = set(_SOURCE_PATH.findall(page.read_text()))
    known = {str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py")}
    missing = [path for path in paths if not (ROOT / path).exists() and not any(f"/{one}".endswith(f"/{path}") for one in known)]
    assert sorted(missing) == []


@pytest.mark.parametrize("page", USER_PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    """Tables, headings, code, comments for programs and lines without a space to break at may be longer."""
    long = [
        number
        for number, line in enumerate(without_code(page.read_text()).split("\n"), 1)
        if len(line) > MOST_CHARACTERS and not line.lstrip().startswith(("|", "#", "<!--")) and " " in line.strip().lstrip("-* ")
    ]
    assert long == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    assert [page.name for page in sorted(folder.glob("0*.md")) if f"({page.name})" not in index] == []


def test_named_functions_are_in_their_files() -> None:
    """The reasons why a row is missing name a function or class, then its file."""
    named = _NAME_IN_FILE.findall((ROOT / "docs" / "troubleshooting.md").read_text())
    assert len(named) > 20
    for owner, method, path in named:
        source = (SOURCE / path).read_text()
        assert re.search(rf"^(def|class) {owner}\b", source, re.MULTILINE), (owner, path)
        assert not method or re.search(rf"^    def {method}\b", source, re.MULTILINE), (method, path)
