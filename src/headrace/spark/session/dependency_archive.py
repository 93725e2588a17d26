"""What executors are sent: our own package, by choice with all that tasks import, as archives that Spark unpacks beside each of them.

The package is what is installed here, byte for byte, with its modules compiled and its kernels too: an executor on a like CPU starts
without compiling anything. An archive's name holds a digest of its content, and so does the folder that it is unpacked to: no executor
ever runs another version than the driver.

Executors find it by a relative entry in their PYTHONPATH: Spark unpacks archives into an executor's working directory before it starts a
Python process there.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import marshal
import os
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import headrace
from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir
from headrace.spark.runtime.cluster import ShipMode

SHIPPED_KERNELS: Final = "shipped"
"""The folder of compiled kernels in an archive; `daemon.rename_shipped_kernels` gives it the name that numba looks for."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_NOT_FOR_TASKS: Final = ("chdb", "chdb-core", "pyspark", "py4j", "rich", "markdown-it-py", "mdurl", "pygments")
"""What only the driver imports; Spark brings its own Python part."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class DependencyArchives:
    """Archives for Spark, and where executors find their content."""

    archives: tuple[str, ...] = ()
    """In the words of `spark.archives`: `PATH#FOLDER`."""
    folders: tuple[str, ...] = ()

    @property
    def python_path(self) -> str:
        return os.pathsep.join(self.folders)


def build_archives(ship: ShipMode, scratch: Path) -> DependencyArchives:
    """Make the archives that were asked for, under `scratch`."""
    if ship is ShipMode.NONE:
        return DependencyArchives()
    made = [_write_zip("headrace", _package_files(), scratch)]
    if ship is ShipMode.ENV:
        made.append(_write_tar("headrace-env", _environment_files(), scratch))
    return DependencyArchives(tuple(f"{path.resolve()}#{folder}" for path, folder in made), tuple(folder for _, folder in made))


def _package_files() -> Iterator[tuple[str, bytes]]:
    """The package's files as they are packed: sources, compiled modules, data, compiled kernels."""
    root = Path(headrace.__file__).parent
    for path in sorted(root.rglob("*")):
        if "__pycache__" in path.parts or not path.is_file():
            continue
        name = PurePosixPath("headrace", *path.relative_to(root).parts)
        content = path.read_bytes()
        yield str(name), content
        if path.suffix == ".py":
            yield _compile_module(name, content)
    for package in KERNEL_MODULES:
        yield from _kernel_files(package)


def _compile_module(name: PurePosixPath, source: bytes) -> tuple[str, bytes]:
    """A module's bytecode, trusted without a look at its source: both lie in the same archive."""
    target = importlib.util.cache_from_source(name.name)
    code = compile(source, str(name), "exec", dont_inherit=True)
    unchecked = (1).to_bytes(4, "little")
    head = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source)
    return str(name.parent / target), head + marshal.dumps(code)


def _kernel_files(package: str) -> Iterator[tuple[str, bytes]]:
    cache = kernel_cache_dir(package)
    base = PurePosixPath(*package.split("."), "__pycache__", cache.name, SHIPPED_KERNELS)
    # numba keeps them in a folder whose name tells where the sources lie here.
    for path in sorted(cache.glob("*/*.nb[ic]")):
        yield str(base / path.name), path.read_bytes()


def _write_zip(name: str, files: Iterable[tuple[str, bytes]], scratch: Path) -> tuple[Path, str]:
    """An archive of these files and the folder it is unpacked to, both named after the content."""
    scratch.mkdir(parents=True, exist_ok=True)
    digest, made = hashlib.sha256(), scratch / f"{name}.partial"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, content in files:
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), content, zipfile.ZIP_DEFLATED, 1)
    folder = f"{name}-{digest.hexdigest()[:16]}"
    return made.replace(scratch / f"{folder}.zip"), folder


def _environment_files() -> Iterator[tuple[str, Path]]:
    """The files of all distributions that tasks need, with their names in the archive."""
    for name in sorted(_required_distributions("headrace")):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            # Scripts lie outside of the folder that is imported from; bytecode is made anew where it is used.
            if ".." not in file.parts and "__pycache__" not in file.parts and not file.is_absolute():
                path = Path(str(distribution.locate_file(file)))
                if path.is_file():
                    yield str(file), path


def _required_distributions(name: str, extras: frozenset[str] = frozenset(), seen: dict[str, frozenset[str]] | None = None) -> set[str]:
    """The distributions that one needs, and those that they need; not itself."""
    found: dict[str, frozenset[str]] = {} if seen is None else seen
    for requirement in importlib.metadata.distribution(name).requires or ():
        wanted, only_for = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        assert wanted is not None, requirement
        other, asked = re.sub(r"[-_.]+", "-", wanted[1]).lower(), frozenset((wanted[2] or "").replace(" ", "").split(",")) - {""}
        if other in _NOT_FOR_TASKS or (only_for and only_for[1] not in extras) or (other in found and asked <= found[other]):
            continue
        try:
            importlib.metadata.distribution(other)
        except importlib.metadata.PackageNotFoundError:
            # Needed on other systems only.
            continue
        found[other] = found.get(other, frozenset()) | asked
        _required_distributions(other, asked, found)
    return set(found)


def _write_tar(name: str, files: Iterable[tuple[str, Path]], scratch: Path) -> tuple[Path, str]:
    """The same for files that are too large to hold; what is installed does not change under its name and size."""
    scratch.mkdir(parents=True, exist_ok=True)
    digest, made = hashlib.sha256(), scratch / f"{name}.partial"
    with tarfile.open(made, "w:gz", compresslevel=1, dereference=True) as archive:
        for path, file in files:
            digest.update(f"{path}\0{file.stat().st_size}\0".encode())
            archive.add(file, path, recursive=False)
    folder = f"{name}-{digest.hexdigest()[:16]}"
    return made.replace(scratch / f"{folder}.tar.gz"), folder
