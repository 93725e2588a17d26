"""Runs the command blocks of a document as a reader does: in order, in one shell, unchanged.

`python -m testkit.documents.command_blocks DOCUMENT CHECKOUT [SERVICE…]` goes through the ```sh blocks of a Markdown file. It must be
started in its own network and mount namespace (`unshare --net --mount`), where names such as `db.example` and ports such as 3306 are those
of private servers. The blocks run in a folder that looks like the checkout and holds what they make.

Hidden comments give the instructions that a reader does not need:
- `<!-- until: TEXT -->` after a block: continue when its output shows TEXT. The block's last command keeps running, as in a
  terminal of its own; the lines before it prepare the terminal.
- `<!-- Ctrl-C: WORDS -->`: the reader interrupts the running command that begins with WORDS, which must end well.
- `<!-- killed: WORDS -->`: the running command that begins with WORDS was killed by the block before.
- `<!-- not here: REASON -->` before a block: it is not run, for a reason that is printed.
What still runs at the end of the document is interrupted, and must end well.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_STEP = re.compile(
    r"^```sh\n(?P<block>.*?)^```$|^<!-- (?P<verb>until|Ctrl-C|killed|not here): (?P<text>.*?) -->$", re.DOTALL | re.MULTILINE
)
_HOSTS = ("db.example", "broker", "node1.example")
_PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Step:
    """A block of commands, or an action: `run`, `start` (continue when the output shows `text`), `Ctrl-C`, `killed` or `pass over`."""

    verb: str
    block: str = ""
    text: str = ""


def steps_of(document: str) -> list[Step]:
    """Return the steps of a document."""
    steps: list[Step] = []
    passed = ""
    for found in _STEP.finditer(document):
        verb, text = found["verb"], found["text"]
        if verb is None:
            steps.append(Step("pass over", found["block"], passed) if passed else Step("run", found["block"]))
            passed = ""
        elif verb == "not here":
            passed = text
        elif verb == "until":
            steps[-1] = Step("start", steps[-1].block, text)
        else:
            steps.append(Step(verb, text=text))
    return steps


class Unfit(Exception):
    """A command did not do what the document says."""


@dataclass(slots=True)
class Reader:
    """Runs steps in one shell; a command that keeps running has its own terminal."""

    folder: Path
    running: dict[str, tuple[subprocess.Popen[bytes], Path]] = field(default_factory=dict)
    _shell: subprocess.Popen[str] | None = None

    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            if step.verb == "pass over":
                say(f"NOT RUN ({step.text}):\n{step.block}")
            elif step.verb == "run":
                self.run(step.block)
            elif step.verb == "start":
                self.start(step.block, step.text)
            else:
                self.end(step.text, killed=step.verb == "killed")
        for command in list(self.running):
            self.end(command)

    def run(self, block: str) -> None:
        """Run a block in the shell; every command must end well."""
        say(f"$ {block.rstrip()}")
        begun = time.monotonic()
        if self._shell is None:
            shell = ["bash", "--noprofile", "--norc", "-e"]
            self._shell = subprocess.Popen(
                shell, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        said = _exchange(self._shell, block)
        say(said.rstrip())
        if self._shell.poll() is not None:
            raise Unfit(f"the block ended with code {self._shell.returncode}:\n{block}")
        say(f"({time.monotonic() - begun:.1f} s)")

    def start(self, block: str, text: str) -> None:
        """Run a block in its own terminal, with the shell's folder and environment, until its output shows a text."""
        say(f"$ {block.rstrip()}     (runs on)")
        log = self.folder / f".terminal-{len(self.running)}-{secrets.token_hex(2)}"
        state = self.folder / ".shell-state"
        self.run(f"declare -px > {state}; printf 'cd %q\\n' \"$PWD\" >> {state}")
        with log.open("wb") as output:
            *preparing, last = block.strip().splitlines()
            script = "\n".join([f"source {state}", "set -e", *preparing, f"exec {last}"])
            command = ["bash", "--noprofile", "--norc", "-c", script]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        self.running[last] = (process, log)
        deadline = time.monotonic() + _PATIENCE_S
        while text not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unfit(f"{block.strip()!r} never said {text!r}; code {process.poll()}:\n{log.read_text(errors='replace')}")
            time.sleep(0.1)

    def end(self, words: str, *, killed: bool = False) -> None:
        """Interrupt a command as Ctrl-C does. Unless it was killed, its exit code must be that of an interruption."""
        command = next((command for command in self.running if command.startswith(words)), None)
        if command is None:
            raise Unfit(f"nothing that begins with {words!r} runs")
        process, log = self.running.pop(command)
        if not killed:
            os.killpg(process.pid, signal.SIGINT)
        code = process.wait(120)
        say(f"(ended) {command}\n{log.read_text(errors='replace').rstrip()}")
        if code != (-signal.SIGKILL if killed else 128 + signal.SIGINT):
            raise Unfit(f"{command!r} ended with code {code}")

    def leave(self) -> None:
        for process, _ in self.running.values():
            os.killpg(process.pid, signal.SIGKILL)
        if self._shell is not None:
            self._shell.kill()


def _exchange(shell: subprocess.Popen[str], block: str) -> str:
    """Run a block in a shell; return its output."""
    end = f"end-of-{secrets.token_hex(8)}"
    writing, reading = shell.stdin, shell.stdout
    assert writing is not None
    assert reading is not None
    writing.write(f"{block}\necho {end}\n")
    writing.flush()
    said = []
    for line in reading:
        if line.rstrip().endswith(end):
            said.append(line.rstrip().removesuffix(end))
            return "".join(said)
        said.append(line)
    shell.wait()
    return "".join(said)


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def mysql_at_db_example(folder: Path) -> Iterator[None]:
    """The README's server: `db.example:3306`, with a database `shop` and an account `repl`."""
    from headrace.demo.private_server import mariadb
    from headrace.demo.shop import create_shop

    server = mariadb(folder)
    server.port = 3306
    with server:
        connection = server.root_connection()
        create_shop(connection, 200, 1_000)
        with connection.cursor() as cursor:
            cursor.execute("CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'secret'")
            cursor.execute("GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO repl@'127.0.0.1'")
        connection.close()
        yield


@contextmanager
def kafka_at_broker(folder: Path) -> Iterator[None]:
    """`broker:9092`."""
    from testkit.servers.broker import PrivateBroker

    broker = PrivateBroker(folder)
    broker.port = 9092
    with broker:
        yield


SERVICES: Mapping[str, Callable[[Path], AbstractContextManager[None]]] = {"mysql": mysql_at_db_example, "kafka": kafka_at_broker}


def likeness(checkout: Path, folder: Path) -> None:
    """Make a folder look like the checkout."""
    for entry in checkout.iterdir():
        (folder / entry.name).symlink_to(entry)


def settle(folder: Path) -> None:
    """Set up the loopback interface of the namespace, and host names for it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {' '.join(_HOSTS)}\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)


def main(document: str, checkout: str, *services: str) -> int:
    """Return 0 if every command of the document works."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="newcomer-")))
        settle(home)
        folder = home / "headrace"
        folder.mkdir()
        likeness(Path(checkout), folder)
        for service in services:
            stack.enter_context(SERVICES[service](home / service))
        reader = Reader(folder)
        stack.callback(reader.leave)
        try:
            reader.follow(steps_of(Path(document).read_text()))
        except Unfit as unfit:
            say(f"UNFIT: {unfit}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
