"""Parsing and checking of the user's SQL expressions, before they are run.

Invariant: an accepted expression depends on the columns of one row only. It has no subquery, aggregate or window, and calls no function
that depends on time, randomness or anything outside the row. So a replay gives the same values, and a delete finds the row that an insert
made. DuckDB's own parser and function catalog are used for the checks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import DefiniteError
from headrace.transforms import duckdb_engine

Node = dict[str, Any]
_CLASSES: Final = frozenset(
    {"COLUMN_REF", "FUNCTION", "CAST", "CASE", "COMPARISON", "CONJUNCTION", "BETWEEN", "OPERATOR", "COLLATE", "CONSTANT", "LAMBDA", "TYPE"}
)
_FORBIDDEN: Final = {
    "SUBQUERY": "a subquery: an expression sees one row",
    "WINDOW": "a window function: an expression sees one row",
    "STAR": "a star: columns are named one by one",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its number: columns are named",
}
_CHANGING: Final = frozenset(
    {"hash", "age", "current_localtime", "current_localtimestamp", "unnest", "unlist", "typeof", "version", "error", "row"}
)
"""Functions that must be rejected although their catalog entry looks harmless: the clock in `current_localtime` and in `age` of one
argument, values that differ between DuckDB releases (`hash`), and more output rows than input rows (`unnest`)."""
_ALLOWED_WITH: Final = {"age": 2}
"""Exceptions: functions that are allowed with this number of arguments."""
_STRICT: Final = frozenset({"+", "-", "*", "||", "concat", "lower", "upper", "trim", "ltrim", "rtrim", "length", "strlen", "reverse"})
_STRICT_DATES: Final = frozenset({"year", "month", "day", "hour", "minute", "second", "quarter", "date_trunc", "last_day", "md5", "sha256"})
"""Functions that are NULL only if an argument is."""
_HINT: Final = "the value must be decided by the row alone: replays and deletions must find what was written before"


@dataclass(frozen=True, slots=True)
class Expression:
    text: str
    names: tuple[str, ...]
    """The columns that it names, in its spelling."""


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Parse a text; raise `DefiniteError` (without a location) if it is not an expression, or not an allowed one."""
    tree = _tree(text)
    return Expression(text, tuple(dict.fromkeys(_names(tree, frozenset()))))


def is_never_null(text: str, required: frozenset[str]) -> bool:
    """Return whether the value is never NULL, given that these columns (in lower case) never are."""
    return _never_null(_tree(text), required)


@functools.lru_cache(maxsize=4096)
def _tree(text: str) -> Node:
    if not text.strip():
        raise DefiniteError("the expression is empty", hint="write a SQL expression over the table's columns, such as total > 100")
    try:
        read = json.loads(duckdb_engine.syntax_of(f"SELECT ({text}\n) FROM {duckdb_engine.ROWS}"))
    except ValueError as error:
        raise DefiniteError(f"{text!r} is no SQL expression: {error}") from error
    if read["error"]:
        reason = str(read["error_message"])
        raise DefiniteError(
            f"{text!r} is no SQL expression: {reason}", hint="write it as after SELECT, without FROM; texts in single quotes"
        )
    if len(read["statements"]) != 1:
        raise DefiniteError(f"{text!r} is more than one expression", hint="write one expression, without semicolons")
    node = read["statements"][0]["node"]
    plain = node["type"] == "SELECT_NODE" and not (node["modifiers"] or node["cte_map"]["map"] or node["group_expressions"])
    bare = plain and not any(node[part] for part in ("where_clause", "having", "sample", "qualify"))
    if not bare or len(node["select_list"]) != 1 or node["from_table"].get("table_name") != duckdb_engine.ROWS:
        raise DefiniteError(f"{text!r} is more than an expression", hint="write it as after SELECT, without FROM and WHERE")
    found: Node = node["select_list"][0]
    return found


def _names(node: Any, bound: frozenset[str]) -> Iterator[str]:
    """Return the columns that a tree names; raise for parts that are not allowed."""
    if isinstance(node, list):
        for one in node:
            yield from _names(one, bound)
        return
    if not isinstance(node, dict):
        return
    kind = node.get("class")
    if kind is not None and kind not in _CLASSES:
        raise DefiniteError(f"it holds {_FORBIDDEN.get(kind, kind.lower().replace('_', ' '))}", hint=_HINT)
    if kind == "COLUMN_REF":
        yield from _column(node, bound)
        return
    if kind == "FUNCTION":
        _check_function(node)
    if kind == "LAMBDA" and node.get("syntax_type") == "LAMBDA_KEYWORD":
        own = {name.lower() for name in _names(node["lhs"], frozenset())}
        yield from _names(node["expr"], bound | own)
        return
    for value in node.values():
        yield from _names(value, bound)


def _column(node: Node, bound: frozenset[str]) -> Iterator[str]:
    names = node["column_names"]
    if names[0].lower() in bound:
        return
    if len(names) > 1:
        raise DefiniteError(
            f"it names {'.'.join(names)}", hint='name columns without their table; a name with a dot goes into double quotes: "a.b"'
        )
    yield names[0]


def _check_function(node: Node) -> None:
    name = str(node["function_name"]).lower()
    if len(node.get("qualified_name", {}).get("path", [name])) > 1 or node.get("schema"):
        raise DefiniteError(f"it calls {name} by a path", hint="name functions alone")
    if name in _CHANGING and _ALLOWED_WITH.get(name) != len(node["arguments"]):
        raise DefiniteError(f"{name}() may not be used", hint=_HINT)
    _check_known(name, ())


def _check_known(name: str, around: tuple[str, ...]) -> None:
    known = duckdb_engine.functions().get(name)
    if known is None:
        near = duckdb_engine.nearest(name, duckdb_engine.functions())
        hint = f"did you mean {near}()?" if near else "functions are DuckDB's"
        raise DefiniteError(f"there is no function {name}()", hint=hint)
    if known.unsteady:
        raise DefiniteError(f"{name}() gives another value each time", hint=_HINT)
    if known.is_scalar:
        return
    if not known.macros:
        raise DefiniteError(f"{name}() is over many rows", hint=_HINT)
    for definition, parameters in known.macros:
        _check_macro(name, definition, frozenset(parameters), around)


def _check_macro(name: str, definition: str, parameters: frozenset[str], around: tuple[str, ...]) -> None:
    """Check a macro by the expressions that it expands to."""
    if name in around:
        return
    read = json.loads(duckdb_engine.syntax_of(f"SELECT ({definition}\n) FROM {duckdb_engine.ROWS}"))
    if read["error"]:
        raise DefiniteError(f"{name}() may not be used", hint=_HINT)
    waiting = [read["statements"][0]["node"]["select_list"]]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            kind = node.get("class")
            strange = kind == "COLUMN_REF" and node["column_names"][0].lower() not in parameters
            if (kind is not None and kind not in _CLASSES) or strange:
                raise DefiniteError(f"{name}() may not be used", hint=_HINT)
            if kind == "FUNCTION":
                inner = str(node["function_name"]).lower()
                if inner in _CHANGING:
                    raise DefiniteError(f"{name}() may not be used", hint=_HINT)
                if inner not in (*around, name):
                    _check_known(inner, (*around, name))
            waiting += list(node.values())


def _never_null(node: Node, required: frozenset[str]) -> bool:
    match node["class"]:
        case "COLUMN_REF":
            return len(node["column_names"]) == 1 and node["column_names"][0].lower() in required
        case "CONSTANT":
            return "NULL" not in json.dumps(node.get("literal", node.get("value", "NULL"))).upper()
        case "CAST":
            return not node.get("try_cast", True) and _never_null(node["child"], required)
        case "COMPARISON":
            distinct = "DISTINCT" in node["type"]
            return distinct or (_never_null(node["left"], required) and _never_null(node["right"], required))
        case "CONJUNCTION":
            return all(_never_null(child, required) for child in node["children"])
        case "OPERATOR" if node["type"] == "OPERATOR_COALESCE":
            return any(_never_null(child, required) for child in node["children"])
        case "OPERATOR" if node["type"] in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            return True
        case "OPERATOR" if node["type"] == "OPERATOR_NOT":
            return all(_never_null(child, required) for child in node["children"])
        case "FUNCTION" if node["function_name"].lower() in _STRICT | _STRICT_DATES:
            return all(_never_null(one["expression"], required) for one in node["arguments"])
    return False
