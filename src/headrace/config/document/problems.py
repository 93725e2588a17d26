"""Collects all errors of a file, so that they are reported together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import DefiniteError
from headrace.terminal_text import escape_text


class ErrorList(DefiniteError):
    """Several errors; the message lists them."""

    def __str__(self) -> str:
        # The messages are escaped already.
        return self.message


class Problems:
    """Collects errors while a file is validated."""

    def __init__(self) -> None:
        self.errors: list[DefiniteError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect an error raised inside, and continue after the block."""
        try:
            yield
        except DefiniteError as error:
            self.errors.append(error)

    def add(self, message: str, place: str, hint: str = "") -> None:
        self.errors.append(DefiniteError(message, place=place, hint=hint))

    def raise_any(self, file: str) -> None:
        """Raise the collected errors, if any."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ErrorList("\n".join([f"{len(self.errors)} errors in {escape_text(file)}", *(f"- {error}" for error in self.errors)]))
