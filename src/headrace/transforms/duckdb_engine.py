"""The use of DuckDB: parsing expressions, finding their types, and evaluating them over Arrow columns.

Invariant: DuckDB stores nothing. A connection is in memory and belongs to one thread of one process; it is opened after a fork, never
before. It runs on that thread only and has no access to files or the network. Only the named columns are passed, without a copy. The time
zone is UTC.
"""

from __future__ import annotations

import difflib
import functools
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.extras import TRANSFORMS, require_extra

ROWS: Final = "rows_of_the_block"
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "preserve_insertion_order": True,
}
_own: dict[tuple[int, int], Any] = {}
"""Connections by process and thread. Not a `threading.local`: in a forked child, Python clears the values of other
threads and would close their connections there. That fails, and would kill the child before it executes its program, such as Spark's
Java."""


class EvaluationError(Exception):
    """An expression that does not fit its columns, or that fails at a row. The text is DuckDB's reason."""


@dataclass(frozen=True, slots=True)
class Function:
    """DuckDB's catalog entry for a function name."""

    is_scalar: bool
    unsteady: bool
    macros: tuple[tuple[str, tuple[str, ...]], ...]
    """For a macro: its definitions, with their parameters."""


def connection() -> Any:
    place = os.getpid(), threading.get_ident()
    if place not in _own:
        # Imported only if there are expressions.
        require_extra(TRANSFORMS)
        import duckdb

        made = duckdb.connect(":memory:", config=_CONFIG)
        made.execute("SET TimeZone = 'UTC'")
        made.execute("SET lock_configuration = true")
        _own[place] = made
    return _own[place]


def syntax_of(statement: str) -> str:
    """Return the statement's syntax tree, or its error, as JSON."""
    # Fetch the whole result: a connection with an unfinished result cannot run other queries.
    [[found]] = connection().execute("SELECT json_serialize_sql(?)", [statement]).fetchall()
    return str(found)


@functools.cache
def functions() -> dict[str, Function]:
    """Return all functions, by their names in lower case."""
    rows = connection().execute(
        "SELECT lower(function_name), function_type, stability, macro_definition, parameters FROM duckdb_functions()"
    )
    grouped: dict[str, list[tuple[Any, ...]]] = {}
    for name, *rest in rows.fetchall():
        grouped.setdefault(name, []).append(tuple(rest))
    return {name: _function(found) for name, found in grouped.items()}


def _function(found: Sequence[tuple[Any, ...]]) -> Function:
    scalar = [stability for kind, stability, *_ in found if kind == "scalar"]
    macros = [(str(text), tuple(str(one).lower() for one in names or ())) for kind, _, text, names in found if kind == "macro"]
    return Function(bool(scalar), any(stability != "CONSISTENT" for stability in scalar), tuple(macros))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the most similar known name; empty if none is similar."""
    folded = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), folded, 1, 0.6)
    return folded[found[0]] if found else ""


def types_of(expressions: Sequence[str], columns: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """Return DuckDB's type and the Arrow type of each expression."""
    import duckdb

    try:
        relation = _select(expressions, columns.empty_table(), [])
        return [(str(kind), field.type) for kind, field in zip(relation.types, relation.to_arrow_table().schema, strict=True)]
    except duckdb.Error as error:
        raise EvaluationError(_error_text(error)) from error
    finally:
        connection().unregister(ROWS)


def evaluate(expressions: Sequence[str], columns: pa.Table, parameters: Sequence[str | bytes] = ()) -> list[Any]:
    """Return the values of expressions; raise `EvaluationError` if one fails at any row."""
    import duckdb

    try:
        found = _select(expressions, columns, parameters).to_arrow_table()
    except duckdb.Error as error:
        raise EvaluationError(_error_text(error)) from error
    finally:
        connection().unregister(ROWS)
    assert found.num_rows == columns.num_rows, "an expression has one value for each row"
    return [_whole(column) for column in found.columns]


def _select(expressions: Sequence[str], columns: pa.Table, parameters: Sequence[str | bytes]) -> Any:
    if not columns.num_columns:
        raise ValueError("rows without columns cannot be counted")
    connection().register(ROWS, columns)
    listed = ", ".join(f"({text}\n) AS c{place}" for place, text in enumerate(expressions))
    return connection().sql(f"SELECT {listed} FROM {ROWS}", params=list(parameters) or None)


def _error_text(error: Exception) -> str:
    """Return the first line of DuckDB's message, without its error class."""
    line = str(error).strip().splitlines()[0]
    return line.split(": ", 1)[1] if ": " in line else line


def _whole(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
