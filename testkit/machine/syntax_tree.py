"""Parses Python source while other threads of the test process run."""

from __future__ import annotations

import ast
import gc


def syntax_tree(text: str) -> ast.Module:
    """Return the syntax tree of `text`.

    A garbage collection can let another thread run inside `ast.parse`. If that thread formats a traceback, it calls `ast.parse`, too, and
    the first call ends with `SystemError: AST constructor recursion depth mismatch` (CPython before 3.11.8, gh-106905).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if enabled:
            gc.enable()
