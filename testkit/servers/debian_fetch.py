"""Database servers from other Debian suites than the machine's, unpacked in the cache directory without installing anything.

Every program is signed by Debian: the archive's key signs InRelease, InRelease names the hash of the package index, and the index names the
hash of every package. The mirror is apt's. The packages include all libraries, the C library too, so the programs run with their own
dynamic linker on every Debian.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import DefiniteError, HeadraceError, TransientError
from testkit.servers.cache import cache_dir, hold_lock

INDEX = "main/binary-amd64/Packages.xz"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_HELPER = "/usr/lib/apt/apt-helper"
ATTEMPTS = 4

Package = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A server of a Debian suite."""

    product: str
    """The prefix of its directory in the cache."""
    title: str
    suite: str
    wanted: tuple[str, ...]
    """Packages that are unpacked with all they depend on; the first has the server."""
    alone: tuple[str, ...] = ()
    """Packages that are unpacked without what they depend on."""


MYSQL = Bundle("mysql", "MySQL", "unstable", ("mysql-server-core",))
"""Oracle MySQL and its mysqlbinlog."""
MARIADB = Bundle(
    "mariadb", "MariaDB of Debian 13", "trixie", ("mariadb-server-core", "libpcre2-posix3"), alone=("mariadb-client", "mariadb-server")
)
"""A newer MariaDB than Debian 12 has. The packages for mariadb-binlog and the plugins depend on Perl for programs that no test runs."""
BUNDLES = (MYSQL, MARIADB)


def fetch_bundle(bundle: Bundle) -> Path:
    """The root directory of the unpacked server, fetched if the cache has none."""
    with hold_lock(bundle.product):
        return find_unpacked(bundle) or _fetch_with_retries(bundle)


def find_unpacked(bundle: Bundle) -> Path | None:
    """The newest unpacked server in the cache."""
    roots = [path for path in cache_dir().glob(f"{bundle.product}-[0-9]*") if path.is_dir()]
    return max(roots, key=lambda path: path.stat().st_mtime, default=None)


def bundle_version(root: Path) -> str:
    """The Debian version of an unpacked server."""
    return root.name.partition("-")[2]


def unpacked_command(root: Path, program: str) -> tuple[str, ...]:
    """The argument vector that runs `program` (such as `usr/sbin/mysqld`) of an unpacked server."""
    linker = root / "usr/lib64/ld-linux-x86-64.so.2"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return (str(linker), "--library-path", str(libraries), "--argv0", Path(program).name, str(root / program))


def resolve(wanted: Iterable[str], index: Mapping[str, Sequence[Package]]) -> list[Package]:
    """The wanted packages and all they depend on; of alternatives, the first that exists."""
    found: dict[str, Package] = {}
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name not in index:
            raise DefiniteError(f"the Debian suite has no package {name}", hint="the suite is in transition: try another day")
        package = index[name][0]
        if package["Package"] in found:
            continue
        found[package["Package"]] = package
        for clause in _split(f"{package.get('Pre-Depends', '')},{package.get('Depends', '')}", ","):
            names = [re.split(r"[\s:(]", alternative)[0] for alternative in _split(clause, "|")]
            todo.append(next((choice for choice in names if choice in index), names[0]))
    return list(found.values())


def parse_index(text: str) -> dict[str, list[Package]]:
    """Packages by name; real packages come before those that only provide the name."""
    packages = [_parse_stanza(stanza) for stanza in text.split("\n\n") if stanza.strip()]
    index: dict[str, list[Package]] = {package["Package"]: [package] for package in packages}
    for package in packages:
        for provided in _split(package.get("Provides", ""), ","):
            index.setdefault(re.split(r"[\s:(]", provided)[0], []).append(package)
    return index


def _fetch_with_retries(bundle: Bundle) -> Path:
    _check_machine()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _fetch(bundle)
        except TransientError as error:
            if attempt == ATTEMPTS:
                raise
            print(f"headrace: fetching {bundle.title}, attempt {attempt} failed: {error}", file=sys.stderr)
            time.sleep(2**attempt)
    raise AssertionError("unreachable")


def _fetch(bundle: Bundle) -> Path:
    mirror = find_mirror()
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=cache_dir()) as scratch:
        work = Path(scratch)
        index = parse_index(_fetch_index(mirror, bundle.suite, work))
        packages = resolve(bundle.wanted, index) + [index[name][0] for name in bundle.alone]
        files = {work / Path(package["Filename"]).name: package for package in packages}
        _download({file: f"{mirror}/{package['Filename']}" for file, package in files.items()})
        for file, package in files.items():
            _check_hash(file, package["SHA256"])
        root = work / "root"
        _unpack(list(files), root)
        # Without the epoch: a colon in a path ends it in some settings.
        target = cache_dir() / f"{bundle.product}-{index[bundle.wanted[0]][0]['Version'].rpartition(':')[2]}"
        root.rename(target)
        return target


def find_mirror() -> str:
    """The address of the Debian archive that apt uses on this machine."""
    form = "$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    lines = _run(["apt-get", "indextargets", "--format", form, "Identifier: Packages"]).decode().splitlines()
    targets = [line.split("|", 2) for line in lines]
    # Before the first `apt-get update` apt knows addresses, but not the origin of each.
    for origin, label in (("Debian", "Debian"), ("", "")):
        for target in targets:
            if target[:2] == [origin, label]:
                return target[2].rstrip("/")
    raise DefiniteError(
        "apt knows no Debian mirror on this machine", place="apt-get indextargets", hint="add Debian's archive to apt's sources"
    )


def _fetch_index(mirror: str, suite: str, work: Path) -> str:
    release, signed, packed = work / "InRelease", work / "Release", work / "Packages.xz"
    _download({release: f"{mirror}/dists/{suite}/InRelease", packed: f"{mirror}/dists/{suite}/{INDEX}"})
    # The signature covers only the output of gpgv. Its age is not checked: a mirror may lag, and the packages are the same.
    _run(["gpgv", "--quiet", "--keyring", str(KEYRING), "--output", str(signed), str(release)])
    section = signed.read_text().split("\nSHA256:\n", 1)[1]
    match = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(INDEX)}$", section, re.MULTILINE)
    if match is None:
        raise DefiniteError(f"the release file names no {INDEX}", place=f"Debian {suite}")
    _check_hash(packed, match[1])
    return lzma.decompress(packed.read_bytes()).decode()


def _download(files: Mapping[Path, str]) -> None:
    """Fetch with apt's own downloader: it knows this machine's proxies and credentials."""
    arguments = [argument for file, address in files.items() for argument in (address, str(file))]
    options = ["-o", "Acquire::Retries=3", "-o", "APT::Sandbox::User="]
    done = subprocess.run([APT_HELPER, *options, "download-file", *arguments], check=False, capture_output=True, text=True)
    missing = [file.name for file in files if not file.exists()]
    if done.returncode or missing:
        raise TransientError(
            f"could not fetch {', '.join(missing) or 'all files'}: {done.stderr.strip()[-500:]}", place="the Debian mirror"
        )


def _check_hash(file: Path, expected: str) -> None:
    with file.open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != expected:
        # Transient: a mirror in the middle of an update serves files of two generations.
        raise TransientError(f"{file.name} has SHA256 {actual}, not {expected}", place="the Debian mirror")


def _unpack(archives: Sequence[Path], root: Path) -> None:
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for archive in archives:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacker:
            _run(["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", str(root)], stdin=unpacker.stdout)
        if unpacker.returncode:
            raise DefiniteError(f"dpkg-deb could not read {archive.name}")
        archive.unlink()
    for unused in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(root / unused, ignore_errors=True)


def _check_machine() -> None:
    missing = [program for program in ("apt-get", "gpgv", "dpkg-deb", "tar", APT_HELPER) if shutil.which(program) is None]
    if missing or not KEYRING.exists():
        hint = "run on Debian with the packages apt, gpgv and debian-archive-keyring"
        raise DefiniteError(f"other suites can only be fetched with Debian's tools; missing: {', '.join(missing) or KEYRING}", hint=hint)
    if os.uname().machine != "x86_64":
        raise DefiniteError(f"other suites can only be fetched for x86_64, this is {os.uname().machine}")


def _run(command: Sequence[str], stdin: object = subprocess.DEVNULL) -> bytes:
    done = subprocess.run(command, check=False, stdin=stdin, capture_output=True)  # type: ignore[call-overload]
    if done.returncode:
        raise DefiniteError(f"{command[0]} failed with code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return bytes(done.stdout)


def _split(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def _parse_stanza(stanza: str) -> Package:
    fields = (line.split(":", 1) for line in stanza.splitlines() if line and not line[0].isspace())
    return {name: value.strip() for name, value in fields}


def main() -> int:
    """Fill the cache before the tests. Without a server its tests are skipped with a message, and fail in CI."""
    missing = False
    for bundle in BUNDLES:
        try:
            root = fetch_bundle(bundle)
            print(f"{bundle.title} {bundle_version(root)} is in {root}")
        except HeadraceError as error:
            print(f"headrace: {bundle.title} could not be fetched: {error}", file=sys.stderr)
            missing = True
    return 1 if missing and os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
