"""Processes whose system clock a test sets while they run. The monotonic clock is not changed, as when a real clock is set.

The offset is in a file. Database servers look at it once a second (libfaketime), Python processes at each reading (`clock_site`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from headrace.demo.private_server import PrivateServer, Setting
from headrace.errors import DefiniteError
from testkit.servers.servers import find_program

_LOOK_S = 1
_PLACES = ("/usr/lib", "/usr/local/lib")


def find_library() -> Path:
    """libfaketime for programs with threads."""
    found = [path for place in _PLACES for path in Path(place).glob("**/faketime/libfaketimeMT.so.1")]
    if not found:
        raise DefiniteError("libfaketime is not installed", hint="install it: apt-get install faketime")
    return found[0]


class Clock:
    """A clock that shows the right time until it is set."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset_s: int) -> None:
        """Set the clock to the right time plus an offset; return when all processes use it."""
        making = self._file.with_suffix(".making")
        making.write_text(f"{offset_s:+d}\n")
        # A process that reads the file never sees half of it.
        making.rename(self._file)
        self.offset_s = offset_s
        # libfaketime counts whole seconds.
        time.sleep(_LOOK_S + 1.1)

    def now(self) -> float:
        """Return the time that processes with this clock read."""
        return time.time() + self.offset_s

    @property
    def server_environment(self) -> dict[str, str]:
        """The variables of a database server with this clock."""
        return {
            "LD_PRELOAD": str(find_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_LOOK_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            # Files keep the times that the kernel gives them.
            "NO_FAKE_STAT": "1",
        }

    @property
    def python_environment(self) -> dict[str, str]:
        """The variables of a Python process with this clock; its children inherit them."""
        place = Path(__file__).with_name("clock_site")
        return {"HEADRACE_TEST_CLOCK": str(self._file), "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


class ClockedServer(PrivateServer):
    """A database server with its own clock."""

    def __init__(self, flavour: str, directory: Path, clock: Clock, **settings: Setting) -> None:
        super().__init__(find_program(flavour), directory, settings)
        self._clock = clock

    def _popen_options(self) -> dict[str, Any]:
        return {**super()._popen_options(), "env": {**os.environ, **self._clock.server_environment}}
