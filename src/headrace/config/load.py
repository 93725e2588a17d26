"""Loads a pipe file into a `Configuration`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.config.configuration import Configuration
from headrace.config.document.document import Document, parse_document
from headrace.config.importers.connectors import translate_connector
from headrace.config.importers.flat_files import SUFFIXES
from headrace.config.importers.mypipe import translate_mypipe
from headrace.config.importers.translation import Translation
from headrace.config.resolve import resolve
from headrace.errors import DefiniteError

DEFAULT_FILE: Final = Path("headrace.toml")


def load(path: Path = DEFAULT_FILE, only: Sequence[str] = ()) -> Configuration:
    """Load the pipes of a file, or those named in `only`. Relative paths are relative to the file's directory."""
    return resolve(read_document(path), only)


def read_document(path: Path) -> Document:
    """Read a file as a document with the keys of `headrace.toml`; its suffix determines its format."""
    translation = translate(path)
    directory = path.resolve().parent
    return parse_document(read_text(path), str(path), directory) if translation is None else translation.document(directory)


def translate(path: Path) -> Translation | None:
    """Translate a file of another tool; None for `headrace.toml`."""
    suffix, text = path.suffix.lower(), read_text(path)
    if suffix in (".conf", ".hocon"):
        return translate_mypipe(text, str(path))
    if suffix in SUFFIXES:
        return translate_connector(text, str(path))
    return None


def read_text(path: Path) -> str:
    """Read the text of a pipe file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DefiniteError("there is no such file", place=str(path), hint="write one (docs/pipes.md), or name another") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DefiniteError(
            f"the file cannot be read: {error}", place=str(path), hint="give a text in UTF-8 that this user may read"
        ) from error
