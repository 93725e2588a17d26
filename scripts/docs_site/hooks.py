"""What MkDocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import files as files_of_package
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import headrace
from scripts.docs_site.command_line_page import command_line_page
from scripts.docs_site.markdown_rules import RepositoryMarkdown, heading_anchor
from scripts.docs_site.python_page import python_page
from scripts.docs_site.repository import Repository

_GENERATED_PAGES: Final[dict[str, Callable[[], str]]] = {"command-line.md": command_line_page, "python.md": python_page}
_SEARCH_BOOSTS: Final = {"command-line.md": 4.0, "packages/*": 0.05, "decisions/*": 0.2, "changelog.md": 0.1, "contributing.md": 0.2}
"""By page: readers look for commands and settings before they look for what developers read."""
_LOGO: Final = Path(headrace.__file__).parent / "dashboard" / "assets" / "favicon.svg"
_MERMAID: Final = "mermaidx/assets/mermaid.js"
_MERMAID_SHA256: Final = "74d7c46dabca328c2294733910a8aa1ed0c37451776e8d5295da38a2b758fb9b"
"""Of dist/mermaid.min.js in the npm package mermaid 11.16.0, of which mermaidx contains a copy."""


def on_config(config: MkDocsConfig) -> None:
    extension = RepositoryMarkdown(Repository(Path(config.config_file_path).parent))
    config.markdown_extensions.insert(0, extension)  # type: ignore[arg-type]  # Python-Markdown takes objects, too
    config.mdx_configs["toc"]["slugify"] = heading_anchor


def on_files(files: Files, config: MkDocsConfig) -> None:
    repository = _extension(config).repository
    for path, source in repository.pages.items():
        files.append(File.generated(config, path, abs_src_path=str(repository.root / source)))
    for path, source in repository.linked_files.items():
        if path.endswith(".md"):
            files.append(File.generated(config, path, content=repository.markdown_of(source), inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            files.append(File.generated(config, path, abs_src_path=str(repository.root / source)))
    for path in sorted(_GENERATED_PAGES.keys() & set(_entries(config.nav))):
        files.append(File.generated(config, path, content=_GENERATED_PAGES[path]()))
    for path, asset in {"assets/javascripts/mermaid.min.js": _mermaid(), "assets/logo.svg": _LOGO}.items():
        files.append(File.generated(config, path, abs_src_path=str(asset)))
    pages = [file.src_uri for file in files.documentation_pages() if file.inclusion is not InclusionLevel.NOT_IN_NAV]
    config.nav = expand_globs(config.nav, pages)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (called by names)
    path = page.file.src_uri
    _extension(config).page = path
    for pattern, boost in _SEARCH_BOOSTS.items():
        if fnmatchcase(path, pattern):
            page.meta.setdefault("search", {"boost": boost})
    return markdown


def expand_globs(nav: Any, pages: Iterable[str]) -> Any:
    """Replace each glob in a navigation by the pages that it matches and that the navigation does not name, in order."""
    rest = sorted(set(pages) - set(_entries(nav)))

    def expanded(item: Any) -> list[Any]:
        if isinstance(item, str) and "*" in item:
            return [page for page in rest if fnmatchcase(page, item)]
        if isinstance(item, dict):
            return [{title: expand_globs_in(below) if isinstance(below, list) else below for title, below in item.items()}]
        return [item]

    def expand_globs_in(items: list[Any]) -> list[Any]:
        return [one for item in items for one in expanded(item)]

    return expand_globs_in(nav)


def _entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for below in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _entries(below)


def _extension(config: MkDocsConfig) -> RepositoryMarkdown:
    extensions: Iterable[object] = config.markdown_extensions
    return next(one for one in extensions if isinstance(one, RepositoryMarkdown))


def _mermaid() -> Path:
    (packed,) = (file for file in files_of_package("mermaidx") or () if str(file) == _MERMAID)
    path = Path(str(packed.locate()))
    if hashlib.sha256(path.read_bytes()).hexdigest() != _MERMAID_SHA256:
        raise PluginError(f"{path} is not the Mermaid that hooks.py names: compare it with npm's package and update the digest")
    return path
