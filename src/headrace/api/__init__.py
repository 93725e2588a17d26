"""The public API: a server's changes as an iterator, in one process and without Spark."""

from __future__ import annotations

from headrace.api.feed import Feed, Transaction, changes, transactions
from headrace.model.change_block import ChangeBlock, Op

__all__ = ["ChangeBlock", "Feed", "Op", "Transaction", "changes", "transactions"]
