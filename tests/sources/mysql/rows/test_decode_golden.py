"""Recorded logs of both servers decode to exactly the recorded images, with order, count and versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.oracles.binlogs import images_of
from testkit.oracles.chain import Chain
from testkit.recordings.recordings import load_recording, recording_names, told


@pytest.mark.parametrize("name", recording_names())
def test_a_recording_decodes_to_its_images(name: str, tmp_path: Path) -> None:
    recording = load_recording(name)
    chain = Chain(tmp_path, recording.file, mariadb=recording.flavour == "mariadb")
    images = images_of(chain.read(recording.log, recording.catalog(), checksum=recording.checksum))
    assert [told(image) for image in images] == list(recording.images)
    assert {op for op, *_ in recording.images} >= {"INSERT"}
