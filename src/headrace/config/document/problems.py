"""What is wrong with a file: all of it, not only the first thing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import DefiniteError
from headrace.terminal_text import escape_text


class SeveralErrors(DefiniteError):
    """More than one thing is wrong; the message has them all, one after another."""

    def __str__(self) -> str:
        # Its lines are texts of errors, which are escaped.
        return self.message


class Problems:
    """Gathers errors while a file is checked."""

    def __init__(self) -> None:
        self.found: list[DefiniteError] = []

    @contextmanager
    def catching(self) -> Iterator[None]:
        """An error inside is kept, and the check goes on after the block."""
        try:
            yield
        except DefiniteError as error:
            self.found.append(error)

    def add(self, message: str, place: str, hint: str = "") -> None:
        self.found.append(DefiniteError(message, place=place, hint=hint))

    def raise_any(self, file: str) -> None:
        """Raise what was found, if anything was."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            raise SeveralErrors("\n".join([f"{len(self.found)} errors in {escape_text(file)}", *(f"- {error}" for error in self.found)]))
