"""The tiers of the tests: `make test` runs the fast tier (`pytest --fast`), `make test-all` runs the slow tests too.

A test is slow by its marker, `slow(*cases, because)`: in the cases that have one of these words in their ids, such as `mysql`, or in all.
`because` names the tests of the fast tier that prove the same; `tests/testkit/test_tiers.py` checks the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

_NAME = re.compile(r"(?:[\w/]+\.py::)?(?:\w+::)?\btest_\w+(?:\[[^\]]+\])?(?!\w*\.py)")
_ITSELF = re.compile(r"the test itself(?: on (\w+))?")


@dataclass(frozen=True, slots=True)
class CollectedTest:
    """A test before any selection, and the reasons of the `slow` markers that apply to it."""

    nodeid: str
    reasons: tuple[str, ...]

    @property
    def is_fast(self) -> bool:
        return not self.reasons

    @property
    def function(self) -> str:
        return self.nodeid.partition("[")[0]

    @property
    def words(self) -> list[str]:
        return _words(self.nodeid)


def collected_test(item: pytest.Item) -> CollectedTest:
    """Return the tier of a test. A `slow` marker without a reason is an error."""
    words, reasons = _words(item.nodeid), []
    for mark in item.iter_markers("slow"):
        if not mark.kwargs.get("because"):
            raise pytest.UsageError(f"{item.nodeid}: the marker slow needs because=..., the tests that remain in make test")
        if not mark.args or not set(words).isdisjoint(mark.args):
            reasons.append(str(mark.kwargs["because"]))
    return CollectedTest(item.nodeid, tuple(reasons))


def proofs(reason: str) -> list[str]:
    """Return the tests that a reason names: `test_name`, `test_name[case]` or `tests/path.py::test_name`."""
    return _NAME.findall(reason)


def remaining(proof: str, tests: Iterable[CollectedTest]) -> list[str]:
    """Return the fast tests that a proof means."""
    return [test.nodeid for test in tests if test.is_fast and _means(proof, test.nodeid)]


def missing_cases(test: CollectedTest, tests: Iterable[CollectedTest]) -> list[str]:
    """Return what a slow test's reasons say of the test itself (`the test itself on MariaDB`, its name) although those cases are slow."""
    fast = [other for other in tests if other.is_fast and other.function == test.function]
    missing = []
    for reason in test.reasons:
        cases = {found[0]: (found[1] or "").lower() for found in _ITSELF.finditer(reason)}
        missing += [text for text, case in cases.items() if not any(not case or case in other.words for other in fast)]
        own = [proof for proof in proofs(reason) if _means(proof.partition("[")[0], test.function)]
        missing += [proof for proof in own if not remaining(proof, fast)]
    return missing


def _words(nodeid: str) -> list[str]:
    return nodeid.partition("[")[2].removesuffix("]").split("-")


def _means(proof: str, nodeid: str) -> bool:
    tested = nodeid if "[" in proof else nodeid.partition("[")[0]
    return tested == proof or tested.endswith(f"::{proof}")
