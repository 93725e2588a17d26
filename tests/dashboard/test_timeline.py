"""Recent events of all pipes, and the timeline of one; `GET /api/events` has the same."""

from __future__ import annotations

import http.client
import json
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
