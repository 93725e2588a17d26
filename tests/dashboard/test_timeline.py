"""Recent events of all pipes, and the timeline of one; `GET /api/events` has the same."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from headrace.dashboard.server import Server
from headrace.service.running_process import ControlEndpoint, HttpControl
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.generators.fake_telemetry import MARKUP
from testkit.servers.browser import keep

Open = Callable[..., Page]


def get(served: Server, path: str, method: str = "GET") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", served.address.port, timeout=60)
    connection.request(method, path, "{}" if method == "POST" else None, {"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_recent_events_of_all_pipes_and_the_timeline_of_one(look: Open) -> None:
    page = look()
    recent = page.locator("#recent-events .event")
    expect(recent.first).to_contain_text("cannot connect to the sink: connection refused")
    expect(recent.nth(1)).to_contain_text("skip this one event")
    expect(page.locator("#recent-events b")).to_have_count(0)
    page.locator("#recent-events").scroll_into_view_if_needed()
    keep(page, "made-up-recent-events")
    recent.nth(4).get_by_role("link", name="shop").click()
    events = page.locator("#pipe-events .event")
    expect(events).to_have_count(7)
    expect(events.first).to_contain_text("ALTER TABLE")
    # A name with markup stays text, and cannot turn the text around it.
    expect(events.first.locator(".table-name")).to_have_text(MARKUP.replace("\u202e", "\\u202e"))
    expect(page.locator("#recent-events")).to_be_hidden()
    page.get_by_label("Events: kinds").select_option("verifications")
    expect(events).to_have_count(2)
    page.get_by_label("Events: kinds").select_option("runs")
    expect(events).to_have_count(1)
    page.get_by_label("Events: kinds").select_option("all")
    page.locator("#pipe-events").scroll_into_view_if_needed()
    keep(page, "made-up-timeline")
    page.evaluate("location.hash = '#/pipes/profiles'")
    expect(page.locator("#pipe-events .nothing")).to_have_text("Nothing has happened yet.")


def test_the_api(served: Server, control: FakeControl) -> None:
    status, found = get(served, "/api/events?pipe=shop&limit=2")
    assert status == 200
    assert [event["kind"] for event in found["events"]] == ["schema_change", "verified"]
    remote = HttpControl(ControlEndpoint(served.url, TOKEN))
    assert remote.events("shop", 2) == control.events("shop", 2)
    assert remote.events("", 100) == control.events("", 100)
    assert get(served, "/api/events", "POST")[0] == 405
    status, hour = get(served, "/api/history?pipe=shop&range=1h")
    assert (status, hour["step_s"], len(hour["samples"])) == (200, 10, 360)
    assert remote.metrics("shop", "30d").step_s == 900
    assert len(remote.metrics("shop", "1d").points) == 1440
    assert get(served, "/api/history?pipe=shop", "POST")[0] == 405


@pytest.mark.parametrize(("query", "place"), [("pipe=shop&range=1y", "range"), ("range=1h", "pipe"), ("pipe=shop&limit=1", "limit")])
def test_a_wrong_range_is_named(served: Server, query: str, place: str) -> None:
    found = get(served, f"/api/history?{query}")
    assert (found[0], found[1]["error"]["place"]) == (400, place)


def test_charts_over_a_day_and_thirty_days(look: Open) -> None:
    page = look("#/pipes/shop", scheme="light")
    rate = page.locator(".chart.rate")
    page.get_by_role("button", name="30 d").click()
    expect(rate.locator(".line")).to_have_attribute("d", re.compile(r"^M.{1000,}"))
    days = rate.locator(".grid text", has_text=re.compile(r"^\d\d-\d\d$"))
    expect(days.first).to_be_visible()
    # One at an edge has no room.
    assert days.count() in (5, 6)
    expect(page.locator(".chart.copied .line")).to_have_attribute("d", re.compile(r"^M.{1000,}"))
    rate.locator("svg.chart-picture").press("Home")
    expect(rate.locator(".tip")).to_have_text(re.compile(r"/s at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    keep(page, "made-up-thirty-days-light")
    page.get_by_role("button", name="1 d", exact=True).click()
    hours = rate.locator(".grid text", has_text=re.compile(r"^\d\d:00$"))
    expect(hours.first).to_be_visible()
    assert hours.count() in (5, 6)


def test_failed_pipes_come_first_and_snapshots_say_how_far_they_are(look: Open) -> None:
    page = look()
    expect(page.locator("#list .pipe-name").nth(0)).to_have_text("events")
    expect(page.locator("#list .pipe-name").nth(1)).to_have_text("shop")
    note = page.locator("#list li", has_text="crm").locator(".pipe-note")
    expect(note).to_have_text(re.compile(r"^\d+ % · 14\.3 k rows/s · \d+"))


@pytest.mark.parametrize(
    ("query", "status", "place"),
    [
        ("pipe=nowhere", 404, "nowhere"),
        ("pipe=shop&pipe=crm", 400, "pipe"),
        ("limit=0", 400, "limit"),
        ("limit=1001", 400, "limit"),
        ("limit=9999999999999999999999", 400, "limit"),
        ("limit=%C2%B2", 400, "limit"),
        ("offset=1", 400, "offset"),
        ("&".join(f"a{at}=1" for at in range(50)), 400, ""),
    ],
)
def test_a_wrong_parameter_is_named(served: Server, query: str, status: int, place: str) -> None:
    found = get(served, f"/api/events?{query}")
    assert (found[0], found[1]["error"]["place"]) == (status, place)
