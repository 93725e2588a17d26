"""The code raises every error that the page explains."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from testkit.machine.syntax_tree import syntax_tree

ROOT = Path(__file__).parents[1]
HEADINGS = re.findall(r"^### (.+)$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)


def said_in(file: Path) -> list[str]:
    """Return the strings of a module, with … for inserted values; adjacent strings are joined."""
    found = []
    for node in ast.walk(syntax_tree(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
    return found


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for file in sorted((ROOT / "src").rglob("*.py")) for text in said_in(file)]


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_message_exists_in_the_code(heading: str, texts: list[str]) -> None:
    pieces = [piece for piece in heading.split("…") if piece.strip(" :,.")]
    assert any(all(piece.strip() in text for piece in pieces) for text in texts)


def test_the_inventory_has_entries() -> None:
    assert len(HEADINGS) > 20
