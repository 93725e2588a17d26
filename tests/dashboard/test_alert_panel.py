"""The dashboard shows the rules, what is open and the last deliveries; `GET /api/alerts` has the same."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headrace.alerts.status import AlertsStatus
from headrace.config.document import parse_document
from headrace.config.load import resolve
from headrace.dashboard.server import Server, serve
from headrace.errors import DefiniteError
from headrace.service.status import ServiceStatus
from testkit.generators.fake_control import HOSTILE, TOKEN, FakeControl
from testkit.pipelines.scripted_pipes import Scenario, configuration, supervised
from testkit.servers.alert_receivers import webhook
from testkit.servers.browser import Pages, keep

Open = Callable[..., Page]
PIPES = '[sources.a]\nurl = "mysql://u@h/d"\n[sinks.b]\nurl = "chdb:x"\n[pipes.shop]\nsource = "a"\nsink = "b"\n'


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


def test_a_reload_shows_and_hides_the_panel(pages: Pages, tmp_path: Path) -> None:
    """A process with one pipe, which has failed; the receiver is real."""
    asked = configuration(tmp_path, ("shop", ("shop",)))
    says = [asked]
    scenarios = {"shop": Scenario(DefiniteError("wrong password"))}
    with webhook() as hook, supervised(asked, scenarios, lambda: says[-1]) as supervisor, serve(supervisor, "127.0.0.1:0", TOKEN) as server:
        page = pages.open(server.url)
        expect(page.locator("#pipe-title")).to_have_text("shop")
        expect(page.locator("#alert-panel")).to_be_hidden()
        text = f'{PIPES}[alerts.chat]\nurl = "http://127.0.0.1:{hook.port}/path-secret"\nevents = ["failed"]\nlag_seconds = {{lag}}\n'
        for lag, shown in ((60, "1 min"), (120, "2 min")):
            rules = resolve(parse_document(text.format(lag=lag), "headrace.toml", tmp_path, {})).alerts
            says.append(replace(asked, alerts=rules))
            assert supervisor.reload().applied == ("[alerts.chat]",)
            expect(page.locator("#alert-rules li")).to_contain_text(f"lag above {shown} for", timeout=15_000)
        expect(page.locator("#alert-panel")).to_be_visible()
        expect(page.locator("#alert-open li")).to_contain_text("wrong password", timeout=15_000)
        expect(page.locator("#alert-deliveries li")).to_contain_text("sent: HTTP 200", timeout=15_000)
        assert hook.kinds() == ["failed"]
        says.append(asked)
        assert supervisor.reload().applied == ("[alerts.chat]",)
        expect(page.locator("#alert-panel")).to_be_hidden(timeout=15_000)
        pages.leave()


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
