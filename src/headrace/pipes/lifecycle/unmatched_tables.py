"""Checks for selected tables that the source does not have.

A pattern without a match is a warning: tables that are created later are replicated, so the pipe waits for them. A table that is selected
by name is probably misspelt if it does not exist when the pipe first starts: that is an error. Later it is a warning, because the table may
have been dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from headrace.errors import DefiniteError
from headrace.model.schema import TableName
from headrace.model.table_selection import Selection, is_pattern

log = logging.getLogger("headrace")


def check_unmatched(selection: Selection, known: Collection[TableName], place: str, *, is_new: bool) -> None:
    """Warn of every pattern without a match; raise if a new pipe names a table that does not exist."""
    unmatched = selection.unmatched(known)
    named = [chosen for chosen in unmatched if not is_pattern(chosen)]
    if named and is_new:
        raise DefiniteError(
            f"the source has no table {', '.join(named)}, or the user may not see it",
            place=place,
            hint="correct --tables, create the table, or check the user's rights (GRANT SELECT); to wait for a table that is created "
            f"later, choose it by a pattern: --tables '{named[0][:-1]}[{named[0][-1]}]'",
        )
    for chosen in unmatched:
        log.warning("no table of %s matches %s; a table that is created later will be replicated", place, chosen)
