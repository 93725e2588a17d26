"""The dashboard shows the rules, what is open and the last deliveries; `GET /api/alerts` has the same."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from headrace.alerts.status import AlertsStatus
from headrace.dashboard.server import Server
from headrace.service.status import ServiceStatus
from testkit.generators.fake_control import HOSTILE, TOKEN, FakeControl
from testkit.servers.browser import keep

Open = Callable[..., Page]


class QuietControl(FakeControl):
    """A process with one pipe."""

    known = AlertsStatus()

    def status(self) -> ServiceStatus:
        status = super().status()
        return replace(status, pipes=status.pipes[:1])

    def alerts(self) -> AlertsStatus:
        return self.known


def test_rules_open_alerts_and_deliveries(look: Open, control: FakeControl) -> None:
    page = look()
    panel = page.locator("#alert-panel")
    expect(panel).to_be_visible()
    expect(page.locator("#alert-says")).to_have_text("2 alerts not sent yet")
    rules = page.locator("#alert-rules li")
    expect(rules).to_have_count(2)
    expect(rules.nth(0)).to_contain_text("slack · https://hooks.slack.com:443")
    expect(rules.nth(0)).to_contain_text("failed, recovered, schema change of *")
    expect(rules.nth(0)).to_contain_text("lag above 1 min for 5 min · away for 5 min · less than 5.0 GiB free")
    expect(rules.nth(1)).to_contain_text("not sent: it answers 451")
    [opened] = control.alerts().open
    assert HOSTILE in opened.summary
    # A name with markup stays text.
    assert page.locator("#alert-open .message").evaluate("node => node.textContent") == opened.summary
    expect(page.locator("#alert-deliveries li")).to_have_count(2)
    expect(page.locator("#alert-deliveries li").nth(1)).to_contain_text("given up: it answers 404, 3 attempts")
    expect(page.locator("#alert-deliveries b")).to_have_count(0)
    assert panel.get_by_role("button").count() == 0, "it is to look at only"
    panel.scroll_into_view_if_needed()
    keep(page, "made-up-alerts")
    # Beside one of several pipes there is no room for it.
    page.get_by_role("link", name="orders/east").click()
    expect(panel).to_be_hidden()


class TestOnePipe:
    @pytest.fixture
    def control(self) -> FakeControl:
        return QuietControl()

    def test_the_panel_is_there_if_there_are_rules(self, look: Open, control: QuietControl) -> None:
        page = look()
        expect(page.locator("#pipe-title")).to_have_text("shop")
        expect(page.locator("#alert-panel")).to_be_hidden()
        control.known = FakeControl().alerts()
        expect(page.locator("#alert-rules li")).to_have_count(2, timeout=15_000)
        expect(page.locator("#alert-panel")).to_be_visible()
        control.known = replace(control.known, open=(), deliveries=())
        expect(page.locator("#no-alert-open")).to_be_visible(timeout=15_000)
        expect(page.locator("#no-alert-deliveries")).to_be_visible()


def test_the_api(served: Server, control: FakeControl) -> None:
    def ask(method: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", served.address.port, timeout=20)
        body = "{}" if method == "POST" else None
        connection.request(method, "/api/alerts", body, {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()

    status, text = ask("GET")
    assert status == 200
    assert AlertsStatus.from_json(json.loads(text)) == control.alerts()
    assert ask("POST")[0] == 405
