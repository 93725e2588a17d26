"""A writer of ScyllaDB-style change logs: for Apache Cassandra (`capture`), and without a server (`Capture`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.sources.scylla.capture.captured_session import capture
    from headrace.sources.scylla.capture.statement_capture import Capture

__all__ = ["Capture", "capture"]
_MODULES = {"Capture": "statement_capture", "capture": "captured_session"}


def __getattr__(name: str) -> Any:
    # Importing the driver takes time, and the package's other modules do not need it.
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
