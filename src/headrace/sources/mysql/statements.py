"""Statements found in the log between changes of rows: which of them matter to the replicated tables.

Deliberately coarse until schema changes are followed: it errs on the side of stopping. A statement is harmless only if its kind cannot
touch table data, or if none of its words names a replicated table. The text is cut into words first (strings, quoted names and comments
each in one piece), so that no spelling hides a name: a `#` in a name starts no comment, a `'` in a comment starts no string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from headrace.model.schema import TableName
from headrace.sources.mysql.events import Query


class Effect(Enum):
    """What a statement may have done to the replicated tables."""

    NONE = auto()
    CREATED = auto()
    """A table was made; its rows, if any, follow as changes."""
    REPLACED = auto()
    """A table was made, perhaps in the place of one that is gone with its rows."""
    ALTERED = auto()
    """A definition may have changed; the data did not change without row events."""
    DESTRUCTIVE = auto()
    """Rows went or changed without row events: it cannot be passed over."""
    MOVED = auto()
    """A table may have come to a name with its rows, or gone from it: it cannot be passed over."""


@dataclass(frozen=True, slots=True)
class Assessment:
    effect: Effect
    tables: tuple[TableName, ...] = ()
    """The tables it names; the table `*` stands for all of a database."""


def assess(query: Query, wanted: Callable[[TableName], bool], *, folds_case: bool = False) -> Assessment:
    """What `query` means for the tables that are `wanted`. `folds_case`: the server takes `ORDERS` for `orders`."""
    words = _without_prefix(list(_words(query.statement)))
    head = _keywords(words, _HEAD_WORDS)
    if not words or _HARMLESS.match(head):
        return Assessment(Effect.NONE)
    if _DROP_DATABASE.match(head):
        # Which of its tables are replicated is known to the caller only: a glob cannot be asked.
        return Assessment(Effect.DESTRUCTIVE, (TableName(_folded(_last_name(words), folds_case), "*"),))
    names = [TableName(*(_folded(part, folds_case) for part in pair)) for pair in _names(words, query.database)]
    created = _CREATE.match(head)
    if created:
        after = len(created.group(0).split())
        first = next(iter(_names(words[after:], query.database)), None)
        name = TableName(*(_folded(part, folds_case) for part in first)) if first else None
        if name is None or not wanted(name):
            return Assessment(Effect.NONE)
        return Assessment(Effect.REPLACED if "REPLACE" in created.group(0) else Effect.CREATED, (name,))
    named = tuple(sorted({name for name in names if wanted(name)}))
    if not named:
        return Assessment(Effect.NONE)
    if head.startswith("RENAME "):
        return Assessment(Effect.MOVED, named)
    if not _DEFINITION.match(head):
        return Assessment(Effect.DESTRUCTIVE, named)
    clauses = {_clause_effect(*pair) for pair in pairwise([*words, _END])}
    return Assessment(next(effect for effect in (Effect.MOVED, Effect.DESTRUCTIVE, Effect.ALTERED) if effect in clauses), named)


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a statement."""

    text: str
    quoted: bool

    @property
    def keyword(self) -> str:
        """In capitals, as keywords are compared; what is quoted is no keyword."""
        return "" if self.quoted else self.text.upper()

    @property
    def is_name(self) -> bool:
        return self.quoted or (self.text[0] not in "'.,();=*@" and bool(self.text.strip()))


_DOT: Final = _Word(".", False)
_END: Final = _Word(";", False)
_HEAD_WORDS: Final = 24

_TOKEN: Final = re.compile(
    r"(?P<comment>/\*(?!M?!).*?(?:\*/|\Z)|--(?=[\s\x00-\x1f]|\Z)[^\n]*|\#[^\n]*)"
    # What a server of some version executes is not a comment; its marks are.
    r"|(?P<mark>/\*M?!\d*|\*/)"
    r"|`(?P<name>(?:[^`]|``)*)`"
    # A string, or under ANSI_QUOTES a name: both are looked at.
    r'|"(?P<double>(?:[^"\\]|""|\\.)*)"'
    r"|(?P<string>'(?:[^'\\]|''|\\.)*')"
    r"|(?P<word>[\w$\u0080-\U0010ffff]+)"
    # The rest, a quote without its end among it: what follows such a quote is looked at as words.
    r"|(?P<other>[^\s])",
    re.DOTALL,
)


def _words(statement: str) -> Iterator[_Word]:
    for match in _TOKEN.finditer(statement):
        kind, text = match.lastgroup, match.group()
        if kind == "name":
            yield _Word(match.group("name").replace("``", "`"), True)
        elif kind == "double":
            yield _Word(match.group("double").replace('""', '"'), True)
        elif kind == "string":
            yield _Word("''", False)
        elif kind in ("word", "other"):
            yield _Word(text, False)


def _without_prefix(words: list[_Word]) -> list[_Word]:
    """Without MariaDB's `SET STATEMENT variable = value FOR`, which may stand before any statement."""
    if [word.keyword for word in words[:2]] != ["SET", "STATEMENT"]:
        return words
    ends = [i for i, word in enumerate(words) if word.keyword == "FOR"]
    return words[ends[0] + 1 :] if ends else words[2:]


def _keywords(words: list[_Word], count: int) -> str:
    return " ".join(word.keyword or "`" for word in words[:count])


_HARMLESS: Final = re.compile(
    r"(GRANT|REVOKE|FLUSH|OPTIMIZE|REPAIR|CHECK|SET|USE|KILL|RESET|PURGE|INSTALL|UNINSTALL|LOCK|UNLOCK|DO|SHOW)\b"
    r"|ANALYZE (NO_WRITE_TO_BINLOG |LOCAL )?(TABLE|TABLES)\b"
    r"|(CREATE|DROP) (OR REPLACE )?TEMPORARY\b"
    r"|(CREATE|ALTER) (OR REPLACE )?(DATABASE|SCHEMA)\b"
    r"|(CREATE|DROP|ALTER|RENAME) (OR REPLACE )?"
    r"(DEFINER = .*?(?= (SQL|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|AGGREGATE|PACKAGE)\b) "
    r"|AGGREGATE |SQL SECURITY \w+ |ALGORITHM = \w+ |SPATIAL REFERENCE |UNDO )*"
    r"(USER|ROLE|VIEW|PROCEDURE|FUNCTION|TRIGGER|EVENT|SERVER|TABLESPACE|LOGFILE|SEQUENCE|PACKAGE|SYSTEM|RESOURCE|LIBRARY)\b"
)
_DROP_DATABASE: Final = re.compile(r"DROP (DATABASE|SCHEMA)\b")
_CREATE: Final = re.compile(r"CREATE (OR REPLACE )?TABLE (IF NOT EXISTS )?")
_DEFINITION: Final = re.compile(
    r"ALTER (ONLINE |OFFLINE |IGNORE )*TABLE\b|(CREATE|DROP) (OR REPLACE |ONLINE |UNIQUE |FULLTEXT |SPATIAL )*INDEX\b"
)

_MOVES: Final = frozenset({"EXCHANGE", "IMPORT"})
# DROP of anything else in an ALTER TABLE is the drop of a column (or of a partition): its values are gone, even if it is added again.
_DROPS_NO_DATA: Final = frozenset({"INDEX", "KEY", "PRIMARY", "FOREIGN", "CONSTRAINT", "CHECK", "DEFAULT", "SYSTEM", "PERIOD"})
_RENAMES_NO_TABLE: Final = frozenset({"COLUMN", "INDEX", "KEY"})


def _clause_effect(word: _Word, following: _Word) -> Effect:
    """What a word of an ALTER TABLE, with the one after it, says of the table's rows."""
    keyword, after = word.keyword, following.keyword
    if keyword == "RENAME":
        return Effect.ALTERED if after in _RENAMES_NO_TABLE else Effect.MOVED
    if keyword in _MOVES or (keyword == "CONVERT" and after in ("PARTITION", "TABLE")):
        return Effect.MOVED
    if keyword in ("TRUNCATE", "DISCARD") or (keyword == "DROP" and after not in _DROPS_NO_DATA):
        return Effect.DESTRUCTIVE
    return Effect.ALTERED


def _names(words: list[_Word], database: str) -> Iterator[tuple[str, str]]:
    """Every word or pair of words that could be a table's name."""
    for i, word in enumerate(words):
        if not word.is_name or (i and words[i - 1] == _DOT):
            continue
        if i + 2 < len(words) and words[i + 1] == _DOT and words[i + 2].is_name:
            yield word.text, words[i + 2].text
        yield database, word.text


def _last_name(words: list[_Word]) -> str:
    return next((word.text for word in reversed(words) if word.is_name), "")


def _folded(name: str, folds_case: bool) -> str:
    return name.lower() if folds_case else name
