"""Generated pipes for the dashboard: many of them, and some with hostile names."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from headrace.service.status import (
    ErrorStatus,
    MetricSample,
    PipeStage,
    PipeStatus,
    SchemaChangeStatus,
    ServiceStatus,
    TableStatus,
    VerifyResult,
)
from testkit.generators.fake_control import FakeControl

HOSTILE_NAMES = (
    "<img src=x onerror=alert(1)>",
    "</td></tr></table><script>alert(2)</script>",
    "'\"`;DROP TABLE x;--${alert(3)}{{7*7}}",
    "__proto__",
    "constructor",
    "a/b%2Fc?d#e&f=\\g",
    "rtl-\u202eelbat",
    "nul\u0000tab\tnewline\nend",
    "combining-" + "e\u0301" * 40,
    "long-" + "x" * 300,
    "emoji-\U0001f6b0 名前 اسم",
)


class _OwnPipes(FakeControl):
    """A `FakeControl` with other pipes."""

    def history(self, name: str) -> Sequence[MetricSample]:
        seed, now = sum(name.encode()), time.time()
        return [
            MetricSample(at, 1000.0 + 500 * math.sin(at / 3 + seed), 0.5, 1000) for at in (now - 2.0 * step for step in range(1800, -1, -1))
        ]


class ManyPipes(_OwnPipes):
    """Fifty pipes; the first has five hundred tables. Their figures change with every request."""

    def __init__(self, pipes: int = 50, tables: int = 500) -> None:
        super().__init__()
        self._numbers = pipes, tables

    def status(self) -> ServiceStatus:
        pipes, tables = self._numbers
        now = time.time()
        made = tuple(_pipe(f"pipe-{at:02}", now, tables if at == 0 else 10, at) for at in range(pipes))
        return replace(super().status(), pipes=made)


class HostilePipes(_OwnPipes):
    """Every text that can come from outside is hostile."""

    def __init__(self) -> None:
        super().__init__()
        self.names = HOSTILE_NAMES

    def status(self) -> ServiceStatus:
        return replace(super().status(), file=HOSTILE_NAMES[0], pipes=tuple(_hostile(name) for name in self.names))

    def query(self, name: str, sql: str) -> tuple[list[str], list[list[object]]]:  # type: ignore[override]
        self._asked("query", name, sql)
        return list(HOSTILE_NAMES), [list(HOSTILE_NAMES), [None] * len(HOSTILE_NAMES), [{"k": HOSTILE_NAMES[0]}] * len(HOSTILE_NAMES)]


def _pipe(name: str, now: float, tables: int, seed: int) -> PipeStatus:
    moved = int(now * 1000)
    return PipeStatus(
        name=name,
        group=name,
        source=f"mysql://repl@db{seed}:3306/shop",
        sink="clickhouse://default@ch1:8123/shop",
        stage=PipeStage.STREAMING,
        since=now - 1000,
        lag_s=0.5 + 0.4 * math.sin(now + seed),
        lag_bytes=1000 + moved % 100_000,
        position=f"binlog.000042:{moved}",
        rate=1000.0 + 500 * math.sin(now / 3 + seed),
        changes=moved,
        bytes=moved * 200,
        batches=moved // 700,
        tables=tuple(
            TableStatus(
                f"shop.table_{at:03}",
                f"shop.table_{at:03}",
                changes=(moved * (at + 1)) % 1_000_003,
                last_change=now - at % 60,
                rows=at * 1000 + moved % 1000,
                verify=VerifyResult(now - 60, ("equal", "different", "undecided")[at % 3], at, at % 3) if at % 2 else None,
            )
            for at in range(tables)
        ),
    )


def _hostile(name: str) -> PipeStatus:
    trouble = ErrorStatus(name, place=name, remedy=name, at=time.time() - 5, skippable=name)
    return PipeStatus(
        name=name,
        group=name,
        source=name,
        sink=name,
        stage=PipeStage.FAILED,
        since=time.time() - 9,
        position=name,
        error=trouble,
        recent_errors=(trouble,),
        tables=tuple(TableStatus(other, other, rows=1) for other in HOSTILE_NAMES),
        schema_changes=(SchemaChangeStatus(time.time() - 7, name, name, name),),
    )
