"""The stored durations of a run name every test, with its set-up and tear-down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def test_every_test_is_stored_with_its_whole_duration(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import sys, pathlib
        from testkit.machine.durations import write_durations
        def pytest_terminal_summary(terminalreporter):
            write_durations(terminalreporter.stats, pathlib.Path("build/durations.json"))
        """
    )
    pytester.makepyfile(
        """
        import time, pytest
        @pytest.fixture
        def slow():
            time.sleep(0.2)
        def test_waits(slow): pass
        def test_quick(): pass
        def test_fails(): assert False
        """
    )
    pytester.runpytest("-p", "no:cacheprovider")
    stored = json.loads(Path("build/durations.json").read_text())
    name = "test_every_test_is_stored_with_its_whole_duration.py::"
    assert set(stored) == {name + "test_waits", name + "test_quick", name + "test_fails"}
    assert next(iter(stored)) == name + "test_waits"
    assert stored[name + "test_waits"] >= 0.2
