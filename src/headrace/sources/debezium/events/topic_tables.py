"""Maps topics to tables.

The first match counts: an explicit map; a pattern with a replacement; the default rule, which takes the topic's name
(`prefix.database.table`, for PostgreSQL `prefix.schema.table`) or each event's source fields. Several topics may map to one table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from headrace.errors import DefiniteError
from headrace.model.schema import TableName

_HINT: Final = "map it: topic=database.table, or a pattern with a replacement"


class TableNaming(StrEnum):
    """The source of a table's name, if neither the map nor a pattern gives it."""

    TOPIC = "topic"
    """The last two parts of the topic's name."""
    SOURCE = "source"
    """The event's source fields: database (PostgreSQL: schema) and table. One topic may then contain several tables."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Topics whose whole name matches `pattern` map to `table`, in which \\1 or \\g<name> refer to groups."""

    pattern: str
    table: str

    def table_of(self, topic: str) -> TableName | None:
        found = re.fullmatch(self.pattern, topic)
        return None if found is None else parse_table(found.expand(self.table))


@dataclass(frozen=True, slots=True)
class TopicMap:
    """Picklable."""

    tables: Mapping[str, TableName] = field(default_factory=dict)
    """By the topic's whole name."""
    patterns: tuple[TopicPattern, ...] = ()
    naming: TableNaming = TableNaming.TOPIC
    database: str = ""
    """The database of all tables named by topic or event; overrides theirs."""

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            _check(pattern)

    def table_of(self, topic: str) -> TableName | None:
        """Return the table of a topic; None if its events name it."""
        mapped = self.tables.get(topic)
        if mapped is not None:
            return mapped
        for pattern in self.patterns:
            found = pattern.table_of(topic)
            if found is not None:
                return found
        return None if self.naming is TableNaming.SOURCE else self._of_parts(topic)

    def table_of_source(self, database: str, schema: str, table: str) -> TableName:
        """Return the table that an event names; `schema` is empty if a source has none."""
        return TableName(self.database or schema or database, table)

    def _of_parts(self, topic: str) -> TableName:
        parts = topic.split(".")
        if len(parts) < 2 or not all(parts[-2:]):
            if self.database and topic:
                return TableName(self.database, parts[-1])
            raise DefiniteError(f"the name of the topic {topic!r} does not say which table its records belong to", place=topic, hint=_HINT)
        name = TableName(parts[-2], parts[-1])
        return replace(name, database=self.database) if self.database else name


def parse_table(text: str) -> TableName:
    """Parse `database.table`; a database's name contains no dot."""
    database, dot, table = text.partition(".")
    if not (database and dot and table):
        raise DefiniteError(f"{text!r} is not a table's full name", hint="write database.table")
    return TableName(database, table)


def _check(pattern: TopicPattern) -> None:
    try:
        re.compile(pattern.pattern)
    except re.error as error:
        raise DefiniteError(f"the pattern {pattern.pattern!r} for topics cannot be read: {error}", hint="correct it") from error
    template = re.sub(r"\\(g<\w+>|\d+)", "x", pattern.table)
    parse_table(template)
