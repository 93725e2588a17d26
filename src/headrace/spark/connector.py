"""Finds Spark's Kafka connector, which is not part of pyspark, and returns the settings for it.

It takes, in this order: the user's choice (`--kafka-jars`, `HEADRACE_KAFKA_JARS`: a folder of jars, or coordinates for
`spark.jars.packages`); the jars that are pinned below, which it downloads to the cache and verifies; for another version of Spark, the
coordinates of that version. `python -m headrace.spark.connector` downloads the jars in advance.

A Java process accepts jars when it starts and while it runs, and coordinates only when it starts.

A directory of the cache that has its final name is complete and verified: jars are downloaded to another directory, which is then renamed.
The name contains a digest of the pins, so that another list of jars is another directory. The repository is `HEADRACE_MAVEN` if set, else
the mirror in Maven's settings, else the one of Spark's Ivy.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pyspark

from headrace.errors import DefiniteError, HeadraceError, TransientError
from headrace.retry import retrying
from headrace.spark.runtime.java_process import cache_dir

REPOSITORY_VARIABLE: Final = "HEADRACE_MAVEN"
_SETTINGS: Final = (Path("~/.m2/settings.xml"), Path("/etc/maven/settings.xml"))
_MIRRORED: Final = {"*", "central", "external:*"}
_AT_ONCE, _ATTEMPTS, _TIMEOUT_S, _PIECE = 6, 4, 60.0, 1 << 20
_GONE: Final = (404, 410)

JARS_VARIABLE: Final = "HEADRACE_KAFKA_JARS"
TRIED_WITH: Final = "4.3.0"
"""The version of Spark that the pinned jars were tested with."""
_COORDINATES: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.-]+(,[\w.-]+:[\w.-]+:[\w.-]+)*")
_NAME: Final = "spark-sql-kafka-0-10"
_HINT: Final = f"give a folder with {_NAME} and its jars: --kafka-jars DIR, or {JARS_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Pin:
    """One file of a Maven repository, with its digest."""

    group: str
    artifact: str
    version: str
    sha256: str
    ending: str = ".jar"
    """The part of the file's name after the version."""

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}{self.ending}"

    @property
    def path(self) -> str:
        """The path of the file in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"

    def __str__(self) -> str:
        ending = "" if self.ending == ".jar" else f":{self.ending}"
        return f"{self.group}:{self.artifact}:{self.version}{ending} {self.sha256}"


def parse_pin(line: str) -> Pin:
    """Parse `group:artifact:version sha256`, or `group:artifact:version:-all.tar.gz sha256` for a file that is not a plain jar."""
    match = re.fullmatch(r"([\w.-]+):([\w.-]+):([\w.-]+)(?::([\w.-]+))? ([0-9a-f]{64})", line.strip())
    if match is None:
        raise DefiniteError(f"not a pinned jar: {line!r}", hint="write group:artifact:version sha256")
    group, artifact, version, ending, sha256 = match.groups()
    return Pin(group, artifact, version, sha256, ending or ".jar")


def cached(name: str, pins: Sequence[Pin]) -> Path:
    """Return the directory of these jars in the cache, which may not exist."""
    digest = hashlib.sha256("\n".join(sorted(map(str, pins))).encode()).hexdigest()[:12]
    return _cache_dir() / f"{name}-{digest}"


def fetch(name: str, pins: Sequence[Pin]) -> Path:
    """Return the directory of these jars; download them if the cache does not have them."""
    target = cached(name, pins)
    with _alone(name):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=f"fetch-{name}-", dir=target.parent) as scratch:
                download(pins, Path(scratch) / "jars")
                (Path(scratch) / "jars").rename(target)
    return target


def download(pins: Iterable[Pin], directory: Path) -> None:
    """Download and verify all pinned files into a new directory."""
    directory.mkdir(parents=True)
    bases = repositories()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [pool.submit(_fetch_checked, pin, bases, directory) for pin in pins]:
            done.result()


def repositories() -> list[str]:
    """Return the addresses of the Maven repositories to try, in order."""
    named = os.environ.get(REPOSITORY_VARIABLE)
    if named:
        return [named.rstrip("/")]
    return list(dict.fromkeys([*_mirrors(), *_known_to_spark()]))


def _mirrors() -> Iterator[str]:
    for place in _SETTINGS:
        path = place.expanduser()
        if not path.exists():
            continue
        for mirror in ElementTree.parse(path).getroot().iter():
            found = {part.tag.rpartition("}")[2]: (part.text or "").strip() for part in mirror}
            if mirror.tag.rpartition("}")[2] == "mirror" and found.get("mirrorOf") in _MIRRORED and found.get("blocked") != "true":
                yield found["url"].rstrip("/")


def _known_to_spark() -> Iterator[str]:
    for jar in sorted(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")):
        with zipfile.ZipFile(jar) as parts:
            code = parts.read("org/apache/ivy/plugins/resolver/IBiblioResolver.class")
        yield from (found.decode().rstrip("/") for found in re.findall(rb"https://[\w./-]+/maven2/", code))


def _fetch_checked(pin: Pin, bases: Sequence[str], directory: Path) -> None:
    if not bases:
        raise DefiniteError("no Maven repository is known on this machine", hint=f"set {REPOSITORY_VARIABLE} to the address of one")
    file = directory / pin.file_name
    retrying(lambda: _fetch_one(pin, bases, file), attempts=_ATTEMPTS, first_wait_s=1.0)
    with file.open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != pin.sha256:
        raise DefiniteError(
            f"{pin.file_name} from the Maven repository is not the one that is pinned: its SHA-256 is {actual}",
            place=pin.path,
            hint="the repository was changed, or what is between you and it changes files: do not use it",
        )


def _fetch_one(pin: Pin, bases: Sequence[str], file: Path) -> None:
    for base in bases:
        try:
            with urllib.request.urlopen(f"{base}/{pin.path}", timeout=_TIMEOUT_S) as answer, file.open("wb") as out:
                shutil.copyfileobj(answer, out, _PIECE)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in _GONE:
                raise TransientError(f"the Maven repository answers {error.code} for {pin.file_name}", place=pin.path) from error
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"the Maven repository cannot be reached: {error}", place=pin.path) from error
        else:
            return
    raise DefiniteError(
        f"the Maven repository has no {pin.file_name}", place=pin.path, hint=f"set {REPOSITORY_VARIABLE} to the address of one that has it"
    )


def _cache_dir() -> Path:
    path = cache_dir()
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold a lock among processes. The kernel releases it when the process dies."""
    with (_cache_dir() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


CONNECTOR: Final = tuple(
    parse_pin(line)
    for line in (
        # Maven Central had no connector of 4.3 when this was pinned: these run on Spark 4.3, as our tests show.
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
        "org.apache.kafka:kafka-clients:3.9.2 014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
        "org.apache.commons:commons-pool2:2.13.1 f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    )
)


def kafka_settings(given: str = "") -> dict[str, str]:
    """Return the settings of a Spark session that reads and writes Kafka; `given` is a folder of jars or Maven coordinates."""
    choice = given or os.environ.get(JARS_VARIABLE, "")
    if choice and _COORDINATES.fullmatch(choice) and not Path(choice).exists():
        return {"spark.jars.packages": choice}
    if choice:
        return {"spark.jars": ",".join(map(str, _jars_of(Path(choice))))}
    if pyspark.__version__ != TRIED_WITH:
        return {"spark.jars.packages": f"org.apache.spark:{_NAME}_{_scala()}:{pyspark.__version__}"}
    return {"spark.jars": ",".join(map(str, _jars_of(fetch_connector())))}


def fetch_connector() -> Path:
    """Return the folder of the pinned jars; download them if necessary."""
    try:
        return fetch("spark-kafka", CONNECTOR)
    except HeadraceError as error:
        raise DefiniteError(
            f"Spark's Kafka connector is not here and cannot be fetched: {error.message}", place=error.place, hint=_HINT
        ) from error


def _jars_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DefiniteError(f"{folder} is no folder of jars, and no Maven coordinates", hint=_HINT)
    found = sorted(folder.resolve().glob("*.jar"))
    if not any(jar.name.startswith(_NAME) for jar in found):
        raise DefiniteError(f"the folder {folder} has no {_NAME}*.jar", hint=_HINT)
    odd = next((jar for jar in found if "," in str(jar)), None)
    if odd is not None:
        raise DefiniteError(f"the path {odd} has a comma in it, which Spark takes for the end of a name", hint="move the jars")
    return found


def _scala() -> str:
    jars = Path(pyspark.__file__).parent / "jars"
    library = next((jar.name for jar in jars.glob("scala-library-*.jar")), "scala-library-2.13.0.jar")
    return ".".join(library.removeprefix("scala-library-").split(".")[:2])


if __name__ == "__main__":
    try:
        print(f"Spark's Kafka connector is in {fetch_connector()}")
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
