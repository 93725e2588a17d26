"""mypipe's `include-event-condition`, as globs: Scala over `db` and `table`, as far as it only compares them."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from headrace.errors import DefiniteError

_TOKEN: Final = re.compile(r'\s*(?:(&&|\|\||==|\(|\))|(db|table)\b|"([^"]*)")')
_Choice: TypeAlias = dict[str, str]
"""What `db` and `table` must be, where they must be something."""


def globs_of(text: str, place: str) -> tuple[str, ...]:
    """The tables that a condition lets through; none if it is empty."""
    if not text.strip():
        return ()
    found = _ConditionParser(text, place).whole()
    if not found:
        raise DefiniteError("the condition lets no table through", place=place, hint="correct it, or leave it out")
    return tuple(f"{choice.get('db', '*')}.{choice.get('table', '*')}" for choice in found)


class _ConditionParser:
    def __init__(self, text: str, place: str) -> None:
        self._place, self._text = place, text
        self._tokens = self._split()

    def whole(self) -> list[_Choice]:
        found = self._either()
        if self._tokens:
            raise self._wrong()
        return found

    def _either(self) -> list[_Choice]:
        found = self._both()
        while self._tokens[:1] == ["||"]:
            self._tokens.pop(0)
            found = found + self._both()
        return found

    def _both(self) -> list[_Choice]:
        found = self._one()
        while self._tokens[:1] == ["&&"]:
            self._tokens.pop(0)
            other = self._one()
            found = [joined for one in found for more in other if (joined := _joined(one, more)) is not None]
        return found

    def _one(self) -> list[_Choice]:
        if self._tokens[:1] == ["("]:
            self._tokens.pop(0)
            found = self._either()
            if self._tokens[:1] != [")"]:
                raise self._wrong()
            self._tokens.pop(0)
            return found
        if len(self._tokens) < 3 or self._tokens[0] not in ("db", "table") or self._tokens[1] != "==" or self._tokens[2][0] != '"':
            raise self._wrong()
        name, _, value = self._tokens[:3]
        del self._tokens[:3]
        return [{name: value[1:]}]

    def _split(self) -> list[str]:
        tokens, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong()
            tokens.append(found[1] or found[2] or f'"{found[3]}')
            at = found.end()
        return tokens

    def _wrong(self) -> DefiniteError:
        return DefiniteError(
            "the condition is more than comparisons of db and table",
            place=self._place,
            hint="leave it out, and choose the tables by include",
        )


def _joined(one: _Choice, other: _Choice) -> _Choice | None:
    """Both at once; None if that cannot be."""
    return {**one, **other} if all(other.get(name, value) == value for name, value in one.items()) else None
