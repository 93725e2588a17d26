"""Files of the secrets that a person enters: `headrace-secrets/SECTION.KEY.ID` next to the pipe file.

Invariant: each secret has a file of its own. Its name contains a keyed hash of the secret and of the pipe file's text, so a file is never
overwritten with another secret while a pipe uses it, and a plan and the save that follows have the same name. Only the save writes files. A
file is removed only if its name has this form.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.config.document import dotted_key
from headrace.editor.pipe_file import PipeFile, write_file
from headrace.errors import DefiniteError
from headrace.jsonl import sync_directory
from headrace.settings.toml_text import Keys

FOLDER: Final = "headrace-secrets"
_REFERENCE: Final = re.compile(rf"{FOLDER}/([a-z]+\.[A-Za-z0-9_-]+\.[a-z]+\.[0-9a-f]{{16}})(?![A-Za-z0-9_.-])")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 64
_HASH_KEY: Final = secrets.token_bytes(32)


@dataclass(frozen=True, slots=True)
class NewSecrets:
    """The secrets of one draft, for one text of the pipe file."""

    file: PipeFile
    contents: dict[str, str] = field(default_factory=dict, repr=False)
    """By paths as the pipe file has them, relative to its directory."""

    def add(self, key: Keys, secret: str) -> str:
        """Take the secret of a key such as `sources.shop.password`; return the path of its file."""
        if "\n" in secret or "\r" in secret:
            raise DefiniteError(
                "a line break cannot be entered here", place=dotted_key(key), hint="write the section into the file by hand"
            )
        kind, section, name = key
        text = "\0".join((self.file.digest, *key, secret))
        digest = hmac.digest(_HASH_KEY, text.encode(), "sha256").hex()[:16]
        path = f"{FOLDER}/{kind}.{_UNSAFE.sub('_', section)[:_MAX_NAME]}.{name}.{digest}"
        self.contents[path] = secret
        return path

    @contextmanager
    def written(self) -> Iterator[None]:
        """Write the files; remove those that the pipe file does not name if the block raises."""
        try:
            self._write()
            yield
        except BaseException:
            # A file that stays does no harm.
            with suppress(OSError):
                self._remove()
            raise

    def _write(self) -> None:
        if not self.contents:
            return
        folder = self.file.directory / FOLDER
        try:
            owner = self.file.path.stat()
            if not folder.exists():
                folder.mkdir(mode=0o700)
                with suppress(PermissionError):
                    os.chown(folder, owner.st_uid, owner.st_gid)
                sync_directory(folder.parent)
            folder.chmod(0o700)
            for path, secret in self.contents.items():
                write_file(self.file.directory / path, secret, owner, 0o600)
        except OSError as error:
            raise DefiniteError(
                f"the password cannot be stored: {error.strerror}",
                place=str(folder),
                hint="let this user write the directory, and the one above it",
            ) from error

    def _remove(self) -> None:
        # The pipe file may have been replaced before the error.
        text = self.file.path.read_text(encoding="utf-8")
        for path in self.contents:
            if path not in text:
                (self.file.directory / path).unlink(missing_ok=True)
        # Fails if it has other files.
        (self.file.directory / FOLDER).rmdir()


def remove_unused(file: PipeFile, text: str) -> None:
    """Remove the files of secrets that the file names and the text that has replaced it does not."""
    for name in set(_REFERENCE.findall(file.text)) - set(_REFERENCE.findall(text)):
        with suppress(OSError):
            (file.directory / FOLDER / name).unlink()
