"""Writes sent to the cluster: many at once, raw values as they are, every failure with its place.

The driver sends values that are bytes already without touching them. When `run` returns, the cluster has acknowledged every write at the
address's consistency. A write that fails for now fails the block, which is written again as a whole: all writes are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from cassandra.concurrent import execute_concurrent
from cassandra.query import BatchStatement, BatchType, BoundStatement

from headrace.cql.bounded_connection import RawPage
from headrace.cql.decode.pages import as_batch
from headrace.cql.errors import DRIVER_ERRORS, translate_error
from headrace.cql.language.value_encoder import sized
from headrace.cql.session import RAW, CqlSession
from headrace.errors import HeadraceError
from headrace.sinks.cql.log_row_writes import Write
from headrace.sinks.cql.options import CONCURRENCY

_BUNDLE, _BUNDLE_BYTES = 64, 128 << 10
"""Maximum statements and bytes of values per request."""
_AT_ONCE = 4096
"""Requests prepared at a time: the driver's objects are larger than their values."""
Place = Callable[[int], str]
"""Returns the name of a block's row in errors."""


def bound(session: CqlSession, text: str, values: Sequence[Any]) -> BoundStatement:
    """A statement with raw values; the driver finds the node that owns the row by them."""
    statement = BoundStatement(session.prepare(text))
    statement.values = list(values)
    statement.is_idempotent = True
    return statement


def run(session: CqlSession, writes: Iterable[Write], place: Place, concurrency: int = CONCURRENCY) -> None:
    """Execute the writes; those of one partition together."""
    run_together(session, _by_partition(session, writes), place, concurrency)


def run_together(session: CqlSession, batches: Iterable[Sequence[Write]], place: Place, concurrency: int = CONCURRENCY) -> None:
    """Execute each group of writes to one partition atomically."""
    waiting = [batch for batch in batches if batch]
    for start in range(0, len(waiting), _AT_ONCE):
        some = waiting[start : start + _AT_ONCE]
        # A list: the driver takes further ones on its own thread, where nothing can be prepared.
        statements = [(_batch(session, batch), None) for batch in some]
        for batch, (succeeded, answer) in zip(some, _execute(session, statements, concurrency), strict=True):
            if not succeeded:
                raise _failed(answer, session, place(batch[0].row))


def ask(session: CqlSession, requests: Sequence[Write], place: Place, concurrency: int = CONCURRENCY) -> list[pa.RecordBatch | None]:
    """Return the rows of each query as columns of raw values; None if it finds none."""
    statements = [(bound(session, request.text, request.values), None) for request in requests]
    found: list[pa.RecordBatch | None] = []
    for request, (succeeded, answer) in zip(requests, _execute(session, statements, concurrency, execution_profile=RAW), strict=True):
        if not succeeded:
            raise _failed(answer, session, place(request.row))
        page: RawPage = answer.one().page
        found.append(as_batch([page], str(session.address)) if page.count else None)
    return found


def _execute(session: CqlSession, statements: Sequence[Any], concurrency: int, **settings: Any) -> Iterator[tuple[bool, Any]]:
    options = {"concurrency": concurrency, "raise_on_first_error": False, "results_generator": True}
    yield from execute_concurrent(session.driver, statements, **options, **settings)


def _by_partition(session: CqlSession, writes: Iterable[Write]) -> list[list[Write]]:
    """Group the writes of one partition into batches of bounded size, which the server executes as one."""
    found: list[list[Write]] = []
    last: dict[tuple[str, bytes], tuple[list[Write], int]] = {}
    for write in writes:
        prepared = session.prepare(write.text)
        parts = [write.values[place] for place in prepared.routing_key_indexes]
        table = prepared.column_metadata[0].table_name
        key = (table, b"".join(map(sized, parts)))
        size = sum(len(value) for value in write.values if isinstance(value, bytes))
        bundle, room = last.get(key, ([], 0))
        if size > room or not bundle:
            bundle, room = [], _BUNDLE_BYTES
            found.append(bundle)
        bundle.append(write)
        last[key] = (bundle, room - size if len(bundle) < _BUNDLE else 0)
    return found


def _batch(session: CqlSession, writes: Sequence[Write]) -> BoundStatement | BatchStatement:
    if len(writes) == 1:
        return bound(session, writes[0].text, writes[0].values)
    batch = BatchStatement(BatchType.UNLOGGED)
    for write in writes:
        batch.add(bound(session, write.text, write.values))
    batch.is_idempotent = True
    return batch


def _failed(error: BaseException, session: CqlSession, place: str) -> BaseException:
    if not isinstance(error, (*DRIVER_ERRORS, HeadraceError)):
        return error
    ours = translate_error(error, session.address)
    return type(ours)(ours.message, place=f"{place} -> {session.address}", hint=ours.hint)
