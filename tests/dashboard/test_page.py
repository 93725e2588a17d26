"""The dashboard in a real Chromium, over generated pipes: every panel, live, by mouse and by keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from headrace.dashboard.server import Server, serve
from headrace.service.status import PipeStage
from testkit.generators.fake_control import HOSTILE, POISON, TOKEN, FakeControl
from testkit.servers.browser import Pages, keep, settle

Open = Callable[..., Page]

FOCUSED = "() => [document.activeElement].map((on) => [on.id || on.textContent.trim(), getComputedStyle(on).outlineStyle, on.tagName])[0]"
BOX = "() => [document.activeElement].map((box) => [box.id, box.selectionStart, box.selectionEnd, scrollY])[0]"


def _line(page: Page, name: str) -> str:
    return page.locator("#list li", has=page.locator(f".pipe-name:text-is('{name}')")).inner_text()


def test_all_pipes_with_their_stages_figures_and_troubles(look: Open, control: FakeControl) -> None:
    page = look()
    reported = control.status()
    expect(page.locator("#list li")).to_have_count(len(reported.pipes))
    for pipe in reported.pipes:
        assert pipe.stage in _line(page, pipe.name)
    assert "the value '0000-00-00' of column placed is no date" in _line(page, "events")
    assert "connection refused" in _line(page, "billing")
    assert "do not answer" in _line(page, "metrics")
    expect(page).to_have_title("1 failed · Headrace")
    expect(page.locator("#total-dead")).to_have_text("2")
    # The chart shows five minutes of history right after the page was opened.
    expect(page.locator("#list li").first.locator(".spark .line")).to_have_attribute("d", re.compile(r"^M.{400,}"))
    lag = page.get_by_role("link", name=re.compile("shop")).first.get_by_role(
        "img", name=re.compile(r"^lag at most 0\.[56] s in the last 5 minutes$")
    )
    expect(lag.locator(".line")).to_have_attribute("d", re.compile(r"^M.{400,}"))
    unknown = page.get_by_role("link", name=re.compile("profiles")).get_by_role("img", name="no lag known of the last 5 minutes")
    expect(unknown.locator(".line")).to_have_attribute("d", "")
    page.get_by_role("button", name="1 failed").click()
    expect(page.locator("#list li")).to_have_count(1)
    expect(page.locator("#pipe-count")).to_have_text("1 of 11 pipes")
    page.get_by_role("button", name="1 failed").click()
    page.get_by_label("Filter pipes").fill("orders west")
    expect(page.locator("#list .pipe-name")).to_have_text(["orders/west"])
    page.get_by_label("Filter pipes").press("Escape")
    expect(page.locator("#list li")).to_have_count(len(reported.pipes))
    keep(page, "made-up-overview-dark")
    page.get_by_role("link", name="orders/east").click()
    expect(page.locator("#pipe-title")).to_have_text("orders/east")
    expect(page.locator("#pipe-source")).to_have_text("mysql://repl@east:3306/orders")


def test_one_pipe_with_charts_tables_and_schema_changes(look: Open, control: FakeControl) -> None:
    page = look("#/pipes/shop", scheme="light")
    expect(page.locator("#pipe-badge")).to_have_text("streaming")
    expect(page.locator("#pipe-sink")).to_have_text("clickhouse://default@ch1:8123/shop")
    expect(page.locator("#pipe-position")).to_have_text(re.compile(r"^binlog\.000042:\d+$"))
    expect(page.locator("#fig-dead")).to_have_text("2")
    expect(page.locator("#fig-retries")).to_have_text("4")
    rate, lag = page.locator(".chart.rate"), page.locator(".chart.lag")
    expect(rate.locator(".line")).to_have_attribute("d", re.compile(r"^M.{1000,}"))
    assert {"0", "1,000", "2,000", "3,000"} <= set(rate.locator(".grid text").all_text_contents())
    assert sum(bool(re.fullmatch(r"\d\d:\d\d", text)) for text in rate.locator(".grid text").all_text_contents()) in (4, 5)
    expect(lag.locator(".chart-now b")).to_have_text(re.compile(r"^0\.\d s$"))
    rate.locator("svg.chart-picture").hover(position={"x": 300, "y": 60})
    expect(rate.locator(".tip")).to_have_text(re.compile(r"^[\d,.]+ /s at \d\d:\d\d:\d\d$"))
    expect(lag.locator(".tip")).to_have_text(re.compile(r"^0\.\d s at \d\d:\d\d:\d\d$"))
    lag.get_by_role("button", name="size").click()
    expect(lag.locator(".grid text", has_text="KiB").first).to_be_visible()
    page.get_by_role("button", name="1 h").click()
    assert len([text for text in rate.locator(".grid text").all_text_contents() if ":" in text]) in (5, 6)
    rate.locator("svg.chart-picture").press("Home")
    expect(rate.locator(".tip")).to_be_visible()
    rate.locator("svg.chart-picture").press("Escape")
    expect(rate.locator(".tip")).to_be_hidden()
    assert "ALTER TABLE orders ADD COLUMN note TEXT" in page.locator("#schema-changes").inner_text()
    assert "applied: ADD COLUMN `note` Nullable(String)" in page.locator("#schema-changes").inner_text()
    names = page.locator("#tables-body .table-name")
    assert names.all_text_contents() == ["shop.orders", "shop.customers", "shop.audit", HOSTILE]
    page.get_by_role("button", name="rows").click()
    assert names.all_text_contents()[0] == "shop.audit"
    expect(page.get_by_role("columnheader", name="rows")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("button", name="rows").click()
    assert names.all_text_contents()[-1] == "shop.audit"
    page.get_by_label("Filter tables").fill("different")
    expect(names).to_have_text(["shop.audit"])
    expect(page.locator("#tables-body .verdict")).to_have_text("3 differ")
    expect(page.locator("#tables-count")).to_have_text("1 of 4 tables")
    keep(page, "made-up-pipe-light", whole=True)
    control.set("shop", schema_changes=(), tables=())
    expect(page.locator("#no-schema-changes")).to_be_visible()
    expect(page.locator("#tables-body tr")).to_have_count(0)


def test_snapshots_waits_retries_and_halts_are_reported(look: Open) -> None:
    page = look("#/pipes/crm")
    progress = re.compile(r"^\d+ %: [\d,]+ of about 1,290,000 rows, 0 of 2 tables done, about \d+")
    expect(page.locator("#snapshot-says")).to_have_text(progress)
    expect(page.locator("#snapshot-list li").first).to_have_text(re.compile(r"^crm\.contacts\d+ %[\d,]+ of ≈1,200,000$"))
    expect(page.locator("#snapshot-says")).to_have_text(re.compile(r"rows/s$"))
    before = float(page.locator("#snapshot-bar").evaluate("bar => bar.value"))
    page.wait_for_function("before => document.getElementById('snapshot-bar').value > before", arg=before)
    keep(page, "made-up-snapshot-dark")
    page.evaluate("location.hash = '#/pipes/billing'")
    expect(page.locator("#halt-title")).to_have_text(re.compile(r"^Tried again in \d+ s$"))
    expect(page.locator("#errors .message").first).to_have_text("cannot connect to the sink: connection refused")
    expect(page.locator("#do-toggle")).to_have_text("Try now")
    page.evaluate("location.hash = '#/pipes/metrics'")
    expect(page.locator("#halt-message")).to_have_text("the brokers of kafka://k1:9092 do not answer")
    expect(page.locator(".chart.lag .chart-now")).to_contain_text("records behind")
    page.evaluate("location.hash = '#/pipes/events'")
    expect(page.locator("#halt-place")).to_have_text(f"at {POISON}")
    expect(page.locator("#halt-remedy")).to_contain_text("zero_dates = 'null'")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#halt").get_by_role("button", name="Copy").click()
    copied = str(page.evaluate("navigator.clipboard.readText()"))
    assert copied.startswith("events: the value '0000-00-00' of column placed is no date\nat: binlog.000042:1337\nremedy: ")
    page.evaluate("location.hash = '#/pipes/nowhere'")
    expect(page.locator("#lost-text")).to_have_text("There is no pipe called nowhere in this process.")


def test_changing_requests_need_the_token(look: Open, control: FakeControl, pages: Pages) -> None:
    pages.expected.append("401")
    page = look("#/pipes/shop")
    expect(page.locator("#unlock")).to_have_text("Read-only")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#token-dialog")).to_be_visible()
    page.locator("#token-field").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-reason")).to_contain_text("refused")
    page.locator("#token-field").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#pipe-badge")).to_have_text("paused")
    assert control.asked == [("pause", "shop")]
    expect(page.locator("#unlock")).to_have_text("Unlocked")
    # Stored for this tab only; it survives a reload.
    page.reload()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#pipe-badge")).to_have_text("streaming")
    kept = page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie, location.href]")
    assert kept[0] == {"headrace.token": TOKEN}
    assert TOKEN not in str(kept[1:])
    page.locator("#unlock").click()
    page.get_by_role("button", name="Verify", exact=True).click()
    page.get_by_role("button", name="Not now").click()
    settle(page, 0.5)
    assert [asked[0] for asked in control.asked] == ["pause", "resume"]


def test_the_link_brings_the_token_and_the_address_forgets_it(look: Open) -> None:
    page = look(token=True)
    expect(page.locator("#unlock")).to_have_text("Unlocked")
    assert "token" not in page.url
    page.go_back()
    assert "token" not in page.url


def test_actions_of_the_page(look: Open, control: FakeControl, pages: Pages) -> None:
    pages.expected.append("409")
    page = look("#/pipes/shop", token=True)
    page.get_by_label("Choose shop.audit").check()
    page.get_by_role("button", name="Verify 1").click()
    verdict = page.locator("#tables-body tr", has_text="shop.audit").locator(".verdict")
    expect(verdict).to_have_text("comparing")
    expect(verdict).to_have_text("3 differ")
    assert control.asked[-1] == ("verify", "shop", ("shop.audit",))
    page.get_by_role("button", name="Resync 1…").click()
    expect(page.locator("#confirm-items")).to_have_text("shop.audit")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Resync 1…").click()
    page.locator("#confirm-go").click()
    expect(page.locator("#snapshot")).to_be_visible()
    assert control.asked[1:] == [("resync", "shop", ("shop.audit",))]
    page.evaluate("location.hash = '#/pipes/events'")
    page.get_by_role("button", name="Try now").click()
    expect(page.locator(".toast.bad")).to_contain_text("zero_dates")
    keep(page, "made-up-halt-dark")
    page.get_by_role("button", name="Skip this event…").click()
    expect(page.locator("#confirm-detail")).to_contain_text(POISON)
    page.get_by_role("button", name="Skip this event", exact=True).click()
    expect(page.locator("#fig-skipped")).to_have_text("1")
    expect(page.locator("#halt")).to_be_hidden()
    assert control.asked[-1] == ("skip", "events", POISON)
    page.get_by_role("button", name="Stop…").click()
    page.locator("#confirm-go").click()
    expect(page.locator("#pipe-badge")).to_have_text("stopped")
    page.evaluate("location.hash = '#/pipes/orders%2Fwest'")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#pipe-badge")).to_have_text("paused")
    assert control.asked[-1] == ("pause", "orders/west")


def test_queries(look: Open, control: FakeControl, pages: Pages) -> None:
    pages.expected.append("400")
    page = look("#/pipes/shop", token=True)
    page.get_by_label("SQL, read-only").fill("SELECT * FROM shop.orders")
    page.keyboard.press("Control+Enter")
    cells = page.locator("#query-result td")
    expect(cells).to_have_text(["1", "tea", str(2**63), "2", "<script>alert(1)</script>", "-1", "3", "NULL", "0"])
    expect(page.locator("#query-says")).to_have_text(re.compile("^3 rows in "))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as TSV").click()
    assert str(page.evaluate("navigator.clipboard.readText()")).splitlines()[1] == f"1\ttea\t{2**63}"
    page.get_by_label("SQL, read-only").fill("DROP TABLE shop.orders")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#query-result")).to_contain_text("only queries that read are allowed here")
    expect(page.locator("#query-result")).to_contain_text("clickhouse-client")
    # Each pipe has its own query box; its content comes back.
    page.evaluate("location.hash = '#/pipes/archive'")
    expect(page.get_by_label("SQL, read-only")).to_have_value("SELECT count() FROM `orders`.`lines` FINAL")
    page.evaluate("location.hash = '#/pipes/shop'")
    expect(page.get_by_label("SQL, read-only")).to_have_value("DROP TABLE shop.orders")
    page.locator("#tables-body tr", has_text="shop.odd").hover()
    page.get_by_label("Query shop.odd").click()
    expect(page.get_by_label("SQL, read-only")).to_have_value("SELECT * FROM `shop`.`odd` FINAL LIMIT 20")
    expect(cells).to_have_count(9)
    assert control.asked[-1] == ("query", "shop", "SELECT * FROM `shop`.`odd` FINAL LIMIT 20")
    page.locator("#tile-dead").click()
    expect(page.get_by_label("SQL, read-only")).to_have_value(
        re.compile("FROM headrace.errors FINAL WHERE pipe = 'shop' AND state = 'waiting'")
    )


def test_by_keys_alone(look: Open, control: FakeControl) -> None:
    page = look(token=True)
    # The failed pipe comes first.
    for _ in range(4):
        page.keyboard.press("j")
    expect(page.locator("#list a:focus .pipe-name")).to_have_text("orders/east")
    page.keyboard.press("p")
    page.wait_for_function("() => document.querySelector('#list a:focus').textContent.includes('paused')")
    page.keyboard.press("Enter")
    expect(page.locator("#pipe-title")).to_have_text("orders/east")
    page.keyboard.press("k")
    expect(page.locator("#pipe-title")).to_have_text("crm")
    page.keyboard.press("/")
    page.keyboard.type("jpq")
    expect(page.get_by_label("Filter tables")).to_have_value("jpq")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("q")
    expect(page.get_by_label("SQL, read-only")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("v")
    expect(page.locator("#tables-body .verdict").first).to_have_text("comparing")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("u")
    expect(page.locator("#totals")).to_be_visible()
    assert [asked[0] for asked in control.asked] == ["pause", "verify"]
    # Tab reaches every clickable element in reading order, and the focus is visible.
    page.evaluate("location.hash = '#/pipes/shop'")
    expect(page.locator("#pipe-title")).to_have_text("shop")
    page.evaluate("document.getElementById('main').focus()")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen = page.evaluate(FOCUSED)
        if seen[2] == "BODY":
            break
        assert seen[1] != "none", seen
        reached.append(seen[0])
    order = ["do-toggle", "do-verify", "do-resync", "do-stop", "5 min", "time", "table-filter", "tables-all", "sql", "query-run"]
    assert [name for name in reached if name in order] == order


def test_updates_leave_focus_selection_and_scroll_alone(look: Open, control: FakeControl) -> None:
    page = look("#/pipes/shop", height=600)
    page.get_by_label("SQL, read-only").fill("SELECT 1")
    row = page.locator("#tables-body tr").first
    row.evaluate("row => { row.dataset.mine = 'yes'; }")
    page.get_by_label("SQL, read-only").evaluate("box => { box.focus(); box.setSelectionRange(2, 5); window.scrollTo(0, 300); }")
    before = row.inner_text()
    page.wait_for_function("before => document.querySelector('#tables-body tr').innerText !== before", arg=before)
    settle(page, 2.5)
    state = page.evaluate(BOX)
    assert state == ["sql", 2, 5, 300]
    assert row.get_attribute("data-mine") == "yes"
    page.locator("#pipe-sink").click(click_count=3)
    selected = page.evaluate("() => getSelection().toString()")
    assert "clickhouse://default@ch1:8123/shop" in selected
    settle(page, 1.5)
    assert page.evaluate("() => getSelection().toString()") == selected
    # A change of stage is announced to screen readers.
    control.set("shop", stage=PipeStage.WAITING, waiting="the server is away", since=time.time())
    expect(page.locator("#announcements")).to_have_text("shop was streaming, is waiting for a peer")


@pytest.mark.parametrize("by", ["itself", "button"])
def test_a_lost_connection_is_reported_and_recovers(pages: Pages, control: FakeControl, by: str) -> None:
    pages.expected += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"]
    with serve(control, "127.0.0.1:0", TOKEN) as first:
        listen = str(first.address)
        page = pages.open(f"{first.url}/#/pipes/shop")
        expect(page.locator("#line-says")).to_have_text("Live")
        _await_streamed_status(page)
        if by == "button":
            # Without timers the page does not reconnect by itself: only the button does.
            page.evaluate("() => { window.savedTimeout = window.setTimeout; window.setTimeout = () => 0; }")
    expect(page.locator("#line-says")).to_have_text("Connection lost")
    expect(page.locator("#offline")).to_contain_text("The process has ended. It is tried again. What you see is from")
    keep(page, "made-up-lost-dark")
    assert _served_again(control, listen, page, by) > 0


def _served_again(control: FakeControl, listen: str, page: Page, by: str) -> int:
    with serve(control, listen, TOKEN) as again:
        assert isinstance(again, Server)
        if by == "button":
            page.evaluate("() => { window.setTimeout = window.savedTimeout; }")
            page.get_by_role("button", name="Try now").click()
        expect(page.locator("#line-says")).to_have_text("Live")
        expect(page.locator("#offline")).to_be_hidden()
        streamed = _await_streamed_status(page)
        page.close()
    return streamed


def _await_streamed_status(page: Page) -> int:
    """Wait until the page shows another status than its first, which is a plain answer; return the length of what it showed."""
    text = page.locator("#pipe-position").inner_text()
    page.wait_for_function("text => document.getElementById('pipe-position').innerText !== text", arg=text)
    return len(text)
