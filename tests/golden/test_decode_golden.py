"""Recorded logs of both servers decode to exactly these images: order, count, versions and all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.sources.mysql.reader import read_segment
from testkit.binlogs import images_of
from testkit.recordings import load_recording, told

RECORDINGS = ("decode_mariadb", "decode_mysql")


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_decodes_to_its_images(name: str, tmp_path: Path) -> None:
    recording = load_recording(name)
    images = images_of(list(read_segment(recording.segment(tmp_path), recording.catalog())))
    assert [told(image) for image in images] == list(recording.images)
    assert [op for op, _, _, _ in recording.images].count("INSERT") == 5


@pytest.mark.parametrize("name", RECORDINGS)
def test_no_reader_touches_a_byte_past_its_input(name: str) -> None:
    root = Path(__file__).parents[2]
    environment_paths = [str(root), str(root / "src")]
    script = f"import sys; sys.path[:0] = {environment_paths!r}; from testkit.guarded import main; main({name!r})"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "guarded: ok\n"), done.stderr[-2000:]
