"""Selects the replicated tables by globs over `database.table`."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import DefiniteError
from headrace.model.json_record import JsonRecord
from headrace.model.schema import TableName


@dataclass(frozen=True, slots=True)
class Selection(JsonRecord):
    """Tables that match one of `include` and none of `exclude`, and tables added by name."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @classmethod
    def of_globs(cls, tables: Sequence[str], exclude: Sequence[str] = (), database: str = "") -> Selection:
        """Build the user's selection: all tables of the address's database unless some are named. A glob without a dot is relative to that
        database.
        """
        if not tables and not database:
            raise DefiniteError("no tables are named", hint="give a database in the source's address, or --tables 'db.*'")
        if any("." not in pattern for pattern in (*tables, *exclude)) and not database:
            raise DefiniteError("a table glob without a database needs one in the source's address", hint="write --tables 'db.table'")

        def whole(globs: Sequence[str]) -> tuple[str, ...]:
            return tuple(pattern if "." in pattern else f"{database}.{pattern}" for pattern in globs)

        return cls(whole(tables or ["*"]), whole(exclude))

    def __call__(self, name: TableName) -> bool:
        return str(name) in self.added or (_matches(name, self.include) and not _matches(name, self.exclude))

    def unmatched(self, names: Iterable[TableName]) -> tuple[str, ...]:
        """Return the globs of `include` that match none of these tables."""
        known = tuple(names)
        return tuple(pattern for pattern in self.include if not any(_matches(name, (pattern,)) for name in known))

    def __str__(self) -> str:
        return ", ".join(self.include) + (f" without {', '.join(self.exclude)}" if self.exclude else "")


def _matches(name: TableName, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(str(name), pattern) for pattern in globs)


def is_pattern(chosen: str) -> bool:
    """Whether a glob may match tables that are created later; otherwise it names one table."""
    return glob.has_magic(chosen)
