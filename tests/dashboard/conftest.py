"""The dashboard in Chromium over generated pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from headrace.dashboard.server import Server, serve
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.browser import Pages

Open = Callable[..., Page]
Unreached = Callable[..., tuple[int, dict[str, str]]]

CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']"
REACHABLE = """([controls, dialog]) => [...document.querySelectorAll(controls)].filter((node) => !node.disabled
  && (node.closest('dialog')?.id ?? '') === dialog && node.checkVisibility({ visibilityProperty: true })).map((node) => {
    node.dataset.control ??= String(document.querySelectorAll('[data-control]').length);
    return [node.dataset.control, node.outerHTML.slice(0, 120)];
})"""
REACHED = "() => document.activeElement.dataset.control ?? (document.activeElement === document.body ? 'body' : 'other')"


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    opened = Pages(browser)
    yield opened
    opened.close()


@pytest.fixture
def control() -> FakeControl:
    """Tests override it by parametrizing, or by their own fixture."""
    return FakeControl()


@pytest.fixture
def served(control: FakeControl) -> Iterator[Server]:
    with serve(control, "127.0.0.1:0", TOKEN) as server:
        yield server


@pytest.fixture
def look(pages: Pages, served: Server) -> Iterator[Open]:
    """Opens the page at an inner address: `look("#/pipes/shop")`; with `token=True` by the link with the token."""

    def opened(inside: str = "", *, token: bool = False, **how: object) -> Page:
        page = pages.open(f"{served.url}/{f'#token={TOKEN}' if token else inside}", **how)  # type: ignore[arg-type]
        page.wait_for_selector("#line[data-line=live]")
        if token and inside:
            page.evaluate("inside => { location.hash = inside }", inside)
        return page

    yield opened
    # Before the server stops: a page that is still open would report the lost connection as an error.
    pages.leave()


@pytest.fixture
def unreached() -> Unreached:
    """Presses Tab through the page, or its open dialog; returns how many controls there are, and those that did not get the focus."""

    def press_tab(page: Page, dialog: str = "") -> tuple[int, dict[str, str]]:
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0); getSelection().removeAllRanges()")
        wanted = dict(page.evaluate(REACHABLE, [CONTROLS, dialog]))
        reached: set[str] = set()
        for _ in range(2 * len(wanted) + 10):
            page.keyboard.press("Tab")
            reached.add(str(page.evaluate(REACHED)))
            if wanted.keys() <= reached:
                break
        return len(wanted), {key: text for key, text in wanted.items() if key not in reached}

    return press_tab
