"""The query box: tables and columns of the sink, the history of queries, charts of results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.browser import Pages, keep

Open = Callable[..., Page]
RESULTS: dict[str, tuple[list[str], list[list[Any]]]] = {
    "SELECT days": (["day", "orders", "total"], [[f"2026-01-{day:02}", str(100 * day), 0.5 * day] for day in range(1, 29)]),
    "SELECT words": (["status", "count"], [["<b>paid</b>", 12], [None, -3], ["open", 7]]),
    "SELECT numbers": (["n", "square"], [[n, n * n] for n in range(20)]),
    "SELECT text": (["id", "name"], [[1, "tea"], [2, "milk"]]),
}


class SinkOfResults(FakeControl):
    def query(self, name: str, sql: str) -> tuple[list[str], list[list[Any]]]:
        return RESULTS[sql] if sql in RESULTS else super().query(name, sql)


@pytest.fixture
def control() -> FakeControl:
    return SinkOfResults()


def run(page: Page, sql: str) -> None:
    page.get_by_label("SQL, read-only").fill(sql)
    page.get_by_label("SQL, read-only").press("Control+Enter")
    expect(page.locator("#query-run")).to_be_enabled()


def test_tables_and_columns_are_put_into_the_query(look: Open, control: FakeControl) -> None:
    page = look("#/pipes/shop", token=True)
    page.get_by_role("button", name="Tables", exact=True).click()
    schema = page.locator("#query-schema")
    expect(schema.locator(".schema-database > summary")).to_have_text(["shop 2", "archive 1"])
    expect(schema.locator("b")).to_have_count(0)
    schema.get_by_text("<b>odd</b>`").click()
    names = schema.locator(".schema-name")
    expect(names).to_have_text([re.compile("the whole name"), "idUInt64", "a`b\\String"])
    keep(page, "made-up-schema-browser")
    # Names go to the database as digits, so that no name can end the query.
    assert control.asked[-1][2].count(f"unhex('{b'<b>odd</b>`'.hex()}')") == 1
    page.get_by_label("SQL, read-only").fill("SELECT  FROM ")
    names.first.click()
    expect(page.get_by_label("SQL, read-only")).to_have_value("SELECT  FROM `shop`.`<b>odd</b>\\``")
    page.get_by_label("SQL, read-only").evaluate("box => box.setSelectionRange(7, 7)")
    names.nth(2).click()
    expect(page.get_by_label("SQL, read-only")).to_have_value("SELECT `a\\`b\\\\` FROM `shop`.`<b>odd</b>\\``")
    page.get_by_label("Find a table of the sink").fill("year")
    expect(schema.locator(".schema-table")).to_have_count(1)
    page.get_by_role("button", name="Tables", exact=True).click()
    expect(schema).to_be_hidden()


def test_the_history_has_queries_and_nothing_else(look: Open) -> None:
    page = look("#/pipes/shop", token=True)
    for at in range(3):
        run(page, f"SELECT {at}")
    run(page, "SELECT 1")
    run(page, f"SELECT '{TOKEN}'")
    page.get_by_role("button", name="History").click()
    past = page.locator("#query-history .query-past code")
    expect(past).to_have_text(["SELECT 1", "SELECT 2", "SELECT 0"])
    page.reload()
    page.get_by_role("button", name="History").click()
    expect(past).to_have_count(3)
    past.last.click()
    expect(page.get_by_label("SQL, read-only")).to_have_value("SELECT 0")
    stored = str(page.evaluate("JSON.stringify({...localStorage})"))
    assert TOKEN not in stored
    assert "tea" not in stored
    page.evaluate("localStorage.setItem('headrace.queries', JSON.stringify([1, null, {sql: 5}, {sql: 'SELECT 9', pipe: 'shop', at: 1}]))")
    for at in range(60):
        page.evaluate("at => document.getElementById('sql').value = `SELECT ${at}`", at)
        page.get_by_label("SQL, read-only").press("Control+Enter")
        expect(page.locator("#query-run")).to_be_enabled()
    assert len(json.loads(page.evaluate("localStorage.getItem('headrace.queries')"))) == 50
    page.get_by_role("button", name="Clear the history").click()
    expect(page.locator("#query-history .nothing")).to_be_visible()
    assert page.evaluate("localStorage.getItem('headrace.queries')") is None


def test_charts_of_results(look: Open, pages: Pages) -> None:
    pages.expected.append("400")
    page = look("#/pipes/shop", token=True)
    chart = page.locator(".result-chart")
    run(page, "SELECT days")
    expect(chart).to_be_hidden()
    page.get_by_role("button", name="Chart").click()
    expect(chart.locator(".line-shape")).to_have_count(2)
    expect(chart.locator(".result-legend li")).to_have_text(["orders", "total"])
    expect(chart.locator("svg")).to_have_attribute("aria-label", "Chart of orders, total by day: 28 points")
    expect(chart.locator("text", has_text="2026-01-01")).to_be_visible()
    expect(chart.locator("text", has_text="3,000")).to_be_visible()
    keep(page, "made-up-result-chart")
    run(page, "SELECT words")
    expect(chart.locator(".bar-shape")).to_have_count(3)
    expect(chart.locator("text", has_text="<b>paid</b>")).to_be_visible()
    expect(chart.locator("title")).to_have_text(["<b>paid</b>: 12", "NULL: -3", "open: 7"])
    run(page, "SELECT numbers")
    expect(chart.locator(".line-shape")).to_have_attribute("d", re.compile(r"^M(.+L){19}"))
    # A result without numeric columns is a table; so is an error.
    run(page, "SELECT text")
    expect(chart).to_be_hidden()
    expect(page.get_by_role("button", name="Chart")).to_be_hidden()
    expect(page.locator("#query-result td").first).to_be_visible()
    run(page, "DROP TABLE x")
    expect(page.locator("#query-result")).to_contain_text("only queries that read")
    run(page, "SELECT days")
    expect(chart).to_be_visible()
    page.get_by_role("button", name="Chart").click()
    expect(page.locator("#query-result td").first).to_have_text("2026-01-01")


def test_snapshot_rates_and_charts_of_tables(look: Open) -> None:
    page = look("#/pipes/crm")
    rows = page.locator("#tables-body tr", has_text="crm.contacts")
    expect(rows.locator("[data-label='rows']")).to_have_text(re.compile(r"^[\d.,]+ ?[kM]? of ≈1\.20 M, 13\.3 k/s$"))
    expect(rows.locator(".table-chart .line")).to_have_attribute("d", re.compile(r"^M.{1000,}"))
    page.evaluate("location.hash = '#/pipes/shop'")
    expect(page.locator("#tables-body tr", has_text="shop.orders").locator(".rate .num")).to_have_text(re.compile(r"^\d+$"))
    page.get_by_role("button", name="changes/s", exact=True).click()
    expect(page.get_by_role("columnheader", name="changes/s")).to_have_attribute("aria-sort", "descending")
