"""The error classes, nothing else.

Every failure is *definite* (the data, the schema or the settings are wrong: halt and say where) or *transient* (a peer is away for
now: retry with limits and backoff). Nothing between the two exists, so no caller ever has to guess from a message.
"""

from __future__ import annotations

from headrace.terminal_text import escape_text


class HeadraceError(Exception):
    """An error for a person: what happened, where, and what to do about it."""

    def __init__(self, message: str, *, place: str = "", hint: str = "", event: str = "") -> None:
        """`event`: of an error about one event alone, its place in the words that `headrace skip` takes."""
        super().__init__(message, place, hint)
        self.message = message
        self.place = place
        self.hint = hint
        self.event = event

    def __str__(self) -> str:
        """For people: names and values from elsewhere neither start another line nor steer a terminal; the attributes hold them as is."""
        where = f" (at {escape_text(self.place)})" if self.place else ""
        remedy = f"\n  remedy: {escape_text(self.hint)}" if self.hint else ""
        return f"{escape_text(self.message)}{where}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.place, self.hint, self.event)


class DefiniteError(HeadraceError):
    """Trying again cannot help: the data, the schema or a setting is wrong."""


class TransientError(HeadraceError):
    """A peer is away or busy: trying again may help."""

    elsewhere = False
    """Whether trying again goes to another peer, which may be there: no reason to wait first."""


def _rebuild(kind: type[HeadraceError], message: str, place: str, hint: str, event: str) -> HeadraceError:
    return kind(message, place=place, hint=hint, event=event)
