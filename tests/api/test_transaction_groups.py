"""Blocks of whole batches are split into transactions in the order of the log; no image is lost or repeated."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.api.feed import group_by_transaction
from headrace.model.change_block import ChangeBlock
from headrace.model.schema import Column, Kind, TableName, TableSchema
from testkit.generators.kind_values import block_of_rows

Entry = tuple[int, str, int]
"""Version, transaction and table of an image."""


def block_of(table: int, entries: list[Entry]) -> ChangeBlock:
    schema = TableSchema(TableName("shop", f"t{table}"), (Column("v", Kind.INT64),), ("v",))
    versions, names = [version for version, _, _ in entries], [name for _, name, _ in entries]
    moments = [version * 10 for version in versions]
    rows = [(version,) for version in versions]
    return block_of_rows(schema, rows, versions=versions, commit_us=moments, transactions=names, order=True)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=6), st.integers(1, 5))
def test_transactions_are_whole_and_in_order(log: list[list[int]], block_rows: int) -> None:
    entries = [(i, n, table) for i, (n, table) in enumerate((f"t-{n}", table) for n, tables in enumerate(log) for table in tables)]
    blocks = []
    for table in range(3):
        own = [entry for entry in entries if entry[2] == table]
        blocks += [block_of(table, own[i : i + block_rows]) for i in range(0, len(own), block_rows)]
    found = list(group_by_transaction(blocks))
    assert [transaction.id for transaction in found] == [f"t-{n}" for n in range(len(log))]
    for transaction, tables in zip(found, log, strict=True):
        images = [
            (version, block.schema.name.table)
            for block in transaction.blocks
            for version, value in zip(block.version.to_pylist(), block.images.column(0).to_pylist(), strict=True)
            if version == value
        ]
        assert [table for _, table in images] == [f"t{table}" for table in tables]
        assert all(one < other for (one, _), (other, _) in pairwise(images))
        assert transaction.changes == len(tables)
        assert transaction.commit_ts == images[-1][0] * 10
    assert sum(transaction.changes for transaction in found) == len(entries)
