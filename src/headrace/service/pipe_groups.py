"""Merges the statuses and histories of a pipe's sources into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace.service.status import MetricSample, PipeStage, PipeStatus

_WORST_FIRST: Final = (
    PipeStage.FAILED,
    PipeStage.RETRYING,
    PipeStage.WAITING,
    PipeStage.STOPPING,
    PipeStage.STARTING,
    PipeStage.SNAPSHOT,
    PipeStage.PAUSED,
    PipeStage.STOPPED,
    PipeStage.STREAMING,
    PipeStage.DISABLED,
)


def merge_status(name: str, parts: Sequence[PipeStatus]) -> PipeStatus:
    """Return the pipe's status: the most urgent stage, sums of the counters, and the largest lag."""
    if len(parts) == 1:
        return parts[0]
    first = min(parts, key=lambda part: _WORST_FIRST.index(part.stage))
    lags = [part.lag_s for part in parts if part.lag_s is not None]
    sizes = [part.lag_bytes for part in parts if part.lag_bytes is not None]
    etas = [part.eta_s for part in parts if part.eta_s is not None]
    recent = sorted((error for part in parts for error in part.recent_errors), key=lambda error: error.at, reverse=True)
    changed = sorted((change for part in parts for change in part.schema_changes), key=lambda change: change.at, reverse=True)
    return replace(
        first,
        name=name,
        source=", ".join(part.source for part in parts),
        lag_s=max(lags, default=None),
        lag_bytes=sum(sizes) if sizes else None,
        position=", ".join(part.position for part in parts if part.position),
        rate=sum(part.rate for part in parts),
        changes=sum(part.changes for part in parts),
        bytes=sum(part.bytes for part in parts),
        batches=sum(part.batches for part in parts),
        errors=sum(part.errors for part in parts),
        retries=sum(part.retries for part in parts),
        skipped=sum(part.skipped for part in parts),
        dead_letters=sum(part.dead_letters for part in parts),
        relay_bytes=sum(part.relay_bytes for part in parts),
        recent_errors=tuple(recent[:10]),
        eta_s=max(etas, default=None),
        tables=tuple(table for part in parts for table in part.tables),
        schema_changes=tuple(changed[:20]),
        late_rows=sum(part.late_rows for part in parts),
        late_place=next((part.late_place for part in parts if part.late_place), ""),
        unreadable=sum(part.unreadable for part in parts),
        filtered=sum(part.filtered for part in parts),
    )


def merge_history(parts: Sequence[Sequence[MetricSample]]) -> list[MetricSample]:
    """Merge samples of the same second, oldest first."""
    if len(parts) == 1:
        return list(parts[0])
    seconds: dict[int, list[MetricSample]] = {}
    for samples in parts:
        for sample in samples:
            seconds.setdefault(round(sample.at), []).append(sample)
    return [_merge_samples(found) for _, found in sorted(seconds.items())]


def _merge_samples(samples: Sequence[MetricSample]) -> MetricSample:
    lags = [one.lag_s for one in samples if one.lag_s is not None]
    sizes = [one.lag_bytes for one in samples if one.lag_bytes is not None]
    return MetricSample(samples[0].at, sum(one.rate for one in samples), max(lags, default=None), sum(sizes) if sizes else None)
