"""Parses mypipe's `include-event-condition`: Scala comparisons of `db` and `table`, as globs of tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from headrace.errors import DefiniteError

_TOKEN: Final = re.compile(r'\s*(?:(&&|\|\||==|!=|\(|\))|(db|table)\b|"([^"]*)")')
_ALL: Final = ("*.*",)
_CHOOSE: Final = "leave it out, and choose the tables by tables and exclude of the source in the converted file"


@dataclass(frozen=True, slots=True)
class TableCondition:
    """The tables that a condition selects."""

    include: tuple[str, ...] = _ALL
    exclude: tuple[str, ...] = ()


def parse_condition(text: str, place: str) -> TableCondition:
    """Return the globs of the tables that a condition selects; an empty condition selects all."""
    if not text.strip():
        return TableCondition()
    found = _ConditionParser(text, place).whole()
    if not found:
        raise DefiniteError("the condition lets no table through", place=place, hint="correct it, or leave it out")
    excluded = {choice.unequal for choice in found}
    if len(excluded) > 1:
        raise DefiniteError("alternatives of the condition exclude different tables", place=place, hint=_CHOOSE)
    (unequal,) = excluded
    include = tuple(dict.fromkeys(_glob(dict(choice.equal)) for choice in found))
    return TableCondition(include, tuple(sorted(_glob(dict([pair])) for pair in unequal)))


def _glob(names: dict[str, str]) -> str:
    return f"{names.get('db', '*')}.{names.get('table', '*')}"


@dataclass(frozen=True, slots=True)
class _Choice:
    """Comparisons that must all be true: pairs of `db` or `table` and a name."""

    equal: frozenset[tuple[str, str]] = frozenset()
    unequal: frozenset[tuple[str, str]] = frozenset()


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
        if (
            len(self._tokens) < 3
            or self._tokens[0] not in ("db", "table")
            or self._tokens[1] not in ("==", "!=")
            or self._tokens[2][0] != '"'
        ):
            raise self._wrong()
        name, operator, value = self._tokens[:3]
        del self._tokens[:3]
        pair = frozenset({(name, value[1:])})
        return [_Choice(equal=pair) if operator == "==" else _Choice(unequal=pair)]

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
            hint=_CHOOSE,
        )


def _joined(one: _Choice, other: _Choice) -> _Choice | None:
    """Return both conditions as one; None if they contradict each other."""
    equal, unequal = one.equal | other.equal, one.unequal | other.unequal
    if len({name for name, _ in equal}) < len(equal) or equal & unequal:
        return None
    # A comparison with another name follows from an equality of the same side.
    fixed = {name for name, _ in equal}
    return _Choice(equal, frozenset(pair for pair in unequal if pair[0] not in fixed))
