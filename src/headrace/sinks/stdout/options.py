"""Options of the standard output: settings of its address (`stdout:?NAME=VALUE`), and keys of `[sinks.NAME]`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LineFormat(StrEnum):
    """The format of a line: a `json` object, `text` for people, or a `sql` statement; `auto`: `text` on a terminal, else `json`."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    SQL = "sql"


class Colour(StrEnum):
    """Whether text lines have colours; `auto`: on a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class BigNumbers(StrEnum):
    """How numbers that not every reader of JSON keeps exactly are written."""

    NUMBER = "number"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class StdoutOptions:
    """How changes are printed."""

    format: LineFormat = LineFormat.AUTO
    colour: Colour = Colour.AUTO
    big: BigNumbers = BigNumbers.NUMBER
