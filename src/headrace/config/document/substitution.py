"""Expands `${NAME}`, `${NAME:-default}` and `${file:PATH}` in the texts of a file.

Invariant: a reference that cannot be expanded is an error that names it; its value is never shown. `$${` stands for the characters `${`.
Values in an address are URL-quoted where characters have a meaning: before the `@`, and after the `?`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headrace.errors import DefiniteError
from headrace.kafka.address import is_secret

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE: Final = "file:"
_SECRET_WORDS: Final = ("pass", "secret", "token", "credential", "private", "pwd", "apikey", "api_key", "access_key")


class References:
    """Expands references from the environment and from files."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = os.environ if environment is None else environment

    def resolve(self, text: str, place: str, left: frozenset[str] = frozenset(), *, hidden: bool = False) -> str:
        """Expand the references of a text, except the names in `left`. Errors do not repeat a hidden text."""
        return _REFERENCE.sub(lambda found: self._expand(found, place, left, hidden=hidden), text)

    def resolve_address(self, text: str, place: str) -> str:
        """Expand the references of an address. An address that starts with a reference is taken as it is, without quoting."""
        scheme = text.find("://")
        if scheme < 0 or text.startswith("${"):
            return self.resolve(text, place)
        question = text.find("?", scheme)
        account = text.rfind("@", scheme, question if question >= 0 else None)

        def quoted(found: re.Match[str]) -> str:
            led_to = self._expand(found, place, frozenset(), hidden=True)
            inside = scheme < found.start() < account or 0 <= question < found.start()
            return quote(led_to, safe="") if inside and found[1] is not None else led_to

        return _REFERENCE.sub(quoted, text)

    def read_secret(self, path: str, place: str) -> str:
        """Return the content of a file without its final newline."""
        try:
            return (self._directory / path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise DefiniteError(
                f"the file {path} cannot be read: {reason}", place=place, hint="make it, and let this user read it"
            ) from None

    def _expand(self, found: re.Match[str], place: str, left: frozenset[str], *, hidden: bool) -> str:
        inside = found[1]
        if inside is None:
            return "${"
        if inside in left:
            return found[0]
        if inside.startswith(_FILE):
            return self.read_secret(inside.removeprefix(_FILE), place)
        name, has_default, default = inside.partition(":-")
        if not _NAME.fullmatch(name):
            hint = "write ${NAME}, ${NAME:-default} or ${file:PATH}; $${ for the characters"
            raise DefiniteError(f"{'${…}' if hidden else found[0]} is no reference", place=place, hint=hint)
        value = self._environment.get(name, "")
        if value:
            return value
        if has_default:
            return default
        how = "is empty" if name in self._environment else "is not set"
        raise DefiniteError(f"the environment variable {name} {how}", place=place, hint=f"set it, or write ${{{name}:-DEFAULT}}")


def is_secret_name(name: str) -> bool:
    """Return whether a name looks like the name of a secret."""
    folded = name.lower()
    return is_secret(folded) or any(word in folded for word in _SECRET_WORDS)


def references_in(text: str) -> tuple[str, ...]:
    """Return the targets of a text's references, in order."""
    return tuple(found[1] for found in _REFERENCE.finditer(text) if found[1] is not None)
