"""A producer of one's own: changes as Parquet files, by table and day.

    headrace replicate mysql://reader:secret@db.example.com:3306/shop 'class:parquet_files:ParquetFiles?path=lake'

gives `lake/shop.orders/day=2026-11-15/<name>.parquet`, each with the table's columns and, of every change, `_op`, `_version`, `_committed`
and `_transaction`. A file has its final name only when it is whole, and a block that comes again after a crash has the name that it had
before: so every change is in exactly one file.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace
from headrace.model.schema import TableSchema
from headrace.sinks.producer import block_name

_OPS = pa.array([op.name.lower() for op in headrace.Op])


class ParquetFiles(headrace.Producer):
    """`path`: the folder; `compression`: what Parquet calls it."""

    def __init__(self, path: str, compression: str = "zstd") -> None:
        self._folder, self._compression = Path(path), compression

    def write(self, block: headrace.ChangeBlock) -> None:
        """A file for each day that the block's changes were made on: nearly always one."""
        committed = block.commit_ts.view(pa.timestamp("us", "UTC"))
        days = pc.strftime(committed, "%Y-%m-%d")
        rows = pa.Table.from_batches([block.images])
        marks = {"_op": _OPS.take(block.op), "_version": block.version, "_committed": committed, "_transaction": block.transaction}
        for name, column in marks.items():
            if column is not None:
                rows = rows.append_column(name, column)
        kind = "rows" if block.op[0].as_py() == headrace.Op.SNAPSHOT else "changes"
        for day in pc.unique(days).to_pylist():
            self._save(rows.filter(pc.equal(days, day)), f"{block.schema.name}/day={day}/{kind}-{block_name(block)}.parquet")

    def restarted(self, schema: TableSchema, since: int) -> None:
        """A snapshot is read once more from its beginning: the files of the attempt that failed are taken away."""
        for file in (self._folder / str(schema.name)).glob("day=*/rows-*.parquet"):
            if int(file.name.split("-")[1]) >= since:
                file.unlink()

    def _save(self, rows: pa.Table, name: str) -> None:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_suffix(".unfinished")
        pq.write_table(rows, unfinished, compression=self._compression)
        unfinished.rename(target)
