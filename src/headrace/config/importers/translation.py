"""The translation of another tool's file to the keys of `headrace.toml`.

Invariant: each key of the file is translated, listed as unneeded with the reason, or an error with its line. A converted file has
references instead of passwords.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.config.document import Document, Problems, References, dotted_key, references_in
from headrace.settings.toml_text import AnnotatedToml, Keys, render_toml

_SCHEMA_LINE: Final = "#:schema headrace.schema.json"


@dataclass(slots=True)
class Translation:
    file: str
    written: AnnotatedToml = field(default_factory=AnnotatedToml)
    lines: dict[Keys, int] = field(default_factory=dict)
    """The line of each value in the file."""
    secrets: dict[Keys, str] = field(default_factory=dict)
    """Keys whose values are passwords, with the variables that replace them in a converted file."""
    unneeded: list[str] = field(default_factory=list)
    """Keys that Headrace does not need, each with the reason."""
    new_pipes_only: set[Keys] = field(default_factory=set)
    """Keys that an earlier release did not write: a pipe that began without them continues without them."""
    problems: Problems = field(default_factory=Problems)

    def set(self, path: Keys, value: Any, line: int = 0) -> None:
        """Write a key."""
        table = self.written.content
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
        self.lines[path] = line

    def set_secret(self, path: Keys, value: str, line: int = 0) -> None:
        self.set(path, value, line)
        if not references_in(value):
            variable = re.sub(r"[^A-Z0-9]+", "_", f"{path[1]}_{path[-1]}".upper())
            taken = set(self.secrets.values())
            names = itertools.chain([variable], (f"{variable}_{number}" for number in itertools.count(2)))
            self.secrets[path] = next(name for name in names if name not in taken)

    def drop(self, key: str, line: int, reason: str) -> None:
        """List a key that Headrace does not need."""
        self.unneeded.append(f"{key} (line {line}): {reason}" if line else f"{key}: {reason}")

    def refuse(self, key: str, line: int, message: str, hint: str) -> None:
        """Report a key that cannot be translated."""
        place = f"{self.file}, line {line}, {key}" if line else f"{self.file}, {key}"
        self.problems.add(message, place, hint)

    def document(self, directory: Path, environment: Mapping[str, str] | None = None) -> Document:
        """Return the document to load; raise the collected errors."""
        self.problems.raise_any(self.file)
        references = References(directory, environment)
        return Document(self.file, directory, self.written.content, self._place, references, frozenset(self.new_pipes_only))

    def text(self) -> str:
        """Return the converted file with comments; raise the collected errors."""
        self.problems.raise_any(self.file)
        content, above = copy.deepcopy(self.written.content), {path: list(notes) for path, notes in self.written.above.items()}
        top = [_SCHEMA_LINE.removeprefix("#"), f"Converted from {Path(self.file).name} by headrace convert."]
        if self.secrets:
            top.append("Set these variables to the passwords that the file has:")
        for path, variable in self.secrets.items():
            table = content
            for name in path[:-1]:
                table = table[name]
            table[path[-1]] = f"${{{variable}}}"
            top.append(f"  {variable}: {self._place(path)}")
        if self.unneeded:
            top.append("Without need here:")
            top += [f"  {one}" for one in self.unneeded]
        above[()] = [*top, *above.get((), [])]
        text = render_toml(AnnotatedToml(content, above, self.written.trailing))
        # The line for editors is a comment of its own form.
        return text.replace(f"# {_SCHEMA_LINE.removeprefix('#')}", _SCHEMA_LINE, 1)

    def _place(self, path: Keys) -> str:
        line = next((self.lines[path[:end]] for end in range(len(path), 0, -1) if self.lines.get(path[:end])), 0)
        return f"{self.file}, line {line}, {dotted_key(path)}" if line else f"{self.file}, {dotted_key(path)}"


def name_of(text: str) -> str:
    """Return a valid section name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).lstrip("-") or "pipe"


def literal(text: str) -> str:
    """Escape `${`."""
    return text.replace("${", "$${")
