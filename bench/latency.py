"""Latency from commit to visible: how long after its commit a transaction can be read in the sink.

A writer commits small transactions at fixed times and does not wait for the sink. A stall therefore delays transactions, but does not
reduce their number. An observer queries the sink repeatedly for the transactions that are completely visible. Both use one clock. A
transaction's latency runs from just before its COMMIT is sent to the arrival of the first result with all its rows. It includes what the
measurement adds: on average half of the pause between two queries, and the time of the query itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.connections import Connection

from headrace.errors import DefiniteError, TransientError

DATABASE, TABLE = "bench_latency", "events"
SCHEMA = (
    f"CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4",
    f"""CREATE TABLE {DATABASE}.{TABLE} (
  id BIGINT NOT NULL PRIMARY KEY,
  tx INT NOT NULL,
  revision INT NOT NULL,
  payload VARCHAR(100) NOT NULL,
  written_at DATETIME(6) NOT NULL
) ENGINE=InnoDB""",
)
INSERTS, UPDATES, DELETES = 6, 3, 1
CHANGES_PER_TX = INSERTS + UPDATES + DELETES
UPDATE_AFTER_TX, DELETE_AFTER_TX = 200, 400
POLL_PAUSE_S = 0.01
TIMEOUT_S = 30.0

WholeTransactions = Callable[[int], Iterable[int]]
"""Returns the transactions, from the given one on, that are completely visible in the sink."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The measured latencies."""

    asked_changes_per_s: float
    done_changes_per_s: float
    transactions: int
    p50_s: float
    p90_s: float
    p99_s: float
    longest_s: float
    poll_pause_s: float
    question_s: float
    """Mean time of the observer's query."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rate, the duration, and the warm-up that is not counted."""

    changes_per_s: int = 2_000
    warm_up_s: float = 5.0
    seconds: float = 30.0

    @property
    def pace_s(self) -> float:
        return CHANGES_PER_TX / self.changes_per_s

    @property
    def transactions(self) -> int:
        return round((self.warm_up_s + self.seconds) / self.pace_s)


def measure_latency(plan: Plan, connection: Connection[Any], whole_transactions: WholeTransactions) -> Latency:
    """Write through `connection` (autocommit is off) and observe the sink."""
    writer = _Writer(plan, connection)
    observer = _Observer(plan, whole_transactions)
    writer.start()
    observer.watch(writer)
    writer.join()
    if writer.failure is not None:
        raise TransientError("the writer of the latency test failed", place=f"{DATABASE}.{TABLE}") from writer.failure
    return _summarise(plan, writer, observer)


def whole_transactions_sql(first_tx: int) -> str:
    """Select the transactions from `first_tx` on whose inserted rows are all visible. With the sort key the cost does not depend on the
    table's size."""
    rows = f"SELECT DISTINCT id, tx FROM {DATABASE}.{TABLE} WHERE id >= {first_tx * INSERTS}"
    return f"SELECT tx FROM ({rows}) GROUP BY tx HAVING count() = {INSERTS}"


class _Writer(threading.Thread):
    """Commits each transaction at its scheduled time and records when."""

    def __init__(self, plan: Plan, connection: Connection[Any]) -> None:
        super().__init__(daemon=True)
        self.sent_s: list[float] = []
        self.failure: pymysql.MySQLError | None = None
        self._plan = plan
        self._connection = connection

    def run(self) -> None:
        start = time.perf_counter()
        try:
            for tx in range(self._plan.transactions):
                time.sleep(max(0.0, start + tx * self._plan.pace_s - time.perf_counter()))
                self._transact(tx)
        except pymysql.MySQLError as error:
            self.failure = error

    def _transact(self, tx: int) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(_insert_sql(tx))
            if tx >= UPDATE_AFTER_TX:
                first = (tx - UPDATE_AFTER_TX) * INSERTS
                cursor.execute(f"UPDATE {DATABASE}.{TABLE} SET revision = revision + 1 WHERE id >= {first} AND id < {first + UPDATES}")
            if tx >= DELETE_AFTER_TX:
                cursor.execute(f"DELETE FROM {DATABASE}.{TABLE} WHERE id = {(tx - DELETE_AFTER_TX) * INSERTS + UPDATES}")
        self.sent_s.append(time.perf_counter())
        self._connection.commit()


def _insert_sql(tx: int) -> str:
    ids = range(tx * INSERTS, (tx + 1) * INSERTS)
    rows = ",".join(f"({i},{tx},0,'payload of row {i} in transaction {tx}',NOW(6))" for i in ids)
    return f"INSERT INTO {DATABASE}.{TABLE} VALUES {rows}"


class _Observer:
    """Records when each transaction was first completely visible."""

    def __init__(self, plan: Plan, whole_transactions: WholeTransactions) -> None:
        self.seen_s: dict[int, float] = {}
        self.questions = 0
        self.asking_s = 0.0
        self._plan = plan
        self._ask = whole_transactions

    def watch(self, writer: _Writer) -> None:
        """Observe until every transaction is visible. Fail if none appears within the timeout."""
        oldest = 0
        progress_s = time.perf_counter()
        while oldest < self._plan.transactions and writer.failure is None:
            asked = time.perf_counter()
            found = list(self._ask(oldest))
            answered = time.perf_counter()
            self.questions += 1
            self.asking_s += answered - asked
            for tx in found:
                self.seen_s.setdefault(tx, answered)
            while oldest in self.seen_s:
                oldest += 1
                progress_s = answered
            if answered - progress_s > TIMEOUT_S:
                raise DefiniteError(
                    f"transaction {oldest} did not appear in the sink within {TIMEOUT_S:.0f} s", place=f"{DATABASE}.{TABLE}"
                )
            time.sleep(POLL_PAUSE_S)


def _summarise(plan: Plan, writer: _Writer, observer: _Observer) -> Latency:
    first = round(plan.warm_up_s / plan.pace_s)
    latencies = sorted(observer.seen_s[tx] - writer.sent_s[tx] for tx in range(first, plan.transactions))
    span_s = writer.sent_s[-1] - writer.sent_s[first]
    return Latency(
        asked_changes_per_s=plan.changes_per_s,
        done_changes_per_s=(plan.transactions - 1 - first) * CHANGES_PER_TX / span_s,
        transactions=len(latencies),
        p50_s=_percentile(latencies, 0.50),
        p90_s=_percentile(latencies, 0.90),
        p99_s=_percentile(latencies, 0.99),
        longest_s=latencies[-1],
        poll_pause_s=POLL_PAUSE_S,
        question_s=observer.asking_s / observer.questions,
    )


def _percentile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
