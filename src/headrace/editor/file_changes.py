"""Plans and saves changes of the pipe file.

Invariant: a text is written only if the whole file is valid with it, and only over the file that the person has seen (its digest).
One change is written at a time. A plan writes nothing. The files of new secrets are on disk before the text that names them; they are
removed again if the text is not written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from headrace.config.document import Document
from headrace.config.load import reload
from headrace.editor.file_edit import section_text
from headrace.editor.masked_text import describe_change, mask_text
from headrace.editor.pipe_file import PipeFile, check_unchanged, read_pipe_file, replace_pipe_file
from headrace.editor.secret_files import NewSecrets, remove_unused
from headrace.errors import DefiniteError, HeadraceError
from headrace.service.status import ReloadResult
from headrace.settings.toml_text import Keys

Edit: TypeAlias = Callable[[PipeFile, NewSecrets], str]
"""Returns the new text of the file."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A text that may replace the file."""

    file: PipeFile
    text: str
    secrets: NewSecrets

    def document(self) -> Document:
        return self.file.document(self.text, self.secrets.contents)


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Thread-safe."""

    path: Path
    state: Path
    """The state directory of the process."""
    only: Sequence[str]
    """The pipes that the process runs; empty: all of the file."""
    reload: Callable[[], ReloadResult]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draft(self, edit: Edit) -> FileChange:
        """Return the file with an edit in it, unchecked."""
        return _edited(read_pipe_file(self.path), edit)

    def plan(self, section: Keys, edit: Edit) -> dict[str, Any]:
        """Return what an edit of a section would change in the file."""
        change = self.draft(edit)
        self._check(change)
        return _described(change, section)

    def save(self, section: Keys, digest: str, edit: Edit) -> dict[str, Any]:
        """Write an edit of a section into the file, and reload."""
        with self._lock:
            file = read_pipe_file(self.path)
            check_unchanged(file, digest)
            change = _edited(file, edit)
            self._check(change)
            described = _described(change, section)
            with change.secrets.written():
                replace_pipe_file(file, change.text)
            remove_unused(file, change.text)
            try:
                result = self.reload()
            except HeadraceError as error:
                raise DefiniteError(f"the file is written, and not applied: {error.message}", place=error.place, hint=error.hint) from error
            digest = replace(file, text=change.text).digest
            return {**described, "digest": digest, "reload": result.to_json(), "summary": result.lines()}

    def _check(self, change: FileChange) -> None:
        reload(change.document(), self.only, self.state)


def _edited(file: PipeFile, edit: Edit) -> FileChange:
    secrets = NewSecrets(file)
    return FileChange(file, edit(file, secrets), secrets)


def _described(change: FileChange, section: Keys) -> dict[str, Any]:
    return {
        "digest": change.file.digest,
        "changed": change.text != change.file.text,
        "diff": describe_change(change.file.text, change.text, change.file.path.name),
        "toml": section_text(mask_text(change.text), section),
    }
