"""Compiled code is cached by the content of its sources, and every compiled module takes part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from headrace.kernels.cache import BASE, KERNEL_MODULES, kernel_cache_dir, package_of
from headrace.kernels.pointers import compiled

SOURCES = Path(headrace.__file__).parent


def test_every_module_with_kernels_is_listed() -> None:
    for path in SOURCES.rglob("*.py"):
        if re.search(r"^@compiled\(", path.read_text(), re.MULTILINE):
            module = ".".join(("headrace", *path.relative_to(SOURCES).with_suffix("").parts))
            assert package_of(module) is not None, module


def test_a_kernel_elsewhere_is_refused() -> None:
    with pytest.raises(RuntimeError, match="list it in"):
        compiled("int64(int64)")(lambda number: number)


def test_a_package_has_a_folder_of_its_own() -> None:
    folders = {kernel_cache_dir(package) for package in KERNEL_MODULES}
    assert len(folders) == len(KERNEL_MODULES)
    assert next(iter(KERNEL_MODULES)) == BASE
