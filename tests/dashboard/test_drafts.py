"""Drafts of the editor pages survive keys, links and Back, unless the user gives them up; the skip link changes no address.

Also: a reload of the process that allows edits, or forbids them, needs no reload of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headrace.dashboard.server import serve
from headrace.editor import Editor
from headrace.service.status import ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.browser import Pages, settle

FILE = """\
[headrace]
edit = true

[sources.shop]
url = "mysql://repl@127.0.0.1:1/shop"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

[alerts.chat]
url = "https://hooks.example.com/x"

[alerts.pager]
url = "https://pager.example.com/x"
"""
EDIT = "#/edit/shop"
NAVIGATING = ("j", "k", "u", "p", "v", "q", "/", "f", "r", "Escape")
OpenPage = Callable[..., Page]


class Switch:
    on = True


@pytest.fixture
def switch() -> Switch:
    return Switch()


@pytest.fixture
def open_page(pages: Pages, tmp_path: Path, control: FakeControl, switch: Switch) -> Iterator[OpenPage]:
    file = tmp_path / "headrace.toml"
    file.write_text(FILE)
    editor = Editor(file, tmp_path / "state", (), lambda: switch.on, ReloadResult)
    with serve(control, "127.0.0.1:0", TOKEN, editor=editor) as server:

        def opened(*route: str) -> Page:
            page = pages.open(f"{server.url}/#token={TOKEN}")
            page.wait_for_selector("#line[data-line=live]")
            for inside in route:
                page.evaluate("inside => { location.hash = inside }", inside)
                page.wait_for_function("inside => location.hash === inside", arg=inside)
            return page

        yield opened
        pages.leave()


def _address(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def _exclude(page: Page) -> None:
    """Change the draft of the pipe."""
    expect(page.get_by_role("heading", name="Edit shop")).to_be_visible()
    page.get_by_label("Tables to leave out").fill("*_old")


def _is_kept(page: Page) -> None:
    settle(page, 1.5)  # The page is drawn every second.
    assert _address(page) == EDIT
    expect(page.get_by_label("Tables to leave out")).to_have_value("*_old")


def test_keys_leave_a_draft_alone(open_page: OpenPage, control: FakeControl) -> None:
    page = open_page(EDIT)
    _exclude(page)
    page.get_by_label("Runs", exact=True).focus()
    for key in NAVIGATING:
        page.keyboard.press(key)
        expect(page.locator("dialog[open]")).to_have_count(0)
    _is_kept(page)
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    assert control.asked == []


def test_keys_leave_an_alert_rule_alone(open_page: OpenPage, control: FakeControl) -> None:
    page = open_page()
    page.get_by_role("button", name="Edit rules").click()
    page.get_by_label("lag", exact=True).uncheck()
    for key in NAVIGATING:
        page.keyboard.press(key)
    expect(page.get_by_label("lag", exact=True)).to_be_focused()
    expect(page.get_by_label("lag", exact=True)).not_to_be_checked()
    assert control.asked == []
    # Elsewhere the keys work.
    page.get_by_role("button", name="Close").click()
    page.locator("#confirm-go").click()
    page.keyboard.press("j")
    expect(page.locator("#list a:focus")).to_have_count(1)


@pytest.mark.parametrize("way", ["link", "back", "address"])
def test_a_draft_is_left_after_a_confirmation_only(open_page: OpenPage, way: str) -> None:
    page = open_page("#/pipes/crm", EDIT)
    _exclude(page)

    def leave() -> None:
        if way == "link":
            page.get_by_role("link", name="Back").click()
        elif way == "back":
            page.evaluate("history.back()")
        else:
            page.evaluate("location.hash = '#/pipes/events'")

    leave()
    expect(page.locator("#confirm-title")).to_have_text("Discard the draft of shop?")
    settle(page, 1.5)
    page.get_by_role("button", name="Cancel").click()
    _is_kept(page)
    leave()
    page.locator("#confirm-go").click()
    expect(page.locator("#pipe-title")).to_have_text({"link": "shop", "back": "crm", "address": "events"}[way])
    expect(page.locator("#editor")).to_be_hidden()
    page.evaluate("way => way === 'back' ? history.forward() : history.back()", way)
    expect(page.get_by_label("Tables to leave out")).to_have_value("")
    page.get_by_role("link", name="Back").click()
    expect(page.locator("#pipe-title")).to_have_text("shop")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_back_while_the_question_is_open(open_page: OpenPage) -> None:
    page = open_page("#/pipes/crm", EDIT)
    _exclude(page)
    for _ in range(2):
        page.evaluate("history.back()")
        settle(page, 0.5)
    expect(page.locator("#confirm-title")).to_have_text("Discard the draft of shop?")
    page.get_by_role("button", name="Cancel").click()
    _is_kept(page)


def test_a_text_that_is_still_being_entered_is_a_draft(open_page: OpenPage) -> None:
    page = open_page("#/pipes/crm", EDIT)
    page.get_by_label("Tables to leave out").press_sequentially("x")
    page.evaluate("history.back()")
    expect(page.locator("#confirm-title")).to_be_visible()


def test_a_saved_draft_is_left_without_a_question(open_page: OpenPage) -> None:
    page = open_page(EDIT)
    _exclude(page)
    page.get_by_role("button", name="Show the change").click()
    page.get_by_role("button", name="Save and reload").click()
    expect(page.locator("#pipe-title")).to_have_text("shop")
    expect(page.locator("dialog[open]")).to_have_count(0)


@pytest.mark.parametrize("form", ["pipe", "rule", "clean"])
def test_closing_the_page_warns_of_a_draft(open_page: OpenPage, pages: Pages, form: str) -> None:
    pages.expected.append("dialog: ")
    page = open_page(*([] if form == "rule" else [EDIT]))
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.type))
    if form == "pipe":
        _exclude(page)
    elif form == "rule":
        page.get_by_role("button", name="Edit rules").click()
        page.get_by_label("lag", exact=True).uncheck()
    else:
        page.get_by_label("Tables to leave out").click()
    page.close(run_before_unload=True)
    if form == "clean":
        page.wait_for_event("close")
    else:
        settle(page, 1)
    assert asked == ([] if form == "clean" else ["beforeunload"])


def test_the_draft_of_a_rule_is_given_up_after_a_confirmation_only(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_role("button", name="Edit rules").click()
    rule, lag = page.get_by_label("Rule", exact=True), page.get_by_label("lag", exact=True)
    lag.uncheck()
    # Another page leaves the form as it is.
    page.evaluate("location.hash = '#/pipes/shop'")
    expect(page.locator("#pipe-title")).to_have_text("shop")
    page.evaluate("location.hash = '#/'")
    expect(lag).not_to_be_checked()
    for act in (
        partial(rule.select_option, "pager"),
        page.get_by_role("button", name="Close").last.click,
        page.get_by_role("button", name="Edit rules").click,
    ):
        act()
        expect(page.locator("#confirm-title")).to_have_text("Discard the draft of chat?")
        page.get_by_role("button", name="Cancel").click()
        expect(rule).to_have_value("chat")
        expect(lag).not_to_be_checked()
    rule.select_option("pager")
    page.locator("#confirm-go").click()
    expect(rule).to_have_value("pager")
    expect(lag).to_be_checked()


@pytest.mark.parametrize("inside", ["#/", "#/pipes/shop", "#/pipes/nowhere", "#/new", EDIT])
def test_the_skip_link_leads_to_the_content(open_page: OpenPage, inside: str) -> None:
    page = open_page(inside)
    settle(page, 0.5)
    if inside == EDIT:
        _exclude(page)
    view = page.evaluate("document.body.dataset.view")
    page.locator(".skip-link").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    settle(page, 1.5)
    assert (_address(page), page.evaluate("document.body.dataset.view")) == (inside, view)
    if inside == EDIT:
        _is_kept(page)


def test_a_reload_of_the_process_allows_edits(open_page: OpenPage, switch: Switch) -> None:
    switch.on = False
    page = open_page()
    settle(page, 1)
    links = page.get_by_role("link", name="New pipe"), page.get_by_role("button", name="Edit rules")
    for link in links:
        expect(link).to_be_hidden()
    switch.on = True
    for link in links:
        expect(link).to_be_visible()
    switch.on = False
    for link in links:
        expect(link).to_be_hidden()
