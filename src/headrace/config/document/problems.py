"""What is wrong with a file: all of it, not only the first thing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import DefiniteError
from headrace.terminal_text import escape_text


class ErrorList(DefiniteError):
    """More than one thing is wrong; the message has them all, one after another."""

    def __str__(self) -> str:
        # Its lines are texts of errors, which are escaped.
        return self.message


class Problems:
    """Gathers errors while a file is checked."""

    def __init__(self) -> None:
        self.errors: list[DefiniteError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """An error inside is kept, and the check goes on after the block."""
        try:
            yield
        except DefiniteError as error:
            self.errors.append(error)

    def add(self, message: str, place: str, hint: str = "") -> None:
        self.errors.append(DefiniteError(message, place=place, hint=hint))

    def raise_any(self, file: str) -> None:
        """Raise what was found, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ErrorList("\n".join([f"{len(self.errors)} errors in {escape_text(file)}", *(f"- {error}" for error in self.errors)]))
