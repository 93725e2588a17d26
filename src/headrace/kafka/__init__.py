"""Kafka: addresses, schema repositories, Avro and mypipe's message format. `consume`, `changes` and `blocks` are for programs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace.extras import explain_missing_packages

if TYPE_CHECKING:
    from headrace.kafka.consumers.consumer import blocks, changes, consume
    from headrace.kafka.consumers.row_changes import RowChange, What

__all__ = ["RowChange", "What", "blocks", "changes", "consume"]
_ROW_CHANGES = ("RowChange", "What")


def __getattr__(name: str) -> Any:
    # Consumers load compiled kernels; importing an address must not wait for them.
    if name in __all__:
        module = "row_changes" if name in _ROW_CHANGES else "consumer"
        with explain_missing_packages():
            return getattr(importlib.import_module(f"headrace.kafka.consumers.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
