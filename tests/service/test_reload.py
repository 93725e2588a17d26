"""A running process reads its pipe file again: what starts, stops, restarts, and what is left alone."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import cli
from headrace.alerts.rules import AlertRule
from headrace.config.configuration import Configuration
from headrace.config.document import ErrorList, parse_document
from headrace.config.load import read_document, reload, resolve
from headrace.dashboard.server import serve
from headrace.demo.private_server import PrivateServer
from headrace.errors import DefiniteError, TransientError
from headrace.model.table_selection import Selection
from headrace.pipes.spec import PipeSpec
from headrace.service.running_process import CONTROL_FILE, HttpControl, publish_endpoint, read_endpoint
from headrace.service.status import PipeStage, ReloadResult
from headrace.service.supervisor import Supervisor
from headrace.spark.spark_runtime import SparkRuntime
from headrace.telemetry.log_reader import LogQuery
from testkit.generators.fake_control import TOKEN, FakeControl
from testkit.machine.wait_condition import wait_until
from testkit.pipelines import scripted_pipes
from testkit.pipelines.pipeline import Run
from testkit.pipelines.scripted_pipes import PATIENCE_S, Scenario, ScriptedPipe, configuration, stage
from testkit.servers.accounts import create_replica_account
from testkit.servers.alert_receivers import webhook


class File:
    """What the pipe file says."""

    def __init__(self, says: Configuration) -> None:
        self.says: Configuration | Exception = says

    def read(self) -> Configuration:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def supervised(file: File, scenarios: dict[str, Scenario]) -> AbstractContextManager[Supervisor]:
    return scripted_pipes.supervised(file.read(), scenarios, file.read)


def _select(asked: Configuration, pipe: str, glob: str) -> Configuration:
    """Return the configuration with other tables for one pipe."""

    def changed(spec: PipeSpec) -> PipeSpec:
        return replace(spec, settings=replace(spec.settings, selection=Selection((glob,))))

    return replace(
        asked, pipes=tuple(replace(one, specs=tuple(map(changed, one.specs))) if one.name == pipe else one for one in asked.pipes)
    )


def test_new_removed_and_changed_pipes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    file = File(configuration(tmp_path, ("same", ("same",)), ("changed", ("changed",)), ("removed", ("removed",))))
    scenarios = {name: Scenario("run") for name in ("same", "changed", "removed", "fresh")}
    with supervised(file, scenarios) as supervisor:
        names = ("same", "changed", "removed")
        wait_until(lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in names), PATIENCE_S)
        kept, old = supervisor.runners["same"], supervisor.runners["changed"]
        gone = supervisor.runners["removed"]
        now = configuration(tmp_path, ("changed", ("changed",)), ("same", ("same",)), ("fresh", ("fresh",)))
        file.says = _select(now, "changed", "crm.*")
        result = supervisor.reload()
        assert (result.started, result.stopped, result.restarted, result.unchanged) == (("fresh",), ("removed",), ("changed",), ("same",))
        assert result.needs_restart == ()
        wait_until(lambda: all(stage(supervisor, name) is PipeStage.STREAMING for name in ("same", "changed", "fresh")), PATIENCE_S)
        assert [pipe.name for pipe in supervisor.status().pipes] == ["changed", "same", "fresh"]
        assert supervisor.runners["same"] is kept
        assert scenarios["same"].runs == 1
        assert supervisor.runners["changed"] is not old
        assert supervisor.runners["changed"].spec.settings.selection == Selection(("crm.*",))
        assert scenarios["changed"].runs == 2
        gone.join(PATIENCE_S)
        assert gone.stage is PipeStage.STOPPED
        assert (tmp_path / "removed").is_dir(), "the state of a removed pipe stays"
        supervisor.pause("fresh")
        wait_until(lambda: "pause requested" in [line.message for line in supervisor.log("fresh", LogQuery()).lines], PATIENCE_S)
        supervisor.resume("fresh")
        # The same file again changes nothing.
        assert supervisor.reload().lines() == ("nothing has changed",)
        # A pipe that comes back continues with its state.
        file.says = configuration(tmp_path, ("same", ("same",)), ("removed", ("removed",)))
        assert supervisor.reload().started == ("removed",)
        wait_until(lambda: stage(supervisor, "removed") is PipeStage.STREAMING, PATIENCE_S)
        assert scenarios["removed"].runs == 2
    assert stage(supervisor, "same") is PipeStage.STOPPED


def test_a_changed_pipe_waits_for_its_current_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File(configuration(tmp_path, ("slow", ("slow",)), ("same", ("same",))))
    scenarios = {"slow": Scenario("run"), "same": Scenario("run")}
    with supervised(file, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "slow") is PipeStage.STREAMING, PATIENCE_S)
        old = supervisor.runners["slow"]
        # The batch that is being written does not end until the test says so.
        monkeypatch.setattr(ScriptedPipe, "stop", lambda _: None)
        base = configuration(tmp_path, ("slow", ("slow",)), ("same", ("same",)))
        begun = time.monotonic()
        for glob in ("a.*", "b.*"):
            file.says = _select(base, "slow", glob)
            assert supervisor.reload().restarted == ("slow",)
        assert time.monotonic() - begun < 5
        time.sleep(0.3)
        assert scenarios["slow"].runs == 1, "two runs never own one state"
        assert stage(supervisor, "slow") is PipeStage.STARTING
        assert not supervisor.runners["slow"].is_over, "the process does not end meanwhile"
        monkeypatch.undo()
        assert old._pipe is not None
        old._pipe.stop()
        wait_until(lambda: stage(supervisor, "slow") is PipeStage.STREAMING, PATIENCE_S)
        assert supervisor.runners["slow"].spec.settings.selection == Selection(("b.*",))
        assert scenarios["slow"].runs == 2
        assert scenarios["same"].runs == 1


def test_pipes_that_are_disabled_paused_or_failed(tmp_path: Path) -> None:
    file = File(configuration(tmp_path, ("p", ("p",)), ("held", ("held",)), ("q", ("q",)), disabled=("q",)))
    scenarios = {"p": Scenario(DefiniteError("wrong password")), "held": Scenario("run"), "q": Scenario("run")}
    with supervised(file, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.FAILED, PATIENCE_S)
        supervisor.pause("held")
        base = configuration(tmp_path, ("p", ("p",)), ("held", ("held",)), ("q", ("q",)))
        file.says = _select(_select(base, "p", "crm.*"), "held", "crm.*")
        scenarios["p"].acts = ["run"]
        assert supervisor.reload().restarted == ("p", "held", "q")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING and stage(supervisor, "q") is PipeStage.STREAMING, PATIENCE_S)
        wait_until(lambda: stage(supervisor, "held") is PipeStage.PAUSED, PATIENCE_S)


def test_an_invalid_file_changes_nothing(tmp_path: Path) -> None:
    file = File(replace(configuration(tmp_path, ("p", ("p",))), alerts=alert_rules(chat=1)))
    scenarios = {"p": Scenario("run")}
    with supervised(file, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        before, runner = supervisor.configuration, supervisor.runners["p"]
        rules = supervisor.alerts()
        file.says = DefiniteError("there is no setting 'sorce'", place="headrace.toml, line 3")
        with pytest.raises(DefiniteError, match="sorce"):
            supervisor.reload()
        assert supervisor.configuration is before
        assert supervisor.alerts() == rules
        assert supervisor.runners["p"] is runner
        assert scenarios["p"].runs == 1


def test_a_process_that_starts_or_has_no_file(tmp_path: Path) -> None:
    file = File(configuration(tmp_path, ("p", ("p",))))
    with pytest.raises(TransientError, match="still starting"):
        Supervisor(file.read(), runtime=SparkRuntime(), read_again=file.read).reload()
    with pytest.raises(DefiniteError, match="no pipe file"):
        Supervisor(file.read(), runtime=SparkRuntime()).reload()
    with supervised(file, {"p": Scenario("run")}) as supervisor:
        pass
    with pytest.raises(DefiniteError, match="the process ends"):
        supervisor.reload()


def test_settings_of_the_process_are_named(tmp_path: Path) -> None:
    asked = configuration(tmp_path, ("p", ("p",)))
    file = File(asked)
    with supervised(file, {"p": Scenario("run")}) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        changed = replace(asked.process, master="local[8]", listen="127.0.0.1:0", state=tmp_path / "elsewhere", edit=True)
        file.says = replace(asked, process=changed)
        result = supervisor.reload()
        assert set(result.needs_restart) == {"[headrace] master", "[headrace] listen", "[headrace] state"}
        assert result.applied == ("[headrace] edit",)
        assert result.unchanged == ("p",)
        assert supervisor.configuration.process == replace(asked.process, edit=True)
        assert ReloadResult.from_json(result.to_json()) == result


def alert_rules(**ports: int) -> tuple[AlertRule, ...]:
    """Rules for webhooks on this machine; a full disk sends no alert."""
    sections = "".join(f'[alerts.{name}]\nurl = "http://127.0.0.1:{port}/x"\nlow_disk = 0\n' for name, port in ports.items())
    return resolve(parse_document(f"{FILE.format(state='state', url='mysql://u@h/shop')}\n{sections}", "headrace.toml", Path(), {})).alerts


def test_alert_rules_are_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace")
    asked = configuration(tmp_path, ("p", ("p",)), ("broken", ("broken",)))
    scenarios = {"p": Scenario("run"), "broken": Scenario(DefiniteError("wrong password"))}
    file = File(asked)
    with webhook() as first, webhook() as second, supervised(file, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "broken") is PipeStage.FAILED, PATIENCE_S)
        assert supervisor.alerts().rules == ()
        file.says = replace(asked, alerts=alert_rules(chat=first.port), process=replace(asked.process, address="https://h.example"))
        result = supervisor.reload()
        assert result.lines() == ("applied: [headrace] address, [alerts.chat]",)
        assert (result.unchanged, result.needs_restart) == (("p", "broken"), ())
        assert "reload: applied: [headrace] address, [alerts.chat]" in caplog.messages
        wait_until(lambda: first.kinds() == ["failed"], PATIENCE_S)
        assert first.posted[0].body["link"] == "https://h.example/#/pipes/broken"
        assert supervisor.reload().lines() == ("nothing has changed",)

        file.says = replace(asked, alerts=alert_rules(chat=first.port, more=second.port))
        assert supervisor.reload().applied == ("[headrace] address", "[alerts.more]")
        wait_until(lambda: second.kinds() == ["failed"], PATIENCE_S)
        file.says = replace(asked, alerts=alert_rules(more=first.port))
        assert supervisor.reload().applied == ("[alerts.more]", "[alerts.chat]")
        assert [(rule.name, rule.address) for rule in supervisor.alerts().rules] == [("more", f"http://127.0.0.1:{first.port}")]
        time.sleep(1.5)
        assert (first.kinds(), second.kinds()) == (["failed"], ["failed"])
        assert scenarios["p"].runs == 1


def test_retry_seconds_applies_to_the_next_wait(tmp_path: Path) -> None:
    asked = configuration(tmp_path, ("p", ("p",)))
    slow = replace(asked, process=replace(asked.process, retry_seconds=1000))
    file = File(slow)
    scenarios = {"p": Scenario(TransientError("the server is away"), TransientError("the server is away"), "run")}
    with supervised(file, scenarios) as supervisor:
        wait_until(lambda: stage(supervisor, "p") is PipeStage.RETRYING, PATIENCE_S)
        runner = supervisor.runners["p"]
        file.says = asked
        assert supervisor.reload().lines() == ("applied: [headrace] retry_seconds",)
        assert supervisor.runners["p"] is runner
        # The wait that has begun goes on; the one after it is short.
        time.sleep(0.5)
        assert scenarios["p"].runs == 1
        supervisor.resume("p")
        wait_until(lambda: stage(supervisor, "p") is PipeStage.STREAMING, PATIENCE_S)
        assert scenarios["p"].runs == 3


FILE = """\
[headrace]
state = "{state}"
listen = "127.0.0.1:0"
log = "json"

[sources.shop]
url = "{url}"

[sinks.warehouse]
url = "chdb:warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
include = ["orders"]
"""
CHANGED = """\
address = "https://headrace.example.com"
retry_seconds = 9
spark_log = true
"""
# Less than a petabyte is free: an alert at once.
ALERTS = """
[alerts.chat]
url = "http://127.0.0.1:{port}/path-secret"
low_disk = "1000000G"
"""
MORE = """
[pipes.people]
source = "shop"
sink = "warehouse"
include = ["{table}"]
"""


def test_the_state_directory_of_a_process_stays(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    text = FILE.format(state="state", url="mysql://u@h/shop")
    file.write_text(text.replace('"state"', '"other"') + MORE.format(table="x"))
    found = reload(read_document(file), (), tmp_path / "state")
    assert found.process.state == tmp_path / "other"
    assert [pipe.specs[0].settings.state for pipe in found.pipes] == [tmp_path / "state/shop", tmp_path / "state/people"]
    file.write_text(text.replace("source =", "sorce =") + MORE.format(table="x").replace("sink", "sinc"))
    with pytest.raises(DefiniteError, match="2 errors in") as caught:
        reload(read_document(file), (), tmp_path / "state")
    assert "line 13" in str(caught.value)
    assert "line 19" in str(caught.value)
    file.write_text(text + "enabled = false\n")
    with pytest.raises(DefiniteError, match="no pipe is to run"):
        reload(read_document(file), (), tmp_path / "state")


def test_the_command_prints_each_mistake_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeControl):
        def reload(self) -> ReloadResult:
            raise ErrorList("2 errors in headrace.toml\n- there is no setting 'a\x1b' (at line 3)\n- there is no setting 'b' (at line 9)")

    for control, code in ((FakeControl(), 0), (Broken(), 2)):
        with serve(control, "127.0.0.1:0", TOKEN) as server, publish_endpoint(tmp_path, server.url, TOKEN):
            assert cli.main(["reload", "--state", str(tmp_path)]) == code
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "headrace: started: fresh",
        "headrace: applied: [headrace] address, [alerts.chat]",
        "headrace: need a restart of headrace run: [headrace] master",
    ]
    assert err.splitlines()[0] == "headrace: 2 errors in headrace.toml"
    assert err.splitlines()[2] == "- there is no setting 'b' (at line 9)"
    assert "\x1b" not in err


def _source_processes(run: Run) -> set[int]:
    """The processes in which sources of streams run, and the server that forks them."""
    found = set()
    for entry in (one for one in Path("/proc").iterdir() if one.name.isdigit()):
        with suppress(OSError):
            if b"fork_server" in (entry / "cmdline").read_bytes() and run.token.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def test_reloads_of_a_process(mariadb_server: PrivateServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By command and by SIGHUP. The pipe that the file does not change keeps its process, its source's process and its stream."""
    own = os.urandom(3).hex()
    database = f"reload_{own}"

    def execute(*statements: str) -> None:
        with mariadb_server.root_connection() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    account = create_replica_account(mariadb_server, f"reload_{own}")
    execute(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.people (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.places (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.people VALUES (1), (2)",
        f"INSERT INTO {database}.places VALUES (1), (2), (3)",
    )
    file, state = tmp_path / "headrace.toml", tmp_path / "state"
    text = FILE.format(state="state", url=account.url(database))
    file.write_text(text)

    def said(code: int = 0) -> str:
        assert cli.main(["reload", str(file)]) == code
        out, err = capsys.readouterr()
        return out + err

    with webhook() as hook, Run(["run", str(file)], tmp_path / "log").killed() as run:
        run.until((state / CONTROL_FILE).exists)
        remote = HttpControl(read_endpoint(state))
        run.until(lambda: remote.pipe("shop").stage is PipeStage.STREAMING)
        pid, sources = remote.status().pid, _source_processes(run)
        stream_since = remote.pipe("shop").since
        assert len(sources) > 1, "the fork server and the source of the stream"

        file.write_text(text + MORE.format(table="people"))
        assert said() == "headrace: started: people\n"
        run.until(lambda: remote.pipe("people").stage is PipeStage.STREAMING)
        assert remote.query("people", f"SELECT toUInt32(count()) FROM {database}.people")[1] == [[2]]

        file.write_text(text + MORE.format(table="people").replace("include", "inclde"))
        wrong = said(2)
        assert "there is no setting 'inclde'" in wrong
        [number] = [number for number, line in enumerate(file.read_text().splitlines(), 1) if "inclde" in line]
        assert f"line {number}," in wrong
        assert [pipe.name for pipe in remote.status().pipes] == ["shop", "people"]

        file.write_text(text.replace("listen = ", f"{CHANGED}listen = ") + MORE.format(table="p*") + ALERTS.format(port=hook.port))
        assert said().splitlines() == [
            "headrace: restarted with the new settings: people",
            "headrace: applied: [headrace] address, [headrace] retry_seconds, [alerts.chat]",
            "headrace: need a restart of headrace run: [headrace] spark_log",
        ]
        assert [rule.name for rule in remote.alerts().rules] == ["chat"]
        run.until(lambda: hook.kinds() == ["low_disk"])
        assert hook.posted[0].body["link"] == "https://headrace.example.com/"
        run.until(lambda: remote.pipe("people").stage is PipeStage.STREAMING)
        run.until(lambda: len(remote.pipe("people").tables) == 2)

        file.write_text(text)
        os.kill(pid, signal.SIGHUP)
        run.until(lambda: [pipe.name for pipe in remote.status().pipes] == ["shop"])
        assert (state / "people" / "pipe.json").exists()
        run.until(lambda: remote.alerts().rules == ())
        run.until(lambda: run.output.count("reload: applied: [headrace] address, [headrace] retry_seconds, [alerts.chat]") == 2)

        assert remote.status().pid == pid
        assert sources <= _source_processes(run)
        assert remote.pipe("shop").since == stream_since
        execute(f"INSERT INTO {database}.orders VALUES (7)")
        run.until(lambda: remote.pipe("shop").changes == 1)
        ended = run.terminate()
    assert ended.code == 143
    assert "path-secret" not in run.output
