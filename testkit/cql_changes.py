"""Statements without end through a captured session, while a test does other things."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cql.session import CqlSession
from headrace.sources.scylla.capture.wrapping import capture


class Changes(ABC):
    """Changes of table `t` of a keyspace, one after the other."""

    def __init__(self, session: CqlSession, keyspace: str, pause_s: float) -> None:
        self._session, self._keyspace, self._pause_s = session, keyspace, pause_s
        self.done = 0

    @abstractmethod
    def statement(self) -> str:
        """The next one."""

    @contextmanager
    def going_on(self) -> Iterator[None]:
        stop, failures = threading.Event(), []

        def run() -> None:
            try:
                captured = capture(self._session, [f"{self._keyspace}.t"], self._keyspace)
                while not stop.wait(self._pause_s):
                    captured.execute(self.statement())
                    self.done += 1
            except Exception as error:  # noqa: BLE001 (it is raised where the test waits)
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not failures, failures
