"""Renders Markdown as a repository page does, so that the sources need no rules of their own.

Four rules of Python-Markdown differ: the anchor of a heading, a list directly below a paragraph, the indentation of what belongs to a list
item, and links to files that are not in docs/.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor
from markdown.treeprocessors import Treeprocessor

from scripts.docs_site.repository import Repository

_ITEM: Final = re.compile(r"([-*+]|\d+[.)]) ")
_FIRST_ITEM: Final = re.compile(r"([-*+]|1[.)]) ")
"""Another number does not begin a list in the middle of a paragraph."""
_LIST_INDENTATION: Final = 2


def heading_anchor(heading: str, separator: str = "-") -> str:
    """Return the anchor that a repository page gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


class RepositoryMarkdown(Extension):
    """`page` is the path on the site of the page that is being rendered. The extension must be the first one."""

    def __init__(self, repository: Repository) -> None:
        super().__init__()
        self.repository = repository
        self.page = ""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = _LIST_INDENTATION
        # The parser's parts have read the length already.
        md.build_parser()
        # Below fenced blocks (25), which are replaced by then; above MkDocs' own treeprocessor of links (0).
        md.preprocessors.register(_ListsBelowParagraphs(md), "headrace_lists", 15)
        md.treeprocessors.register(_RepositoryLinks(md, self), "headrace_links", 2)


class _ListsBelowParagraphs(Preprocessor):
    """Inserts the empty line that Python-Markdown needs before a list."""

    def run(self, lines: list[str]) -> list[str]:
        return list(self._separated(lines))

    def _separated(self, lines: list[str]) -> Iterator[str]:
        beginning = ""
        for line in lines:
            if _FIRST_ITEM.match(line) and beginning and not _ITEM.match(beginning):
                yield ""
                beginning = ""
            yield line
            beginning = (beginning or line) if line.strip() else ""


class _RepositoryLinks(Treeprocessor):
    """Rewrites links between files of the repository to links between pages of the site; MkDocs checks that they exist."""

    def __init__(self, md: Markdown, extension: RepositoryMarkdown) -> None:
        super().__init__(md)
        self._extension = extension

    def run(self, root: Element) -> None:
        for element in root.iter():
            attribute = {"a": "href", "img": "src"}.get(element.tag)
            if attribute is not None:
                element.set(attribute, self._rewritten(element.get(attribute, "")))

    def _rewritten(self, link: str) -> str:
        repository, page = self._extension.repository, self._extension.page
        target = repository.resolve_link(repository.source_path(page), link)
        if target is None:
            return link
        path = posixpath.relpath(repository.site_path(target), posixpath.dirname(page) or ".")
        _, _, _, query, anchor = urlsplit(link)
        return urlunsplit(("", "", path, query, anchor))
