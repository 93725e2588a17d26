"""The chart of rates that `make bench` writes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.chart import READERS, draw_chart, main

RATES = {"mysql-replication": 7_724.4, "debezium": 40_747.0, "headrace": 463_742.0}
FIGURES = {
    "reference": {
        "server": {"flavour": "mysql", "version": "9.7.4"},
        "workload": {"changes": 1_000_000},
        **{name: {"per_s": rate, "per_cpu_s": rate / 2} for name, rate in RATES.items()},
    }
}
SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_in_proportion_to_the_rates() -> None:
    drawn = ElementTree.fromstring(draw_chart(FIGURES))
    widths = [float(bar.get("width", "0")) for bar in drawn.iter(f"{SVG}rect")]
    longest = max(widths)
    for panel in (widths[:3], widths[3:]):
        assert [width / longest for width in panel] == pytest.approx([rate / RATES["headrace"] for rate in RATES.values()], abs=0.001)
    texts = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"7,724", "40,747", "463,742", "3,862", "20,374", "231,871", *READERS.values()} <= set(texts)
    # Bars and figures stay inside the picture.
    width = float(drawn.get("width", "0"))
    assert all(float(bar.get("x", "0")) + float(bar.get("width", "0")) < width for bar in drawn.iter(f"{SVG}rect"))


def test_a_run_without_a_reader_has_no_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part.json").write_text(json.dumps({"reference": None}))
    assert draw_chart({"reference": None}) == ""
    assert main([str(tmp_path / "part.json"), str(tmp_path / "chart.svg")]) == 2
    assert "has no figures of mysql-replication, debezium, headrace" in capsys.readouterr().err
    assert not (tmp_path / "chart.svg").exists()
    (tmp_path / "whole.json").write_text(json.dumps(FIGURES))
    assert main([str(tmp_path / "whole.json"), str(tmp_path / "chart.svg")]) == 0
    assert (tmp_path / "chart.svg").read_text() == draw_chart(FIGURES)
