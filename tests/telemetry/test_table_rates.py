"""Rates of tables: over the last seconds for all, over the last hour for the busiest."""

from __future__ import annotations

import pytest

from headrace.telemetry.table_rates import MAX_TABLES, POINTS, STEP_S, TableCount, TableRate, TableRates


def test_rates_of_the_last_seconds() -> None:
    rates = TableRates()
    for second in range(10):
        rates.add(100.0 + second, {"shop.a": TableCount(50 * second, 7 * second), "shop.b": TableCount(3, 0)})
    assert rates.rates() == {"shop.a": TableRate(50.0, 7.0)}
    for second in range(10, 15):
        rates.add(100.0 + second, {"shop.a": TableCount(450, 0), "shop.b": TableCount(3, 0)})
    # At rest; a new snapshot began at 0, which is no negative rate.
    assert rates.rates() == {}


def test_a_table_that_appears_has_no_rate_before_its_second_count() -> None:
    rates = TableRates()
    rates.add(1.0, {})
    rates.add(2.0, {"shop.a": TableCount(1_000_000, 0)})
    assert rates.rates() == {}


def test_an_hour_of_points() -> None:
    rates = TableRates()
    for second in range(4000):
        rates.add(float(second), {"shop.a": TableCount(5 * second, 0), "shop.b": TableCount(0, 0)})
    series = rates.series()
    assert (series.step_s, series.end) == (STEP_S, 3990.0)
    assert series.changes == {"shop.a": (5.0,) * POINTS}


def test_busier_tables_displace_others() -> None:
    rates = TableRates()
    quiet = {f"quiet_{at}": 1 for at in range(MAX_TABLES)}
    busy = {f"busy_{at}": 100 for at in range(10)}
    for second in range(0, 100, 10):
        rates.add(float(second), {name: TableCount(pace * second, 0) for name, pace in quiet.items()})
    assert rates.series().changes.keys() == quiet.keys()
    for second in range(100, 200, 10):
        rates.add(float(second), {name: TableCount(pace * second, 0) for name, pace in (quiet | busy).items()})
    kept = rates.series().changes
    assert len(kept) == MAX_TABLES
    assert busy.keys() <= kept.keys()
    # A quiet table comes back only when it has more changes than another had.
    rates.add(200.0, {name: TableCount(pace * 200, 0) for name, pace in busy.items()})
    assert rates.series().changes.keys() == busy.keys()


def test_a_clock_that_was_set_back() -> None:
    rates = TableRates()
    rates.add(1000.0, {"shop.a": TableCount(0, 0)})
    rates.add(10.0, {"shop.a": TableCount(10, 0)})
    rates.add(11.0, {"shop.a": TableCount(30, 0)})
    assert rates.rates()["shop.a"].changes == pytest.approx(20.0)
