"""Questions on a terminal: lines with defaults, yes or no, and passwords without echo.

Invariant: a signal during a question restores the terminal, and ends the command with the signal's exit code.
"""

from __future__ import annotations

import getpass
import os
import sys
import termios
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import DefiniteError
from headrace.service.log_formats import mask_secrets
from headrace.shutdown import stop_on_signal
from headrace.terminal_text import escape_text

T = TypeVar("T")


def has_terminal() -> bool:
    """Return whether a person can read questions and answer them."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Questions:
    """Asks on the terminal of the standard input."""

    def __init__(self, hint: str) -> None:
        """`hint`: the remedy if the input ends before the last answer."""
        self._hint = hint
        self._terminal = termios.tcgetattr(sys.stdin)
        # getpass cannot restore the echo when another thread ends the process.
        stop_on_signal(self._restore, grace_s=0)

    def ask(self, text: str, parse: Callable[[str], T], default: str = "") -> T:
        """Return the parsed answer to a question; ask again while `parse` raises `DefiniteError`."""
        question = escape_text(f"{text} [{default}]: " if default else f"{text}: ")
        while True:
            answer = self._read(lambda: input(question)).strip() or default
            try:
                return parse(answer)
            except DefiniteError as error:
                print(f"headrace: {mask_secrets(str(error))}", flush=True)

    def ask_password(self, text: str) -> str:
        return self._read(lambda: getpass.getpass(escape_text(f"{text}: ")))

    def confirm(self, text: str) -> bool:
        """Ask a question whose answer is yes unless it is no."""
        return self.ask(text, _parse_yes, "Y/n")

    def _read(self, read: Callable[[], str]) -> str:
        try:
            return read()
        except EOFError:
            raise DefiniteError("the input ended before all questions were answered", hint=self._hint) from None

    def _restore(self) -> None:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, self._terminal)
        # Not with `print`: the main thread may hold the lock of the stream.
        os.write(sys.stdout.fileno(), b"\n")


def _parse_yes(answer: str) -> bool:
    word = answer.lower()
    if word not in ("y/n", "y", "yes", "n", "no"):
        raise DefiniteError("this is neither yes nor no", hint="answer y or n")
    return word[0] == "y"
