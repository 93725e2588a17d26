"""The markers `slow`: each names tests that prove the same in `make test`, and these exist and are not slow themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.machine.tiers import CollectedTest, collected_test, missing_cases, proofs, remaining

COLLECTED = [
    CollectedTest("tests/a.py::test_one[mariadb]", ()),
    CollectedTest("tests/a.py::test_one[mysql]", ("test_two",)),
    CollectedTest("tests/b.py::TestPage::test_two[1-[x]]", ()),
    CollectedTest("tests/b.py::test_three", ("test_one",)),
]


def test_slow_tests_name_fast_ones(every_test: list[CollectedTest]) -> None:
    wrong = []
    for reason in sorted({reason for test in every_test for reason in test.reasons}):
        named = proofs(reason)
        wrong += [f"{reason!r} names no test"] if not named else []
        wrong += [f"{reason!r}: {proof} is not a test of make test" for proof in named if not remaining(proof, every_test)]
    assert wrong == []


def test_slow_tests_that_name_themselves_have_that_fast_case(every_test: list[CollectedTest]) -> None:
    fast = [test for test in every_test if test.is_fast]
    wrong = {(test.function, case) for test in every_test if test.reasons for case in missing_cases(test, fast)}
    assert sorted(wrong) == []


def test_the_fast_tier_has_both_servers_and_most_tests(every_test: list[CollectedTest]) -> None:
    fast = [test.nodeid for test in every_test if test.is_fast]
    assert len(fast) > 0.8 * len(every_test)
    for flavour in ("[mariadb", "[mysql"):
        assert sum(flavour in nodeid for nodeid in fast) > 300


def test_the_documented_proofs_are_fast_tests(every_test: list[CollectedTest]) -> None:
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text()
    table = page.partition("## What the fast tier covers")[2].partition("\n## ")[0]
    named = proofs(table)
    assert len(named) > 20
    assert [proof for proof in named if not remaining(proof, every_test)] == []


def test_reasons_are_read() -> None:
    assert proofs("test_one[mysql] and tests/b.py::test_two kill; test_three.py does not") == ["test_one[mysql]", "tests/b.py::test_two"]
    assert proofs("the others") == []


@pytest.mark.parametrize(
    ("proof", "found"),
    [
        ("test_one", ["tests/a.py::test_one[mariadb]"]),
        ("test_one[mysql]", []),
        ("test_one[mariadb]", ["tests/a.py::test_one[mariadb]"]),
        ("tests/a.py::test_one", ["tests/a.py::test_one[mariadb]"]),
        ("tests/b.py::test_one", []),
        ("test_two", ["tests/b.py::TestPage::test_two[1-[x]]"]),
        ("TestPage::test_two", ["tests/b.py::TestPage::test_two[1-[x]]"]),
        ("test_three", []),
        ("test_four", []),
    ],
)
def test_a_proof_is_a_fast_test(proof: str, found: list[str]) -> None:
    assert remaining(proof, COLLECTED) == found


@pytest.mark.parametrize(
    ("reason", "missing"),
    [
        ("the test itself on MariaDB; test_three", []),
        ("the test itself on MySQL", ["the test itself on MySQL"]),
        ("the test itself with keys", []),
        ("test_one[mariadb]", []),
        ("test_one[mysql]", ["test_one[mysql]"]),
        ("test_two", []),
    ],
)
def test_a_reason_that_names_the_test_itself_needs_that_case(reason: str, missing: list[str]) -> None:
    slow = CollectedTest("tests/a.py::test_one[mysql]", (reason,))
    assert missing_cases(slow, COLLECTED) == missing


def test_a_fast_test_of_the_same_name_is_not_the_test_itself() -> None:
    slow = CollectedTest("tests/c.py::test_one[mariadb]", ("the test itself on MariaDB; test_one",))
    assert missing_cases(slow, [*COLLECTED, slow]) == ["the test itself on MariaDB", "test_one"]


class Item:
    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self._marks = nodeid, marks

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        assert name == "slow"
        return [mark.mark for mark in self._marks]


def test_a_marker_counts_in_its_cases() -> None:
    mark = pytest.mark.slow("mysql", because="test_one")
    assert collected_test(Item("a::b[mysql-1]", mark)).reasons == ("test_one",)  # type: ignore[arg-type]
    assert collected_test(Item("a::b[mariadb-1]", mark)).is_fast  # type: ignore[arg-type]
    assert collected_test(Item("a::b[x-1]", pytest.mark.slow("mysql", "1", because="test_one"))).reasons  # type: ignore[arg-type]
    assert collected_test(Item("a::b")).is_fast  # type: ignore[arg-type]
    with pytest.raises(pytest.UsageError, match=r"a::b: the marker slow needs because"):
        collected_test(Item("a::b", pytest.mark.slow))  # type: ignore[arg-type]
