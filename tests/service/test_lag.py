"""The displayed lag, compared with marker rows whose commit and visibility the test measures."""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.demo.private_server import PrivateServer
from headrace.kafka.address import parse_kafka_url
from headrace.pipes.debezium.kafka_cluster import TopicBacklog
from headrace.pipes.debezium.position import KafkaPosition
from headrace.service.running_process import CONTROL_FILE, ControlEndpoint, HttpControl, read_endpoint
from headrace.service.status import PipeStage
from testkit.machine.wait_condition import wait_until
from testkit.pipelines.pipeline import Run
from testkit.servers.accounts import create_replica_account
from testkit.servers.broker import PrivateBroker

FILE = """
[headrace]
state = "state"
listen = "127.0.0.1:0"

[sources.shop]
url = "{url}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""
EVERY_S = 0.2
NOTED_WITHIN_S = 2.0
"""How long after its rows become visible a batch may be noted by the driver, on a busy machine."""
BUSY = 1.5 * (os.cpu_count() or 1)
"""The load from which on other work delays the driver. The pipe and its servers alone stay below."""


@dataclass(slots=True)
class Markers:
    """Writes rows periodically, and records the time before and after each commit."""

    server: PrivateServer
    database: str
    commits: list[tuple[float, float]] = field(default_factory=list)

    def execute(self, *statements: str) -> None:
        with self.server.root_connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {self.database}")
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def write(self) -> None:
        before = time.time()
        self.execute(f"INSERT INTO markers (id) VALUES ({len(self.commits) + 1})")
        self.commits.append((before, time.time()))

    @contextmanager
    def being_written(self, load: Callable[[], None] = lambda: None) -> Iterator[None]:
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(EVERY_S):
                self.write()
                load()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def age(self, visible: int, now: float, *, oldest: bool) -> float:
        """Return the upper or lower bound of the age of the oldest change that is not visible in the sink."""
        commits = self.commits[visible:]
        return max(now - commits[0][0 if oldest else 1], 0.0) if commits else 0.0


@dataclass(slots=True)
class Watcher:
    """Compares every figure with the markers."""

    markers: Markers
    contact: ControlEndpoint
    shown: list[dict[str, float]] = field(default_factory=list)
    ages: list[tuple[float, float, float]] = field(default_factory=list)
    """Time, lower and upper bound of each comparison."""

    def watch(self, what: str, seconds: float, **lags: Callable[[], float | None]) -> None:
        """Compare for some time. A figure may be off by half a second or a fifth, and on a busy machine as old as `NOTED_WITHIN_S`.

        One figure in ten may be off by more.
        """
        until, count, faults = time.monotonic() + seconds, 0, list[str]()
        while time.monotonic() < until:
            faults += self._compare(what, lags)
            count += len(lags)
            time.sleep(0.1)
        assert len(faults) <= count / 10, "\n".join([*faults, str(self.shown)])

    def _compare(self, what: str, lags: dict[str, Callable[[], float | None]]) -> Iterator[str]:
        begun, before = time.time(), self.visible()
        found = {name: lag() for name, lag in lags.items()}
        after, ended = self.visible(), time.time()
        least, most = self.markers.age(after, begun, oldest=False), self.markers.age(before, ended, oldest=True)
        noted_within_s = NOTED_WITHIN_S if os.getloadavg()[0] > BUSY else 0.0
        self.ages = [*(one for one in self.ages if one[0] > begun - noted_within_s), (ended, least, most)]
        lowest, highest = min(one[1] for one in self.ages), max(one[2] for one in self.ages)
        self.shown.append({name: -1.0 if lag is None else lag for name, lag in found.items()} | {"least": least, "most": most})
        for name, lag in found.items():
            fault = f"{what}: {name} shows {lag}, and the markers say {lowest:.2f} to {highest:.2f} s"
            assert lag is not None, fault
            # The duration of the comparison shows the load: the driver learns of visible rows with the same delay.
            if max(lowest - lag, lag - highest) > max(0.5, 0.2 * highest) + 2 * (ended - begun):
                yield fault

    def visible(self) -> int:
        [[count]] = HttpControl(self.contact).query("shop", f"SELECT toUInt32(count()) FROM {self.markers.database}.markers FINAL")[1]
        return int(count)

    def status(self) -> float | None:
        return HttpControl(self.contact).pipe("shop").lag_s

    def metrics(self) -> float | None:
        connection = http.client.HTTPConnection(self.contact.url.removeprefix("http://"), timeout=60)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return next((sample.value for sample in samples if sample.name == "headrace_pipe_lag_seconds"), None)

    def sql(self) -> float | None:
        [[lag]] = HttpControl(self.contact).query("shop", "SELECT lag_seconds FROM headrace.lag WHERE pipe = 'shop'")[1]
        return float(lag)


@pytest.fixture
def markers(server: PrivateServer) -> Markers:
    database = f"lag_{os.urandom(3).hex()}"
    with server.root_connection() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
    found = Markers(server, database)
    found.execute("CREATE TABLE markers (id INT PRIMARY KEY)", "CREATE TABLE bulk (id INT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(200))")
    return found


@pytest.fixture
def url(server: PrivateServer, markers: Markers) -> str:
    account = create_replica_account(server, f"u{markers.database}")
    return f"mysql://{account.user}:{account.password}@127.0.0.1:{server.port}/{markers.database}"


@pytest.mark.slow(
    because=(
        "test_lag_is_the_age_of_the_oldest_pending_change, test_a_running_pipe_reports_its_lag, "
        "test_the_terminal_shows_the_lag_of_now, test_every_metric_of_the_status_exists"
    )
)
def test_every_place_shows_the_lag_that_marker_rows_have(markers: Markers, url: str, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(FILE.format(url=url))
    run = Run(["run", str(tmp_path / "headrace.toml")], tmp_path / "log")
    rows = ", ".join(["(REPEAT('x', 200))"] * 500)
    try:
        run.until((tmp_path / "state" / CONTROL_FILE).exists)
        watcher = Watcher(markers, read_endpoint(tmp_path / "state"))
        remote = HttpControl(watcher.contact)
        run.until(lambda: remote.pipe("shop").stage is PipeStage.STREAMING)
        markers.write()
        run.until(lambda: watcher.visible() == 1 and remote.pipe("shop").lag_s == 0)
        everywhere = {"status": watcher.status, "metrics": watcher.metrics, "headrace.lag": watcher.sql}
        with markers.being_written():
            watcher.watch("at a low rate", 3, **everywhere)
        with markers.being_written(lambda: markers.execute(f"INSERT INTO bulk (text) VALUES {rows}")):
            watcher.watch("under load", 4, **everywhere)
            markers.execute("ALTER TABLE bulk ADD COLUMN more INT", "ALTER TABLE markers ADD COLUMN more INT")
            watcher.watch("after DDL", 3, **everywhere)
        # Only markers from here on: the other rows of a large batch become visible after its markers.
        with markers.being_written():
            remote.pause("shop")
            run.until(lambda: remote.pipe("shop").stage is PipeStage.PAUSED)
            watcher.watch("stalled", 5, **everywhere)
            remote.resume("shop")
            watcher.watch("catching up", 5, status=watcher.status, metrics=watcher.metrics)
        run.until(lambda: watcher.visible() == len(markers.commits))
        time.sleep(1.5)
        watcher.watch("idle", 2, **everywhere)
    finally:
        run.kill()
    assert max(one["most"] for one in watcher.shown) > 4, "the pipe never fell behind"


@pytest.mark.slow(because="test_lag_is_the_age_of_the_oldest_pending_change, test_what_was_pending_when_a_pipe_stopped_still_is")
@pytest.mark.soak("mysql", because="the other test of lag is on both")
def test_a_pipe_that_is_behind_says_so_after_a_schema_change(markers: Markers, url: str, tmp_path: Path) -> None:
    arguments = ["replicate", url, f"chdb:{tmp_path}/warehouse", "--state", str(tmp_path / "state"), "--once"]
    assert Run(arguments, tmp_path / "first").wait().code == 0
    markers.write()
    markers.execute("ALTER TABLE markers ADD COLUMN more INT")
    for _ in range(4):
        time.sleep(1)
        markers.write()
    time.sleep(2)
    begun = time.time()
    assert Run(arguments, tmp_path / "second").wait().code == 0
    ended = time.time()
    # The first batch ends with the statement, and the first line is about it.
    lags = [float(lag) for lag in re.findall(r"stream: .* lag ([0-9.]+) s", (tmp_path / "second").read_text())]
    second = markers.commits[1]
    assert lags
    assert 0.8 * (begun - second[1]) <= lags[0] <= 1.2 * (ended - second[0])


def test_records_of_topics_are_pending_until_they_are_read(broker: PrivateBroker) -> None:
    topic, reached = broker.create_topic(), [KafkaPosition()]
    # The oldest record was in the topic before the pipe read it: the record has its own time.
    broker.produce(topic, [{"value": b"1"}])
    first = time.time()
    time.sleep(3)
    backlog = TopicBacklog(parse_kafka_url(broker.url()), re.escape(topic), lambda: reached[0])
    assert backlog.pending() is None

    def pending_since() -> float | None:
        found = backlog.pending()
        return None if found is None else found.since

    with backlog.watched():
        wait_until(lambda: pending_since() is not None, 60)
        assert pending_since() == pytest.approx(first, abs=1)
        broker.produce(topic, [{"value": b"2"}])
        second = time.time()
        time.sleep(2.5)
        assert pending_since() == pytest.approx(first, abs=1)
        reached[0] = KafkaPosition({topic: {0: 1}})
        assert pending_since() == pytest.approx(second, abs=1)
        reached[0] = KafkaPosition({topic: {0: 2}})
        assert backlog.pending() is not None
        assert pending_since() is None
