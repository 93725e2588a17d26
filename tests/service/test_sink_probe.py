"""Counts that a process takes from the state and the sink, not from its own run: they are the same after a restart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.model.table_selection import Selection
from headrace.pipes.lifecycle.sink_factory import open_clickhouse_sink
from headrace.pipes.spec import PipeSpec
from headrace.pipes.state.event_skips import EventSkips
from headrace.service.embedded_servers import EmbeddedServers
from headrace.service.pipe_runner import DisplayNames, PipeRunner
from headrace.service.probes import SinkProbe
from headrace.service.status import PipeStage, PipeStatus
from headrace.service.status_collector import merge_status
from headrace.settings.pipe_settings import PipeSettings
from headrace.sinks.clickhouse.bookkeeping.dead_letters import DONE, ERRORS, UNREADABLE, WAITING
from headrace.sinks.clickhouse.bookkeeping.own_tables import format_timestamp


def open_runner(name: str, sink: str, state: Path) -> PipeRunner:
    spec = PipeSpec("mysql://repl@db/shop", sink, PipeSettings(Selection(("*.*",)), state / name, name=name))

    def never(*_: Any) -> Any:
        raise AssertionError("it does not run")

    runner = PipeRunner(spec, DisplayNames(name, "", ""), SimpleNamespace(is_shared=False), never)  # type: ignore[arg-type]
    runner.view.tables({"shop.orders": "shop.orders", "shop.lines": "shop.lines"})
    return runner


def letter(number: int, pipe: str, table: str, state: str) -> dict[str, Any]:
    empty: dict[str, Any] = {name: "" if "String" in kind else 0 for name, kind in ERRORS.columns}
    at = {name: format_timestamp(0) for name in ("commit_time", "failed_at", "updated_at")}
    return {**empty, **at, "place": None, "id": str(number), "pipe": pipe, "table": table, "state": state}


def counts_of(runner: PipeRunner) -> tuple[Any, ...]:
    status = runner.status()
    tables = {table.name: (table.skipped, table.dead_letters) for table in status.tables}
    return status.skipped, status.dead_letters, status.unreadable, tables


def test_counts_of_the_state_and_the_sink_are_the_same_after_a_restart(tmp_path: Path) -> None:
    sink = f"chdb:{tmp_path / 'warehouse'}"
    with EmbeddedServers() as embedded_servers:
        embedded_servers.ensure(sink)
        with open_clickhouse_sink(sink) as named:
            own = named.sink.own_tables()
            first = [open_runner(name, sink, tmp_path) for name in ("shop", "other")]
            probe = SinkProbe(sink, first, embedded_servers)
            probe.run()
            nothing = {"shop.orders": (0, 0), "shop.lines": (0, 0)}
            assert [counts_of(runner) for runner in first] == [(0, 0, 0, nothing)] * 2
            own.ensure(ERRORS)
            kept = [("shop", "shop.orders", WAITING)] * 3 + [("shop", "shop.lines", WAITING), ("shop", "shop.lines", DONE)]
            kept += [("shop", "srv.shop.orders", UNREADABLE), ("shop", "srv.shop.lines", UNREADABLE), ("other", "shop.lines", WAITING)]
            rows = [letter(number, *one) for number, one in enumerate(kept)]
            own.insert(ERRORS, rows)
            (tmp_path / "shop").mkdir(parents=True)
            skipped = [("binlog.000001:120", "shop.orders"), ("binlog.000001:220", "shop.orders"), ("binlog.000001:300", "shop")]
            EventSkips(tmp_path / "shop").record_skipped({"place": place, "table": table, "content": ""} for place, table in skipped)
            again = [open_runner(name, sink, tmp_path) for name in ("shop", "other")]
            for runners in (first, again):
                SinkProbe(sink, runners, embedded_servers).run()
                for runner in runners:
                    runner.sample()
                assert counts_of(runners[0]) == (3, 4, 2, {"shop.orders": (2, 3), "shop.lines": (0, 1)})
                assert counts_of(runners[1]) == (0, 1, 0, {"shop.orders": (0, 0), "shop.lines": (0, 1)})
            own.insert(ERRORS, [{**row, "state": DONE, "updated_at": format_timestamp(1)} for row in rows if row["state"] == WAITING])
            SinkProbe(sink, again, embedded_servers).run()
            assert counts_of(again[0]) == (3, 0, 2, {"shop.orders": (2, 0), "shop.lines": (0, 0)})


def test_counts_of_a_run(tmp_path: Path) -> None:
    runner = open_runner("shop", "chdb:none", tmp_path)
    view = runner.view
    view.filtered({"shop.orders": 5})
    view.filtered({"shop.orders": 2, "shop.lines": 1})
    view.unreadable(4)
    view.late_rows({"shop.orders": 3, "shop.lines": 0}, "here")
    # A table that leaves the pipe takes its own count along; the pipe's count never falls.
    view.tables({"shop.orders": "shop.orders"})
    status = runner.status()
    assert (status.filtered, status.unreadable, status.late_rows, status.late_place) == (8, 4, 3, "here")
    assert [(table.name, table.filtered, table.late_rows) for table in status.tables] == [("shop.orders", 7, 3)]
    view.late_rows({}, "")
    assert [(table.filtered, table.late_rows) for table in runner.status().tables] == [(7, 0)]


@pytest.mark.parametrize("name", ["skipped", "dead_letters", "unreadable", "filtered", "late_rows"])
def test_counts_of_several_sources_add_up(name: str) -> None:
    parts = [PipeStatus(f"shop/{part}", "shop", "", "", PipeStage.STREAMING, 0.0, **{name: 2 + number}) for number, part in enumerate("ab")]
    assert getattr(merge_status("shop", parts), name) == 5
