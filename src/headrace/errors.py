"""The error classes.

Every failure is *definite* (the data, the schema or the settings are wrong: halt and name the place) or *transient* (a peer is unavailable:
retry with limits and backoff). There is no third class, so no caller has to interpret a message.
"""

from __future__ import annotations

from headrace.terminal_text import escape_text


class HeadraceError(Exception):
    """An error for the user: what happened, where, and what to do about it."""

    def __init__(self, message: str, *, place: str = "", hint: str = "", event: str = "") -> None:
        """`event`: the position that `headrace skip` accepts, if the error concerns a single event."""
        super().__init__(message, place, hint)
        self.message = message
        self.place = place
        self.hint = hint
        self.event = event

    def __str__(self) -> str:
        """Return escaped text: names and values cannot start a new line or send control characters to a terminal. Attributes stay raw."""
        where = f" (at {escape_text(self.place)})" if self.place else ""
        remedy = f"\n  remedy: {escape_text(self.hint)}" if self.hint else ""
        return f"{escape_text(self.message)}{where}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.place, self.hint, self.event)


class DefiniteError(HeadraceError):
    """A retry cannot help: the data, the schema or a setting is wrong."""

    wrong_password = False
    """Whether a server refused an account, which another password may change."""


class TransientError(HeadraceError):
    """A peer is unavailable or busy: a retry may help."""

    elsewhere = False
    """Whether the retry goes to another host, so that no delay is needed."""


def _rebuild(kind: type[HeadraceError], message: str, place: str, hint: str, event: str) -> HeadraceError:
    return kind(message, place=place, hint=hint, event=event)
