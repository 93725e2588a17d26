"""Results of `headrace verify` are recorded: status, dashboard and metrics show each table's last comparison.

The pipe runs in threads of the test's process, between a real MariaDB and ClickHouse.
"""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from headrace import cli
from headrace.cli.status_view import render_status
from headrace.config.load import load
from headrace.dashboard.server import serve
from headrace.embedded.process import EmbeddedServer
from headrace.service.status import PipeStage, TableStatus
from headrace.service.supervisor import Supervisor
from headrace.verify.records import FILE, read_records
from headrace.verify.region_reader import RegionReader
from testkit.oracles.binlogs import Logbook
from testkit.pipelines.embedded_access import url_of
from testkit.pipelines.local_runtime import LocalRuntime
from testkit.pipelines.supervision import until

pytestmark = pytest.mark.parametrize("flavour", ["mariadb"], indirect=True)

CONFIGURATION = """
[headrace]
state = "state"
listen = ""

[sources.shop]
url = "{source}"

[sinks.warehouse]
url = "{sink}"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""


@dataclass(frozen=True)
class Shop:
    """A file with one pipe of two tables, `orders` and `items`."""

    book: Logbook
    client: Client
    sink: str
    file: Path

    @property
    def state(self) -> Path:
        return self.file.parent / "state" / "shop"

    @contextmanager
    def running(self) -> Iterator[Supervisor]:
        with Supervisor(load(self.file), runtime=LocalRuntime()) as supervisor:
            until("the stream", lambda: supervisor.pipe("shop").stage is PipeStage.STREAMING, supervisor)
            yield supervisor

    def verify(self, *options: str) -> int:
        return cli.main(["verify", self.book.server.url(self.book.database), self.sink, "--state", str(self.state), *options])

    def spoil(self) -> None:
        """Change one row of `orders` in the sink, remove one, and add one."""
        table = f"`{self.book.database}`.orders"
        self.client.command(f"ALTER TABLE {table} UPDATE v = 'spoilt' WHERE id = 1 SETTINGS mutations_sync = 2")
        self.client.command(f"ALTER TABLE {table} DELETE WHERE id = 2 SETTINGS mutations_sync = 2")
        self.client.command(f"INSERT INTO {table} (id, v, _version) SELECT 1000, 'spoilt', max(_version) FROM {table}")


@pytest.fixture
def shop(book: Logbook, clickhouse: EmbeddedServer, client: Client, tmp_path: Path) -> Shop:
    for table in ("orders", "items"):
        book.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO {table} SELECT seq, 'tea' FROM seq_1_to_500")
    file, sink = tmp_path / "headrace.toml", url_of(clickhouse)
    file.write_text(CONFIGURATION.format(source=book.server.url(book.database), sink=sink))
    return Shop(book, client, sink, file)


def table(supervisor: Supervisor, name: str = "orders") -> TableStatus:
    return next(one for one in supervisor.pipe("shop").tables if one.name.endswith(f".{name}"))


def shows(supervisor: Supervisor, **wanted: Any) -> Callable[[], bool]:
    def check() -> bool:
        last = table(supervisor).verify
        return last is not None and all(getattr(last, name) == value for name, value in wanted.items())

    return check


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def metrics(url: str, name: str) -> dict[tuple[str, str], float]:
    """Return a metric's values of `orders`, by the labels `kind` and `verdict`."""
    samples = [sample for family in text_string_to_metric_families(fetch(f"{url}/metrics")) for sample in family.samples]
    return {
        (sample.labels.get("kind", ""), sample.labels.get("verdict", "")): sample.value
        for sample in samples
        if sample.name == f"headrace_table_verify{name}" and sample.labels["table"].endswith(".orders")
    }


def text(supervisor: Supervisor) -> str:
    console = Console(width=1000)
    with console.capture() as captured:
        console.print(render_status(supervisor.status(), tables=True))
    return captured.get()


def test_status_metrics_and_the_dashboard_show_the_last_comparison(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    with shop.running() as supervisor, serve(supervisor, "127.0.0.1:0", "token") as served:
        assert table(supervisor).verify is None
        assert shop.verify() == 0
        until("the record of another process", shows(supervisor, verdict="equal", rows=500, differences=0, pipe_stopped=False), supervisor)
        first = table(supervisor).verify
        assert first is not None
        assert first.position.startswith("binlog.")
        assert metrics(served.url, "_rows") == {("", ""): 500}
        assert metrics(served.url, "_differing_rows") == {("different", ""): 0, ("missing", ""): 0, ("extra", ""): 0}
        assert "equal, " in text(supervisor)

        # A job of the dashboard.
        shop.spoil()
        supervisor.verify("shop")
        until("the result", shows(supervisor, verdict="different", different=1, missing=1, extra=1, repaired=0), supervisor)
        [shown] = json.loads(fetch(f"{served.url}/api/status"))["pipes"]
        in_json = {one["name"].rpartition(".")[2]: one["verify"] for one in shown["tables"]}
        assert in_json["orders"].items() >= {"verdict": "different", "rows": 500, "different": 1, "missing": 1, "extra": 1}.items()
        assert in_json["orders"]["at"] > first.at
        assert in_json["items"]["verdict"] == "equal"
        assert metrics(served.url, "_differing_rows") == {("different", ""): 1, ("missing", ""): 1, ("extra", ""): 1}
        assert metrics(served.url, "_timestamp_seconds") == {("", ""): in_json["orders"]["at"]}
        assert "different (1 different, 1 missing, 1 extra), " in text(supervisor)
        assert f"verify found differences in {shop.book.database}.orders" in text(supervisor)

        # A part of the table is marked as such.
        assert shop.verify("--sample", "499", "--seed", "1", "--columns", f"{shop.book.database}.*.id") in (0, 1)
        until("the part", shows(supervisor, partial="sample 499, some columns"), supervisor)
        assert ", sample 499, some columns" in text(supervisor)

        assert shop.verify("--repair") == 0
        until("the repair", shows(supervisor, verdict="equal", repaired=3, different=0, missing=0, extra=0), supervisor)
        assert metrics(served.url, "_repaired_rows") == {("", ""): 3}
        assert metrics(served.url, "") == {("", one): one == "equal" for one in ("equal", "different", "undecided", "running")}
        assert ", 3 repaired" in text(supervisor)
        repaired = table(supervisor).verify

    # The pipe is stopped, and changes of the source wait.
    with shop.running() as supervisor:
        until("the record after a restart", lambda: table(supervisor).verify == repaired, supervisor)
    shop.book.run("DELETE FROM orders WHERE id = 3")
    assert shop.verify("--wait", "0") == 3
    record = read_records(shop.state)[f"{shop.book.database}.orders"]
    assert (record.verdict, record.undecided, record.differences, record.pipe_stopped) == ("undecided", 1, 0, True)
    capsys.readouterr()


def test_a_table_that_is_read_again_or_dropped_has_no_record(shop: Shop) -> None:
    orders, items = (f"{shop.book.database}.{name}" for name in ("orders", "items"))
    with shop.running() as supervisor:
        assert shop.verify() == 0
        until("the record", shows(supervisor, verdict="equal"), supervisor)
        supervisor.resync("shop", [orders])
        until("the snapshot", lambda: read_records(shop.state).keys() == {items}, supervisor)
        until("the status", lambda: table(supervisor).verify is None, supervisor)
        assert table(supervisor, "items").verify is not None

        shop.book.run("DROP TABLE items", "CREATE TABLE items (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO orders VALUES (0, 'last')")
        until("the new table", lambda: not read_records(shop.state), supervisor)
        # A table that was created by a statement has no snapshot; the next one of its name is another table all the same.

        def is_recorded() -> bool:
            return shop.verify("--tables", items) == 0 and read_records(shop.state).keys() == {items}

        until("its comparison", is_recorded, supervisor)
        shop.book.run("DROP TABLE items", "CREATE TABLE items (id INT PRIMARY KEY, w INT)", "INSERT INTO orders VALUES (-1, 'later')")
        until("the newer table", lambda: not read_records(shop.state), supervisor)
        # The next comparison leaves no record of former tables in the file.
        assert shop.verify("--tables", orders) == 0
        assert json.loads((shop.state / FILE).read_text())["tables"].keys() == {orders}


def test_only_finished_comparisons_of_the_pipes_own_sink_are_recorded(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with shop.running():
        with EmbeddedServer(tmp_path / "other") as other:
            assert replace(shop, sink=url_of(other)).verify() == 1
        assert read_records(shop.state) == {}
        narrow = RegionReader.source_by_key

        def interrupt(*_: Any) -> Any:
            monkeypatch.setattr(RegionReader, "source_by_key", narrow)
            raise KeyboardInterrupt

        shop.spoil()
        monkeypatch.setattr(RegionReader, "source_by_key", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shop.verify()
        # `items` comes first, and was compared.
        assert read_records(shop.state).keys() == {f"{shop.book.database}.items"}


def test_a_sink_of_release_0_9_is_compared(shop: Shop) -> None:
    """Its table of positions has no states until a pipe of a later release has started."""
    with shop.running():
        pass
    shop.client.command("ALTER TABLE headrace.positions DROP COLUMN state")
    assert shop.verify() in (0, 3)
    assert read_records(shop.state) == {}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"tables": {}}', b'{"tables": {}, "stamp": "other/1/1/0"}', None])
def test_a_damaged_record_stops_nothing_and_is_written_again(shop: Shop, damage: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    with shop.running():
        assert shop.verify() == 0
    # The command has set up the log, which no longer reaches pytest's handler.
    logging.getLogger("headrace").addHandler(caplog.handler)
    file = shop.state / FILE
    file.unlink() if damage is None else file.write_bytes(damage)
    with shop.running() as supervisor:
        shop.book.run("UPDATE orders SET v = 'coffee' WHERE id <= 10")
        until("the changes", lambda: supervisor.pipe("shop").changes >= 10, supervisor)
        if damage is not None:
            until("the warning", lambda: "record of comparisons cannot be read" in caplog.text, supervisor)
        assert table(supervisor).verify is None
        assert shop.verify() == 0
        until("the record", shows(supervisor, verdict="equal", rows=500), supervisor)
