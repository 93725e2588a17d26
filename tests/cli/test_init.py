"""`headrace init`: it checks both ends, asks on a terminal for what is missing, and writes a file that runs."""

from __future__ import annotations

import io
import os
import pty
import secrets
import select
import socket
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from headrace.cli import init, main
from headrace.cli.init import DEFAULT_SINK
from headrace.config.key_catalog import list_sections
from headrace.config.new_file import OPTIONAL_KEYS, NewPipe, pipe_name
from headrace.demo.private_server import PrivateServer
from headrace.embedded.process import EmbeddedServer
from headrace.errors import DefiniteError
from headrace.settings.dataclass_fields import to_plain
from testkit.pipelines.embedded_access import url_of
from testkit.servers.accounts import Account, account_with
from testkit.servers.broker import PrivateBroker
from testkit.servers.servers import execute

COMMAND = [sys.executable, "-m", "headrace"]
_PASSWORDS = ("HEADRACE_SOURCE_PASSWORD", "HEADRACE_SINK_PASSWORD", "HEADRACE_KAFKA_PASSWORD")
LIMIT_S = 120.0


@pytest.fixture
def shop(mariadb_server: PrivateServer) -> Iterator[str]:
    """A database with a row."""
    name = f"init_{secrets.token_hex(4)}"
    execute(mariadb_server, f"CREATE DATABASE {name}", f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, note TEXT)")
    execute(mariadb_server, f"INSERT INTO {name}.orders VALUES (7, 'seven')")
    yield name
    execute(mariadb_server, f"DROP DATABASE {name}")


@pytest.fixture
def account(mariadb_server: PrivateServer) -> Iterator[Account]:
    with account_with(mariadb_server, "SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.*") as created:
        yield created


class Command:
    """Runs commands in this process, without a terminal. A command may set variables, which end with the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setattr("sys.stdin", io.StringIO())

    def __call__(self, *words: str, **variables: str) -> tuple[int, str]:
        for name in _PASSWORDS:
            self._monkeypatch.setenv(name, variables.get(name, ""))
        code = main(words)
        return code, "".join(self._capsys.readouterr())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in _PASSWORDS}, **more}


def run_process(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Run a command as a process without a terminal."""
    ended = subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment(**variables), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    output = ended.stdout + ended.stderr
    assert "Traceback" not in output
    return ended.returncode, output


class Typist:
    """Runs the command on a terminal, reads what it prints, and types."""

    def __init__(self, folder: Path, *words: str, **variables: str) -> None:
        self._terminal, theirs = pty.openpty()
        # A controlling terminal, so that Ctrl-C is a signal and a password can be asked for.
        command = ["setsid", "--ctty", *COMMAND, "init", *words]
        variables = {"COLUMNS": "400", **variables}
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment(**variables))
        os.close(theirs)
        self.seen = ""
        self._read_to = 0

    def until(self, text: str) -> None:
        """Wait until a text is printed, after those that were waited for."""
        deadline = time.monotonic() + LIMIT_S
        while (at := self.seen.find(text, self._read_to)) < 0:
            assert time.monotonic() < deadline, self.seen
            assert self._read(1.0), self.seen
        self._read_to = at + len(text)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def answer(self, question: str, answer: str) -> None:
        self.until(question)
        self.type(f"{answer}\n")

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def end(self) -> int:
        """Wait for the end of the command, and return its exit code."""
        while self._read(LIMIT_S):
            pass
        return self._process.wait(LIMIT_S)

    def _read(self, timeout_s: float) -> bool:
        """Read what is printed within a time; return False after the command has ended."""
        if select.select([self._terminal], [], [], timeout_s)[0]:
            try:
                self.seen += os.read(self._terminal, 1 << 16).decode(errors="replace")
            except OSError:
                return False
        return True

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._terminal)


@contextmanager
def typist(folder: Path, *words: str, **variables: str) -> Iterator[Typist]:
    with closing(Typist(folder, *words, **variables)) as opened:
        yield opened
    assert "Traceback" not in opened.seen


def test_the_written_file_runs(mariadb_server: PrivateServer, account: Account, shop: str, run: Command, tmp_path: Path) -> None:
    code, output = run("init", account.url(shop), "chdb:copy", "--yes")
    assert code == 0, output
    assert "check: 0 errors" in output
    assert "set HEADRACE_SOURCE_PASSWORD before headrace run" in output
    assert "Run it now?" not in output
    text = (tmp_path / "headrace.toml").read_text()
    assert account.password not in text + output
    assert tomllib.loads(text) == {
        "headrace": {},
        "sources": {
            shop: {"url": mariadb_server.url(shop, account.user, "").replace(":@", "@"), "password": "${HEADRACE_SOURCE_PASSWORD}"}
        },
        "sinks": {"copy": {"url": "chdb:copy"}},
        "pipes": {shop: {"source": shop, "sink": "copy"}},
    }
    assert run("config", "check")[0] == 2, "the password is not in the environment"
    assert run("config", "check", HEADRACE_SOURCE_PASSWORD=account.password)[0] == 0
    code, output = run_process(tmp_path, "run", "--once", "--listen", "", HEADRACE_SOURCE_PASSWORD=account.password)
    assert code == 0, output
    assert run("sql", "chdb:copy", f"SELECT id, note FROM {shop}.orders FINAL FORMAT CSV") == (0, '7,"seven"\n')


def test_optional_keys_are_comments_with_their_defaults() -> None:
    text = NewPipe("mysql://repl@db1/shop", "clickhouse://default@ch1/shop", "shop").text()
    sections = {section.header.split(".")[0]: section for section in reversed(list_sections()) if re_matches(section.url)}
    assert sections["sources"].fields["chunk_rows"].text not in text, "only the most used keys"
    for kind, names in OPTIONAL_KEYS.items():
        assert all(any(name in section.fields for section in list_sections() if section.header.split(".")[0] == kind) for name in names)
    for line in (
        "# How the existing rows are copied at the start; none: not at all. It is one of",
        '#snapshot = "lock-free"',
        "#exclude = []",
        '#engine = "replacing"',
        "# Where changes come from: a MySQL or MariaDB server.",
        '#password = ""',
    ):
        assert f"\n{line}" in text
    uncommented = tomllib.loads("\n".join(line.removeprefix("#") if line[:2] != "# " else line for line in text.splitlines()))
    for kind, names in (("headrace", ("listen",)), ("sources", ("snapshot", "cascades")), ("sinks", ("engine", "hidden_columns"))):
        found = uncommented[kind] if kind == "headrace" else next(iter(uncommented[kind].values()))
        assert {name: found[name] for name in names} == {
            name: to_plain(sections[kind].fields[name].kind, sections[kind].fields[name].default) for name in names
        }


def re_matches(url: str) -> bool:
    return not url or "mysql" in url or "clickhouse" in url


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *(("mysql://a@h/my.shop", "my-shop"), ("mysql://a@h", "mysql"), ("binlog:/logs", "binlog")),
        *(("kafka://h/t", "kafka"), ("scylla://h/app", "app")),
    ],
)
def test_names(source: str, name: str) -> None:
    assert pipe_name(source) == name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no source is given, and there is no terminal to ask on"),
        (("--yes",), "no source is given, and --yes asks no question"),
        (("mysql://root@127.0.0.1:1/shop",), "no sink is given, and there is no terminal to ask on"),
        (("nowhere", "--yes"), "the source's address cannot be read"),
        (("mysql://root@127.0.0.1:1", "--yes"), "no tables are named"),
        (("kafka://127.0.0.1:1", "--yes"), "no topics are named"),
        (("kafka://127.0.0.1:1", "--yes", "--tables", "t"), "--tables does not select from this source"),
        (("mysql://root@127.0.0.1:1/shop", "--yes", "--name", "a b"), "'a b' cannot be a name here"),
        (("mysql://root@127.0.0.1:1/shop", "--yes"), "the source does not answer"),
    ],
)
def test_an_error_writes_nothing(words: tuple[str, ...], said: str, run: Command, tmp_path: Path) -> None:
    code, output = run("init", *words)
    assert (code, said in output, "remedy: " in output) == (2, True, True), output
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_writes_nothing(mariadb_server: PrivateServer, shop: str, run: Command, tmp_path: Path) -> None:
    """A finding of the source, an absent sink, and a directory that is none; with the exit code of `headrace check`."""
    with account_with(mariadb_server, "SELECT ON *.*") as few:
        code, output = run("init", few.url(shop), "--yes")
        assert (code, run("check", few.url(shop))[0]) == (2, 2)
        assert "REPLICATION SLAVE" in output
        assert "repair: GRANT" in output
    (tmp_path / "file").touch()
    for sink, said in (
        ("clickhouse://default@127.0.0.1:1", "ClickHouse cannot be reached"),
        ("chdb:file/below", "is a file"),
        ("cql://127.0.0.1/copy", "takes ScyllaDB's log only"),
    ):
        code, output = run("init", mariadb_server.url(shop), sink, "--yes")
        assert (code, said in output) == (2, True), output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_existing_file_is_left_alone(run: Command, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("# mine")
    code, output = run("init", "mysql://root@127.0.0.1:1/shop", "--yes")
    assert code == 2
    assert "the file already exists" in output
    assert "--file" in output
    assert (tmp_path / "headrace.toml").read_text() == "# mine"


def test_a_file_in_another_folder(mariadb_server: PrivateServer, shop: str, run: Command, tmp_path: Path) -> None:
    """Paths of the command line are relative to the working directory, those of the file to the file's."""
    (tmp_path / "etc").mkdir()
    code, output = run(
        "init",
        mariadb_server.url(),
        "--yes",
        "--file",
        "etc/a.toml",
        "--name",
        "copy",
        "--tables",
        f"{shop}.o*",
        "--tables",
        "x.*",
    )
    assert code == 0, output
    content = tomllib.loads((tmp_path / "etc/a.toml").read_text())
    assert content["sources"]["copy"]["tables"] == [f"{shop}.o*", "x.*"]
    assert content["sinks"]["warehouse"]["url"] == f"chdb:{tmp_path / 'warehouse'}"
    assert list(content["pipes"]) == ["copy"]


def test_topics_into_clickhouse(broker: PrivateBroker, clickhouse: EmbeddedServer, run: Command, tmp_path: Path) -> None:
    topic = broker.create_topic()
    words = ("init", broker.url(), url_of(clickhouse), "--topics", topic, "--yes")
    code, output = run(*words, HEADRACE_SINK_PASSWORD=clickhouse.password)
    assert code == 0, output
    assert "1 selected" in output
    content = tomllib.loads((tmp_path / "headrace.toml").read_text())
    assert content["sources"]["kafka"]["topics"] == [topic]
    assert content["sinks"]["clickhouse"]["password"] == "${HEADRACE_SINK_PASSWORD}"


def test_questions(mariadb_server: PrivateServer, account: Account, shop: str, tmp_path: Path) -> None:
    """The command asks again after a rejected answer, accepts a default, and neither echoes nor writes a password."""
    with typist(tmp_path) as person:
        person.answer("Source: ", "nowhere")
        person.until("the source's address cannot be read")
        person.answer("Source: ", f"mysql://{account.user}@127.0.0.1:{mariadb_server.port}")
        person.answer("nothing means all of the address: ", "")
        person.until("no tables are named")
        person.answer("nothing means all of the address: ", f"{shop}.*")
        person.until("Password: ")
        assert not person.echoes
        person.type("wrong\n")
        person.answer("Password: ", account.password)
        person.until("1 selected")
        assert person.echoes
        person.answer(f"Sink [{DEFAULT_SINK}]: ", "cql://127.0.0.1/copy")
        person.until("takes ScyllaDB's log only")
        person.answer(f"Sink [{DEFAULT_SINK}]: ", "")
        person.answer("Run it now? [Y/n]: ", "perhaps")
        person.answer("Run it now? [Y/n]: ", "n")
        assert person.end() == 0
    text = (tmp_path / "headrace.toml").read_text()
    assert account.password not in text + person.seen
    content = tomllib.loads(text)
    assert content["sources"]["mysql"]["password"] == "${HEADRACE_SOURCE_PASSWORD}"
    assert content["sources"]["mysql"]["tables"] == [f"{shop}.*"]
    assert content["sinks"]["warehouse"]["url"] == DEFAULT_SINK
    assert not (tmp_path / "warehouse").exists(), "nothing was started"


def test_a_password_of_a_refused_answer_is_not_used(mariadb_server: PrivateServer, account: Account, shop: str, tmp_path: Path) -> None:
    with typist(tmp_path) as person:
        person.answer("Source: ", f"mysql://{account.user}:{account.password}@127.0.0.1:{mariadb_server.port}/{shop}?tls=nonsense")
        person.until("tls")
        person.answer("Source: ", f"mysql://{account.user}@127.0.0.1:{mariadb_server.port}/{shop}")
        person.answer("nothing means all of the address: ", "")
        person.answer("Password: ", account.password)
        person.answer("Sink", "")
        person.answer("Run it now? [Y/n]: ", "n")
        assert person.end() == 0


def test_two_passwords_of_one_variable_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA_PASSWORD", "one")
    source = init._secrets_of("kafka://user@one:9092/topic")
    with (
        pytest.raises(DefiniteError, match="both would be read from HEADRACE_KAFKA_PASSWORD"),
        init._secrets_in_environment("kafka://user:two@two:9092", source),
    ):
        pass
    assert os.environ["HEADRACE_KAFKA_PASSWORD"] == "one"
    with init._secrets_in_environment("kafka://user:one@two:9092", source) as address:
        assert address == "kafka://user@two:9092"


def test_a_typed_password_is_not_written(account: Account, shop: str, tmp_path: Path) -> None:
    with typist(tmp_path) as person:
        person.answer("Source: ", account.url(shop))
        person.answer("nothing means all of the address: ", "")
        person.answer("Sink", "")
        person.answer("Run it now? [Y/n]: ", "n")
        assert person.end() == 0
    text = (tmp_path / "headrace.toml").read_text()
    assert account.password not in text
    assert "${HEADRACE_SOURCE_PASSWORD}" in text


def test_a_reference_is_kept(account: Account, shop: str, tmp_path: Path) -> None:
    url = account.url(shop).replace(account.password, "${SHOP}")
    with typist(tmp_path, SHOP=account.password) as person:
        person.answer("Source: ", url)
        person.answer("nothing means all of the address: ", "")
        person.answer("Sink", "")
        person.answer("Run it now? [Y/n]: ", "n")
        assert person.end() == 0
    assert tomllib.loads((tmp_path / "headrace.toml").read_text())["sources"][shop] == {"url": url}


@pytest.mark.parametrize("question", ["Source: ", "Password: ", "Sink"])
def test_ctrl_c(mariadb_server: PrivateServer, account: Account, shop: str, tmp_path: Path, question: str) -> None:
    source = [] if question == "Source: " else [f"mysql://{account.user}@127.0.0.1:{mariadb_server.port}/{shop}"]
    variables = {"HEADRACE_SOURCE_PASSWORD": account.password} if question == "Sink" else {}
    with typist(tmp_path, *source, **variables) as person:
        person.until(question)
        person.type("\x03")
        assert person.end() == 130
        assert person.echoes
    assert list(tmp_path.iterdir()) == []


def test_the_input_ends(tmp_path: Path) -> None:
    with typist(tmp_path) as person:
        person.until("Source: ")
        person.type("\x04")
        assert person.end() == 2
    assert "the input ended before all questions were answered" in person.seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["answer", "flag"])
def test_it_runs_the_file(mariadb_server: PrivateServer, shop: str, tmp_path: Path, how: str) -> None:
    """The run begins as `headrace run` does: it reads the file, and listens on the port of the dashboard, which is taken here."""
    with socket.socket() as holder:
        with suppress(OSError):
            # Any other process that listens there serves as well.
            holder.bind(("127.0.0.1", 8088))
            holder.listen()
        if how == "flag":
            code, output = run_process(tmp_path, "init", mariadb_server.url(shop), "--yes", "--run")
        else:
            with typist(tmp_path, mariadb_server.url(shop), DEFAULT_SINK) as person:
                person.answer("Run it now? [Y/n]: ", "")
                code = person.end()
            output = person.seen
    assert code == 2
    assert "is written" in output
    assert "127.0.0.1:8088" in output
    assert (tmp_path / "headrace-state").is_dir()
