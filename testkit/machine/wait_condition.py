"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], timeout_s: float, poll_s: float = 0.02, message: Callable[[], object] = lambda: "it is false"
) -> None:
    """Wait until `condition` holds. Fail with `message` after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for a condition: {message()}"
        time.sleep(poll_s)
