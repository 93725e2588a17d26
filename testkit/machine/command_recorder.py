"""Records every program that a Python process looks for and does not find; `testkit.machine.bare_machine` copies it into the bare root.

There it is named `sitecustomize.py` and lies on `PYTHONPATH`, so each Python process runs it at its start. It observes `shutil.which` and
the audit events of started processes, changes no result, and appends one line of JSON per miss to `$HEADRACE_MISSES`.
"""

import json
import os
import shutil
import sys

_LOG = os.environ.get("HEADRACE_MISSES", "")
_which = shutil.which


def _record(program: object, path: str | None = None) -> None:
    name = os.fsdecode(program) if isinstance(program, (str, bytes, os.PathLike)) else ""
    if not name or _which(name, path=path) is not None:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    line = json.dumps({"program": name, "by": test or " ".join(sys.argv[:2])[:200]})
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def _observed_which(cmd, mode=os.F_OK | os.X_OK, path=None):  # type: ignore[no-untyped-def]
    found = _which(cmd, mode, path)
    if found is None:
        _record(cmd, path)
    return found


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        _record(arguments[0])


if _LOG:
    shutil.which = _observed_which
    sys.addaudithook(_audit)
