"""The dashboard in Chromium over generated pipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from headrace.dashboard.server import Server, serve
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.browser import Pages

Open = Callable[..., Page]


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
