"""Two threads that observe: the heartbeats of the copies, and the resources of the processes."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from testkit.soak.operator import Operator
from testkit.soak.routes import Route
from testkit.soak.sampling import Clock, Sample, disk_use, sample_processes
from testkit.soak.traffic import BEAT_S

LOOK_S, SAMPLE_S = 0.5, 5.0


class Watch:
    """Samples everything while it is open, and runs the operator."""

    def __init__(self, routes: Sequence[Route], operator: Operator, state: Path, samples: Path, clock: Clock) -> None:
        self._routes, self._operator, self._state, self._file, self._clock = routes, operator, state, samples, clock
        self._seen: dict[str, datetime] = {}
        # Servers are killed during queries; the driver would log each time.
        logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
        self._stopping = threading.Event()
        work: tuple[Callable[[], None], ...] = (self._look, self._sample, self._tend)
        self._threads = [threading.Thread(target=self._repeat, args=(one,), name=f"watch-{one.__name__}", daemon=True) for one in work]
        self.samples: list[Sample] = []
        self.failures: list[BaseException] = []
        self.calm = False
        self.tending = True

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def seen(self, route: str) -> datetime | None:
        """Return when the newest heartbeat of the copy was written."""
        return self._seen.get(route)

    def lag_s(self, route: Route) -> float | None:
        """Return the lag of the copy behind the last commit; 0 while the source is down."""
        shown, last = self._seen.get(route.name), route.traffic.last_beat
        if shown is None or last is None:
            return None
        now = datetime.now(UTC)
        if (now - last).total_seconds() > 4 * BEAT_S:
            return max((last - shown).total_seconds(), 0.0)
        return max((now - shown).total_seconds() - BEAT_S, 0.0)

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                work()
        # An error in this thread must be reported.
        except BaseException as error:  # noqa: BLE001
            self.failures.append(error)

    def _look(self) -> None:
        for route in self._routes:
            shown = route.visible()
            if shown is not None:
                self._seen[route.name] = shown
        self._stopping.wait(LOOK_S)

    def _tend(self) -> None:
        if self.tending:
            self._operator.tend()
        self._stopping.wait(1.0)

    def _sample(self) -> None:
        begun = time.monotonic()
        lags = {route.name: self.lag_s(route) for route in self._routes}
        found = sample_processes(self._operator.processes())
        sample = Sample(round(self._clock(), 1), found, lags, *disk_use(self._state), os.getloadavg()[0], self.calm)
        self.samples.append(sample)
        with self._file.open("a") as file:
            file.write(json.dumps(sample.to_json()) + "\n")
        self._stopping.wait(max(SAMPLE_S - (time.monotonic() - begun), 0.5))
