"""A connection that can fail: a TCP proxy between a pipe and one of its peers, in its own thread.

It forwards every connection to the peer. A fault ends after its time; bytes that were received are forwarded or their connection is reset:
never dropped from the middle of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from headrace.demo.private_process import find_free_port

_CHUNK, _SLOW_CHUNK = 1 << 16, 4096
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes the kernel send RST instead of FIN."""


class Fault(StrEnum):
    """A fault of a connection."""

    RESET = "reset"
    """Every connection ends with RST at once; new ones work."""
    REFUSE = "refuse"
    """The same, and new connections are refused for the fault's time."""
    STALL = "stall"
    """No bytes pass in either direction, without an error. Afterwards the connections continue."""
    HALF_OPEN = "half-open"
    """The peer sees its connections end; the pipe receives nothing for the fault's time, then a reset: a failed router."""
    SLOW = "slow"
    """Each connection gets some kilobytes a second."""


class Proxy:
    """Listens on its own port and connects to `peer_port`."""

    def __init__(self, name: str, peer_port: int, slow_bytes_per_s: int = 64 << 10) -> None:
        self.name, self.peer_port, self.port = name, peer_port, find_free_port()
        self._slow_bytes_per_s = slow_bytes_per_s
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._flowing = asyncio.Event()
        self._is_slow = self._is_dark = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"wire-{name}", daemon=True)
        self.carried_bytes = self.connections = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        self._loop.call_soon_threadsafe(self._flowing.set)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def suffer(self, fault: Fault, seconds: float) -> None:
        """Cause a fault; return at its end."""
        self._do(getattr(self, f"_{fault.name.lower()}")(seconds), seconds + 30)

    def _do(self, work: Coroutine[Any, Any, None], timeout_s: float = 30.0) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _close(self) -> None:
        await self._deafen()
        await self._reset(0)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _deafen(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            peer = await asyncio.open_connection("127.0.0.1", self.peer_port)
        except OSError:
            # The peer is away: refuse the connection, as the peer's machine would.
            _abort(writer)
            return
        pair = _Pair(writer, peer[1])
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._carry(reader, peer[1], pair), self._carry(peer[0], writer, pair))
        except asyncio.CancelledError:
            # The proxy closes; asyncio would log a cancelled task.
            return
        finally:
            self._pairs.discard(pair)
            if not pair.is_dark:
                _abort(peer[1])
                _abort(writer)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: _Pair) -> None:
        try:
            while data := await reader.read(_SLOW_CHUNK if self._is_slow else _CHUNK):
                await self._flowing.wait()
                if self._is_slow:
                    await asyncio.sleep(len(data) / self._slow_bytes_per_s)
                writer.write(data)
                self.carried_bytes += len(data)
                await writer.drain()
            await self._flowing.wait()
            if not pair.is_dark and writer.can_write_eof():
                writer.write_eof()
        except OSError:
            # One end was reset, as by a killed process: reset the other end, too.
            if not pair.is_dark:
                _abort(pair.client)
                _abort(pair.peer)

    async def _reset(self, seconds: float) -> None:
        del seconds
        for pair in list(self._pairs):
            _abort(pair.client)
            _abort(pair.peer)

    async def _refuse(self, seconds: float) -> None:
        await self._deafen()
        await self._reset(0)
        await asyncio.sleep(seconds)
        await self._listen()

    async def _stall(self, seconds: float) -> None:
        self._flowing.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._flowing.set()

    async def _half_open(self, seconds: float) -> None:
        dark = list(self._pairs)
        for pair in dark:
            pair.is_dark = True
            _abort(pair.peer)
        await asyncio.sleep(seconds)
        for pair in dark:
            _abort(pair.client)

    async def _slow(self, seconds: float) -> None:
        self._is_slow = True
        try:
            await asyncio.sleep(seconds)
        finally:
            self._is_slow = False


class _Pair:
    """The two ends of a connection."""

    def __init__(self, client: asyncio.StreamWriter, peer: asyncio.StreamWriter) -> None:
        self.client, self.peer, self.is_dark = client, peer, False


def _abort(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    if found is not None and not writer.transport.is_closing():
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
