"""A `Control` with generated pipes, for the dashboard without Spark: `python -m testkit.generators.fake_control [LISTEN]` serves it.

There is one pipe of each stage; requests change its state as in a real process. The same clock gives the same figures.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.alerts.alert import AlertKind, DeliveryOutcome, OpenAlert
from headrace.alerts.status import AlertsStatus, RuleStatus
from headrace.errors import DefiniteError
from headrace.service.status import (
    ErrorStatus,
    MetricSample,
    PipeStage,
    PipeStatus,
    ReloadResult,
    SchemaChangeStatus,
    ServiceStatus,
    TableStatus,
    VerifyResult,
)
from headrace.telemetry.event import PipeEvent
from headrace.telemetry.log_reader import LogPage, LogQuery
from headrace.telemetry.metrics import Series
from headrace.telemetry.table_rates import MAX_TABLES, TableSeries
from testkit.generators.fake_telemetry import made_up_events, made_up_log, made_up_series

TOKEN = "made-up-token"
RUNNING = (PipeStage.STREAMING, PipeStage.SNAPSHOT, PipeStage.WAITING, PipeStage.STARTING)
HOSTILE = 'shop.<b>"quoted\\"</b>\n'
"""A table whose name contains markup and line breaks."""
COPY_S = 90.0
POISON = "binlog.000042:1337"
MADE_UP_TABLES = [["shop", "orders", "ReplacingMergeTree"], ["shop", "<b>odd</b>`", "MergeTree"], ["archive", "years", "MergeTree"]]
"""What the sink has: database, name, engine."""
MADE_UP_COLUMNS = [["id", "UInt64", ""], ["a`b\\", "String", "a comment"]]
_WAVE_S, _VERIFY_S = 17.0, 3.0


@dataclass
class _Pipe:
    """The state of one pipe."""

    made: PipeStatus
    base_rate: float = 0.0
    copied_rows: int = 0
    """The rows of its snapshot."""
    verifying: dict[str, float] = field(default_factory=dict)
    """When `verify` was requested, by table."""


class FakeControl:
    """Implements `headrace.service.status.Control`; `asked` lists the requests."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._begun, self._lock = clock, clock(), threading.RLock()
        self.asked: list[tuple[Any, ...]] = []
        self._pipes = {pipe.made.name: pipe for pipe in _made_up(self._begun)}

    def status(self) -> ServiceStatus:
        with self._lock:
            now = self._clock()
            return ServiceStatus(
                version="0.1.0",
                pid=os.getpid(),
                started=self._begun,
                file="headrace.toml",
                memory_bytes=int(1.4e9 + 5e7 * math.sin(now / 30)),
                cpu_s=0.12 * (now - self._begun),
                pipes=tuple(self._told(pipe, now) for pipe in self._pipes.values()),
            )

    def pipe(self, name: str) -> PipeStatus:
        with self._lock:
            return self._told(self._find(name), self._clock())

    def history(self, name: str) -> Sequence[MetricSample]:
        with self._lock:
            pipe, now = self._find(name), self._clock()
            runs = pipe.made.stage in RUNNING
            return [
                MetricSample(at, self._rate(pipe, at) if runs else 0.0, self._lag_s(pipe, at), self._lag_bytes(pipe, at))
                for at in (now - 2.0 * step for step in range(1800, -1, -1))
            ]

    def set(self, name: str, **changed: Any) -> None:
        """For tests: replace fields of the pipe's status."""
        with self._lock:
            pipe = self._find(name)
            pipe.made = replace(pipe.made, **changed)

    def pause(self, name: str) -> None:
        self._asked("pause", name)
        for pipe in self._all(name, but=(PipeStage.DISABLED, PipeStage.FAILED)):
            pipe.made = replace(pipe.made, stage=PipeStage.PAUSED, since=self._clock(), error=None, next_try=0.0, waiting="")

    def resume(self, name: str) -> None:
        self._asked("resume", name)
        for pipe in self._all(name, but=(PipeStage.DISABLED,)):
            if pipe.made.stage is PipeStage.FAILED and pipe.made.error is not None and pipe.made.error.skippable:
                raise DefiniteError(pipe.made.error.message, place=pipe.made.error.place, hint=pipe.made.error.remedy)
            pipe.made = replace(pipe.made, stage=PipeStage.STREAMING, since=self._clock(), error=None, next_try=0.0)

    def stop(self, name: str) -> None:
        self._asked("stop", name)
        for pipe in self._all(name, but=(PipeStage.DISABLED,)):
            pipe.made = replace(pipe.made, stage=PipeStage.STOPPED, since=self._clock(), error=None, next_try=0.0)

    def resync(self, name: str, tables: Sequence[str]) -> None:
        self._asked("resync", name, tuple(tables))
        for pipe in self._all(name, but=(PipeStage.DISABLED,)):
            again = tuple(
                replace(table, copied=0, estimate=400_000, complete=False) if table.name in tables else table for table in pipe.made.tables
            )
            pipe.made = replace(pipe.made, stage=PipeStage.SNAPSHOT, since=self._clock(), tables=again)
            pipe.copied_rows = 400_000

    def skip(self, name: str, place: str) -> str:
        self._asked("skip", name, place)
        [pipe] = self._all(name, but=())
        error = pipe.made.error
        if error is None or not error.skippable:
            raise DefiniteError(f"{name} does not halt at an event", place=name, hint="there is nothing to skip: see `headrace status`")
        if place != error.skippable:
            raise DefiniteError(f"{name} halts at another event", place=error.skippable, hint="give the place that the error names")
        pipe.made = replace(
            pipe.made, stage=PipeStage.STREAMING, since=self._clock(), error=None, skipped=pipe.made.skipped + 1, errors=pipe.made.errors
        )
        pipe.base_rate = 120.0
        return f"the event at {place} was left out; recorded in skipped.jsonl"

    def verify(self, name: str, tables: Sequence[str] = ()) -> None:
        self._asked("verify", name, tuple(tables))
        for pipe in self._all(name, but=(PipeStage.DISABLED, PipeStage.FAILED)):
            now = self._clock()
            pipe.verifying.update({table.name: now for table in pipe.made.tables if not tables or table.name in tables})

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        self._asked("query", name, sql)
        with self._lock:
            self._find(name)
        if not sql.strip().lower().startswith(("select", "show", "with", "describe")):
            raise DefiniteError("only queries that read are allowed here", place=sql.strip()[:80], hint="use clickhouse-client to write")
        if "system.tables" in sql:
            return ["database", "name", "engine"], MADE_UP_TABLES
        if "system.columns" in sql:
            return ["name", "type", "comment"], MADE_UP_COLUMNS
        return ["id", "item", "big"], [[1, "tea", 2**63], [2, "<script>alert(1)</script>", -1], [3, None, 0]]

    def reload(self) -> ReloadResult:
        self._asked("reload")
        applied = ("[headrace] address", "[alerts.chat]")
        return ReloadResult(started=("fresh",), unchanged=("shop",), needs_restart=("[headrace] master",), applied=applied)

    def alerts(self) -> AlertsStatus:
        failed = f"events: failed: the value of column {HOSTILE} is no date"
        limits = (60.0, 300.0, 300.0, 5 << 30)
        kinds = (AlertKind.FAILED, AlertKind.RECOVERED, AlertKind.SCHEMA_CHANGE)
        return AlertsStatus(
            (
                RuleStatus("chat", "slack", "https://hooks.slack.com:443", kinds, ("*",), *limits),
                RuleStatus(
                    "oncall", "e-mail", "oncall@example.com by mail:587", kinds[:2], ("shop*",), *limits, queued=2, error="it answers 451"
                ),
            ),
            (OpenAlert("5f0c", AlertKind.FAILED, "events", failed, self._begun - 40),),
            (
                DeliveryOutcome(self._begun - 39, "chat", AlertKind.FAILED, "events", failed, "sent: HTTP 200", 1),
                DeliveryOutcome(
                    self._begun - 300, "chat", AlertKind.SCHEMA_CHANGE, "shop", "shop: DROP TABLE tmp", "given up: it answers 404", 3
                ),
            ),
        )

    def events(self, name: str, limit: int) -> Sequence[PipeEvent]:
        pipes = {pipe.made.name for pipe in self._pipes.values() if name in ("", pipe.made.name, pipe.made.group)}
        return [event for event in made_up_events(self._begun) if event.pipe in pipes][:limit]

    def metrics(self, name: str, span: str) -> Series:
        return made_up_series(span, self._clock(), 1 + len(name) % 3)

    def log(self, name: str, query: LogQuery) -> LogPage:  # noqa: ARG002
        return made_up_log(self._begun, self._clock(), query)

    def table_rates(self, name: str) -> TableSeries:
        now = self._clock()
        [tables] = [pipe.tables for pipe in self.status().pipes if pipe.name == name]
        times = [now - 10.0 * at for at in range(359, -1, -1)]
        shares = {table.name: 1 / (2 + number) for number, table in enumerate(tables[:MAX_TABLES])}
        return TableSeries(
            10, now, {table: tuple(1000 * share * (1 + math.sin(at / 300)) for at in times) for table, share in shares.items()}
        )

    def _asked(self, *what: Any) -> None:
        with self._lock:
            self.asked.append(what)

    def _find(self, name: str) -> _Pipe:
        found = self._pipes.get(name)
        if found is None:
            raise DefiniteError(f"there is no pipe {name!r}", place=name, hint=f"there are {', '.join(self._pipes)}")
        return found

    def _all(self, name: str, but: tuple[PipeStage, ...]) -> list[_Pipe]:
        """The pipe, or all parts of one; not in these stages."""
        with self._lock:
            parts = [pipe for pipe in self._pipes.values() if name in (pipe.made.name, pipe.made.group)] or [self._find(name)]
            for pipe in parts:
                if pipe.made.stage in but:
                    raise DefiniteError(f"{pipe.made.name} is {pipe.made.stage}", place=pipe.made.name, hint="see `headrace status`")
            return parts

    def _told(self, pipe: _Pipe, now: float) -> PipeStatus:
        made = pipe.made
        if made.stage not in RUNNING:
            return replace(made, rate=0.0, lag_s=self._lag_s(pipe, now), lag_bytes=self._lag_bytes(pipe, now))
        ran = now - self._begun
        changes = int(pipe.base_rate * (ran + 0.5 * _WAVE_S * (1 - math.cos(ran / _WAVE_S))))
        reported = replace(
            made,
            rate=self._rate(pipe, now),
            lag_s=self._lag_s(pipe, now),
            lag_bytes=self._lag_bytes(pipe, now),
            changes=made.changes + changes,
            bytes=made.bytes + 212 * changes,
            batches=made.batches + int(ran * 1.5),
            relay_bytes=int(3e7 + 1e7 * math.sin(now / 11)),
            position=f"binlog.000042:{4 + 212 * changes}",
            waiting_s=now - made.since if made.waiting else 0.0,
            tables=tuple(self._table(pipe, table, changes, now) for table in made.tables),
        )
        if made.stage is not PipeStage.SNAPSHOT:
            return reported
        left = max(0.0, COPY_S - (now - made.since))
        reported = replace(reported, snapshot_rate=pipe.copied_rows / COPY_S if left else 0.0)
        return replace(reported, eta_s=left) if left else replace(reported, stage=PipeStage.STREAMING, since=made.since + COPY_S)

    def _table(self, pipe: _Pipe, table: TableStatus, changes: int, now: float) -> TableStatus:
        share = changes // max(1, len(pipe.made.tables))
        table = replace(
            table,
            changes=share,
            last_change=now - 0.4 if share else 0.0,
            rate=self._rate(pipe, now) / max(1, len(pipe.made.tables)),
            rows=(table.rows or 0) + share // 2,
        )
        if table.estimate is not None:
            part = min(1.0, (now - pipe.made.since) / COPY_S)
            table = replace(table, copied=int(table.estimate * part), complete=part >= 1.0)
            table = replace(table, snapshot_rate=0.0 if table.complete else (table.estimate or 0) / COPY_S)
        asked = pipe.verifying.get(table.name)
        if asked is not None:
            done, different = now - asked >= _VERIFY_S, "audit" in table.name
            verdict = ("different" if different else "equal") if done else "running"
            table = replace(
                table,
                verify=VerifyResult(
                    asked, verdict, table.rows or 0, 3 if done and different else 0, missing=3 if done and different else 0
                ),
            )
        return table

    def _rate(self, pipe: _Pipe, at: float) -> float:
        return max(0.0, pipe.base_rate * (1 + 0.5 * math.sin((at - self._begun) / _WAVE_S) + 0.1 * math.sin(at * 7)))

    def _lag_s(self, pipe: _Pipe, at: float) -> float | None:
        made = pipe.made
        if made.stage in (PipeStage.DISABLED, PipeStage.STARTING):
            return None
        if made.stage is PipeStage.STREAMING:
            return 0.4 + 0.2 * math.sin(at / 5)
        return max(0.3, at - made.since)

    def _lag_bytes(self, pipe: _Pipe, at: float) -> int | None:
        lag = self._lag_s(pipe, at)
        return None if lag is None else int(lag * max(pipe.base_rate, 50.0) * 212)


def _made_up(now: float) -> list[_Pipe]:
    shop, sink = "mysql://repl@db1:3306/shop", "clickhouse://default@ch1:8123/shop"
    poison = ErrorStatus(
        "the value '0000-00-00' of column placed is no date",
        place=POISON,
        remedy="correct it at the source, choose zero_dates = 'null', or skip this one event: headrace skip events",
        at=now - 40,
        skippable=POISON,
    )
    away = ErrorStatus(
        "cannot connect to the sink: connection refused", "clickhouse://default@ch2:8123/billing", "start it", transient=True, at=now - 9
    )

    def pipe(name: str, stage: PipeStage, tables: Sequence[TableStatus] = (), rate: float = 0.0, rows: int = 0, **more: Any) -> _Pipe:
        reported = {"group": name.partition("/")[0], "source": shop, "sink": sink, "since": now - 60, **more}
        return _Pipe(PipeStatus(name=name, stage=stage, tables=tuple(tables), **reported), rate, rows)

    copied = [
        TableStatus("crm.contacts", "crm.contacts", estimate=1_200_000, copied=0, complete=False),
        TableStatus("crm.notes", "crm.notes", estimate=90_000, copied=0, complete=False),
    ]
    tables = [
        TableStatus("shop.orders", "shop.orders", rows=1_250_300),
        TableStatus("shop.customers", "shop.customers", rows=80_211, verify=VerifyResult(now - 3600, "equal", 80_211)),
        TableStatus(
            "shop.audit",
            "shop.audit",
            rows=9_000_000,
            verify=VerifyResult(now - 7200, "different", 9_000_000, 3, 70, different=1, missing=2),
        ),
        TableStatus(HOSTILE, "shop.odd", rows=1),
    ]
    altered = (
        SchemaChangeStatus(
            now - 300, "shop.orders", "ALTER TABLE orders ADD COLUMN note TEXT", "applied: ADD COLUMN `note` Nullable(String)"
        ),
        SchemaChangeStatus(now - 900, "shop.tmp", "DROP TABLE tmp", "kept, as the settings say"),
    )
    parts = [TableStatus("orders.lines", "orders.lines", rows=500)]
    return [
        pipe("shop", PipeStage.STREAMING, tables, 1850.0, schema_changes=altered, dead_letters=2, errors=1, retries=4),
        pipe("crm", PipeStage.SNAPSHOT, copied, 9000.0, 1_290_000, since=now),
        pipe("orders/east", PipeStage.STREAMING, parts, 300.0, source="mysql://repl@east:3306/orders"),
        pipe("orders/west", PipeStage.STREAMING, parts, 220.0, source="mysql://repl@west:3306/orders"),
        pipe("events", PipeStage.FAILED, parts, error=poison, recent_errors=(poison,), errors=1, since=now - 40, position=POISON),
        pipe("billing", PipeStage.RETRYING, error=away, recent_errors=(away, away), errors=3, retries=3, next_try=now + 20),
        pipe("metrics", PipeStage.WAITING, parts, waiting="the brokers of kafka://k1:9092 do not answer", source="kafka://k1:9092"),
        pipe("profiles", PipeStage.STARTING, source="scylla://s1,s2/app"),
        pipe("archive", PipeStage.PAUSED, parts),
        pipe("reports", PipeStage.STOPPED, parts),
        pipe("old", PipeStage.DISABLED),
    ]


def main() -> None:
    from headrace.dashboard.handler import load_assets
    from headrace.dashboard.server import serve

    # Assets are read for each request, so that an edited page only needs a reload.
    with serve(FakeControl(), sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8088", TOKEN, assets=load_assets) as server:
        print(f"{server.url}/#token={TOKEN}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
