"""Runs the command blocks of a document as a reader does: in order, in terminals, unchanged.

`python -m testkit.documents.command_blocks DOCUMENT CHECKOUT [--outputs] [SERVICE…]` goes through the ```sh blocks of a Markdown file. It
must be started in its own network and mount namespace (`unshare --net --mount`), where names such as `db.example` and ports such as 3306
are those of private servers. The blocks run in a folder that looks like the checkout and holds what they make. With `--outputs`, a block
without a language is the output of the commands above it, and is compared (`shown_output`).

A terminal begins with the environment of a login on this machine, without the environment of the tests (`machine_environment`).

Hidden comments give the instructions that a reader does not need:
- `<!-- until: TEXT -->` after a block: continue when its output shows TEXT. The block's last command keeps running; the lines before it
  prepare the terminal.
- `<!-- terminal: NAME -->` before such a block: it runs in another terminal, which opens in the first one's folder. A terminal keeps its
  folder and its variables when its command ends. Without a name, the block has those of the first terminal.
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
from dataclasses import dataclass, field, replace
from pathlib import Path

from testkit.documents.shown_output import missing_lines

OUTPUTS = "--outputs"
_STEP = re.compile(
    r"^```(?P<language>\w*)\n(?P<block>.*?)^```$|^<!-- (?P<verb>until|terminal|Ctrl-C|killed|not here): (?P<text>.*?) -->$",
    re.DOTALL | re.MULTILINE,
)
# What a login has, and the addresses of certificates and packages of a machine behind a proxy.
_OF_A_LOGIN = re.compile(r"(HOME|USER|LOGNAME|SHELL|LANG|TERM|TZ|TMPDIR|JAVA_HOME|SSL_CERT_\w+|(?i:https?|no)_proxy|(LC|PIP)_\w+)")
_HOSTS = ("db.example", "broker", "node1.example")
_PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Step:
    """A block of commands, or an action: `run`, `start` (continue when the output shows `text`), `Ctrl-C`, `killed` or `pass over`."""

    verb: str
    block: str = ""
    text: str = ""
    terminal: str = ""
    shown: str = ""


def steps_of(document: str) -> list[Step]:
    """Return the steps of a document."""
    steps: list[Step] = []
    passed = terminal = ""
    for found in _STEP.finditer(document):
        verb, text = found["verb"], found["text"]
        if found["language"] == "sh":
            steps.append(Step("pass over", found["block"], passed) if passed else Step("run", found["block"], terminal=terminal))
            passed = terminal = ""
        elif found["language"] == "":
            if steps and steps[-1].verb in ("run", "start"):
                steps[-1] = replace(steps[-1], shown=steps[-1].shown + found["block"])
        elif verb == "not here":
            passed = text
        elif verb == "terminal":
            terminal = text
        elif verb == "until":
            steps[-1] = replace(steps[-1], verb="start", text=text)
        elif verb is not None:
            steps.append(Step(verb, text=text))
    return steps


def machine_environment() -> dict[str, str]:
    """Return the environment of a new terminal: that of a login, without an activated environment and the variables of the tests."""
    kept = {name: value for name, value in os.environ.items() if _OF_A_LOGIN.fullmatch(name)}
    programs = (Path(sys.prefix) / "bin").resolve()
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).resolve() != programs]
    return {**kept, "PATH": os.pathsep.join(path)}


class Unfit(Exception):
    """A command did not do what the document says."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command that keeps running."""

    step: Step
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(slots=True)
class Reader:
    """Runs steps in the shell of the first terminal, and commands that keep running in others."""

    folder: Path
    compares: bool = False
    running: dict[str, Started] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _shell: subprocess.Popen[str] | None = None

    def follow(self, steps: list[Step]) -> None:
        for step in steps:
            if step.verb == "pass over":
                say(f"NOT RUN ({step.text}):\n{step.block}")
            elif step.verb == "run":
                self.compare(step, self.run(step))
            elif step.verb == "start":
                self.start(step)
            else:
                self.end(step.text, killed=step.verb == "killed")
        for command in list(self.running):
            self.end(command)

    def run(self, step: Step) -> str:
        """Run a block in the first terminal; every command must end well. Return the output."""
        if step.terminal:
            raise Unfit(f"a block in another terminal must keep running: add <!-- until: … -->\n{step.block}")
        say(f"$ {step.block.rstrip()}")
        begun = time.monotonic()
        said = self._execute(step.block)
        say(f"{said.rstrip()}\n({time.monotonic() - begun:.1f} s)")
        return said

    def _execute(self, block: str) -> str:
        if self._shell is None:
            shell = ["bash", "--noprofile", "--norc", "-e"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            self._shell = subprocess.Popen(shell, cwd=self.folder, env=machine_environment(), text=True, **pipes)
        said = _exchange(self._shell, block)
        if self._shell.poll() is not None:
            raise Unfit(f"the block ended with code {self._shell.returncode}:\n{block}\n{said}")
        return said

    def start(self, step: Step) -> None:
        """Run a block until its output shows the text of the step, and let its last command run."""
        say(f"$ {step.block.rstrip()}     (runs on{f', in the terminal {step.terminal}' if step.terminal else ''})")
        log = self.folder / f".terminal-{len(self.running)}-{secrets.token_hex(2)}"
        *preparing, last = step.block.strip().splitlines()
        state = self._terminal(step.terminal)
        script = "\n".join([f"source {state}", "set -e", *preparing, _stored(state), f"exec {last}"])
        command = ["bash", "--noprofile", "--norc", "-c", script]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=machine_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[last] = Started(step, process, log)
        deadline = time.monotonic() + _PATIENCE_S
        while step.text not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")
                raise Unfit(f"{step.block.strip()!r} never said {step.text!r}; code {process.poll()}:\n{said}")
            time.sleep(0.1)

    def _terminal(self, name: str) -> Path:
        """Return the file with the folder and the variables of a terminal; open it if it is new."""
        if not name:
            state = self.folder / f".first-terminal-{secrets.token_hex(2)}"
            self._execute(_stored(state))
            return state
        if any(started.step.terminal == name for started in self.running.values()):
            raise Unfit(f"a command runs in the terminal {name!r}")
        state = self.folder / f".{name}-terminal"
        if not state.exists():
            self._execute(_stored(state, variables=False))
        return state

    def compare(self, step: Step, said: str) -> None:
        missing = missing_lines(step.shown, said) if self.compares else []
        if missing:
            self.faults.append(f"the output of\n{step.block}does not have these lines of the document:\n" + "\n".join(missing))

    def end(self, words: str, *, killed: bool = False) -> None:
        """Interrupt a command as Ctrl-C does. Unless it was killed, its exit code must be that of an interruption."""
        command = next((command for command in self.running if command.startswith(words)), None)
        if command is None:
            raise Unfit(f"nothing that begins with {words!r} runs")
        started = self.running.pop(command)
        if not killed:
            os.killpg(started.process.pid, signal.SIGINT)
        code = started.process.wait(120)
        said = started.log.read_text(errors="replace")
        say(f"(ended) {command}\n{said.rstrip()}")
        if code != (-signal.SIGKILL if killed else 128 + signal.SIGINT):
            raise Unfit(f"{command!r} ended with code {code}")
        self.compare(started.step, said)

    def leave(self) -> None:
        for started in self.running.values():
            if started.process.poll() is None:
                os.killpg(started.process.pid, signal.SIGKILL)
                started.process.wait()
        if self._shell is not None:
            self._shell.kill()
            self._shell.communicate()


def _stored(state: Path, *, variables: bool = True) -> str:
    """Return the command that stores a shell's folder, and its variables, in a file."""
    store_variables = "declare -px" if variables else ":"
    return f"{{ {store_variables}; printf 'cd %q\\n' \"$PWD\"; }} > {state}"


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


def main(document: str, checkout: str, *options: str) -> int:
    """Return 0 if every command of the document works, and prints what the document shows."""
    services = [option for option in options if option != OUTPUTS]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="newcomer-")))
        settle(home)
        folder = home / "headrace"
        folder.mkdir()
        likeness(Path(checkout), folder)
        for service in services:
            stack.enter_context(SERVICES[service](home / service))
        reader = Reader(folder, compares=OUTPUTS in options)
        stack.callback(reader.leave)
        try:
            reader.follow(steps_of(Path(document).read_text()))
        except Unfit as unfit:
            reader.faults.append(str(unfit))
    for fault in reader.faults:
        say(f"UNFIT: {fault}")
    return 1 if reader.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
