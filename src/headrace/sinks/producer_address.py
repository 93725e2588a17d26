"""Addresses of producers: `class:MODULE:CLASS`, or a scheme that an installed package has claimed by an entry point."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from headrace.errors import DefiniteError

CLASS: Final = "class:"
GROUP: Final = "headrace.sinks"
"""Entry points of this group name schemes of addresses."""


def is_producer(address: str) -> bool:
    """Return whether an address means a class: by name, or by a scheme that an installed package has claimed."""
    return address.startswith(CLASS) or find_entry_point(address) is not None


def find_entry_point(address: str) -> EntryPoint | None:
    """Return the entry point that has claimed the scheme of an address."""
    scheme = address.partition(":")[0]
    found = [point for point in _entry_points(tuple(sys.path)) if point.name == scheme and ":" in address]
    if len(found) > 1:
        makers = ", ".join(sorted(point.value for point in found))
        raise DefiniteError(
            f"several packages claim the scheme {scheme}: {makers}", place=scheme, hint="name the class: class:MODULE:CLASS"
        )
    return found[0] if found else None


@functools.cache
def _entry_points(_: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points in these directories. To find them takes milliseconds, and a file of pipes has many addresses."""
    return tuple(entry_points(group=GROUP))
