"""The metrics, read by Prometheus's parser; the Grafana dashboard and the documents name only existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.dashboard import metrics
from headrace.service.status import PipeStage, PipeStatus, ServiceStatus, TableStatus, VerifyResult
from testkit.generators.fake_control import COPY_S, HOSTILE, FakeControl

Labels = frozenset[tuple[str, str]]


def parsed(status: ServiceStatus) -> dict[tuple[str, Labels], float]:
    """Return every sample, parsed by prometheus_client."""
    read: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(metrics.render(status).decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in read
            read[key] = sample.value
    return read


def of_pipe(name: str, group: str = "", **more: str) -> Labels:
    return frozenset({"pipe": name, "group": group or name, **more}.items())


def test_every_metric_of_the_status_exists() -> None:
    now = 1_000_000.0
    control = FakeControl(lambda: now)
    now += 20
    status = control.status()
    read = parsed(status)
    shop = status.pipes[0]
    for name, value in {
        "lag_seconds": shop.lag_s,
        "lag_bytes": shop.lag_bytes,
        "changes_per_second": shop.rate,
        "changes_total": shop.changes,
        "bytes_total": shop.bytes,
        "batches_total": shop.batches,
        "errors_total": 1,
        "retries_total": 4,
        "dead_letters": 2,
        "relay_bytes": shop.relay_bytes,
        "skipped_events": 0,
        "late_rows": 0,
        "unreadable_records": 0,
        "filtered_rows_total": 0,
        "failed": 0,
    }.items():
        assert read["headrace_pipe_" + name, of_pipe("shop")] == value
    assert read["headrace_pipe_stage", of_pipe("shop", stage="streaming")] == 1
    for pipe in status.pipes:
        assert sum(read["headrace_pipe_stage", of_pipe(pipe.name, pipe.group, stage=stage)] for stage in PipeStage) == 1
        assert read["headrace_pipe_stage", of_pipe(pipe.name, pipe.group, stage=pipe.stage)] == 1
    assert read["headrace_pipe_failed", of_pipe("events")] == 1
    assert read["headrace_pipe_changes_total", of_pipe("orders/east", "orders")] == status.pipes[2].changes > 0
    part = 20 / COPY_S
    assert read["headrace_table_snapshot_rows", of_pipe("crm", table="crm.notes")] == int(90_000 * part)
    assert read["headrace_table_snapshot_rows_expected", of_pipe("crm", table="crm.notes")] == 90_000
    assert read["headrace_table_complete", of_pipe("crm", table="crm.notes")] == 0
    assert read["headrace_pipe_snapshot_remaining_seconds", of_pipe("crm")] == pytest.approx(COPY_S - 20)
    assert read["headrace_table_verify", of_pipe("shop", table="shop.audit", verdict="different")] == 1
    assert read["headrace_table_verify", of_pipe("shop", table="shop.audit", verdict="equal")] == 0
    assert read["headrace_table_verify_differences", of_pipe("shop", table="shop.audit")] == 3
    for kind, rows in {"different": 1, "missing": 2, "extra": 0}.items():
        assert read["headrace_table_verify_differing_rows", of_pipe("shop", table="shop.audit", kind=kind)] == rows
    assert read["headrace_table_verify_excluded_rows", of_pipe("shop", table="shop.audit")] == 70
    assert read["headrace_process_cpu_seconds_total", frozenset()] == status.cpu_s
    assert read["headrace_process_memory_bytes", frozenset()] == status.memory_bytes
    # The label is the table's name, with any characters.
    assert read["headrace_table_rows", of_pipe("shop", table=HOSTILE)] == status.pipes[0].tables[3].rows
    # An unknown value is not 0, and a pipe that does not run has a stage and no other metrics.
    assert ("headrace_pipe_lag_seconds", of_pipe("profiles")) not in read
    assert ("headrace_table_last_change_timestamp_seconds", of_pipe("archive", table="orders.lines")) not in read
    assert {name for name, labels in read if ("pipe", "old") in labels} == {"headrace_pipe_stage", "headrace_pipe_failed"}


def test_odd_numbers() -> None:
    table = TableStatus("t", rows=2**63, skipped=1, dead_letters=2, filtered=3, verify=VerifyResult(5.0, "running"))
    pipe = PipeStatus("p\\n", "p", "", "", PipeStage.STREAMING, 0.0, lag_s=inf, rate=1e-9, tables=(table,))
    read = parsed(ServiceStatus("1", 1, 1.0, 'a "file"\\with\nlines', pipes=(pipe,)))
    assert read["headrace_pipe_lag_seconds", of_pipe("p\\n", "p")] == inf
    assert read["headrace_pipe_changes_per_second", of_pipe("p\\n", "p")] == 1e-9
    assert read["headrace_table_rows", of_pipe("p\\n", "p", table="t")] == 2**63
    assert ("headrace_table_verify_differences", of_pipe("p\\n", "p", table="t")) not in read
    assert ("headrace_table_verify_excluded_rows", of_pipe("p\\n", "p", table="t")) not in read
    assert not any(name in ("headrace_table_verify_rows", "headrace_table_verify_differing_rows") for name, _ in read)
    for name, value in {"skipped_events": 1, "dead_letters": 2, "filtered_rows_total": 3}.items():
        assert read[f"headrace_table_{name}", of_pipe("p\\n", "p", table="t")] == value
    assert ("headrace_info", frozenset({"version": "1", "file": 'a "file"\\with\nlines'}.items())) in read


def test_grafana_and_the_documents_name_existing_metrics() -> None:
    known = set(metrics.names())
    assert len(known) > 25
    board = json.loads((files("headrace.dashboard") / "grafana.json").read_text())
    asked = {name for expression in _texts(board) for name in re.findall(r"headrace_\w+", expression)}
    assert asked <= known
    # The Grafana dashboard shows every metric, except parts of others.
    assert known - asked == {
        "headrace_pipe_changes_per_second",
        "headrace_pipe_stage_since_timestamp_seconds",
        "headrace_pipe_next_try_timestamp_seconds",
        "headrace_table_complete",
        "headrace_table_verify_timestamp_seconds",
    }
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    document = (Path(__file__).parents[2] / "docs/operations/metrics.md").read_text()
    assert set(re.findall(r"\bheadrace_[a-z_]+\b", document)) == known


def _texts(node: Any) -> Iterator[str]:
    match node:
        case str():
            yield node
        case dict():
            for value in node.values():
                yield from _texts(value)
        case list():
            for value in node:
                yield from _texts(value)
