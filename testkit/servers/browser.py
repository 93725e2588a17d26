"""Debian's Chromium for tests of the dashboard: headless, driven by Playwright. Pages collect their errors.

Invariant: a test that passes had no script error, no warning or error on the console, and nothing that the page's content security policy
blocked.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from headrace.errors import DefiniteError

PATIENCE_MS = 30_000
"""How long the page may take to show something on a busy machine."""
SCREENSHOTS = Path(os.environ.get("HEADRACE_SCREENSHOTS", "build/screenshots")).absolute()
_FLAGS = (
    "--no-sandbox",  # only the dashboard is opened, and Chromium's sandbox does not start in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> Path:
    """The browser's program."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise DefiniteError("there is no Chromium here", hint="apt-get install chromium")
    return Path(found)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_chromium()), args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Pages:
    """Opens pages of a browser, each with its own session, and collects their errors."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []
        self.expected: list[str] = []
        """Texts of errors that the test causes on purpose."""

    def open(self, url: str, *, width: int = 1440, height: int = 900, scheme: str = "dark", **more: Any) -> Page:
        context = self._browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("console", self._heard)
        # A browser dialog means that an injected script ran: the dashboard has its own dialogs.
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(url)
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def leave(self) -> None:
        """Close all pages."""
        for context in self._browser.contexts:
            context.close()

    def close(self) -> None:
        """Close all pages; fail if they had errors."""
        self.leave()
        unexpected = [one for one in self.complaints if not any(word in one for word in self.expected)]
        assert unexpected == [], unexpected


def keep(page: Page, name: str, *, whole: bool = False) -> Path:
    """Store a screenshot of the page, for a review of the run."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path


def kept_since(began: float) -> int:
    """Return how many screenshots this run made."""
    return sum(path.stat().st_mtime >= began for path in SCREENSHOTS.glob("*.png"))


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def settle(page: Page, seconds: float) -> None:
    """Let the page handle events for a while."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        page.wait_for_timeout(min(1000.0, left * 1000))


def cpu_per_second(page: Page, seconds: float) -> float:
    """Return the CPU share of the page's thread."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        return float(next(one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration"))

    before = spent()
    settle(page, seconds)
    used = (spent() - before) / seconds
    session.detach()
    return used
