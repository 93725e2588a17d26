"""Which page of the site a file of the repository is.

Invariant: every file or folder that a page links to has exactly one path on the site, so a relative link of the repository can be rewritten
without looking at the other pages.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_NAMED_PAGES: Final = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_PACKAGE_ROOT: Final = "src/headrace/"
_LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
_LANGUAGES: Final = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh", ".service": "ini", ".tpl": "text", ".txt": "text"}
_DOWNLOADS: Final = (".json",)
"""Files that readers load into another program, so the site has them as they are."""


@dataclass(frozen=True)
class Repository:
    """A checkout. Paths are relative to it and have slashes."""

    root: Path

    @cached_property
    def pages(self) -> dict[str, str]:
        """The Markdown files outside docs/ that are pages: path on the site, path in the repository."""
        readmes = sorted((self.root / _PACKAGE_ROOT).rglob("README.md"))
        paths = [*_NAMED_PAGES, *(readme.relative_to(self.root).as_posix() for readme in readmes)]
        return {self.site_path(path): path for path in paths if (self.root / path).is_file()}

    @cached_property
    def linked_files(self) -> dict[str, str]:
        """The other files and folders outside docs/ that pages link to: path on the site, path in the repository."""
        linked = {self.site_path(path): path for path in self._links_from_pages() if self._is_outside_file(path)}
        shown = {page: path for page, path in linked.items() if page not in self.pages}
        folders = [path for path in shown.values() if (self.root / path).is_dir()]
        return shown | {self.site_path(path): path for folder in folders for path in self.files_of(folder)}

    def site_path(self, path: str) -> str:
        """Return the path on the site of a file or folder, which need not exist."""
        if path in _NAMED_PAGES:
            return _NAMED_PAGES[path]
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        if path.startswith(_PACKAGE_ROOT) and path.endswith("/README.md"):
            return f"packages/{path.removeprefix(_PACKAGE_ROOT)}"
        if (self.root / path).is_dir():
            readme = f"{path}/README.md"
            return self.site_path(readme) if (self.root / readme).is_file() else f"files/{path}/index.md"
        return f"files/{path}" if path.endswith(_DOWNLOADS) else f"files/{path}.md"

    def source_path(self, site_path: str) -> str:
        """Return the path in the repository of a page."""
        return self.pages.get(site_path, f"docs/{site_path}")

    def files_of(self, folder: str) -> list[str]:
        """Return the files below a folder."""
        files = sorted(path for path in (self.root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return [path.relative_to(self.root).as_posix() for path in files]

    def markdown_of(self, path: str) -> str:
        """Return the page that shows a linked file, or lists the files of a folder. The search does not find it."""
        if (self.root / path).is_dir():
            here = posixpath.dirname(self.site_path(path))
            listed = [f"- [{name}]({posixpath.relpath(self.site_path(name), here)})" for name in self.files_of(path)]
            content = "\n".join(listed)
        else:
            text = (self.root / path).read_text()
            fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
            content = f"{fence}{_LANGUAGES.get(posixpath.splitext(path)[1], 'text')}\n{text.rstrip()}\n{fence}"
        return f"---\ntitle: {posixpath.basename(path)}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n{content}\n"

    def resolve_link(self, source: str, link: str) -> str | None:
        """Return the path in the repository that a link in a file means; None for other hosts, anchors and paths outside."""
        scheme, host, path, _, _ = urlsplit(link)
        if scheme or host or not path or path.startswith("/"):
            return None
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(path)))
        return None if resolved.startswith("..") else resolved

    def _links_from_pages(self) -> Iterator[str]:
        documents = [path.relative_to(self.root).as_posix() for path in sorted((self.root / "docs").rglob("*.md"))]
        for source in [*documents, *self.pages.values()]:
            for link in _LINK.findall((self.root / source).read_text()):
                if (path := self.resolve_link(source, link)) is not None:
                    yield path

    def _is_outside_file(self, path: str) -> bool:
        return not path.startswith("docs/") and (self.root / path).exists()
