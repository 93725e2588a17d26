"""Runs one contender in this fresh interpreter: `python -m bench.contenders NAME SCRATCH`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

from bench.contenders import load_contender
from bench.contenders.base import TARGET_FILE, WINDOW_FILE, Reader
from bench.target import Target


def main(name: str, scratch: Path) -> None:
    reader = cast(Reader, load_contender(name))
    window = reader.read(Target.load(scratch / TARGET_FILE))
    (scratch / WINDOW_FILE).write_text(json.dumps(asdict(window)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
