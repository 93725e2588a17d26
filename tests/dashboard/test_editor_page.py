"""The pages that create and edit pipes, in Chromium, against a real MariaDB.

The first test has no process of pipes; the second runs `headrace run` with the embedded ClickHouse.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.dashboard.server import serve
from headrace.demo.private_server import PrivateServer
from headrace.editor import Editor
from headrace.service.running_process import CONTROL_FILE, HttpControl, read_endpoint
from headrace.service.status import PipeStage, ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.oracles.axe import serious_findings
from testkit.pipelines.pipeline import Run
from testkit.servers.accounts import Account, create_replica_account
from testkit.servers.browser import Pages, keep, overflow, settle
from testkit.servers.servers import execute

FILE = """\
# Pipes of the shop.
[headrace]
state = "state"
listen = "127.0.0.1:0"
edit = true

[sources.shop]
url = "{url}"   # the primary

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.orders]
source = "shop"
sink = "warehouse"
include = ["orders"]
"""
HOSTILE = "<b>x</b>"
WIDE, NARROW = 1440, 390
BOTH_WIDTHS = pytest.mark.parametrize("width", [WIDE, NARROW])
BOTH_SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])
Unreached = Callable[..., tuple[int, dict[str, str]]]


@dataclass(frozen=True)
class Shop:
    account: Account
    database: str
    file: Path


@pytest.fixture
def shop(mariadb_server: PrivateServer, tmp_path: Path) -> Shop:
    own = os.urandom(3).hex()
    database = f"edit_{own}"
    account = create_replica_account(mariadb_server, f"edit_{own}")
    execute(
        mariadb_server,
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.customers (id INT PRIMARY KEY, name VARCHAR(40), email VARCHAR(80), phone VARCHAR(20))",
        f"CREATE TABLE {database}.`{HOSTILE}` (id INT PRIMARY KEY, `{HOSTILE}` VARCHAR(40))",
        f"INSERT INTO {database}.customers VALUES (1, 'Ada', 'ada@lovelace.example', '123'), (2, '{HOSTILE}', 'b@b.example', NULL)",
        f"INSERT INTO {database}.orders VALUES (1), (2), (3)",
    )
    file = tmp_path / "headrace.toml"
    file.write_text(FILE.format(url=account.url(database)))
    return Shop(account, database, file)


@pytest.fixture
def open_page(browser: Browser, shop: Shop) -> Iterator[Callable[..., Page]]:
    pages = Pages(browser)
    result = ReloadResult(started=("customers",), applied=("[alerts.chat]",))
    editor = Editor(shop.file, shop.file.parent / "state", (), lambda: True, lambda: result)
    with serve(FakeControl(), "127.0.0.1:0", TOKEN, editor=editor) as server:

        def opened(inside: str, **how: object) -> Page:
            page = pages.open(f"{server.url}/#token={TOKEN}", **how)  # type: ignore[arg-type]
            page.wait_for_selector("#line[data-line=live]")
            page.evaluate("inside => { location.hash = inside }", inside)
            return page

        yield opened
        pages.leave()
    pages.close()


def _examine(page: Page, name: str) -> None:
    """Check a view of the editor: accessibility and width; store a screenshot."""
    settle(page, 0.3)
    assert serious_findings(page) == [], name
    assert overflow(page) <= 0, name
    page.evaluate("scrollTo(0, 0)")
    keep(page, f"editor-{name}", whole=True)


def _enter(page: Page, name: str) -> None:
    page.get_by_label("Name of the pipe").fill(name)
    page.get_by_label("Source section").select_option("shop")
    page.get_by_label("Sink section").select_option("warehouse")


@BOTH_WIDTHS
@BOTH_SCHEMES
def test_a_new_pipe_from_its_checks_to_the_file(
    open_page: Callable[..., Page], shop: Shop, unreached: Unreached, scheme: str, width: int
) -> None:
    page = open_page("#/new", width=width, height=900, scheme=scheme, reduced_motion="reduce")
    view = f"{scheme}-{width}"
    expect(page.get_by_role("heading", name="New pipe")).to_be_visible()
    _enter(page, "customers")
    assert shop.account.password not in page.content()
    page.get_by_role("button", name="Check source and sink").click()
    expect(page.get_by_role("heading", name=re.compile("^Source: "))).to_contain_text("checks passed")
    expect(page.get_by_role("heading", name=re.compile("^Sink: "))).to_contain_text("1 check passed")

    page.get_by_role("button", name="List tables").click()
    tree = page.locator(".edit-tree")
    page.get_by_label("Filter tables of the source").fill(shop.database)
    expect(tree.locator("li")).to_have_count(3)
    page.get_by_label(f"All tables of {shop.database}").uncheck()
    page.get_by_label(f"{shop.database}.customers", exact=True).check()
    expect(page.get_by_label("Tables to replicate")).to_have_value(f"{shop.database}.customers")
    expect(page.get_by_text(re.compile("^1 of "))).to_be_visible()
    _examine(page, f"1-tables-{view}")

    page.get_by_role("button", name=f"Columns of {shop.database}.customers").click()
    page.get_by_label("Mask of email").fill("email")
    page.get_by_label("Replicate phone").uncheck()
    _examine(page, f"2-columns-{view}")
    page.get_by_role("button", name=f"Preview {shop.database}.customers").click()
    expect(page.locator(".edit-ddl").first).to_contain_text("CREATE TABLE IF NOT EXISTS")
    expect(page.locator(".edit-ddl").first).not_to_contain_text("phone")
    expect(page.locator(".grid-table th")).to_have_text(["id", "name", "email"])
    cells = page.locator(".grid-table td").all_text_contents()
    assert HOSTILE in cells
    assert "ada@lovelace.example" not in cells
    _examine(page, f"3-preview-{view}")

    expect(page.get_by_role("button", name="Save and reload")).to_be_disabled()
    before = shop.file.read_text()
    page.get_by_role("button", name="Show the change").click()
    expect(page.get_by_label("Change of the file")).to_contain_text("+[pipes.customers]")
    assert shop.file.read_text() == before
    _examine(page, f"4-change-{view}")
    controls, missed = unreached(page)
    assert controls > 30
    assert missed == {}
    page.get_by_role("button", name="Save and reload").click()
    expect(page.locator(".toast")).to_contain_text("customers: saved; started: customers; applied: [alerts.chat]")
    assert shop.file.read_text().startswith(before)
    assert "[pipes.customers" in shop.file.read_text()
    assert shop.account.password not in page.content()


def test_a_pipe_is_edited_and_deleted_by_keyboard(open_page: Callable[..., Page], shop: Shop) -> None:
    shop.file.write_text(shop.file.read_text() + '\n[pipes.people]\nsource = "shop"\nsink = "warehouse"\ninclude = ["customers"]\n')
    page = open_page("#/edit/people", width=NARROW, height=844)
    expect(page.get_by_role("heading", name="Edit people")).to_be_visible()
    assert overflow(page) <= 0
    page.get_by_label("Tables to leave out").focus()
    page.keyboard.type("*_old")
    page.get_by_role("button", name="Show the change").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Change of the file")).to_contain_text('+exclude = ["*_old"]')
    page.get_by_role("button", name="Delete the pipe …").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delete", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("people: deleted; started: customers")
    assert "[pipes.people]" not in shop.file.read_text()


@BOTH_WIDTHS
@BOTH_SCHEMES
def test_the_dialogs_of_the_editor(open_page: Callable[..., Page], shop: Shop, unreached: Unreached, scheme: str, width: int) -> None:
    page = open_page("#/edit/orders", width=width, height=844, scheme=scheme, reduced_motion="reduce")
    before = shop.file.read_text()

    def examine(dialog: str, name: str, controls: int) -> None:
        expect(page.locator(f"#{dialog}")).to_be_visible()
        _examine(page, f"{name}-{scheme}-{width}")
        assert unreached(page, dialog) == (controls, {})
        page.keyboard.press("Escape")
        expect(page.locator("dialog[open]")).to_have_count(0)

    page.get_by_role("button", name="Delete the pipe …").click()
    examine("confirm-dialog", "5-delete", 2)
    page.get_by_label("Tables to leave out").fill("*_old")
    page.get_by_role("link", name="Back").click()
    examine("confirm-dialog", "6-discard", 2)
    # The lock forgets the token: the next action asks for it.
    page.locator("#unlock").click()
    page.get_by_role("button", name="Show the change").click()
    examine("token-dialog", "7-token", 3)
    expect(page.get_by_label("Tables to leave out")).to_have_value("*_old")
    assert shop.file.read_text() == before


def test_the_tree_shows_the_estimates_of_the_server(open_page: Callable[..., Page], shop: Shop, mariadb_server: PrivateServer) -> None:
    execute(
        mariadb_server,
        f"INSERT INTO {shop.database}.customers (id, email) VALUES {','.join(f'({at}, REPEAT(1, 80))' for at in range(3, 20_003))}",
        f"ANALYZE TABLE {shop.database}.customers, {shop.database}.orders",
    )
    page = open_page("#/edit/orders")
    page.get_by_role("button", name="List tables").click()
    lines = page.locator(".edit-tree li")
    expect(lines).to_have_count(3)
    with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME, TABLE_ROWS, DATA_LENGTH + INDEX_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s",
            (shop.database,),
        )
        reported = {str(name): (int(rows), int(size)) for name, rows, size in cursor.fetchall()}
    assert reported["customers"][0] == pytest.approx(20_002, rel=0.2)
    for line in lines.all():
        name = line.locator(".edit-check span").inner_text()
        rows, size = (_number(text) for text in line.locator(".num").all_inner_texts())
        assert (rows, size) == pytest.approx(reported.pop(name), rel=0.1), name
    assert reported == {}


def _number(text: str) -> float:
    """The number that a text of the page stands for, such as `20.0 k rows`."""
    number, *words = text.replace(",", "").split()
    return float(number) * {"k": 1e3, "KiB": 1 << 10, "MiB": 1 << 20}.get(words[0], 1)


def test_wrong_input_has_its_remedy(browser: Browser, shop: Shop) -> None:
    pages = Pages(browser)
    pages.expected += ["409"]
    editor = Editor(shop.file, shop.file.parent / "state", (), lambda: True, ReloadResult)
    with serve(FakeControl(), "127.0.0.1:0", TOKEN, editor=editor) as server:
        page = pages.open(f"{server.url}/#token={TOKEN}")
        page.wait_for_selector("#line[data-line=live]")
        page.evaluate("() => { location.hash = '#/edit/orders' }")
        page.get_by_label("Address").first.fill("mysql://root:***@127.0.0.1:1/shop")
        page.get_by_role("button", name="Check source and sink").click()
        expect(page.get_by_role("alert").filter(has_text="another account")).to_contain_text("enter the password again")
        pages.leave()
    pages.close()


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        (["ok", "ok"], "2 checks passed"),
        (["ok", "warning"], "1 check passed, 1 warning"),
        (["warning", "warning"], "0 checks passed, 2 warnings"),
        (["ok", "warning", "error"], "1 of 3 checks failed, 1 warning"),
        ([], "nothing to check"),
    ],
)
def test_a_warning_is_no_passed_check(open_page: Callable[..., Page], levels: list[str], says: str) -> None:
    page = open_page("#/")
    text = page.evaluate(
        """async (levels) => (await import('/editor_parts.js')).findings('Source',
          levels.map((level) => ({ level, name: 'x', value: 'y', meaning: '', repair: '' }))).querySelector('h3').textContent""",
        levels,
    )
    assert text == f"Source: {says}"


@pytest.mark.slow(because="test_a_new_pipe_from_its_checks_to_the_file has the page; test_reloads_of_a_process has a live process")
@pytest.mark.timeout(900)
def test_a_pipe_made_in_the_browser_runs(browser: Browser, shop: Shop, tmp_path: Path) -> None:
    pages = Pages(browser)
    run = Run(["run", str(shop.file)], tmp_path / "log")
    try:
        run.until((tmp_path / "state" / CONTROL_FILE).exists)
        contact = read_endpoint(tmp_path / "state")
        remote = HttpControl(contact)
        run.until(lambda: remote.pipe("orders").stage is PipeStage.STREAMING)
        page = pages.open(f"{contact.url}/#token={contact.token}")
        page.wait_for_selector("#line[data-line=live]")
        page.evaluate("() => { location.hash = '#/new' }")
        _enter(page, "customers")
        page.get_by_label("Tables to replicate").fill("customers")
        page.get_by_role("button", name="Show the change").click()
        page.get_by_role("button", name="Save and reload").click()
        run.until(lambda: any(pipe.name == "customers" and pipe.stage is PipeStage.STREAMING for pipe in remote.status().pipes))
        assert remote.query("customers", f"SELECT toUInt32(count()) FROM {shop.database}.customers FINAL")[1] == [[2]]
        keep(page, "editor-4-live")
        pages.leave()
        run.terminate()
    finally:
        run.kill()
    assert contact.token not in run.output
    pages.close()
