"""Reads query results as columns of serialized values, page by page, many queries at once.

No value is decoded and no row is a Python object: one compiled loop copies a page's bytes into Arrow buffers. A request that times out is
repeated from the same page; reading is idempotent.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from cassandra.query import BoundStatement, PreparedStatement

from headrace.cql.bounded_connection import RawPage, WholeResult
from headrace.cql.decode.page_kernel import FINE, gather_pages, measure_pages
from headrace.cql.errors import DRIVER_ERRORS, server_errors, translate_error
from headrace.cql.session import RAW, CqlSession
from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import DEADLINE_S, retrying

FETCH_SIZE: Final = 5000
CONCURRENCY: Final = 32
BATCH_ROWS, BATCH_BYTES = 65_536, 64 << 20
_GRACE_S: Final = 30.0
"""Additional wait after the driver's own timeout."""

PageRequest = tuple[str, Sequence[Any]]
"""A query with question marks, and its parameters."""


class RawValues(tuple[bytes | None, ...]):
    """Parameters that are serialised already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ResultPage:
    request: int
    """Index of the request."""
    rows: RawPage
    last: bool
    """Whether it is the request's last."""


def read_rows(
    session: CqlSession,
    query: str,
    parameters: Sequence[Any] = (),
    fetch_size: int = FETCH_SIZE,
    *,
    patience_s: float = DEADLINE_S,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query, a batch per page; the next page is requested while one is used. No batch is empty."""
    for page in read_pages(session, [(query, parameters)], fetch_size=fetch_size, patience_s=patience_s):
        if page.rows.count:
            yield as_batch([page.rows], str(session.address))


def read_many(
    session: CqlSession,
    requests: Iterable[PageRequest],
    *,
    concurrency: int = CONCURRENCY,
    fetch_size: int = FETCH_SIZE,
    patience_s: float = DEADLINE_S,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of many queries with the same columns; each query's rows in order, the queries in any order. No batch is empty."""
    waiting: list[RawPage] = []
    rows = size = 0
    for page in read_pages(session, requests, concurrency=concurrency, fetch_size=fetch_size, patience_s=patience_s):
        if page.rows.count:
            waiting.append(page.rows)
            rows, size = rows + page.rows.count, size + len(page.rows.body)
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield as_batch(waiting, str(session.address))
            waiting, rows, size = [], 0, 0
    if waiting:
        yield as_batch(waiting, str(session.address))


def read_pages(
    session: CqlSession,
    requests: Iterable[PageRequest],
    *,
    concurrency: int = CONCURRENCY,
    fetch_size: int = FETCH_SIZE,
    patience_s: float = DEADLINE_S,
) -> Iterator[ResultPage]:
    """Yield the pages of many queries as they arrive, each query's in order; up to `concurrency` queries run, each with one page.

    A page without rows may be a query's last, or in its middle.
    """
    return _PageReader(session, fetch_size, patience_s).pages(iter(enumerate(requests)), concurrency)


class _PageReader:
    """Running queries. The driver's thread only queues their answers."""

    def __init__(self, session: CqlSession, fetch_size: int, patience_s: float) -> None:
        self._session, self._fetch_size, self._patience_s = session, fetch_size, patience_s
        self._answers: queue.SimpleQueue[tuple[_PendingRequest, WholeResult | BaseException]] = queue.SimpleQueue()
        self._wait_s = session.address.read_timeout_s + session.address.connect_timeout_s + _GRACE_S

    def pages(self, requests: Iterator[tuple[int, PageRequest]], concurrency: int) -> Iterator[ResultPage]:
        running = 0
        while True:
            while running < concurrency and (wanted := next(requests, None)) is not None:
                self._send(_PendingRequest(wanted[0], *wanted[1]))
                running += 1
            if not running:
                return
            pending, page = self._next()
            after = pending.paging_state
            if after is None:
                running -= 1
            else:
                self._send(_PendingRequest(pending.number, pending.query, pending.parameters, after))
            yield ResultPage(pending.number, page, last=after is None)

    def _next(self) -> tuple[_PendingRequest, RawPage]:
        try:
            pending, answer = self._answers.get(timeout=self._wait_s)
        except queue.Empty:
            raise TransientError(f"the driver has not answered for {self._wait_s:.0f} s", place=str(self._session.address)) from None
        if isinstance(answer, BaseException):
            if not isinstance(answer, (HeadraceError, *DRIVER_ERRORS)):
                raise answer
            error = translate_error(answer, self._session.address, pending.query)
            if not isinstance(error, TransientError):
                raise error from answer
            answer = retrying(lambda: self._retry(pending), deadline_s=self._patience_s)
        return pending, answer.page

    def _retry(self, pending: _PendingRequest) -> WholeResult:
        """Repeat a request that was not answered, and wait for it."""
        with server_errors(self._session.address, pending.query):
            future = self._start(pending)
            answer: WholeResult = future.result().one()
        pending.note(future)
        return answer

    def _send(self, pending: _PendingRequest) -> None:
        try:
            future = self._start(pending)
        except HeadraceError as error:
            self._answers.put((pending, error))
            return

        def answered(found: WholeResult) -> None:
            pending.note(future)
            self._answers.put((pending, found))

        future.add_callbacks(answered, lambda error: self._answers.put((pending, error)))

    def _start(self, pending: _PendingRequest) -> Any:
        statement = _bound(self._session.prepare(pending.query), pending.parameters)
        statement.fetch_size, statement.is_idempotent = self._fetch_size, True
        return self._session.driver.execute_async(statement, execution_profile=RAW, paging_state=pending.paging_state)


def _bound(prepared: PreparedStatement, parameters: Sequence[Any]) -> BoundStatement:
    statement = BoundStatement(prepared)
    if isinstance(parameters, RawValues):
        statement.values = list(parameters)
        return statement
    return statement.bind(parameters)


@dataclass(slots=True)
class _PendingRequest:
    """A requested page."""

    number: int
    query: str
    parameters: Sequence[Any]
    paging_state: bytes | None = None
    """The paging state at which the page begins; after its arrival, that of the next one."""

    def note(self, future: Any) -> None:
        self.paging_state = future._paging_state


def as_batch(pages: Sequence[RawPage], place: str = "") -> pa.RecordBatch:
    """Join pages of the same columns to one batch of `binary` columns."""
    names = pages[0].names
    if any(page.names != names for page in pages):
        hint = "its table was altered meanwhile; repeat the query"
        raise TransientError("answers to one query have different columns", place=place, hint=hint)
    bodies = [pa.py_buffer(page.body) for page in pages]
    described = np.array([(body.address, page.start, body.size, page.count) for body, page in zip(bodies, pages, strict=True)], np.int64)
    rows, columns = int(described[:, 3].sum()), len(names)
    sizes = np.zeros(columns, np.int64)
    damaged = measure_pages(described, columns, sizes)
    if damaged != FINE:
        message = f"row {damaged} of an answer of {rows} rows cannot be read: its lengths do not fit"
        raise DefiniteError(message, place=place, hint="the network or the server damages answers: check both; this should not happen")
    if sizes.max(initial=0) > np.iinfo(np.int32).max:
        raise DefiniteError("a column of a page is larger than 2 GiB", place=place, hint="fetch fewer rows at once")
    starts = np.zeros(columns + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    offsets, validity = np.zeros((columns, rows + 1), np.int32), np.zeros((columns, (rows + 7) // 8), np.uint8)
    nulls, out = np.zeros(columns, np.int64), np.empty(int(starts[-1]), np.uint8)
    gather_pages(described, columns, starts, offsets, validity, nulls, out)
    data = pa.py_buffer(out)
    arrays = [
        pa.Array.from_buffers(
            pa.binary(),
            rows,
            [pa.py_buffer(validity[at]) if nulls[at] else None, pa.py_buffer(offsets[at]), data.slice(int(starts[at]), int(sizes[at]))],
            null_count=int(nulls[at]),
        )
        for at in range(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
