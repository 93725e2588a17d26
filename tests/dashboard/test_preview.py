"""The preview of a table in the editor: its first rows that pass the filter, what was read for them, and whether the target exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clickhouse_connect.driver.client import Client
from playwright.sync_api import Page, expect

from headrace.dashboard.server import serve
from headrace.demo.private_server import PrivateServer
from headrace.editor import Editor, source_tables
from headrace.embedded.process import EmbeddedServer
from headrace.service.status import ReloadResult
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.servers.accounts import Account
from testkit.servers.browser import Pages, keep, overflow
from testkit.servers.servers import execute

FILE = """\
[sources.shop]
url = "{url}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"

[pipes.shop.tables."{database}.items"]
filter = "{filter}"
"""
COLUMNS = "id INT PRIMARY KEY, amount DECIMAL(20,4), at DATETIME(6), data BLOB, doc JSON, flags BIT(12), big BIGINT UNSIGNED"
ROWS = 30
AS_TEXT = "id, CAST(amount AS CHAR), CAST(at AS CHAR), CONVERT(data USING utf8mb4), CAST(doc AS CHAR), flags + 0, CAST(big AS CHAR)"


class Draft:
    """A pipe in a file, and the editor's page for it."""

    def __init__(self, file: Path, url: str, database: str) -> None:
        self.file, self.table, self._url, self._database = file, f"{database}.items", url, database
        self.write()

    def write(self, condition: str = "TRUE") -> None:
        self.file.write_text(FILE.format(url=self._url, database=self._database, filter=condition))

    def preview(self, page: Page, condition: str) -> list[str]:
        """Preview the table with a filter; return the cells."""
        self.write(condition)
        with page.expect_response("**/api/edit/preview"):
            page.get_by_role("button", name=f"Preview {self.table}").click()
        expect(page.locator(".edit-table [aria-busy]")).to_have_count(0)
        return page.locator(".grid-table td").all_text_contents()


@pytest.fixture
def draft(server: PrivateServer, database: str, replica_account: Account, tmp_path: Path) -> Draft:
    execute(
        server,
        f"CREATE TABLE {database}.items ({COLUMNS})",
        *(
            f"INSERT INTO {database}.items VALUES ({at}, {at * 7}.{at:04}, '2026-01-02 03:04:05.{at:06}', 'bytes {at}',"
            f" '{{\"a\": [{at}, null]}}', {at}, {2**64 - at})"
            for at in range(1, ROWS + 1)
        ),
    )
    return Draft(tmp_path / "headrace.toml", replica_account.url(database), database)


@pytest.fixture
def open_columns(pages: Pages, draft: Draft, control: FakeControl) -> Iterator[Callable[[], Page]]:
    editor = Editor(draft.file, draft.file.parent / "state", (), lambda: True, ReloadResult)
    with serve(control, "127.0.0.1:0", TOKEN, editor=editor) as served:

        def opened() -> Page:
            page = pages.open(f"{served.url}/#token={TOKEN}", scheme="light")
            page.wait_for_selector("#line[data-line=live]")
            page.evaluate("() => { location.hash = '#/edit/shop' }")
            page.get_by_role("button", name="List tables").click()
            page.get_by_role("button", name=f"Columns of {draft.table}").click()
            return page

        yield opened
        pages.leave()


def test_rows_that_pass_after_the_first_ten(open_columns: Callable[[], Page], draft: Draft, server: PrivateServer) -> None:
    page = open_columns()
    cells = draft.preview(page, "id > 12")
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {AS_TEXT} FROM {draft.table} WHERE id > 12 ORDER BY id LIMIT 10")
        assert cells == [str(value) for row in cursor.fetchall() for value in row]
    expect(page.locator(".edit-table")).not_to_contain_text("filter.")
    keep(page, "editor-preview-light", whole=True)
    assert overflow(page) <= 0


def test_what_the_preview_has_read(
    open_columns: Callable[[], Page], draft: Draft, server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_columns()
    shown = page.locator(".edit-table")
    assert len(draft.preview(page, "id > 28")) == 2 * 7
    expect(shown).to_contain_text("2 of the 30 rows of the table pass the filter.")
    assert draft.preview(page, "id > 30") == []
    expect(shown).to_contain_text("None of the 30 rows of the table passes the filter.")
    monkeypatch.setattr(source_tables, "_BLOCK_ROWS", 7)
    monkeypatch.setattr(source_tables, "_SCANNED_ROWS", 20)
    assert draft.preview(page, "id > 20") == []
    expect(shown).to_contain_text("None of the first 20 rows passes the filter. The rows after them were not read.")
    assert len(draft.preview(page, "id > 19")) == 7
    expect(shown).to_contain_text("1 of the first 20 rows passes the filter. The rows after them were not read.")
    monkeypatch.setattr(source_tables, "_SCAN_S", -1.0)
    assert draft.preview(page, "id > 7") == []
    expect(shown).to_contain_text("None of the first 7 rows passes the filter. The rows after them were not read.")
    execute(server, f"TRUNCATE {draft.table}")
    assert draft.preview(page, "id > 7") == []
    expect(shown).to_contain_text("The table has no rows.")


def test_a_target_that_exists(open_columns: Callable[[], Page], draft: Draft, clickhouse: EmbeddedServer, client: Client) -> None:
    page = open_columns()
    shown = page.locator(".edit-table")
    draft.preview(page, "TRUE")
    expect(shown).to_contain_text("CREATE TABLE")
    expect(shown).to_contain_text("Whether the target exists already is not known")
    addresses = (f"chdb:{clickhouse.path}", f"clickhouse://{clickhouse.user}:{clickhouse.password}@{clickhouse.host}:{clickhouse.port}/")
    for made in (False, True):
        if made:
            client.command(f"CREATE DATABASE IF NOT EXISTS {draft.table.partition('.')[0]}")
            client.command(f"CREATE TABLE {draft.table} (id Int32) ENGINE = MergeTree ORDER BY id")
        for address in addresses:
            page.get_by_label("Address").nth(1).fill(address)
            with page.expect_response("**/api/edit/preview") as answer:
                page.get_by_role("button", name=f"Preview {draft.table}").click()
            assert answer.value.json()["existing"] == ([draft.table] if made else [])
    expect(shown).to_contain_text(f"{draft.table} exists already: the pipe checks its columns, and does not create it.")
    expect(shown).not_to_contain_text("is not known")
