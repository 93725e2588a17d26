"""Headrace replicates mutable operational data, continuously and exactly, into analytics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api import ChangeBlock, Feed, Op, Transaction, changes, transactions
    from headrace.sinks.producer import Producer

__version__ = "0.9.0"
__all__ = ["ChangeBlock", "Feed", "Op", "Producer", "Transaction", "__version__", "changes", "transactions"]


def __getattr__(name: str) -> Any:
    # The API brings compiled kernels with it; importing the package alone stays cheap.
    if name == "Producer":
        return importlib.import_module("headrace.sinks.producer").Producer
    if name in __all__:
        return getattr(importlib.import_module("headrace.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
