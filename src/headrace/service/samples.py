"""The samples of a pipe's last hour, one per second, in a fixed amount of memory."""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np

from headrace.service.status import MetricSample

SAMPLES: Final = 3600
_FIELDS: Final = np.dtype([("at", "f8"), ("rate", "f4"), ("lag_s", "f4"), ("lag_bytes", "f8")])


class SampleHistory:
    """A ring buffer of samples. Thread-safe."""

    def __init__(self, size: int = SAMPLES) -> None:
        self._ring = np.zeros(size, _FIELDS)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, sample: MetricSample) -> None:
        with self._lock:
            self._ring[self._count % len(self._ring)] = (sample.at, sample.rate, _number(sample.lag_s), _number(sample.lag_bytes))
            self._count += 1

    def samples(self) -> list[MetricSample]:
        """Return the samples, oldest first."""
        with self._lock:
            kept = min(self._count, len(self._ring))
            found = np.roll(self._ring, -self._count)[-kept:] if kept else self._ring[:0]
        return [
            MetricSample(at, rate, None if math.isnan(lag_s) else lag_s, None if math.isnan(lag_bytes) else int(lag_bytes))
            for at, rate, lag_s, lag_bytes in found.tolist()
        ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
