"""Converts Debezium's lists of regular expressions to globs: names, `.*`, and alternatives in parentheses; others are errors."""

from __future__ import annotations

import glob
import re
from typing import Final

from headrace.errors import DefiniteError

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$#@ -]")


def split_list(text: str) -> list[str]:
    """Split a list at commas outside of parentheses."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    return [part for part in (*parts, current.strip()) if part]


def globs_of(expression: str) -> list[str]:
    """Return globs that match the same names as a regular expression; raise `ValueError` if there are none."""
    text = expression.strip().removeprefix("^").removesuffix("$")
    group = re.search(r"\((?:\?:)?([^()]*)\)", text)
    if group is not None:
        following = text[group.end() : group.end() + 1]
        if following and following in "*+?{":
            raise ValueError(text)
        before, after = text[: group.start()], text[group.end() :]
        return [glob for choice in group[1].split("|") for glob in globs_of(f"{before}{choice}{after}")]
    if "|" in text:
        return [glob for choice in text.split("|") for glob in globs_of(choice)]
    return [_glob(text)]


def list_of_globs(text: str, key: str, place: str) -> list[str]:
    """Return the globs of a list."""
    found = []
    for expression in split_list(text):
        try:
            found += globs_of(expression)
        except ValueError:
            raise DefiniteError(
                f"{expression!r} in {key} cannot be written as globs", place=place, hint="name the tables, with .* for any text"
            ) from None
    return list(dict.fromkeys(found))


def _glob(text: str) -> str:
    letters, at = "", 0
    while at < len(text):
        letter = text[at]
        if text.startswith((".*", ".+", "[^.]*", "[^.]+", "\\w*", "\\w+"), at):
            some = text.startswith((".+", "[^.]+", "\\w+"), at)
            letters += "?*" if some else "*"
            at += 5 if letter == "[" else 3 if letter == "\\" else 2
        elif letter == "\\" and text[at + 1 : at + 2] and not text[at + 1].isalnum():
            letters += glob.escape(text[at + 1])
            at += 2
        # An unescaped dot matches any character, but users mean a dot.
        elif letter == "." or _PLAIN.match(letter):
            letters += letter
            at += 1
        else:
            raise ValueError(text)
    return letters
