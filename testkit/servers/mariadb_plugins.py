"""MariaDB's loadable plugins, taken from Debian's package `mariadb-server` without installing it.

The set-up installs only `mariadb-server-core`, which holds no plugin: installing `mariadb-server` would start a system-wide server. apt
downloads the package and checks it against the signed index; only its plugin directory is unpacked, into the cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.demo.private_server import find_mariadb
from headrace.errors import DefiniteError, HeadraceError
from testkit.servers.cache import cache_dir, hold_lock

PLUGINS = "usr/lib/mysql/plugin"
PROBE = "auth_ed25519.so"
"""The plugin that the tests load; a directory that has it has all of them."""


def plugin_dir(version: str, installed: Path = Path("/") / PLUGINS) -> Path:
    """Return the plugin directory for a MariaDB server of `version`: the installed one, or the package's, fetched on the first call."""
    if (installed / PROBE).exists():
        return installed
    target = cache_dir() / f"mariadb-plugins-{version}"
    with hold_lock("mariadb-plugins"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-plugins-", dir=cache_dir()) as scratch:
                (unpack_package("mariadb-server", Path(scratch)) / PLUGINS).rename(target)
    return target


def unpack_package(name: str, work: Path) -> Path:
    """Download a package of the machine's Debian into a folder; return the folder with its files."""
    _run(name, ["apt-get", "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3", "download", name], work)
    [package] = work.glob(f"{name}_*.deb")
    _run(name, ["dpkg-deb", "--extract", str(package), "root"], work)
    return work / "root"


def _run(name: str, command: list[str], work: Path) -> None:
    if shutil.which(command[0]) is None:
        raise DefiniteError(f"the package {name} needs {command[0]} to be unpacked", hint=f"install {name}, or use Debian")
    done = subprocess.run(command, cwd=work, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise DefiniteError(
            f"{' '.join(command[:1] + command[-2:])} failed with code {done.returncode}: {done.stderr.strip()[-500:]}",
            hint="run apt-get update, then try again",
        )


def main() -> int:
    """Fill the cache before the tests run."""
    try:
        print(f"MariaDB's plugins are in {plugin_dir(find_mariadb().version)}")
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
