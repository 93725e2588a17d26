"""Whether a table that is there can hold a source's table, and how.

Invariant: a table that was accepted here stores every image of its schema exactly, and shows the source's rows by what its engine does.
"""

from __future__ import annotations

import re

from headrace.errors import DefiniteError
from headrace.sinks.clickhouse.choices import TableChoices
from headrace.sinks.clickhouse.creation import computed_column, engine_arguments, sort_key
from headrace.sinks.clickhouse.found import FoundTable
from headrace.sinks.clickhouse.layout import Layout
from headrace.sinks.clickhouse.names import parse_names

_ENGINE = re.compile(r"(?:Replicated|Shared)?ReplacingMergeTree\(([^)]*)\)")
_START_OVER = "drop or rename the table in ClickHouse and start with a new state directory, or use another target database"


def adapt(plan: Layout, found: FoundTable, choices: TableChoices) -> Layout:
    """The layout of a table that is there; a definite error if it cannot be used. `plan` is the layout of the table that would be made."""
    del choices
    difference = _engine_difference(plan, found) or _key_difference(plan, found) or _column_difference(plan, found)
    if difference:
        raise DefiniteError(
            f"the table {plan.database}.{plan.table} is there, but is not what Headrace needs: {difference}",
            place=f"table {plan.source}",
            hint=_START_OVER,
        )
    return plan


def _engine_difference(plan: Layout, found: FoundTable) -> str:
    match = _ENGINE.match(found.engine)
    arguments = parse_names(match.group(1).rsplit("'", 1)[-1].lstrip(" ,")) if match else None
    if arguments == engine_arguments(plan):
        return ""
    return f"its engine is {found.engine.split(' ')[0] or 'unknown'}, not ReplacingMergeTree({', '.join(engine_arguments(plan))})"


def _key_difference(plan: Layout, found: FoundTable) -> str:
    # Some versions print the parentheses of a key of one column.
    bare = found.sort_key[1:-1] if found.sort_key.startswith("(") else found.sort_key
    if parse_names(bare) == sort_key(plan):
        return ""
    return f"its sort key is ({bare}), not ({', '.join(sort_key(plan))})"


def _column_difference(plan: Layout, found: FoundTable) -> str:
    there = {column.name: column for column in found.columns}
    stored = [(column.name, column.type) for column in plan.columns] + [(mark.name, mark.type) for mark in plan.marks]
    for name, kind in stored:
        column = there.pop(name, None)
        if column is None:
            return f"it has no column {name}"
        if column.type != kind:
            return f"its column {name} is {column.type}, not {kind}"
        if column.default_kind not in ("", "DEFAULT"):
            return f"its column {name} is computed ({column.default_kind}), not stored"
    name, kind, expression = computed_column(plan)
    computed = there.pop(name, None)
    if computed is None or (computed.type, computed.default_kind) != (kind, "MATERIALIZED"):
        return f"it has no column {name} {kind} MATERIALIZED {expression}"
    # The hash only has to be some function of the row; the server spells its names in its own way.
    if plan.has_key and computed.default_expression.replace(" ", "").strip("()") != expression.replace(" ", ""):
        return f"its column {name} is {computed.default_expression}, not {expression}"
    extra = next(iter(there), None)
    return "" if extra is None else f"it has a column {extra} that the source has not"
