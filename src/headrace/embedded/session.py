"""HTTP sessions: the state that `SET`, `USE` and temporary tables leave for later requests with the same `session_id`.

A session gets its own engine handle only when a statement gives it state. So clients that always send a session id cost nothing. A
request's own settings, parameters and database are reset afterwards.

Opening a handle and applying settings takes as long as a small query. So handles whose statement left no state wait in a pool for requests
with the same database, settings and parameters.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from headrace.embedded.engine.engine import Engine, Handle
from headrace.embedded.engine.errors import ErrorCode
from headrace.embedded.engine.statement_scanner import StatementKind
from headrace.embedded.request_options import RequestOptions

_FINAL: Final = {"final": "1"}
_STATELESS: Final = (StatementKind.OUTPUT, StatementKind.INSERT_DATA, StatementKind.INSERT_INPUT)
"""Statements that leave no state in their handle."""
_MOST_WAITING: Final = 16


@dataclass(slots=True)
class _Session:
    expires: float = 0.0
    handle: Handle | None = None
    database: str = ""
    changed: dict[str, str] | None = None
    """The settings that the session has changed; None: not read since a statement that may change some."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class HandlePool:
    """Handles that wait for a request with the database, settings and parameters that they have. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: OrderedDict[tuple[object, ...], list[Handle]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def handle(self, options: RequestOptions, *, is_reusable: bool) -> Iterator[Handle]:
        """Provide a handle for one request. `is_reusable`: whether the request leaves no state in it."""
        settings = {**(_FINAL if options.reads_final else {}), **options.settings}
        key = options.database, tuple(settings.items()), tuple(options.parameters.items())
        handle = self._take(key) if is_reusable else None
        is_new, handle = handle is None, handle or self._engine.connect()
        try:
            if options.database:
                # Also in a handle that waited: the database may be gone.
                handle.use(options.database)
            if is_new:
                handle.set(settings, options.parameters)
            yield handle
        except BaseException:
            handle.close()
            raise
        if is_reusable:
            self._keep(key, handle)
        else:
            handle.close()

    def close(self) -> None:
        with self._lock:
            for handles in self._waiting.values():
                for handle in handles:
                    handle.close()
            self._waiting.clear()

    def _take(self, key: tuple[object, ...]) -> Handle | None:
        with self._lock:
            handles = self._waiting.get(key)
            if not handles:
                return None
            handle = handles.pop()
            if not handles:
                del self._waiting[key]
            return handle

    def _keep(self, key: tuple[object, ...], handle: Handle) -> None:
        surplus = None
        with self._lock:
            self._waiting.setdefault(key, []).append(handle)
            self._waiting.move_to_end(key)
            if sum(map(len, self._waiting.values())) > _MOST_WAITING:
                oldest, handles = next(iter(self._waiting.items()))
                surplus = handles.pop(0)
                if not handles:
                    del self._waiting[oldest]
        if surplus is not None:
            surplus.close()


class Sessions:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._pool = engine, HandlePool(engine)
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    @contextmanager
    def handle(self, options: RequestOptions, kind: StatementKind, *, has_tables: bool = False) -> Iterator[Handle]:
        """Provide a handle with the request's database, settings and parameters, and nothing of other requests.

        `has_tables`: whether the request creates temporary tables in it.
        """
        is_reusable, changes_session = kind in _STATELESS and not has_tables, kind is StatementKind.SESSION
        if not options.session_id:
            with self._pool.handle(options, is_reusable=is_reusable) as handle:
                yield handle
            return
        session = self._claim(options)
        try:
            if session.handle is None and not changes_session:
                with self._pool.handle(options, is_reusable=is_reusable) as handle:
                    yield handle
            else:
                try:
                    with self._with_session_handle(session, options, {} if changes_session else options.settings) as handle:
                        yield handle
                finally:
                    if changes_session:
                        session.changed = None
        finally:
            session.expires = time.monotonic() + options.session_seconds
            if options.close_session:
                with self._lock:
                    self._drop(options.session_id, session)
            session.lock.release()

    def current_database(self, options: RequestOptions) -> str:
        """Return the database of names without one, before the request's statement runs."""
        with self._lock:
            session = self._sessions.get(options.session_id)
        return options.database or (session.database if session is not None and session.handle is not None else "default")

    def close(self) -> None:
        with self._lock:
            for session in self._sessions.values():
                if session.handle is not None:
                    session.handle.close()
            self._sessions.clear()
        self._pool.close()

    @contextmanager
    def _with_session_handle(self, session: _Session, options: RequestOptions, settings: Mapping[str, str]) -> Iterator[Handle]:
        if "readonly" in settings:
            raise ErrorCode.NOT_IMPLEMENTED.failure("The setting readonly cannot be given for one request of a session that has state")
        if session.handle is None:
            session.handle = self._engine.connect()
            session.database = session.handle.current_database()
        handle = session.handle
        if options.reads_final and handle.readonly_level() != 1:
            # A session that was made read-only by SET reads its rows without FINAL: it may change no setting.
            settings = {**_FINAL, **settings}
        if settings and session.changed is None:
            session.changed = handle.changed_settings()
        before = {name: (session.changed or {}).get(name) for name in settings}
        try:
            if options.database:
                handle.use(options.database)
            handle.set(settings, options.parameters)
            yield handle
        finally:
            current = handle.current_database()
            if current != (options.database or session.database):
                session.database = current
            elif options.database:
                handle.use(session.database)
            handle.restore(before)

    def _claim(self, options: RequestOptions) -> _Session:
        with self._lock:
            self._expire()
            session = self._sessions.get(options.session_id)
            if session is None:
                if options.session_must_exist:
                    raise ErrorCode.SESSION_NOT_FOUND.failure(f"Session {options.session_id} not found")
                session = self._sessions[options.session_id] = _Session()
            if not session.lock.acquire(blocking=False):
                raise ErrorCode.SESSION_IS_LOCKED.failure(f"Session {options.session_id} is locked by a concurrent client")
            return session

    def _expire(self) -> None:
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if session.expires < now and session.lock.acquire(blocking=False):
                self._drop(name, session)
                session.lock.release()

    def _drop(self, name: str, session: _Session) -> None:
        self._sessions.pop(name, None)
        if session.handle is not None:
            session.handle.close()
            session.handle = None
