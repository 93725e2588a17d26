"""HTTP sessions: the state that `SET`, `USE` and temporary tables leave for later requests with the same `session_id`.

A session gets its own engine handle only when a statement gives it state. So clients that always send a session id cost nothing. A
request's own settings, parameters and database are reset afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from headrace.embedded.engine.engine import Engine, Handle
from headrace.embedded.engine.errors import NOT_IMPLEMENTED, SESSION_IS_LOCKED, SESSION_NOT_FOUND, clickhouse_error
from headrace.embedded.request_options import RequestOptions

_FINAL: Final = {"final": "1"}


@dataclass(slots=True)
class _Session:
    expires: float = 0.0
    handle: Handle | None = None
    database: str = ""
    changed: dict[str, str] | None = None
    """The settings that the session has changed; None: not read since a statement that may change some."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Sessions:
    """All sessions of the server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    @contextmanager
    def handle(self, options: RequestOptions, changes_session: bool) -> Iterator[Handle]:
        """Provide a handle with the request's database, settings and parameters, and nothing of other requests."""
        if not options.session_id:
            with self._with_new_handle(options) as handle:
                yield handle
            return
        session = self._claim(options)
        try:
            if session.handle is None and not changes_session:
                with self._with_new_handle(options) as handle:
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
                self._forget(options.session_id, session)
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

    @contextmanager
    def _with_new_handle(self, options: RequestOptions) -> Iterator[Handle]:
        handle = self._engine.connect()
        try:
            if options.database:
                handle.use(options.database)
            handle.set({**(_FINAL if options.reads_final else {}), **options.settings}, options.parameters)
            yield handle
        finally:
            handle.close()

    @contextmanager
    def _with_session_handle(self, session: _Session, options: RequestOptions, settings: Mapping[str, str]) -> Iterator[Handle]:
        if "readonly" in settings:
            raise clickhouse_error(NOT_IMPLEMENTED, "The setting readonly cannot be given for one request of a session that has state")
        if session.handle is None:
            session.handle = self._engine.connect()
            session.database = session.handle.current_database()
        handle = session.handle
        if options.reads_final and handle.allows_settings():
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
                    raise clickhouse_error(SESSION_NOT_FOUND, f"Session {options.session_id} not found")
                session = self._sessions[options.session_id] = _Session()
            if not session.lock.acquire(blocking=False):
                raise clickhouse_error(SESSION_IS_LOCKED, f"Session {options.session_id} is locked by a concurrent client")
            return session

    def _expire(self) -> None:
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if session.expires < now and session.lock.acquire(blocking=False):
                self._drop(name, session)
                session.lock.release()

    def _forget(self, name: str, session: _Session) -> None:
        with self._lock:
            self._drop(name, session)

    def _drop(self, name: str, session: _Session) -> None:
        self._sessions.pop(name, None)
        if session.handle is not None:
            session.handle.close()
            session.handle = None
