"""Sets the system clock off by the offset in a file (`testkit.faults.clock`); Python imports it if the folder is on PYTHONPATH.

libfaketime cannot be used here: Python's `time.sleep` fails under it as long as the monotonic clock is not faked, too.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_FILE = Path(os.environ["HEADRACE_TEST_CLOCK"])
_time, _time_ns = time.time, time.time_ns


def _offset_s() -> int:
    return int(_FILE.read_text())


time.time = lambda: _time() + _offset_s()
time.time_ns = lambda: _time_ns() + _offset_s() * 10**9
