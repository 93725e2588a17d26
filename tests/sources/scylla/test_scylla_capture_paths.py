"""The Python paths by which docs/scylla.md, now and in earlier releases, names the capture layer."""

from __future__ import annotations

import importlib
import sys

import pytest

import headrace.sources.scylla.capture as package
from headrace.sources.scylla.capture.captured_session import capture
from headrace.sources.scylla.capture.statement_capture import Capture

PACKAGE = "headrace.sources.scylla.capture"


def test_package_exports_both_entry_points() -> None:
    assert package.capture is capture
    assert package.Capture is Capture


def test_package_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Captured'"):
        _ = package.Captured


@pytest.mark.parametrize(("module", "name", "target"), [("wrapping", "capture", capture), ("capturing", "Capture", Capture)])
def test_old_path_works_and_warns_once(module: str, name: str, target: object) -> None:
    path = f"{PACKAGE}.{module}"
    sys.modules.pop(path, None)
    with pytest.warns(DeprecationWarning, match=f"import {name} from {PACKAGE}") as warned:
        old = importlib.import_module(path)
    assert importlib.import_module(path) is old
    assert getattr(old, name) is target
    assert len(warned) == 1
