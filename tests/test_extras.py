"""The base installation runs without the packages of extras; what needs a missing one says how to install it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace import extras
from headrace.cli import FAILED, main
from headrace.errors import DefiniteError
from headrace.extras import EXTRAS, Extra, explain_missing_packages, require_extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
SOURCE = "mysql://root@127.0.0.1:1/shop"
PROGRAM = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from headrace.cli import main
sys.exit(main(sys.argv[1:]))
"""
BASE_MODULES = (
    "headrace.pipes.mysql.pipe",
    "headrace.pipes.mysql.binlog_files_pipe",
    "headrace.service.supervisor",
    "headrace.dashboard.server",
    "headrace.sinks.clickhouse.sink",
    "headrace.sinks.stdout.sink",
    "headrace.sinks.producer",
    "headrace.sources.mysql.split_reader",
    "headrace.verify.verifier",
    "headrace.spark.spark_runtime",
)


def every_package() -> list[str]:
    return [package for extra in EXTRAS for package in extra.packages]


def block(monkeypatch: pytest.MonkeyPatch, extra: Extra) -> None:
    """Make the packages of an extra look as if they were not installed."""
    for package in extra.packages:
        monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]


def is_explained(text: str, extra: Extra) -> bool:
    return f"remedy: pip install 'headrace[{extra.name}]'\n" in text and extra.purpose in text and "Traceback" not in text


def distribution(requirement: str) -> str:
    return requirement.partition("[")[0].partition(">")[0].partition("=")[0].strip()


def test_the_project_declares_these_extras() -> None:
    declared: dict[str, Any] = PROJECT["optional-dependencies"]
    assert set(declared) == {extra.name for extra in EXTRAS} | {"all", "dev", "docs"}
    assert declared["all"] == [f"headrace[{','.join(extra.name for extra in EXTRAS)}]"]
    assert "headrace[all,docs]" in declared["dev"]
    base = set(map(distribution, PROJECT["dependencies"]))
    for extra in EXTRAS:
        assert declared[extra.name]
        assert not base.intersection(map(distribution, declared[extra.name]))


def test_the_readme_names_every_extra() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    assert all(f"| `{extra.name}` |" in text for extra in (*EXTRAS, Extra("all", "", ())))


def test_the_base_imports_no_package_of_an_extra() -> None:
    blocked = "\n".join(f"sys.modules[{package!r}] = None" for package in every_package())
    imports = "\n".join(f"import {module}" for module in BASE_MODULES)
    compiled = "from headrace.kernels.compile import compile_kernels\ncompile_kernels()"
    subprocess.run([sys.executable, "-c", f"import sys\n{blocked}\n{imports}\n{compiled}"], check=True, timeout=300)


@pytest.mark.parametrize(
    ("extra", "source", "sink"),
    [
        (extras.KAFKA, SOURCE, "kafka://127.0.0.1:1"),
        (extras.KAFKA, "kafka://127.0.0.1:1", "clickhouse://127.0.0.1:1"),
        (extras.SCYLLA, "scylla://127.0.0.1:1/ks", "clickhouse://127.0.0.1:1"),
        (extras.SCYLLA, "scylla://127.0.0.1:1/ks", "cql://127.0.0.1:1/copy"),
        (extras.EMBEDDED, SOURCE, "chdb:./copy"),
    ],
    ids=lambda value: value.name if isinstance(value, Extra) else value.partition(":")[0],
)
def test_a_pipe_without_its_extra_does_not_start(
    extra: Extra, source: str, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block(monkeypatch, extra)
    monkeypatch.chdir(tmp_path)
    assert main(["replicate", source, sink, "--state", "state"]) == FAILED
    assert is_explained(capsys.readouterr().err, extra)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("transform", ['filter = "total > 100"', 'computed = { net = "total / 1.2" }'], ids=["filter", "computed"])
def test_sql_expressions_need_their_extra(
    transform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block(monkeypatch, extras.TRANSFORMS)
    file = tmp_path / "headrace.toml"
    pipe = '[pipes.shop]\nsource = "shop"\nsink = "copy"\n[pipes.shop.tables."shop.orders"]\n'
    ends = f'[sources.shop]\nurl = "{SOURCE}"\n[sinks.copy]\nurl = "clickhouse://127.0.0.1:1"\n'
    file.write_text(f"{ends}{pipe}{transform}\n")
    assert main(["config", "check", str(file)]) == FAILED
    said = capsys.readouterr()
    assert is_explained(said.err + said.out, extras.TRANSFORMS)
    file.write_text(f'{ends}{pipe}rename = {{ total = "sum" }}\nhash = {{ email = "md5" }}\n')
    assert main(["config", "check", str(file)]) == 0


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (extras.KAFKA, ("tail", "kafka://127.0.0.1:1/topic")),
        (extras.SCYLLA, ("check", "scylla://127.0.0.1:1/ks")),
        (extras.EMBEDDED, ("serve", "data")),
        (extras.EMBEDDED, ("demo",)),
    ],
    ids=lambda value: value.name if isinstance(value, Extra) else value[0],
)
def test_a_command_without_its_extra_ends_with_the_remedy(extra: Extra, words: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, ",".join(extra.packages), *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == FAILED, ended.stderr
    assert is_explained(ended.stderr, extra), ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_every_package_of_an_extra_is_required(extra: Extra, monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra(extra)
    for package in extra.packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
            with pytest.raises(DefiniteError, match=f"the package {package} is not installed"):
                require_extra(extra)
            with pytest.raises(DefiniteError, match=f"the package {package} is not installed"), explain_missing_packages():
                __import__(package)


def test_other_missing_modules_stay_what_they_are() -> None:
    for name in ("no_such_package", "duckdb.no_such_module"):
        with pytest.raises(ModuleNotFoundError), explain_missing_packages():
            raise ModuleNotFoundError(name=name)
