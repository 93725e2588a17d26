"""Rows in buckets by a hash of their partition keys: in memory if there is one bucket, else in files that are read one at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.sinks.clickhouse.types.row_hash_kernel import hash_texts

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class Buckets:
    """Buckets of rows in canonical bytes (see `headrace.cql.decode.canonical_bytes`); safe for threads."""

    def __init__(self, folder: Path, count: int, keys: Sequence[str]) -> None:
        self._folder, self._count, self._keys = folder, count, tuple(keys)
        self._kept: list[pa.Table] = []
        self._files: dict[int, Any] = {}
        self._open = ExitStack()
        self._lock = threading.Lock()
        if count > 1:
            folder.mkdir()

    def add(self, rows: pa.Table) -> None:
        if self._count == 1:
            with self._lock:
                self._kept.append(rows)
            return
        places = self._places(rows)
        order = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[order], np.arange(self._count + 1))
        sorted_rows = rows.take(pa.array(order))
        with self._lock:
            for bucket in np.flatnonzero(np.diff(bounds)):
                self._file(int(bucket), rows.schema).write_table(sorted_rows.slice(bounds[bucket], bounds[bucket + 1] - bounds[bucket]))

    def tables(self, nothing: pa.Table) -> Iterator[pa.Table]:
        """Yield the buckets one after the other; `nothing` is an empty one."""
        self.close()
        if self._count == 1:
            yield pa.concat_tables([nothing, *self._kept])
            return
        for bucket in range(self._count):
            path = self._path(bucket)
            if not path.exists():
                yield nothing
                continue
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                yield stream.read_all()

    def close(self) -> None:
        self._open.close()

    def _places(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        total = np.zeros(rows.num_rows, np.uint64)
        for name in self._keys:
            column: Any = rows.column(name).combine_chunks()
            offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
            data = np.frombuffer(column.buffers()[2] or b"\0", np.uint8)
            found = np.empty(rows.num_rows, np.uint64)
            hash_texts(data, offsets[:-1], offsets[1:], found)
            total = total * np.uint64(31) + found
        places: npt.NDArray[np.int64] = (total % np.uint64(self._count)).astype(np.int64)
        return places

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket}.arrow"

    def _file(self, bucket: int, schema: pa.Schema) -> Any:
        if bucket not in self._files:
            self._files[bucket] = self._open.enter_context(pa.ipc.new_stream(str(self._path(bucket)), schema, options=_OPTIONS))
        return self._files[bucket]
