"""Lets the engine find the auxiliary vector of its process (page size, processor features and so on).

ClickHouse reads it from `/proc/self/auxv`, which the sandbox does not allow, otherwise from the words after the environment: there the
kernel has put it. But setting a variable moves the environment to the heap, and the engine then reads arbitrary words as the vector. It
crashed while it was loaded, depending on the number of variables.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_kept: list[Any] = []
"""The engine and the C library use the block as long as the process runs."""


def read_auxiliary_vector() -> bytes:
    """Return the vector; empty if the system does not show it. Call it before the sandbox is closed."""
    try:
        return Path("/proc/self/auxv").read_bytes()
    except OSError:
        return b""


def place_after_environment(vector: bytes) -> None:
    """Copy the environment into a block that has the vector behind it, as the kernel does. Variables must not be set between this call and
    the loading of the engine: that would move the environment again.
    """
    if not vector:
        return
    word = ctypes.sizeof(ctypes.c_void_p)
    environment = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    count = 0
    while environment[count]:
        count += 1
    block = (ctypes.c_void_p * (count + 1 + len(vector) // word))()
    for place in range(count):
        block[place] = environment[place]
    ctypes.memmove(ctypes.byref(block, (count + 1) * word), vector, len(vector) // word * word)
    _kept.append(block)
    ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ").value = ctypes.addressof(block)
