"""The name of a block: what lets a server that has it already leave it out.

Invariant: a block of the log has the same token whenever it is read, because it is cut by the log's bytes alone, and no other block of any
pipe has it. A snapshot is another each time it is read: its blocks carry the writer's own mark, which lasts for the attempts of one task.
"""

from __future__ import annotations

from headrace.model.change_block import ChangeBlock, Op


def dedup_token(pipe: str, block: ChangeBlock, attempt: str) -> str:
    """The block's name. `pipe`: who writes; `attempt`: which reading of a snapshot it is."""
    first, last = first_version(block), last_version(block)
    parts = [pipe, str(block.schema.name), first, last, block.rows]
    if block.op[0].as_py() == Op.SNAPSHOT:
        parts += [attempt, block.order[0].as_py() if block.order is not None else 0]
    return ":".join(map(str, ["headrace", *parts]))


def first_version(block: ChangeBlock) -> int:
    return int(block.version[0].as_py())


def last_version(block: ChangeBlock) -> int:
    return int(block.version[block.rows - 1].as_py())
