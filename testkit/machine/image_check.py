"""Builds and runs the image of `deploy/docker/Dockerfile` without Docker: `make test-image` (as root, about ten minutes).

The steps of the Dockerfile run in a bare Debian 12 root (`testkit.machine.bare_machine`), on the committed state of this checkout. Then the
image's command replicates a private MariaDB into embedded ClickHouse as the image's user, twice: with a writable root file system, as
Docker has it, and with a read-only one, as the Helm chart sets it. Both runs must answer the image's health check, become ready, show the
source's rows, and end with exit code 143 after SIGTERM.

What this does not check: image layers, the network of containers, and everything that a Docker engine or a Kubernetes cluster decides.
`--keep` (`ARGS=--keep`) keeps the root for a look.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from headrace.demo.private_process import find_free_port
from headrace.demo.private_server import PrivateServer
from testkit.machine.bare_machine import CHECKOUT, VARIABLES, BareMachine, MachineError, bare_machine
from testkit.machine.dockerfile import Dockerfile, Step, parse_dockerfile
from testkit.servers.accounts import create_replica_account
from testkit.servers.servers import execute, mariadb

DOCKERFILE = CHECKOUT / "deploy/docker/Dockerfile"
CHART = CHECKOUT / "deploy/helm/headrace/templates/statefulset.yaml"
LOGS = CHECKOUT / "build/image"
CONFIGURATION = "/etc/headrace/headrace.toml"
ROWS = 1000
_SLIM = "path-exclude /usr/share/man/*\npath-exclude /usr/share/doc/*\npath-exclude /usr/share/locale/*\n"
"""What Debian's slim images leave out of packages."""
_FILE = """
[headrace]
state = "/var/lib/headrace/state"
listen = "0.0.0.0:{listen}"
hosts = ["headrace"]

[sources.shop]
url = "mysql://{user}@127.0.0.1:{port}/shop"
password_file = "/run/secrets/source_password"

[sinks.warehouse]
url = "chdb:/var/lib/headrace/warehouse"

[pipes.shop]
source = "shop"
sink = "warehouse"
"""
# Prepares a run as the chart does: the root file system is read-only, only the chart's mounts are writable, and an init container copies
# the compiled kernels. An emptyDir with the chart's fsGroup belongs to root, and the group may write to it.
_READ_ONLY = """
mount --bind /var/lib/headrace /var/lib/headrace
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /cache
mount -t tmpfs -o mode=2777,gid=10001 tmpfs /cache
setpriv --reuid 10001 --regid 10001 --clear-groups {copy}
mount --bind /cache /var/cache/headrace
mount -o remount,ro,bind /
if touch /root/written 2>/dev/null; then echo "the root file system is writable"; exit 1; fi
"""
_READY = 'import urllib.request as r; print("image: /ready:", r.urlopen("http://127.0.0.1:{port}/ready").read().decode())'
_SERVE = r"""
set -u
{command} &
service=$!
deadline=$(($(date +%s) + 900))
until {health} 2>/dev/null; do
    if ! kill -0 $service 2>/dev/null || [ $(date +%s) -gt $deadline ]; then echo "image: no answer to the health check"; exit 1; fi
    sleep 1
done
echo "image: the health check passes after $(($(date +%s) - deadline + 900)) s"
until [ "$(headrace sql chdb:/var/lib/headrace/warehouse 'SELECT count() FROM shop.orders FINAL FORMAT TSV' 2>/dev/null)" = {rows} ]; do
    if ! kill -0 $service 2>/dev/null || [ $(date +%s) -gt $deadline ]; then echo "image: the rows did not arrive"; exit 1; fi
    sleep 2
done
echo "image: {rows} rows are in the warehouse after $(($(date +%s) - deadline + 900)) s"
until python3 -c '{ready}' 2>/dev/null; do
    if ! kill -0 $service 2>/dev/null || [ $(date +%s) -gt $deadline ]; then echo "image: the pipe did not become ready"; exit 1; fi
    sleep 1
done
headrace status {file} || exit 1
kill -TERM $service
wait $service
code=$?
echo "image: exit code $code after SIGTERM"
[ $code = 143 ]
"""


class ImageCheck:
    """One bare root that becomes the image."""

    def __init__(self, machine: BareMachine, image: Dockerfile) -> None:
        self._machine = machine
        self._image = image
        self._count = 0
        # The recorder of missing programs belongs to `make test-fresh`.
        own = {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)}
        machine.environment = {**own, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM": "dumb"}

    def build(self) -> None:
        """Run the steps of the Dockerfile."""
        (self._machine.root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM)
        (self._machine.root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 bare-debian\n")
        with tempfile.TemporaryDirectory(prefix="headrace-context-") as folder:
            context = Path(folder)
            git = ["git", "-c", f"safe.directory={CHECKOUT}", "-C", str(CHECKOUT)]
            archive = subprocess.run([*git, "archive", "HEAD"], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
            for step in self._image.steps:
                self._run_step(step, context)

    def _run_step(self, step: Step, context: Path) -> None:
        match step.keyword:
            case "RUN":
                started = time.monotonic()
                self.run(step.text, step.user, step.directory, step.environment)
                print(f"image: {time.monotonic() - started:.0f} s for this step", flush=True)
            case "COPY":
                *sources, target = step.text.split()
                folder = Path(f"{self._machine.root}{target}")
                folder.mkdir(parents=True, exist_ok=True)
                for source in (context / name for name in sources):
                    # As Docker: a folder's content is copied, not the folder.
                    if source.is_dir():
                        shutil.copytree(source, folder, dirs_exist_ok=True)
                    else:
                        shutil.copy(source, folder)
            case _:
                Path(f"{self._machine.root}{step.text}").mkdir(parents=True, exist_ok=True)

    def run(self, command: str, user: str, directory: str, environment: Mapping[str, str], before: str = "") -> None:
        """Run a shell command in the root as `user`; raise `MachineError` if it fails."""
        self._count += 1
        settings = {"HOME": "/root" if user.startswith("0") else self._image.directory, **environment}
        words = ["env", "--chdir", directory, *(f"{name}={value}" for name, value in settings.items()), "/bin/sh", "-c", command]
        number, _, group = user.partition(":")
        become = ["setpriv", "--reuid", number, "--regid", group or number, "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        as_user = shlex.join(words if number == "0" else [*become, *words])
        code = self._machine.run(f"set -e\n{before}\n{as_user}", LOGS / f"{self._count:02}.log")
        if code:
            raise MachineError(f"a step of the image failed with code {code}: {command[:200]}")

    def serve(self, server: PrivateServer, *, read_only: bool) -> None:
        """Run the image's command on a private server and compare what arrives."""
        root, image = self._machine.root, self._image
        account = create_replica_account(server, f"headrace_{secrets.token_hex(4)}")
        # The root shares this machine's network, where another process may have the image's port.
        listen = find_free_port()
        text = _FILE.format(user=account.user, port=server.port, listen=listen)
        Path(f"{root}{CONFIGURATION}").write_text(text)
        (root / "run/secrets").mkdir(exist_ok=True)
        (root / "run/secrets/source_password").write_text(account.password + "\n")
        volume = Path(f"{root}{image.volume}")
        for left in volume.iterdir():
            shutil.rmtree(left)
        command, health = (
            [*image.entry_point, *image.command],
            [word.replace(f":{image.port}/", f":{listen}/") for word in image.health_command],
        )
        script = _SERVE.format(
            command=shlex.join(command), health=shlex.join(health), file=CONFIGURATION, rows=ROWS, ready=_READY.format(port=listen)
        )
        print(f"\n== the image's command, on a {'read-only' if read_only else 'writable'} root file system", flush=True)
        self.run(script, image.user, image.directory, image.environment, _READ_ONLY.format(copy=_init_command()) if read_only else "")
        for log in sorted(LOGS.glob("*.log"))[-1:]:
            if "compiling, once for this installation" in log.read_text():
                raise MachineError("the image's kernels were compiled again: they are not usable where the image runs")

    def check_kernels(self) -> None:
        """The compiled kernels do not depend on the CPU of this machine, and the image's user loads them without compiling."""
        image = self._image
        script = (
            'python -c "from numba.core.registry import cpu_target as c; print(*c.target_context.codegen().magic_tuple()[1:], sep=chr(44))"'
            ' | grep --quiet --line-regexp "$NUMBA_CPU_NAME,"'
            " && NUMBA_DEBUG_CACHE=1 python -m headrace.kernels.compile > /tmp/kernels.txt"
            " && grep --count loaded /tmp/kernels.txt && ! grep saved /tmp/kernels.txt && headrace --version"
        )
        self.run(script, image.user, image.directory, image.environment)


def _init_command() -> str:
    """The command of the chart's init container."""
    found = re.search(r"^ *command: \[(.*)\]$", CHART.read_text(), re.MULTILINE)
    if found is None:
        raise MachineError(f"{CHART.name} has no init container with a command")
    return shlex.join(found[1].split(", "))


def main() -> int:
    """0 if the image works; 1 if it does not; 2 if it cannot be checked here."""
    if os.geteuid() != 0:
        print("headrace: a bare root takes root to build and to enter: run sudo make test-image", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    image = parse_dockerfile(DOCKERFILE.read_text())
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-image-") as folder, bare_machine(keep="--keep" in sys.argv) as machine:
            check = ImageCheck(machine, image)
            check.build()
            size = subprocess.run(["du", "-sm", "-x", str(machine.root)], check=True, capture_output=True, text=True).stdout.split()[0]
            print(f"image: the root directory has {size} MB", flush=True)
            check.check_kernels()
            with mariadb(Path(folder) / "source") as server:
                rows = ", ".join(f"({number}, 'new', {number}.50)" for number in range(ROWS))
                table = "CREATE TABLE shop.orders (id INT PRIMARY KEY, status VARCHAR(20), total DECIMAL(14, 2))"
                execute(server, "CREATE DATABASE shop", table, f"INSERT INTO shop.orders VALUES {rows}")
                for read_only in (False, True):
                    check.serve(server, read_only=read_only)
    except MachineError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    print("image: built, and served on a writable and on a read-only root file system", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
