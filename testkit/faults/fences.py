"""Memory between guard pages, for kernels that work on raw pointers: an access outside of it ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_LIBC = ctypes.CDLL(None, use_errno=True)


class Fenced:
    """`size` bytes, in whole pages, between two guard pages."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE)
        self.size = pages * mmap.PAGESIZE
        whole = np.frombuffer(mmap.mmap(-1, self.size + 2 * mmap.PAGESIZE), np.uint8)
        self.bytes: npt.NDArray[np.uint8] = whole[mmap.PAGESIZE : mmap.PAGESIZE + self.size]
        for fence in (whole.ctypes.data, whole.ctypes.data + mmap.PAGESIZE + self.size):
            if _LIBC.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def before_end(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Return the data; its last byte lies before the guard page."""
        part = self.bytes[self.size - len(data) :]
        part[:] = np.frombuffer(data, np.uint8)
        return part

    def after_start(self, data: bytes) -> npt.NDArray[np.uint8]:
        """Return the data; its first byte lies after the guard page."""
        part = self.bytes[: len(data)]
        part[:] = np.frombuffer(data, np.uint8)
        return part
