"""The reference page of the public Python names; mkdocstrings fills in signatures and docstrings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import headrace
import headrace.kafka

PUBLIC_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "headrace": [name for name in headrace.__all__ if not name.startswith("_")],
    "headrace.kafka": headrace.kafka.__all__,
    "headrace.spark": ["register"],
    "headrace.errors": ["HeadraceError", "DefiniteError", "TransientError"],
}
"""By module."""


def python_page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Python reference\n"
    yield "The public names, from their docstrings. [Python and Spark API](api.md) and [consume changes](kafka/consuming.md) explain them "
    yield "by examples.\n"
    for module, names in PUBLIC_NAMES.items():
        yield f"## {module}\n"
        yield from (f"::: {module}.{name}\n" for name in names)
