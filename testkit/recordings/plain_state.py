"""A state directory as Headrace 0.9 wrote it: no stamps, no seal."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.entry_stamp import KEY
from headrace.pipes.state.pipe_state import JOURNALS, NOTES

_FORMAT = 2


def make_plain(state: Path) -> None:
    """Remove what later versions added to the files of a stopped pipe, and Spark's checksums, so that its files can be edited."""
    for name in ("pipe.json", *NOTES, *JOURNALS):
        file = state / name
        if not file.exists():
            continue
        entries = [json.loads(line) for line in file.read_text().splitlines()] if name in JOURNALS else [json.loads(file.read_text())]
        plain = [{key: value for key, value in entry.items() if key != KEY} for entry in entries]
        if name == "pipe.json":
            plain[0]["format"] = _FORMAT
        file.write_text("\n".join(map(json.dumps, plain)) + "\n")
    (state / "seal.json").unlink()
    for sums in (state / "checkpoint").rglob(".*.crc"):
        sums.unlink()
