"""Runs `make demo` and `make test` on a bare Debian 12, and lists what they needed and the set-up did not install.

`python3 -m testkit.machine.bare_machine` (as root, Python's standard library only) builds a root directory with mmdebstrap, installs the
prerequisites that the README names, clones the committed state of this checkout into it and runs both commands there. The run has its own
mount, process and host name namespaces: its mounts and processes end with it, even when it is killed. It shares the network, and it uses
the machine's settings of apt, pip and Maven to reach the package registries. The bare root resolves no host name of its own, and for the
demo not even `localhost`.

The report lists the packages that the set-up installed, the programs that the run did not find, and the files that the output names and
that only a package of this machine holds. The exit code is 0 only if both commands pass and nothing was missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
RECORDER = Path(__file__).with_name("command_recorder.py")
RELEASE = "bookworm"
CLONE = "/root/headrace"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MISSES = "/run/missed-programs.jsonl"
CONFIGURATION = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", "~/.m2/settings.xml", "/etc/maven/settings.xml")
TRUST = ("/etc/apt/auth.conf", "/etc/apt/auth.conf.d", "/usr/local/share/ca-certificates", "/etc/resolv.conf")
VARIABLES = re.compile(r"PIP_\w+|HEADRACE_MAVEN|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|(?i:https?_proxy|no_proxy)")
OPTIONAL = {
    "google-chrome": "an alternative to chromium",
    "lsb_release": "pip reports the machine to the index, if it can",
    "prometheus": "the tests unpack Debian's package into the cache",
    "promtool": "the same",
    "rustc": "pip reports it, too",
    "sudo": "not needed by root",
}
"""Programs that are looked for and may be missing on purpose."""

_TARGET = "$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(REPO_URI)"
_ENTER = """
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mount --rbind /sys "$root/sys"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    shift
done
shift
hostname bare-debian
cd "$root"
mkdir -p .machine
pivot_root . .machine
umount -l /.machine
rmdir /.machine
cd /root
# Not exec: this shell is the init process here, and it must reap orphans.
"$@"
exit $?
"""


class MachineError(Exception):
    """The bare machine cannot be built or prepared here."""


@dataclass
class BareMachine:
    """A bare Debian root directory; commands in it run in their own namespaces."""

    root: Path
    environment: Mapping[str, str]
    shared: Sequence[str] = ()
    """Directories of this machine that are visible in it."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: str, log: Path) -> int:
        """Run a shell command in it; its output goes to the terminal and to `log`."""
        print(f"\n== {command}", flush=True)
        enter = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        inside = ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in self.environment.items()), "/bin/sh", "-c", command]
        with log.open("wb") as copy:
            process = subprocess.Popen(
                [*enter, "sh", "-c", _ENTER, "enter", str(self.root), *self.shared, "--", *inside],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            self.running.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.buffer.write(line)
                sys.stdout.flush()
                copy.write(line)
            self.running.remove(process)
            return process.wait()

    def packages(self, *, manual: bool = False) -> set[str]:
        """The installed packages, or those among them that were asked for by name."""
        query = ["apt-mark", "showmanual"] if manual else ["dpkg-query", "--show", "--showformat", "${Package}\n"]
        return set(_output(["chroot", str(self.root), *query]).split())

    def has(self, program: str) -> bool:
        """Whether a program, by name or path, exists in it."""
        places = [program] if "/" in program else [f"{folder}/{program}" for folder in SEARCH_PATH.split(":")]
        return any(os.path.lexists(f"{self.root}{place}") for place in places)

    def misses(self) -> dict[str, str]:
        """The programs that were not found and do not exist at the end, with the first process or test that looked for them."""
        found: dict[str, str] = {}
        log = Path(f"{self.root}{MISSES}")
        for line in log.read_text().splitlines() if log.exists() else ():
            miss = json.loads(line)
            if "/" not in miss["program"] and miss["program"] not in OPTIONAL and not self.has(miss["program"]):
                found.setdefault(miss["program"], miss["by"])
        return found


@contextmanager
def bare_machine(keep: bool) -> Iterator[BareMachine]:
    """A bare Debian 12 in a temporary directory, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-bare-", dir="/var/tmp"))
    folder.chmod(0o755)
    machine = BareMachine(folder / "root", _environment(os.environ), _shared_directories(os.environ))
    try:
        _build(machine.root)
        yield machine
    finally:
        for process in machine.running:
            process.kill()
            process.wait()
        if keep:
            print(f"kept: {machine.root}")
        else:
            subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)


def prerequisites(readme: str) -> list[str]:
    """The packages that the README lists as prerequisites."""
    found = re.search(r"^apt-get install ([^\n#]+)", readme, re.MULTILINE)
    if found is None:
        raise MachineError("README.md names no prerequisites: a line 'apt-get install PACKAGE…' is missing")
    return [word for word in found[1].split() if not word.startswith("-")]


def debian_sources(targets: str) -> list[str]:
    """apt's source lines of Debian 12, from the lines that `_TARGET` asks `apt-get indextargets` for."""
    parts = [line.split("|") for line in targets.splitlines()]
    debian = [part for part in parts if part[0] == "Debian" and RELEASE in part[1]]
    lines = {f"deb {address} {codename} {component}" for _, codename, component, address in debian}
    if not lines:
        raise MachineError(f"apt has no index of Debian {RELEASE} on this machine: add it to apt's sources and run apt-get update")
    return sorted(lines)


def named_files(output: str) -> set[str]:
    """The absolute paths of system files in a command's output."""
    return {path.rstrip(".") for path in re.findall(r"(?<![\w./-])/(?:usr|lib|lib64|bin|sbin|etc|opt)/[\w.+/-]+", output)}


def _build(root: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        _output(["apt-get", "update", "-qq"])
        _output(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"])
    sources = debian_sources(_output(["apt-get", "indextargets", "--format", _TARGET, "Identifier: Packages"]))
    settings = root.with_name("apt.conf")
    settings.write_text(_output(["apt-config", "dump", "Acquire"]))
    print(f"== building a bare Debian {RELEASE} in {root}", flush=True)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={settings}", RELEASE, str(root), *sources]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    shutil.copy(settings, root / "etc/apt/apt.conf.d/99machine")
    for place in (*CONFIGURATION, *TRUST):
        _copy(Path(place), root)
    (root / "etc/hosts").unlink(missing_ok=True)
    recorder = root / "opt/recorder"
    recorder.mkdir()
    shutil.copy(RECORDER, recorder / "sitecustomize.py")


def _copy(place: Path, root: Path) -> None:
    source = place.expanduser()
    target = Path(f"{root}/root/{place.relative_to('~')}" if place.parts[0] == "~" else f"{root}{place}")
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy(source, target)


def _environment(machine: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in machine.items() if VARIABLES.fullmatch(name)}
    recorder = {"PYTHONPATH": "/opt/recorder", "HEADRACE_MISSES": MISSES}
    # With CI=true a server that is not available is a failure, not a skipped test.
    return {**own, **recorder, "CI": "true", "HOME": "/root", "PATH": SEARCH_PATH, "DEBIAN_FRONTEND": "noninteractive", "TERM": "dumb"}


def _shared_directories(machine: Mapping[str, str]) -> list[str]:
    """Directories in which pip looks for files on this machine."""
    places = [place for name in ("PIP_FIND_LINKS",) for place in machine.get(name, "").split()]
    return [place for place in places if Path(place).is_dir()]


def _clone(machine: BareMachine, logs: Path) -> None:
    git = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT)]
    if _output([*git, "status", "--porcelain"]):
        print("note: uncommitted changes are not tested, only what is committed")
    _output([*git, "bundle", "create", "--quiet", f"{machine.root}/root/headrace.bundle", "HEAD"])
    wanted = " ".join(prerequisites((CHECKOUT / "README.md").read_text()))
    install = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {wanted} >/dev/null"
    if machine.run(f"{install} && git clone --quiet headrace.bundle {CLONE}", logs / "prerequisites.log"):
        raise MachineError(f"the prerequisites {wanted} cannot be installed, or the checkout cannot be cloned")


def _report(machine: BareMachine, before: set[str], asked: set[str], codes: Mapping[str, int], logs: Path) -> int:
    """Print the report; return 0 if both commands passed and nothing was missing."""
    manual, every = machine.packages(manual=True) - asked, machine.packages()
    output = "".join((logs / f"{name}.log").read_text(errors="replace") for name in codes)
    lines = [f"make {name}: {'passed' if code == 0 else f'failed with code {code}'}" for name, code in codes.items()]
    lines.append(f"packages of the bare root and the README's prerequisites: {len(before)}")
    lines.append(f"packages that the set-up installed: {' '.join(sorted(manual))}, and {len(every - before - manual)} that these depend on")
    missing = [f"{name} (looked for by {by}){_owner(name)}" for name, by in sorted(machine.misses().items())]
    missing += [f"{name} (a shell did not find it){_owner(name)}" for name in _not_found(output) if not machine.has(name)]
    missing += [f"{name} (a program is linked with it){_owner(f'*/{name}')}" for name in _missing_libraries(output)]
    files = {path: _owner(path) for path in sorted(named_files(output)) if not machine.has(path) and os.path.lexists(path)}
    missing += [f"{path} (named in the output){owner}" for path, owner in files.items() if owner]
    lines += [f"needed, and not installed by the set-up: {name}" for name in missing] or [
        "needed, and not installed by the set-up: nothing"
    ]
    skipped = re.findall(r"^SKIPPED \[\d+\] .*$", output, re.MULTILINE)
    lines += [f"skipped: {line}" for line in skipped]
    (logs / "report.txt").write_text("\n".join(lines) + "\n")
    print("\n== report\n" + "\n".join(lines), flush=True)
    return 1 if missing or any(codes.values()) else 0


def _not_found(output: str) -> list[str]:
    """Programs that a shell or make did not find, by their messages."""
    shell = re.findall(r"^(?:/\S*/)?(?:sh|dash|bash): (?:line )?\d+: ([\w.+-]+): (?:command )?not found$", output, re.MULTILINE)
    make = re.findall(r"^make(?:\[\d+\])?: ([\w.+-]+): No such file or directory$", output, re.MULTILINE)
    return sorted({*shell, *make})


def _missing_libraries(output: str) -> list[str]:
    """Shared libraries that the dynamic linker did not find, by its message."""
    return sorted(set(re.findall(r"error while loading shared libraries: ([\w.+-]+):", output)))


def _owner(name: str) -> str:
    """The package of this machine that holds a program or a file, for the report."""
    pattern = name if "/" in name else shutil.which(name, path=SEARCH_PATH)
    found = pattern and subprocess.run(["dpkg-query", "--search", pattern], check=False, capture_output=True, text=True).stdout
    return f": on this machine it is in the package {found.partition(':')[0]}" if found else ""


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise MachineError(f"{shlex.join(command)} failed with code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _parse(arguments: Iterable[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make test-fresh", description="make demo and make test on a bare Debian 12")
    parser.add_argument("--only", choices=("demo", "test"), help="run one of the two commands")
    parser.add_argument("--all", action="store_true", help="run make test-all instead of make test")
    parser.add_argument("--arguments", default="", help="ARGS of make test, for pytest")
    parser.add_argument("--keep", action="store_true", help="keep the bare root for a look; its directory is printed")
    return parser.parse_args(None if arguments is None else list(arguments))


def main(arguments: Iterable[str] | None = None) -> int:
    """0 if both commands pass and need nothing that the set-up did not install; 1 if not; 2 if the bare machine cannot be built."""
    chosen = _parse(arguments)
    if os.geteuid() != 0:
        print("headrace: a bare root takes root to build and to enter: run sudo make test-fresh", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    logs = CHECKOUT / "build/fresh"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    try:
        with bare_machine(chosen.keep) as machine:
            _clone(machine, logs)
            before, asked = machine.packages(), machine.packages(manual=True)
            codes: dict[str, int] = {}
            if chosen.only != "test":
                codes["demo"] = machine.run(f"make -C {CLONE} demo", logs / "demo.log")
            # Every container runtime and installer writes this line; the tests reach servers by that name.
            (machine.root / "etc/hosts").write_text("127.0.0.1 localhost\n")
            if chosen.only != "demo":
                command = f"make -C {CLONE} {'test-all' if chosen.all else 'test'} ARGS={shlex.quote(f'-rs {chosen.arguments}')}"
                codes["test"] = machine.run(command, logs / "test.log")
            return _report(machine, before, asked, codes, logs)
    except MachineError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
