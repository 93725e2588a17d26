"""The recordings in tests/golden equal the output of today's servers. `make record` writes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.demo.private_server import PrivateServer
from testkit.recordings.recorder import SERVER_SETTINGS, record
from testkit.recordings.recordings import GOLDEN, load_recording, recording_names, save_recording, without_places
from testkit.recordings.scenarios import SCENARIOS

WRITE = bool(os.environ.get("HEADRACE_WRITE_FIXTURES"))


def test_the_recordings_are_what_this_server_writes(flavour: str, fresh_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    server = fresh_server(**SERVER_SETTINGS)
    wanted = [scenario for scenario in SCENARIOS if flavour in scenario.flavours]
    if WRITE:
        for name in recording_names(flavour):
            (GOLDEN / f"{name}.json").unlink()
    for scenario in wanted:
        now = record(server, scenario, tmp_path)
        if WRITE:
            save_recording(now)
        kept = load_recording(now.name)
        assert without_places(kept) == without_places(now), now.name
    assert recording_names(flavour) == sorted(f"{flavour}-{scenario.name}" for scenario in wanted)


@pytest.mark.parametrize("flavour_name", ["mariadb", "mysql"])
def test_every_flavour_has_recordings(flavour_name: str) -> None:
    assert len(recording_names(flavour_name)) >= 4
