"""Confines this process with Landlock, which needs no privileges.

The second line of defence around the engine: whatever SQL makes it do, the kernel only lets the process read and write files of its data
directory (and read programs, libraries and time zones) and run no program. From Linux 6.7 on it can open no TCP connection either. On
kernels without Landlock (before 5.13, or not configured) only the first line of defence exists: `privileges` and `statement_guard`.

Restrictions apply to the thread that sets them and to threads that it starts later. So the engine must not be imported before `confine`:
its import starts the threads that run statements.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_FILE_RIGHTS: Final = _EXECUTE | _WRITE | _READ
_RIGHTS_BY_VERSION: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TRUNCATE, _DEVICE_IOCTL = 1 << 14, 1 << 15
_CONNECT_TCP: Final = 2
_NETWORK_VERSION: Final = 4

_READABLE: Final = (
    *("/usr", "/lib", "/lib64", "/sys", "/etc/localtime", "/etc/timezone", "/etc/ld.so.cache", "/dev/urandom", "/dev/random"),
    *(f"/proc/{name}" for name in ("meminfo", "cpuinfo", "stat", "loadavg", "uptime", "version", "mounts", "sys", "pressure")),
    *(f"/proc/self/{name}" for name in ("stat", "statm", "status", "io", "limits", "cgroup", "mountinfo", "mounts", "maps", "smaps")),
)
_DEVICES: Final = ("/dev/null", "/dev/zero")


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def confine(directory: Path) -> bool:
    """Restrict this thread, and all that it starts, to files of `directory`; False if the kernel cannot. Call it before `import chdb`."""
    if "chdb" in sys.modules:
        raise RuntimeError("the engine was imported before its process was confined: its threads would not be bound")
    version = _call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return False
    rights = _RIGHTS_BY_VERSION[max(known for known in _RIGHTS_BY_VERSION if known <= version)]
    attributes = _Ruleset(rights, _CONNECT_TCP if version >= _NETWORK_VERSION else 0)
    size = ctypes.sizeof(attributes) if version >= _NETWORK_VERSION else 8
    ruleset = _checked(_call(_CREATE_RULESET, ctypes.byref(attributes), size, 0))
    try:
        _allow(ruleset, (directory,), rights & ~_EXECUTE)
        _allow(ruleset, map(Path, _DEVICES), rights & (_READ | _WRITE | _TRUNCATE | _DEVICE_IOCTL))
        _allow(ruleset, _programs(), rights & (_READ | _LIST))
        _checked(_libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _checked(_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _programs() -> Iterable[Path]:
    """Return what the interpreter and the engine read: code, time zones, system information."""
    packages = [name for name in sys.path if Path(name).name in ("site-packages", "dist-packages")]
    code = (sys.prefix, sys.base_prefix, sys.exec_prefix, *packages, str(Path(__file__).resolve().parents[2]))
    return [Path(name) for name in dict.fromkeys((*_READABLE, *code))]


def _allow(ruleset: int, paths: Iterable[Path], rights: int) -> None:
    for path in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            # Not every machine has all of these paths.
            continue
        try:
            allowed = rights if path.is_dir() else rights & (_FILE_RIGHTS | _TRUNCATE | _DEVICE_IOCTL)
            rule = _PathRule(allowed, descriptor)
            _checked(_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0))
        finally:
            os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    return int(_libc().syscall(ctypes.c_long(number), *arguments))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno() or errno.EPERM
        raise OSError(number, f"cannot confine the process: {os.strerror(number)}")
    return result
