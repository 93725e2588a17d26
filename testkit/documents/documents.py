"""Runs the examples of documents: SQL goes to a server, Python is executed, and its output must be the output that the document shows."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Example:
    """A fenced block of a document."""

    language: str
    code: str
    line: int


def examples_of(document: str) -> Iterator[Example]:
    for match in _FENCE.finditer(document):
        yield Example(match["language"], match["code"], document[: match.start()].count("\n") + 2)


def run_examples(
    name: str, text: str, connection: Connection[Any], real: Mapping[str, str], names: dict[str, Any], *, python: bool = True
) -> int:
    """Run a document's examples in order, with words replaced as in `real`. Return how many outputs were compared."""
    compared, printed = 0, ""
    for example in examples_of(text):
        code = _replaced(example.code, real)
        if example.language == "sql":
            with connection.cursor() as cursor:
                for statement in filter(None, (part.strip() for part in code.split(";"))):
                    cursor.execute(statement)
        elif example.language == "python" and python:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                # Padding gives an error in it the document's line.
                exec(compile("\n" * (example.line - 1) + code, name, "exec"), names)
            printed = output.getvalue()
        elif example.language == "text" and python:
            shown = _replaced(printed, {found: wanted for wanted, found in real.items() if found})
            assert shown == example.code, f"{name}, line {example.line}: it printed\n{shown}"
            compared += 1
    return compared


def _replaced(text: str, words: Mapping[str, str]) -> str:
    for word, other in words.items():
        text = re.sub(rf"\b{re.escape(word)}\b", lambda _, other=other: other, text)  # type: ignore[misc]
    return text
