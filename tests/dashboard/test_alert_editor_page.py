"""The form for alert rules, in Chromium: a rule is added, tried, changed and deleted, with the mouse and by keyboard."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headrace.alerts.status import AlertsStatus
from headrace.dashboard.server import serve
from headrace.editor import Editor
from headrace.editor.secret_files import FOLDER
from headrace.service.status import ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.oracles.axe import serious_findings
from testkit.servers.alert_receivers import Webhook, webhook
from testkit.servers.browser import Pages, keep, overflow, settle

PIPES = """\
[sources.shop]
url = "mysql://repl@127.0.0.1:1/shop"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""
RULE = """
# The team's chat.
[alerts.chat]
url = "https://hooks.example.com/geheim-path"
format = "slack"
token = "geheim-token"
"""
RELOADED = ReloadResult(applied=("[alerts.chat]",))
WIDE, NARROW = 1440, 390
CONTROLS = ["Receiver", "Address", "Token", "low disk", "Pipes", "Free space below", "Close"]
OpenPage = Callable[..., Page]


class QuietControl(FakeControl):
    """A process without alert rules."""

    def alerts(self) -> AlertsStatus:
        return AlertsStatus()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as receiver:
        yield receiver


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "headrace.toml"
    made.write_text(PIPES + RULE)
    return made


@pytest.fixture
def open_page(pages: Pages, file: Path, control: FakeControl) -> Iterator[OpenPage]:
    editor = Editor(file, file.parent / "state", (), lambda: True, lambda: RELOADED)
    with serve(control, "127.0.0.1:0", TOKEN, editor=editor) as server:

        def opened(**how: object) -> Page:
            page = pages.open(f"{server.url}/#token={TOKEN}", **how)  # type: ignore[arg-type]
            page.wait_for_selector("#line[data-line=live]")
            expect(page.locator("#alert-panel")).to_be_visible()
            return page

        yield opened
        pages.leave()


def test_a_rule_is_added_tried_and_saved(open_page: OpenPage, file: Path, hook: Webhook) -> None:
    page = open_page(width=WIDE, height=900, scheme="light")
    before = file.read_text()
    page.get_by_role("button", name="Edit rules").click()
    form = page.get_by_role("group", name="Edit alert rules")
    expect(form.get_by_label("Rule", exact=True)).to_have_value("chat")
    expect(form.get_by_label("Address")).to_have_value("https://hooks.example.com/***")
    form.get_by_label("Rule", exact=True).select_option("")
    form.get_by_label("Name of the rule").fill("pager")
    form.get_by_label("Address").fill(f"http://127.0.0.1:{hook.port}/path-secret")
    form.get_by_label("Token").fill("entered-token")
    form.get_by_label("schema change").uncheck()
    form.get_by_label("Pipes").fill("shop, s*")
    form.get_by_label("Lag above (seconds)").fill("30")
    form.get_by_label("Free space below").fill("10G")
    expect(form.get_by_label("Recipients")).to_be_hidden()
    form.get_by_role("button", name="Send a test alert").click()
    expect(form.get_by_text(f"Sent to http://127.0.0.1:{hook.port}: HTTP 200")).to_be_visible()
    [posted] = hook.posted
    assert (posted.path, posted.headers["authorization"], posted.body["kind"]) == ("/path-secret", "Bearer entered-token", "test")
    expect(form.get_by_role("button", name="Save and reload")).to_be_disabled()
    form.get_by_role("button", name="Show the change").click()
    expect(form.get_by_label("Change of the file")).to_contain_text("+[alerts.pager]")
    assert file.read_text() == before
    keep(page, "alert-editor-1-change", whole=True)
    assert serious_findings(page) == []
    form.get_by_role("button", name="Save and reload").click()
    expect(page.locator(".toast")).to_contain_text(f"pager: saved; {RELOADED.lines()[0]}")
    assert file.read_text().startswith(before)
    saved = tomllib.loads(file.read_text())["alerts"]["pager"]
    assert {key: value for key, value in saved.items() if key not in ("url", "token")} == {
        "events": ["failed", "recovered", "lag", "differences", "low_disk"],
        "pipes": ["shop", "s*"],
        "lag_seconds": 30,
        "low_disk": "10G",
    }
    assert len(list((file.parent / FOLDER).iterdir())) == 2
    expect(form.get_by_label("Rule", exact=True)).to_have_value("pager")
    expect(form.get_by_label("Address")).to_have_value(f"http://127.0.0.1:{hook.port}/***")
    expect(form.get_by_label("Token")).to_have_value("")
    assert not [secret for secret in ("geheim", "entered-token", "path-secret") if secret in page.content()]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_rule_is_edited_and_deleted_by_keyboard_on_a_narrow_page(open_page: OpenPage, file: Path, scheme: str) -> None:
    page = open_page(width=NARROW, height=844, scheme=scheme, reduced_motion="reduce")
    page.get_by_role("button", name="Edit rules").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Rules of the file")).to_be_focused()
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(str(page.evaluate("document.activeElement.labels?.[0]?.textContent || document.activeElement.textContent")))
        if reached[-1] == "Delete the rule …":
            break
    assert [one for one in reached if one in CONTROLS] == CONTROLS
    page.get_by_label("lag", exact=True).focus()
    page.keyboard.press("Space")
    plan = page.get_by_role("button", name="Show the change")
    plan.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Change of the file")).to_contain_text(
        '+events = ["failed", "recovered", "schema_change", "differences", "low_disk"]'
    )
    expect(plan).to_be_focused()
    settle(page, 0.3)
    assert serious_findings(page) == []
    assert overflow(page) <= 0
    page.get_by_label("Receiver").select_option("e-mail")
    expect(page.get_by_label("Recipients")).to_be_visible()
    expect(page.get_by_label("Password")).to_be_visible()
    expect(page.get_by_role("button", name="Save and reload")).to_be_disabled()
    assert serious_findings(page) == []
    assert overflow(page) <= 0
    keep(page, f"alert-editor-2-narrow-{scheme}", whole=True)
    page.get_by_role("button", name="Delete the rule …").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("chat: deleted")
    assert file.read_text().rstrip() == PIPES.rstrip()
    expect(page.get_by_label("Name of the rule")).to_be_visible()
    form = page.get_by_role("group", name="Edit alert rules")
    form.get_by_role("button", name="Close").focus()
    page.keyboard.press("Enter")
    expect(form).to_be_hidden()
    expect(page.get_by_role("button", name="Edit rules")).to_be_focused()


def test_wrong_input_has_its_remedy(open_page: OpenPage, pages: Pages, file: Path) -> None:
    pages.expected += ["409"]
    before = file.read_text()
    page = open_page()
    page.get_by_role("button", name="Edit rules").click()
    page.get_by_label("Address").fill("https://evil.example.com/***")
    for name in ("Send a test alert", "Show the change"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("alert").filter(has_text="another receiver")).to_contain_text("enter the whole address again")
    expect(page.get_by_role("button", name="Save and reload")).to_be_disabled()
    assert file.read_text() == before


class TestWithoutRules:
    @pytest.fixture
    def control(self) -> FakeControl:
        return QuietControl()

    def test_the_first_rule_can_be_added(self, open_page: OpenPage, file: Path) -> None:
        file.write_text(PIPES)
        page = open_page()
        expect(page.locator("#no-alert-rules")).to_be_visible()
        page.get_by_role("button", name="Edit rules").click()
        expect(page.get_by_label("Name of the rule")).to_be_visible()
        expect(page.get_by_role("button", name="Delete the rule …")).to_be_hidden()
