"""Downloads jars from Maven repositories, and verifies each against a pinned SHA-256.

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

from headrace.errors import DefiniteError, TransientError
from headrace.retry import retrying

REPOSITORY_VARIABLE: Final = "HEADRACE_MAVEN"
_SETTINGS: Final = (Path("~/.m2/settings.xml"), Path("/etc/maven/settings.xml"))
_MIRRORED: Final = {"*", "central", "external:*"}
_AT_ONCE, _ATTEMPTS, _TIMEOUT_S, _PIECE = 6, 4, 60.0, 1 << 20
_GONE: Final = (404, 410)


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
    root = os.environ.get("HEADRACE_CACHE") or str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace")
    path = Path(root)
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold a lock among processes. The kernel releases it when the process dies."""
    with (_cache_dir() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
