"""Shutdown on SIGINT and SIGTERM, from the first line of the program to its last.

The first signal stops the command: a command that registered a stop function (`stop_on_signal`) finishes its current batch, and has
`GRACE_S` for everything else; any other command exits at once. A second signal exits at once in every case. Each exit ends all descendant
processes first, removes temporary directories, and has the exit code 128 + signal number.

Exiting at once is safe because every command survives a crash: what was written but not recorded is written again at the next start.

A thread acts on signals, because the main thread may be inside a C call (name resolution, a query of librdkafka) for many seconds. This
module imports the standard library only, so that the handlers are in place before the slow imports.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

GRACE_S = 4.0
"""How long a stopped command may take after its batch."""
_END_S = 0.7
"""How long descendant processes may take to end after SIGTERM; SIGKILL follows."""
_FLUSH_S = 0.5
_GONE_S = 3.0
"""How long the kernel may take to end killed processes."""
_POLL_S = 0.02
_REPEATED_S = 0.2
"""A terminal, a supervisor or a child between fork and exec may deliver one request several times: within this time it counts once."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TERMINAL = "/dev/tty"
_SHOW_CURSOR = b"\x1b[?25h"


class _Shutdown:
    """The state of this process's shutdown. Signal handlers and threads share it, so it holds plain values and one lock."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal received; 0 before."""
        self.stop: Callable[[], None] | None = None
        self.grace_s = GRACE_S
        self.reload: Callable[[], object] | None = None
        self.has_terminal = False
        self.unfinished = 0
        """How many batches are being written."""
        self.last_finished = 0.0
        self.abandonable = 0
        """How many steps are in progress that lose nothing when they are cut off, and cannot be stopped otherwise."""
        self.reader = -1
        self.is_exiting = False
        self.exiting_thread = 0
        self.exiting, self.counting = threading.Lock(), threading.Lock()
        self.directories: set[str] = set()


_shutdown = _Shutdown()


def install() -> None:
    """Handle SIGINT and SIGTERM from now on. Call it in the main thread, before slow imports."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _shutdown.reader = reader
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, _hold_main_thread)
    threading.Thread(target=_act_on_signals, name="headrace-signals", daemon=True).start()
    # The entry point blocked the signals until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def stop_on_signal(stop: Callable[[], None], *, grace_s: float = GRACE_S) -> None:
    """Call `stop` on the first signal instead of exiting at once; it must not block. The command has `grace_s` to end, plus its batch."""
    _shutdown.grace_s = grace_s
    _shutdown.stop = stop


def reload_on_signal(reload: Callable[[], object]) -> None:
    """Call `reload` in a thread of its own on each SIGHUP. Call it in the main thread.

    A SIGHUP because the terminal was closed ends the command, as SIGTERM does; under nohup, the signal stays ignored.
    """
    _shutdown.has_terminal = _has_terminal()
    _shutdown.reload = reload
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        # The thread that reads the wakeup file acts on it.
        signal.signal(signal.SIGHUP, lambda *_: None)


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def is_requested() -> bool:
    """Whether a signal asked this process to end."""
    return _shutdown.number != 0


def exit_code(code: int) -> int:
    """The exit code of a command that returned `code`: 128 + signal number if a signal ended it."""
    return 128 + _shutdown.number if _shutdown.number else code


@contextmanager
def finishing() -> Iterator[None]:
    """Mark that a batch is being written: a stopped command finishes it, however long that takes."""
    with _shutdown.counting:
        _shutdown.unfinished += 1
    try:
        yield
    finally:
        with _shutdown.counting:
            _shutdown.unfinished -= 1
            _shutdown.last_finished = time.monotonic()


@contextmanager
def abandonable() -> Iterator[None]:
    """Mark a step that cannot be stopped and loses nothing when it is cut off, such as starting Spark. A signal does not wait for it."""
    with _shutdown.counting:
        _shutdown.abandonable += 1
    try:
        yield
    finally:
        with _shutdown.counting:
            _shutdown.abandonable -= 1


@contextmanager
def temporary_directory(prefix: str) -> Iterator[str]:
    """A directory that is removed at the end of the block, or when a signal ends the process."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as path:
        remove_on_exit(path)
        try:
            yield path
        finally:
            keep_on_exit(path)


def remove_on_exit(directory: str) -> None:
    """Remove a directory when a signal ends the process."""
    _shutdown.directories.add(directory)


def keep_on_exit(directory: str) -> None:
    """Forget a directory that has been removed."""
    _shutdown.directories.discard(directory)


def run(command: Callable[[], int]) -> int:
    """Run a command to its exit code. Does not return if a signal arrived: the process has ended by then."""
    try:
        code = command()
    except BaseException:
        _wait_if_exiting()
        raise
    _wait_if_exiting()
    if _shutdown.number:
        _exit(code, _END_S)
    return code


def end_descendants(grace_s: float = _END_S, is_hurried: Callable[[], bool] = lambda: False) -> None:
    """End all descendants of this process: SIGTERM, then SIGKILL after `grace_s` or as soon as `is_hurried`."""
    signalled: set[int] = set()
    sessions: set[int] = set()
    begun = time.monotonic()
    killing = grace_s <= 0
    while left := _descendants(sessions):
        killing = killing or time.monotonic() - begun > grace_s or is_hurried()
        for pid in left:
            if killing or pid not in signalled:
                signalled.add(pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if killing else signal.SIGTERM)
        if time.monotonic() - begun > grace_s + _GONE_S:
            return
        time.sleep(_POLL_S)


def _hold_main_thread(*_: object) -> None:
    """Block the main thread while another thread exits the process: its child processes are being ended."""
    _wait_if_exiting()


def _wait_if_exiting() -> None:
    # The signal handler also runs in a main thread that exits by itself. That thread must not block here.
    while _shutdown.is_exiting and _shutdown.exiting_thread != threading.get_ident():
        time.sleep(60)


def _act_on_signals() -> None:
    number = _next_signal(None)
    assert number
    _shutdown.number = number
    begun = time.monotonic()
    if _shutdown.stop is None:
        _exit(0, _END_S)
    assert _shutdown.stop is not None
    try:
        _shutdown.stop()
    except Exception:  # noqa: BLE001  (a stop that fails must not keep the process from ending)
        _exit(0, _END_S)
    while True:
        since = time.monotonic()
        again = _next_signal(0.1)
        if again and time.monotonic() - begun > _REPEATED_S:
            _exit(0, 0.0)
        if again:
            # Do not spin on repeated deliveries.
            time.sleep(max(0.0, since + _POLL_S - time.monotonic()))
        idle_s = time.monotonic() - max(begun, _shutdown.last_finished)
        if not _shutdown.unfinished and (_shutdown.abandonable or idle_s > _shutdown.grace_s):
            _exit(0, _END_S)


def _next_signal(timeout_s: float | None) -> int:
    """Return the number of the next signal that asks this process to end; 0 if none arrives in time."""
    while select.select([_shutdown.reader], [], [], timeout_s)[0]:
        number = os.read(_shutdown.reader, 1)[0]
        if number in _SIGNALS:
            return number
        if number == signal.SIGHUP and not _shutdown.number and _shutdown.reload is not None:
            if _shutdown.has_terminal and not _has_terminal():
                return signal.SIGHUP
            threading.Thread(target=_shutdown.reload, name="headrace-reload", daemon=True).start()
        if timeout_s is not None:
            return 0
    return 0


def _exit(code: int, grace_s: float) -> None:
    """End the descendants, remove temporary directories, and end this process without output."""
    _shutdown.exiting.acquire()
    _shutdown.exiting_thread = threading.get_ident()
    _shutdown.is_exiting = True
    try:
        _silence()
        begun = time.monotonic()
        end_descendants(grace_s, lambda: time.monotonic() - begun > _REPEATED_S and bool(_next_signal(0)))
        if _shutdown.directories:
            import shutil

            for path in list(_shutdown.directories):
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os._exit(code or exit_code(code))


def _silence() -> None:
    """Flush the output streams and discard later output: other threads may still write while the process ends."""
    # In another thread, because a reader that does not read may block the writer that holds the buffer's lock.
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(_FLUSH_S)
    if os.isatty(2):
        with suppress(OSError):
            os.write(2, _SHOW_CURSOR)
    with suppress(KeyError, AttributeError):
        # The logging module may not be imported yet, or only in part.
        sys.modules["logging"].disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def _descendants(sessions: set[int]) -> list[int]:
    """Return the living processes that descend from this one, or whose session a descendant started. Add those sessions to `sessions`."""
    found = _processes()
    own, own_session = os.getpid(), os.getsid(0)
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in found.items():
        children.setdefault(parent, []).append(pid)
    known, todo = set[int](), [own]
    while todo:
        new = [pid for pid in children.get(todo.pop(), ()) if pid not in known]
        known.update(new)
        todo.extend(new)
    sessions.update(found[pid][1] for pid in known)
    sessions.discard(own_session)
    known.update(pid for pid, (_, session, _) in found.items() if session in sessions)
    return sorted(pid for pid in known if pid != own and found[pid][2])


def _processes() -> dict[int, tuple[int, int, bool]]:
    """Return the parent and session of every process, and whether it lives. A process that has ended still has a session."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  (pathlib is slow to import)
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            state, parent, _, session, *_ = file.read().rpartition(b")")[2].split()
            found[int(name)] = int(parent), int(session), state not in (b"Z", b"X")
    return found
