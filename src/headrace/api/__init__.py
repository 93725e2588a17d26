"""The public API: a server's changes as an iterator, in one process and without Spark."""

from __future__ import annotations

from headrace.api.feed import Feed, changes
from headrace.model.change import ChangeBlock, Op

__all__ = ["ChangeBlock", "Feed", "Op", "changes"]
