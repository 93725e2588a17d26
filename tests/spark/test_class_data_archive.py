"""The set-up step that a machine runs only once: without this test, only a new machine would notice that it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.spark.runtime.java_process import archive_path, java_options
from headrace.spark.session.class_data_archive import make_archive


def test_a_new_machine_gets_an_archive_of_spark_s_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert java_options() == ""
    made = make_archive()
    assert made == archive_path()
    assert made.parent == tmp_path
    assert made.stat().st_size > 50 << 20
    assert f"-XX:SharedArchiveFile={made}" in java_options()
