"""Each page of the dashboard in real Chromium: axe-core finds nothing serious, and the Tab key reaches every control."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from testkit.oracles.axe import serious_findings
from testkit.servers.browser import keep, overflow, settle

Open = Callable[..., Page]
Unreached = Callable[..., tuple[int, dict[str, str]]]

PARTS = {"timeline": "#pipe-events", "query": "#query-head", "log": "#pipe-log"}
"""Parts of a pipe's page that get a picture of their own."""


def open_query_box(page: Page) -> None:
    """Open all parts of the query box, with a result."""
    run = page.get_by_role("button", name="Run")
    run.scroll_into_view_if_needed()
    settle(page, 0.3)
    run.click()
    expect(page.locator("#query-result td").first).to_be_visible()
    page.get_by_role("button", name="Tables", exact=True).click()
    page.locator(".schema-table").first.locator("summary").click()
    expect(page.locator(".schema-name").first).to_be_visible()
    page.get_by_role("button", name="History").click()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_nothing_serious(look: Open, scheme: str, width: int) -> None:
    page = look(token=True, scheme=scheme, width=width, height=900, reduced_motion="reduce")
    found: dict[str, list[str]] = {}

    def examine(name: str) -> None:
        settle(page, 0.3)
        found[name] = [f"{name}: {one}" for one in serious_findings(page)]
        assert overflow(page) <= 0, name
        keep(page, f"made-up-axe-{name}-{scheme}-{width}", whole=True)

    expect(page.locator("#alert-panel")).to_be_visible()
    expect(page.locator("#recent-events .event").first).to_be_visible()
    examine("overview with alerts")
    page.evaluate("location.hash = '#/pipes/shop'")
    expect(page.locator("#pipe-log .log-line").first).to_be_visible()
    expect(page.locator("#pipe-events .event").first).to_be_visible()
    open_query_box(page)
    page.get_by_label("Log: level").select_option("warning")
    expect(page.locator("#pipe-log .log-line.off")).to_have_count(0)
    examine("pipe")
    page.get_by_role("button", name="Chart").click()
    examine("chart of a result")
    for name, part in PARTS.items():
        page.locator(part).scroll_into_view_if_needed()
        keep(page, f"made-up-axe-{name}-{scheme}-{width}")
    for name in ("events", "crm", "nowhere"):
        page.evaluate("name => { location.hash = `#/pipes/${name}` }", name)
        examine(name)
    page.locator("#help-open").click()
    examine("help")
    assert [one for findings in found.values() for one in findings] == []


def test_axe_finds_what_is_wrong(look: Open) -> None:
    page = look("#/pipes/shop")
    page.evaluate("document.getElementById('sql').removeAttribute('aria-label')")
    assert [finding for finding in serious_findings(page) if "label" in finding and "#sql" in finding]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("inside", ["#/", "#/pipes/shop", "#/pipes/events"])
def test_the_tab_key_reaches_every_control(look: Open, unreached: Unreached, inside: str, width: int) -> None:
    page = look(inside, token=True, width=width, height=900)
    if inside == "#/pipes/shop":
        open_query_box(page)
        page.get_by_label("Log: level").select_option("error")
        expect(page.locator("#pipe-log .log-line.off")).to_have_count(0)
    settle(page, 1)
    controls, missed = unreached(page)
    assert controls > 20
    assert missed == {}
