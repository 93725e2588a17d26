"""Measurements survive a restart and a damaged file; a file has a fixed size, and the right values at each resolution."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.telemetry.metrics import FILE_BYTES, RANGES, Measurement, PipeMetrics, Series, merge_series

START = 1_800_000_000.0
DAY = 86_400.0


def test_means_and_maxima_at_each_resolution(tmp_path: Path) -> None:
    metrics = PipeMetrics(tmp_path, "shop")
    for second in range(7200):
        metrics.add(Measurement(START + second, float(second % 10), 2.0, None if second < 3600 else second % 60, 1000.0))
    now = START + 7199.5
    hour = metrics.series("1h", now)
    assert (hour.step_s, len(hour.points)) == (10, 360)
    assert hour.points[0] == Measurement(START + 3605, 4.5, 2.0, 9.0, 1000.0)
    assert [point.lag_s for point in hour.points[:6]] == [9, 19, 29, 39, 49, 59]
    day = metrics.series("1d", now)
    assert len(day.points) == 120
    assert day.points[0] == Measurement(START + 30, pytest.approx(4.5), 2.0, None, 1000.0)
    assert day.points[-1].lag_s == 59
    month = metrics.series("30d", now)
    assert [point.at - START for point in month.points] == [900 * at + 450 for at in range(8)]
    assert month.points[0].rate == pytest.approx(4.5)


def test_a_restart_continues_also_within_a_period(tmp_path: Path) -> None:
    metrics = PipeMetrics(tmp_path, "orders/east")
    for second in range(450):
        metrics.add(Measurement(START + second, 10.0, 0.0, 5.0, None))
    metrics.store()
    again = PipeMetrics(tmp_path, "orders/east")
    assert len(again.series("1h", START + 450).points) == 45
    for second in range(450, 900):
        again.add(Measurement(START + second, 20.0, 0.0, 1.0, None))
    again.store()
    [quarter] = PipeMetrics(tmp_path, "orders/east").series("30d", START + 900).points
    assert quarter == Measurement(START + 450, 15.0, 0.0, 5.0, None)
    assert PipeMetrics(tmp_path, "orders/west").series("30d", START + 900).points == ()


def test_storage_is_bounded_and_the_last_30_days_remain(tmp_path: Path) -> None:
    metrics = PipeMetrics(tmp_path, "shop")
    for quarter in range(40 * 96):
        metrics.add(Measurement(START + 900 * quarter, float(quarter), 0.0, 0.0, 0.0))
    metrics.store()
    end = START + 40 * DAY - 1
    again = PipeMetrics(tmp_path, "shop")
    points = again.series("30d", end).points
    assert [point.rate for point in points] == [float(at) for at in range(960, 3840)]
    assert again.path.stat().st_size == FILE_BYTES == 32 + 24 * sum(one.points for one in RANGES.values())
    assert again.path.stat().st_mode & 0o777 == 0o600
    assert len(list(again.path.parent.iterdir())) == 1
    # After a pause of the process nothing old is shown as new.
    assert len(again.series("30d", end + 20 * DAY).points) == 960
    assert again.series("1h", end + 20 * DAY).points == ()


def test_damage_costs_points_and_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = PipeMetrics(tmp_path, "shop")
    for second in range(3600):
        metrics.add(Measurement(START + second, 10.0, 0.0, 5.0, 7.0))
    metrics.store()
    content = metrics.path.read_bytes()
    for damaged in (b"", content[:-1], content + b"x", b"x" + content[1:]):
        metrics.path.write_bytes(damaged)
        again = PipeMetrics(tmp_path, "shop")
        assert again.series("1h", START + 3600).points == ()
        again.add(Measurement(START, 1.0, 0.0, None, None))
        again.store()
        assert len(PipeMetrics(tmp_path, "shop").series("1h", START + 1).points) == 1
    assert caplog.text.count("is damaged") == 4
    random_bytes = random.Random(4)
    for _ in range(100):
        flipped = bytearray(content)
        for at in random_bytes.sample(range(32, len(content)), 40):
            flipped[at] ^= 1 << random_bytes.randrange(8)
        metrics.path.write_bytes(flipped)
        points = PipeMetrics(tmp_path, "shop").series("1h", START + 3600).points
        assert 320 <= len(points) <= 360
        assert all(point.rate >= 0 for point in points)


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = PipeMetrics(tmp_path / "state", "shop")
    (tmp_path / "state").write_text("no directory")
    metrics.add(Measurement(START, 10.0, 0.0, 5.0, 7.0))
    metrics.store()
    metrics.store()
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "state").unlink()
    metrics.store()
    assert len(PipeMetrics(tmp_path / "state", "shop").series("1d", START + 1).points) == 1


def test_a_clock_that_is_set_back_or_wrong(tmp_path: Path) -> None:
    metrics = PipeMetrics(tmp_path, "shop")
    for at in (START, START - 500, START + 10 * DAY, -1.0, float("nan"), 1e300, START):
        metrics.add(Measurement(at, 1.0, 0.0, None, None))
    assert [point.at - START for point in metrics.series("1d", START + 1).points] == [-510, 1.0]
    assert len(metrics.series("30d", START + 10 * DAY).points) == 3


def test_the_sources_of_a_pipe_are_added() -> None:
    east = Series(10, (Measurement(5.0, 1.0, 0.0, 3.0, 10.0), Measurement(15.0, 1.0, 0.0, None, None)))
    west = Series(10, (Measurement(15.0, 2.0, 4.0, 7.0, 20.0),))
    merged = Series(10, (Measurement(5.0, 1.0, 0.0, 3.0, 10.0), Measurement(15.0, 3.0, 4.0, 7.0, 20.0)))
    assert merge_series([east, west]) == merged
    assert merge_series([east]) is east
