"""Headrace replicates mutable operational data, continuously and exactly, into analytics."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    # Importing `typing` would be most of the time that this package takes.
    from typing import Any

    from headrace.api import ChangeBlock, Feed, Op, Transaction, changes, transactions
    from headrace.sinks.producer import Producer

__version__ = "0.9.0"
__all__ = ["ChangeBlock", "Feed", "Op", "Producer", "Transaction", "__version__", "changes", "transactions"]


def __getattr__(name: str) -> Any:
    # The API brings compiled kernels with it; importing the package alone stays cheap.
    import importlib

    if name == "Producer":
        return importlib.import_module("headrace.sinks.producer").Producer
    if name in __all__:
        return getattr(importlib.import_module("headrace.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
