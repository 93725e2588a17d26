"""Archives that the driver sends to executors: the Headrace package, and optionally its dependencies.

The package is the installed one, byte for byte, with compiled modules and kernels: an executor with the same CPU compiles nothing. The name
of an archive, and of the folder that Spark unpacks it to, contains a digest of its content, so that no executor runs another version than
the driver.

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
from headrace.extras import EXTRAS
from headrace.kernels.cache import KERNEL_MODULES, kernel_cache_dir
from headrace.spark.runtime.cluster import ShipMode

SHIPPED_KERNELS: Final = "shipped"
"""The folder of compiled kernels in an archive; `worker_daemon.rename_shipped_kernels` renames it to the name that numba looks for."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_NOT_FOR_TASKS: Final = ("chdb", "chdb-core", "pyspark", "py4j", "rich", "markdown-it-py", "mdurl", "pygments")
"""Distributions that only the driver imports, and pyspark, which Spark provides."""
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class DependencyArchives:
    """Archives for Spark, and the folders that executors unpack them to."""

    archives: tuple[str, ...] = ()
    """In the format of `spark.archives`: `PATH#FOLDER`."""
    folders: tuple[str, ...] = ()

    @property
    def python_path(self) -> str:
        return os.pathsep.join(self.folders)


def build_archives(ship: ShipMode, scratch: Path) -> DependencyArchives:
    """Write the archives of a ship mode to `scratch`."""
    if ship is ShipMode.NONE:
        return DependencyArchives()
    made = [_write_zip("headrace", _package_files(), scratch)]
    if ship is ShipMode.ENV:
        made.append(_write_tar("headrace-env", _environment_files(), scratch))
    return DependencyArchives(tuple(f"{path.resolve()}#{folder}" for path, folder in made), tuple(folder for _, folder in made))


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package: sources, compiled modules, data, compiled kernels."""
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
    """Return the path and the bytecode of a module. Python uses it without checking the source, which is in the same archive."""
    target = importlib.util.cache_from_source(name.name)
    code = compile(source, str(name), "exec", dont_inherit=True)
    unchecked = (1).to_bytes(4, "little")
    head = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source)
    return str(name.parent / target), head + marshal.dumps(code)


def _kernel_files(package: str) -> Iterator[tuple[str, bytes]]:
    cache = kernel_cache_dir(package)
    base = PurePosixPath(*package.split("."), "__pycache__", cache.name, SHIPPED_KERNELS)
    # The name of numba's folder contains the path of the sources on this machine.
    for path in sorted(cache.glob("*/*.nb[ic]")):
        yield str(base / path.name), path.read_bytes()


def _write_zip(name: str, files: Iterable[tuple[str, bytes]], scratch: Path) -> tuple[Path, str]:
    """Write a zip archive; return its path and its folder, both named after the content."""
    scratch.mkdir(parents=True, exist_ok=True)
    digest, made = hashlib.sha256(), scratch / f"{name}.partial"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, content in files:
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), content, zipfile.ZIP_DEFLATED, 1)
    folder = f"{name}-{digest.hexdigest()[:16]}"
    return made.replace(scratch / f"{folder}.zip"), folder


def _environment_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of all distributions that tasks need, with their names in the archive."""
    # Of the extras, those that are installed here.
    for name in sorted(_required_distributions("headrace", frozenset(extra.name for extra in EXTRAS))):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            # Leave out scripts, which are outside of the import folder, and bytecode, which executors compile again.
            if ".." not in file.parts and "__pycache__" not in file.parts and not file.is_absolute():
                path = Path(str(distribution.locate_file(file)))
                if path.is_file():
                    yield str(file), path


def _required_distributions(name: str, extras: frozenset[str] = frozenset(), seen: dict[str, frozenset[str]] | None = None) -> set[str]:
    """Return the distributions that one requires, directly and indirectly."""
    found: dict[str, frozenset[str]] = {} if seen is None else seen
    for requirement in importlib.metadata.distribution(name).requires or ():
        wanted, only_for = _REQUIREMENT.match(requirement), _EXTRA.search(requirement)
        assert wanted is not None, requirement
        other, wanted_extras = re.sub(r"[-_.]+", "-", wanted[1]).lower(), frozenset((wanted[2] or "").replace(" ", "").split(",")) - {""}
        if other in _NOT_FOR_TASKS or (only_for and only_for[1] not in extras) or (other in found and wanted_extras <= found[other]):
            continue
        try:
            importlib.metadata.distribution(other)
        except importlib.metadata.PackageNotFoundError:
            # Required on other systems only.
            continue
        found[other] = found.get(other, frozenset()) | wanted_extras
        _required_distributions(other, wanted_extras, found)
    return set(found)


def _write_tar(name: str, files: Iterable[tuple[str, Path]], scratch: Path) -> tuple[Path, str]:
    """Write a tar archive of files that are too large for memory. The digest covers names and sizes of the installed files."""
    scratch.mkdir(parents=True, exist_ok=True)
    digest, made = hashlib.sha256(), scratch / f"{name}.partial"
    with tarfile.open(made, "w:gz", compresslevel=1, dereference=True) as archive:
        for path, file in files:
            digest.update(f"{path}\0{file.stat().st_size}\0".encode())
            archive.add(file, path, recursive=False)
    folder = f"{name}-{digest.hexdigest()[:16]}"
    return made.replace(scratch / f"{folder}.tar.gz"), folder
