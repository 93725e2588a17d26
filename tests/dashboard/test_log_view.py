"""The log of a pipe on its page, and `GET /api/log`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Page, expect

from headrace.dashboard.server import Server
from headrace.service.running_process import ControlEndpoint, HttpControl
from headrace.telemetry.log_reader import LogQuery
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.browser import keep

Open = Callable[..., Page]


def get(served: Server, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    request = Request(f"{served.url}{path}", b"{}" if method == "POST" else None, {"Authorization": f"Bearer {TOKEN}"}, method=method)
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_levels_search_older_lines_and_follow(look: Open) -> None:
    page = look("#/pipes/shop")
    lines = page.locator("#pipe-log .log-line")
    expect(lines.nth(199)).to_be_visible()
    before = lines.count()
    # New lines arrive at the end, and the view follows them.
    expect(lines.nth(before)).to_be_visible()
    scroll = page.locator("#pipe-log .log-scroll")
    assert scroll.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight") < 60
    page.get_by_role("button", name="Older lines").click()
    expect(lines.nth(before + 199)).to_be_attached()
    page.get_by_label("Log: level").select_option("error")
    expect(lines.first).to_contain_text("error")
    expect(page.locator("#pipe-log .log-line.off")).to_have_count(0)
    expect(lines.locator("pre").last).to_contain_text("ValueError: <b>bold</b>")
    expect(lines.filter(has_text="remedy: skip the event").last).to_contain_text("at binlog.000042:1337")
    page.get_by_label("Log: level").select_option("")
    page.get_by_label("Search the log").fill("DOES NOT answer")
    expect(page.locator("#pipe-log .log-line.off")).to_have_count(0)
    expect(lines.first).to_contain_text("<b>waiting</b>: the server does not answer")
    expect(page.locator("#pipe-log b")).to_have_count(0)
    page.locator("#pipe-log").scroll_into_view_if_needed()
    keep(page, "made-up-log-search")
    page.get_by_label("Search the log").fill("nothing has this")
    expect(page.locator("#pipe-log .nothing")).to_be_visible()
    expect(page.locator("#pipe-log .nothing")).to_have_text("No such line.")
    page.get_by_label("Search the log").fill("")
    expect(page.locator("#pipe-log .says")).to_have_text(re.compile(r"^\d+ lines$"))
    # A user who scrolls up reads: the view stops to follow.
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    scroll.evaluate("box => { box.scrollTop = 0 }")
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "false")


def test_the_api(served: Server, control: FakeControl) -> None:
    remote = HttpControl(ControlEndpoint(served.url, TOKEN))
    page = remote.log("shop", LogQuery("warning", "answer", limit=2))
    assert [line.level for line in page.lines] == ["warning", "warning"]
    older = LogQuery("warning", "answer", page.before, 2)
    assert remote.log("shop", older).lines == control.log("shop", older).lines
    newest = remote.log("shop", LogQuery()).newest
    assert remote.log("shop", LogQuery("error", after=newest)).lines == ()
    assert get(served, "/api/log?pipe=shop", "POST")[0] == 405


@pytest.mark.parametrize(
    ("query", "status", "place"),
    [
        ("", 400, "pipe"),
        ("pipe=nowhere", 404, "nowhere"),
        ("pipe=shop&level=loud", 400, "level"),
        ("pipe=shop&limit=501", 400, "limit"),
        ("pipe=shop&before=-1", 400, "before"),
        ("pipe=shop&before=99999999999999999999", 400, "before"),
        (f"pipe=shop&search={'x' * 501}", 400, "search"),
        ("pipe=shop&after=x", 400, "after"),
        ("pipe=shop&from=1", 400, "from"),
    ],
)
def test_a_wrong_parameter_is_named(served: Server, query: str, status: int, place: str) -> None:
    found = get(served, f"/api/log?{query}")
    assert (found[0], found[1]["error"]["place"]) == (status, place)
