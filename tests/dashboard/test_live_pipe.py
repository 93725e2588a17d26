"""A live pipe on the dashboard: snapshot, stream, a schema change, an error, a pause and a resume.

MariaDB, ClickHouse's engine, Spark and Chromium are real, and `headrace run` is a process. The page is compared with both ends.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from playwright.sync_api import Browser, Page, expect

from headrace.demo.private_server import PrivateServer
from headrace.demo.shop import Workload, create_shop
from headrace.embedded.engine.directory_lock import read_serving_process
from headrace.service.running_process import CONTROL_FILE, ControlEndpoint, read_endpoint
from testkit.oracles.both_ends import sink_client
from testkit.pipelines.pipeline import Run
from testkit.servers.accounts import create_replica_account
from testkit.servers.browser import Pages, keep, settle
from testkit.servers.servers import build, execute

CUSTOMERS, ORDERS = 3_000, 12_000
SLOWLY_MS = 180_000
"""How long a pipe may take to reach another stage on a busy machine."""
FILE = """
[headrace]
state = "state"
listen = "127.0.0.1:0"

[sources.shop]
url = "{shop}"
chunk_rows = 1000

[sources.crm]
url = "{crm}"

[sinks.warehouse]
url = "chdb:./warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

[pipes.crm]
source = "crm"
sink = "warehouse"
"""


@pytest.fixture
def source(mariadb_server: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateServer]:
    """A private MariaDB with the shop, because the name of the shop's database is fixed."""
    del mariadb_server  # Used only to skip the test if MariaDB is not available.
    server = build("mariadb", tmp_path_factory.mktemp("live") / "server").start()
    try:
        with server.root_connection() as connection, connection.cursor() as cursor:
            create_shop(connection, CUSTOMERS, ORDERS)
            cursor.execute("CREATE DATABASE crm")
            cursor.execute("CREATE TABLE crm.contacts (id INT PRIMARY KEY, name VARCHAR(80) NOT NULL, age INT NOT NULL, born DATE)")
            cursor.execute("INSERT INTO crm.contacts VALUES (1, 'Ada', 36, '1815-12-10'), (2, 'Grace', 85, '1906-12-09')")
        yield server
    finally:
        server.remove()


@contextmanager
def trading(source: PrivateServer) -> Iterator[Workload]:
    """Change the shop's rows during the block."""
    closed = threading.Event()
    with source.root_connection() as connection:
        workload = Workload(connection, CUSTOMERS, ORDERS)
        thread = threading.Thread(target=workload.run, args=(lambda: not closed.is_set(), 100.0))
        thread.start()
        try:
            yield workload
        finally:
            closed.set()
            thread.join()


@contextmanager
def running(source: PrivateServer, home: Path) -> Iterator[tuple[Run, ControlEndpoint]]:
    account = create_replica_account(source)
    (home / "headrace.toml").write_text(FILE.format(shop=account.url("shop"), crm=account.url("crm")))
    run = Run(["run", str(home / "headrace.toml")], home / "run.log")
    try:
        run.until((home / "state" / CONTROL_FILE).exists)
        yield run, read_endpoint(home / "state")
    finally:
        run.kill()


def _count(source: PrivateServer, table: str) -> int:
    with source.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return int(cursor.fetchone()[0])


def _ask(page: Page, sql: str, cells: list[str]) -> None:
    """Query by the query box until the stream has delivered the expected result."""
    page.get_by_label("SQL, read-only").fill(sql)
    for _ in range(60):
        page.get_by_label("SQL, read-only").press("Control+Enter")
        expect(page.locator("#query-run")).to_be_enabled()
        if page.locator("#query-result td").all_text_contents() == cells:
            return
        settle(page, 1)
    expect(page.locator("#query-result td")).to_have_text(cells)


def _row(page: Page, table: str, label: str) -> str:
    return str(page.locator("#tables-body tr", has_text=table).locator(f"[data-label='{label}']").inner_text())


@pytest.mark.slow(
    because=(
        "test_one_pipe_with_charts_tables_and_schema_changes, test_actions_of_the_page, "
        "test_snapshots_waits_retries_and_halts_are_reported; test_control_commands_reach_a_running_process has a live process"
    ),
)
@pytest.mark.timeout(900)
def test_a_live_pipe_is_seen_from_its_snapshot_to_its_resume(browser: Browser, source: PrivateServer, tmp_path: Path) -> None:
    pages = Pages(browser)
    with running(source, tmp_path) as (run, contact):
        page = pages.open(f"{contact.url}/#token={contact.token}")
        expect(page.locator("#list li")).to_have_count(2)
        page.locator("#list").get_by_role("link", name="shop").click()
        _snapshot(page, source)
        with trading(source):
            _stream(page)
            _schema_change(page, source)
        _verify(page, source)
        with_sink = read_serving_process(tmp_path / "warehouse")
        assert with_sink is not None
        client = sink_client(f"http://127.0.0.1:{with_sink.port}")
        try:
            _error(page, source, client)
            _skip(page, source)
            _pause_and_resume(page, source, client)
        finally:
            client.close()
        pages.expected += ["ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY"]
        assert run.terminate().code == 143
        expect(page.locator("#line-says")).to_have_text("Connection lost")
        keep(page, "live-7-ended")
    assert contact.token not in run.output
    pages.close()


def _snapshot(page: Page, source: PrivateServer) -> None:
    expect(page.locator("#pipe-badge")).to_have_text("snapshot", timeout=SLOWLY_MS)
    expect(page.locator("#snapshot-says")).to_have_text(
        re.compile(r"^[1-9]\d? %: [\d,]+ of about [\d,]+ rows, \d of 3 tables done"), timeout=SLOWLY_MS
    )
    keep(page, "live-1-snapshot")
    expect(page.locator("#pipe-badge")).to_have_text("streaming", timeout=SLOWLY_MS)
    expect(page.locator("#snapshot")).to_be_hidden()
    # Rows in the sink are counted periodically.
    orders = f"{_count(source, 'shop.orders'):,}"
    expect(page.locator("#tables-body tr", has_text="shop.orders").locator("[data-label='rows']")).to_have_text(orders, timeout=SLOWLY_MS)


def _stream(page: Page) -> None:
    expect(page.locator("#tables-body tr", has_text="shop.order_lines").locator("[data-label='changes']")).not_to_have_text(
        "0", timeout=SLOWLY_MS
    )
    page.wait_for_function("() => parseFloat(document.querySelector('.chart.rate .chart-now b').textContent) > 0", timeout=SLOWLY_MS)
    expect(page.locator(".chart.rate .line")).to_have_attribute("d", re.compile("^M.+L"))
    assert re.fullmatch(r"binlog\.000001:\d+", page.locator("#pipe-position").inner_text())
    assert "ago" in _row(page, "shop.orders", "last change") or "now" in _row(page, "shop.orders", "last change")


def _schema_change(page: Page, source: PrivateServer) -> None:
    execute(source, "ALTER TABLE shop.orders ADD COLUMN channel VARCHAR(20) DEFAULT 'web'")
    change = page.locator("#schema-changes .event").first
    expect(change.locator(".statement")).to_contain_text("ADD COLUMN channel VARCHAR(20)", timeout=SLOWLY_MS)
    expect(change.locator(".table-name")).to_contain_text("orders")
    settle(page, 3)
    keep(page, "live-2-schema-change")
    _ask(page, "SELECT count() > 0 FROM system.columns WHERE table = 'orders' AND name = 'channel'", ["1"])


def _verify(page: Page, source: PrivateServer) -> None:
    _ask(page, "SELECT count() FROM shop.orders FINAL", [str(_count(source, "shop.orders"))])
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("#tables-body .verdict")).to_have_text(["equal"] * 3, timeout=SLOWLY_MS)
    keep(page, "live-3-verified", whole=True)


def _error(page: Page, source: PrivateServer, client: Client) -> None:
    """The sink refuses a row; only that pipe halts, and it continues when the cause is removed."""
    page.keyboard.press("u")
    page.locator("#list").get_by_role("link", name="crm").click()
    expect(page.locator("#pipe-badge")).to_have_text("streaming", timeout=SLOWLY_MS)
    client.command("ALTER TABLE crm.contacts ADD CONSTRAINT young CHECK age < 120")
    execute(source, "INSERT INTO crm.contacts VALUES (3, 'Methuselah', 969, NULL)")
    expect(page.locator("#pipe-badge")).to_have_text("failed", timeout=SLOWLY_MS)
    expect(page.locator("#halt-message")).to_contain_text("young")
    assert page.locator("#halt-place").inner_text().strip() != "at"
    assert page.locator("#halt-remedy").inner_text().strip() != "remedy:"
    expect(page.locator("#errors .message").first).to_contain_text("young")
    expect(page).to_have_title("1 failed · crm · Headrace")
    expect(page.locator("#list li", has_text="shop").locator(".badge")).to_have_text("streaming")
    keep(page, "live-4-failed")
    client.command("ALTER TABLE crm.contacts DROP CONSTRAINT young")
    page.get_by_role("button", name="Try now").click()
    expect(page.locator("#pipe-badge")).to_have_text("streaming", timeout=SLOWLY_MS)
    expect(page.locator("#halt")).to_be_hidden()
    _ask(page, "SELECT name FROM crm.contacts FINAL ORDER BY id", ["Ada", "Grace", "Methuselah"])


def _skip(page: Page, source: PrivateServer) -> None:
    """One event has an invalid date: only it is skipped, and it is recorded."""
    poison = "INSERT INTO crm.contacts VALUES (4, 'Nobody', 0, '0000-00-00')"
    execute(source, "SET sql_mode = ''", poison, "INSERT INTO crm.contacts VALUES (5, 'Edsger', 72, '1930-05-11')")
    expect(page.locator("#pipe-badge")).to_have_text("failed", timeout=SLOWLY_MS)
    page.get_by_role("button", name="Skip this event…").click()
    expect(page.locator("#confirm-detail")).to_contain_text("0000-00-00")
    page.get_by_role("button", name="Skip this event", exact=True).click()
    expect(page.locator("#pipe-badge")).to_have_text("streaming", timeout=SLOWLY_MS)
    expect(page.locator("#fig-skipped")).to_have_text("1")
    _ask(page, "SELECT name FROM crm.contacts FINAL ORDER BY id", ["Ada", "Grace", "Methuselah", "Edsger"])


def _pause_and_resume(page: Page, source: PrivateServer, client: Client) -> None:
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("p")
    expect(page.locator("#pipe-badge")).to_have_text("paused", timeout=SLOWLY_MS)
    execute(source, "UPDATE crm.contacts SET name = 'Augusta Ada' WHERE id = 1")
    settle(page, 3)
    assert client.query("SELECT name FROM crm.contacts FINAL WHERE id = 1").result_rows == [("Ada",)]
    expect(page.locator("#pipe-badge")).to_have_text("paused")
    keep(page, "live-5-paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#pipe-badge")).to_have_text("streaming", timeout=SLOWLY_MS)
    _ask(page, "SELECT name FROM crm.contacts FINAL WHERE id = 1", ["Augusta Ada"])
    keep(page, "live-6-resumed")
