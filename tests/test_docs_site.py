"""The documentation site: built with its own strict settings, read as files and in a browser, without any other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page, expect

from headrace.cli import build_parser
from headrace.cli.man_page import list_commands
from scripts.docs_site.command_line_page import escape_markdown
from scripts.docs_site.hooks import expand_globs
from scripts.docs_site.python_page import PUBLIC_NAMES
from scripts.docs_site.repository import Repository
from testkit.servers.browser import Pages, keep, overflow

ROOT = Path(__file__).parents[1]
_LOADED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
    "form": "action",
}
_WIDTHS = {"desktop": 1440, "phone": 390}
_BLOCKS = ("h2", "h3", "li", "table", "tr", "blockquote", "img")


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on a web server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    opened = Pages(browser)
    yield opened
    opened.close()


class BuiltPage(HTMLParser):
    """What a page of the site loads, links to and shows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.next = ""
        self.policy = ""
        self.anchors: set[str] = set()
        self.blocks: Counter[str] = Counter()
        self._in_article = False
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in _LOADED and _LOADED[tag] in values:
            self.loaded.append(values[_LOADED[tag]])
        if tag == "link" and values["rel"] == "next":
            self.next = values["href"]
        elif tag == "link":
            self.loaded.append(values["href"])
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if "id" in values:
            self.anchors.add(values["id"])
        self._in_article |= tag == "article"
        if self._in_article and tag in _BLOCKS:
            self.blocks[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


def built_file(site: Path, source: Path) -> Path:
    """The built page of a page in docs/."""
    path = source.relative_to(ROOT / "docs").with_suffix("")
    return site / (path.parent if path.name in ("README", "index") else path) / "index.html"


def test_every_page_of_docs_is_in_the_navigation(site: Path) -> None:
    page, visited = site / "index.html", set[Path]()
    while page not in visited:
        visited.add(page)
        page = (page.parent / BuiltPage(page).next / "index.html").resolve()
    assert [source for source in (ROOT / "docs").rglob("*.md") if built_file(site, source) not in visited] == []
    assert {site / name / "index.html" for name in ("contributing", "changelog", "command-line", "python", "packages/model")} <= visited


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = BuiltPage(path)
        assert page.loaded, path
        assert [one for one in page.loaded if "//" in one] == [], path
        assert page.policy.startswith("default-src 'self';"), path
    for path in site.rglob("*.css"):
        assert re.findall(r"""(?:@import|url\()\s*["']?(?:https?:)?//[^)]*""", path.read_text()) == [], path


@pytest.mark.parametrize("source", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_a_page_has_the_blocks_of_the_repository_page(source: Path, site: Path) -> None:
    """CommonMark's own parser is the oracle: lists, tables and headings are what they are on a repository page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(source.read_text())
    inner = [child for token in tokens for child in token.children or ()]
    expected = Counter(token.tag for token in (*tokens, *inner) if token.nesting >= 0 and token.tag in _BLOCKS)
    assert BuiltPage(built_file(site, source)).blocks == expected


def test_reference_pages_are_complete(site: Path) -> None:
    commands = BuiltPage(site / "command-line" / "index.html").anchors
    assert {f"headrace-{'-'.join(command.path)}" for command in list_commands(build_parser())[1:]} <= commands
    documented = set(re.findall(r"`(headrace\.[\w.]+)`", (ROOT / "docs" / "api.md").read_text())) - set(PUBLIC_NAMES)
    listed = {f"{module}.{name}" for module, names in PUBLIC_NAMES.items() for name in names}
    assert len(documented) > 3
    assert documented <= listed
    assert listed <= BuiltPage(site / "python" / "index.html").anchors


def _small_checkout(folder: Path, text: str) -> Path:
    """A checkout with one page in docs/ and the settings of the site."""
    (folder / "docs").mkdir()
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    (folder / "mkdocs.yml").write_text(f"{settings}\nnav:\n  - index.md\n  - page.md\n")
    (folder / "README.md").write_text("# Small\n\n[a page](docs/page.md#a-section)\n")
    (folder / "docs" / "page.md").write_text(f"# Page\n\n## A section\n\n{text}\n")
    for name in ("scripts", "deploy"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def test_broken_links_and_forgotten_pages_fail_the_build(tmp_path: Path) -> None:
    text = "[nothing](nothing.md) [code](../src/headrace/nothing.py) [no section](page.md#nowhere) [none here](#nowhere-here)"
    checkout = _small_checkout(tmp_path, text)
    (checkout / "docs" / "forgotten.md").write_text("# Forgotten\n")
    ended = build(checkout, tmp_path / "site")
    assert ended.returncode != 0
    for flaw in ("forgotten.md", "'nothing.md'", "files/src/headrace/nothing.py.md", "'page.md#nowhere'", "'#nowhere-here'"):
        assert flaw in ended.stderr, flaw


def test_links_of_the_repository_work_on_the_site(tmp_path: Path) -> None:
    text = "[start](../README.md) [a file](../deploy/systemd/headrace.service) [a folder](../deploy/systemd) [here](#a-section)"
    ended = build(_small_checkout(tmp_path, text), tmp_path / "site")
    assert ended.returncode == 0, ended.stderr
    linked = re.findall(r'<a href="([^"]+)">(start|a file|a folder|here)</a>', (tmp_path / "site" / "page" / "index.html").read_text())
    assert linked == [
        ("../", "start"),
        ("../files/deploy/systemd/headrace.service/", "a file"),
        ("../files/deploy/systemd/", "a folder"),
        ("#a-section", "here"),
    ]
    assert "ExecStart" in (tmp_path / "site/files/deploy/systemd/headrace.service/index.html").read_text()
    assert 'href="headrace.service/"' in (tmp_path / "site/files/deploy/systemd/index.html").read_text()


def test_paths_on_the_site() -> None:
    repository = Repository(ROOT)
    paths = ["README.md", "docs/kafka/sink.md", "src/headrace/http", "src/headrace/dashboard/grafana.json", "deploy"]
    shown = ["index.md", "kafka/sink.md", "packages/http/README.md", "files/src/headrace/dashboard/grafana.json", "files/deploy/index.md"]
    assert [repository.site_path(path) for path in paths] == shown
    links = ["../api.md#errors", "https://a.example/b", "#here", "/absolute", "../../../outside.md"]
    assert [repository.resolve_link("docs/kafka/sink.md", link) for link in links] == ["docs/api.md", None, None, None, None]


def test_globs_of_the_navigation() -> None:
    nav = ["index.md", {"A": ["a/2.md", "a/*"]}, {"Rest": [{"B": "b.md"}, "*"]}]
    pages = ["index.md", "a/1.md", "a/2.md", "a/3.md", "b.md"]
    assert expand_globs(nav, pages) == ["index.md", {"A": ["a/2.md", "a/1.md", "a/3.md"]}, {"Rest": [{"B": "b.md"}, "a/1.md", "a/3.md"]}]


def test_help_is_no_markdown() -> None:
    assert escape_markdown("a|b *c* <d> `e*|f`") == "a&#124;b &#42;c&#42; &lt;d&gt; `e*|f`"
    assert escape_markdown("an odd ` stays") == "an odd &#96; stays"


def look(pages: Pages, url: str, form: str, scheme: str = "light") -> tuple[Page, list[str]]:
    """Open a page; return it with the list of everything that it requests from now on."""
    requested: list[str] = []
    page = pages.open("about:blank", width=_WIDTHS[form], scheme=scheme)
    page.on("request", lambda request: requested.append(request.url))
    page.goto(url)
    return page, requested


@pytest.mark.parametrize("form", _WIDTHS)
def test_search_finds_a_command(form: str, pages: Pages, address: str) -> None:
    page, requested = look(pages, f"{address}/", form)
    expect(page.locator("article h1")).to_contain_text("Headrace")
    assert overflow(page) <= 0
    keep(page, f"site-start-{form}")
    if form == "phone":
        page.locator("label[for=__search]").first.click()
    # The page listens for keys, and only when it has loaded the index.
    expect(page.locator(".md-search-result__meta")).to_contain_text("Type to start searching")
    page.locator("input.md-search__input").press_sequentially("headrace resync")
    found = page.locator("a.md-search-result__link[href*='command-line/'][href*='#headrace-resync']")
    expect(found.first).to_be_visible()
    keep(page, f"site-search-{form}")
    found.first.click()
    expect(page.locator("#headrace-resync")).to_be_in_viewport()
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize("form", _WIDTHS)
def test_diagrams_and_dark_colours(form: str, pages: Pages, address: str) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        page, requested = look(pages, f"{address}/architecture/", form, scheme)
        diagram = page.locator("div.mermaid")
        expect(diagram).to_have_count(1)
        drawn = diagram.bounding_box()
        assert drawn is not None
        assert drawn["height"] > 50
        assert overflow(page) <= 0
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        keep(page, f"site-diagram-{form}-{scheme}")
        assert f"{address}/assets/javascripts/mermaid.min.js" in requested
        assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
    assert backgrounds["light"] == "rgb(255, 255, 255)"
    assert max(map(int, re.findall(r"\d+", backgrounds["dark"])[:3])) < 80
