"""Runs statements through a captured session in a thread until the test ends it."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cql.session import CqlSession
from headrace.sources.scylla.capture.captured_session import capture

COLUMNS = "p int, c int, s text static, v text, n int, m map<int, text>, e set<text>, l list<int>, PRIMARY KEY (p, c)"
"""The columns of table `t`."""


class Changes(ABC):
    """Runs changes of table `t` of a keyspace, one at a time."""

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


class AllKinds(Changes):
    """Statements of all kinds."""

    def __init__(self, session: CqlSession, keyspace: str, seed: int) -> None:
        super().__init__(session, keyspace, pause_s=0.01)
        self._draw = random.Random(seed)
        self.columns = ["v"]

    def statement(self) -> str:
        draw, t = self._draw, f"{self._keyspace}.t"
        p, c, x = draw.randrange(12), draw.randrange(6), draw.randrange(1000)
        row, ttl = f"p = {p} AND c = {c}", draw.choice(("", "", " USING TTL 100000"))
        return draw.choice(
            (
                f"INSERT INTO {t} (p, c, v, m, e) VALUES ({p}, {c}, 'v{x}', {{{x + 3}: 'a', 2: 'b'}}, {{'x', 'y{x}'}}){ttl}",
                f"UPDATE {t}{ttl} SET v = 'u{x}', n = {x} WHERE {row}",
                f"UPDATE {t}{ttl} SET {draw.choice(self.columns)} = 'w{x}' WHERE {row}",
                f"UPDATE {t} SET m[{x % 5}] = 'm{x}', e = e + {{'z{x % 7}'}} WHERE {row}",
                f"UPDATE {t} SET m = m - {{2, {x % 5}}}, e = {{'only{x}'}} WHERE {row}",
                f"UPDATE {t} SET l = l + [{x}, {x + 1}] WHERE {row}",
                f"UPDATE {t} SET l = [{x}] WHERE {row}",
                f"UPDATE {t} SET s = 's{x}' WHERE p = {p}",
                f"DELETE v, m FROM {t} WHERE {row}",
                f"DELETE FROM {t} WHERE {row}",
                f"DELETE FROM {t} WHERE p = {p} AND c >= {c} AND c < {c + 2}",
                f"BEGIN BATCH INSERT INTO {t} (p, c, n) VALUES ({p}, {c}, {x}); UPDATE {t} SET v = 'b' WHERE p = {p} AND c = 1 APPLY BATCH",
                f"DELETE FROM {t} WHERE p = {p}" if x < 100 else f"UPDATE {t} SET n = {x} WHERE {row}",
            )
        )
