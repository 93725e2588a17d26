"""The built packages work, and contain all files of the source tree."""

from __future__ import annotations

import os
import shlex
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import headrace

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headrace"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source package, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("packages")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run([*build, "--target", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    (folder / "source").mkdir()
    # Not tarfile: Debian 12's Python (3.11.2) has no extraction filters yet.
    subprocess.run(["tar", "-x", "-f", str(archive), "-C", str(folder / "source")], check=True)
    (tree,) = (folder / "source").iterdir()
    subprocess.run([*build, "--target", "wheel"], cwd=tree, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return archive, wheel


def test_the_wheel_holds_the_whole_package(packages: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(packages[1]) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("headrace/")}
        (about,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        described = wheel.read(about).decode()
    files = (file.relative_to(PACKAGE.parent) for file in PACKAGE.rglob("*") if file.is_file())
    # (Tools write caches into the tree.)
    assert packed == {str(file) for file in files if not any(part.startswith((".", "__pycache__")) for part in file.parts)}
    assert f"\nVersion: {headrace.__version__}\n" in described
    assert f"## {headrace.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_installed_wheel_runs(packages: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    (library,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(packages[1]) as wheel:
        wheel.extractall(library)
    # The dependencies of the tests as a plain path, so that the editable Headrace is not found.
    (library / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    # The kernels are compiled already: their cache depends on their content.
    for cache in PACKAGE.rglob("__pycache__/kernels-*"):
        shutil.copytree(cache, library / cache.relative_to(PACKAGE.parent))

    def run(*words: str) -> str:
        command = [str(home / "bin" / "python"), "-I", "-m", "headrace", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert run("--version") == f"headrace {headrace.__version__}\n"
    place = subprocess.run(
        [str(home / "bin" / "python"), "-I", "-c", "import headrace; print(headrace.__file__)"], capture_output=True, text=True, check=True
    )
    assert Path(place.stdout.strip()).is_relative_to(library)
    made = "import pathlib; from headrace.embedded.process import EmbeddedServer; EmbeddedServer(pathlib.Path('copy')).start().stop()"
    subprocess.run([str(home / "bin" / "python"), "-I", "-c", made], cwd=tmp_path, timeout=120, check=True)
    assert "42" in run("sql", "chdb:./copy", "SELECT 6 * 7 AS answer")


def test_pinned_versions_permit_the_oldest_python() -> None:
    """Debian 12 has Python 3.11.2: a version that needs a later one cannot be installed there, while these tests run with a later one."""
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    needs = {found.name: ",".join(found.metadata.get_all("Requires-Python", [])) for found in distributions()}
    assert {"pyspark", "pymdown-extensions"} <= needs.keys()
    assert {name: python for name, python in needs.items() if not SpecifierSet(python).contains(f"{oldest}.0")} == {}


@pytest.mark.slow(because="test_a_pipe_without_its_extra_does_not_start; test_the_base_imports_no_package_of_an_extra")
def test_the_printed_command_adds_an_extra_to_the_base(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """A real installation of the base, without the packages of extras; the command of the error adds those of one extra."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)

    def run(*words: str, code: int = 0) -> str:
        command = [python, "-m", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False)
        assert ended.returncode == code, ended.stderr
        return ended.stdout + ended.stderr

    run("pip", "install", "--quiet", "--no-compile", str(packages[1]))
    installed = run("pip", "list").lower()
    assert not any(name in installed for name in ("chdb", "confluent", "scylla", "duckdb"))
    # The kernels are compiled already: their cache depends on their content.
    (library,) = home.glob("lib/python*/site-packages")
    for cache in PACKAGE.rglob("__pycache__/kernels-*"):
        shutil.copytree(cache, library / cache.relative_to(PACKAGE.parent))
    command = ["headrace", "check", "scylla://127.0.0.1:1/ks"]
    printed = run(*command, code=2).rpartition("remedy: ")[2].strip()
    assert printed == "pip install 'headrace[scylla]'"
    run(*shlex.split(printed), "--quiet", "--no-compile")
    assert "pip install" not in run(*command, code=2)
