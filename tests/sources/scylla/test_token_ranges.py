"""Token ranges: for any ring and any ranges that were read, the parts cover the rest, each token once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.scylla.snapshot.token_ranges import GREATEST, LEAST, WHOLE, Ring, TokenRange, covered, cut, left_over

TOKENS = st.integers(LEAST, GREATEST)
RANGES = st.lists(
    st.tuples(TOKENS, TOKENS).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: TokenRange(min(pair), max(pair))), max_size=8
)


@given(RANGES, TOKENS)
def test_what_is_left_is_what_no_range_has(done: list[TokenRange], token: int) -> None:
    rest = left_over(done)
    in_done = any(one.start < token <= one.end for one in done)
    in_rest = [one for one in rest if one.start < token <= one.end]
    assert len(in_rest) == (not in_done and token > LEAST)
    assert rest == sorted(rest)
    assert all(one.start < one.end for one in rest)


@given(RANGES, st.lists(TOKENS, max_size=20), st.integers(1, 40), st.integers(0, 20 << 26))
def test_parts_tile_what_is_left(done: list[TokenRange], tokens: list[int], least: int, size: int) -> None:
    rest = left_over(done)
    parts = cut(rest, Ring(tuple(tokens), size), least)
    assert all(one.start < one.end for one in parts)
    merged: list[TokenRange] = []
    for one in parts:
        if merged and merged[-1].end == one.start:
            merged[-1] = TokenRange(merged[-1].start, one.end)
        else:
            merged.append(one)
    joined: list[TokenRange] = []
    for one in rest:
        if joined and joined[-1].end == one.start:
            joined[-1] = TokenRange(joined[-1].start, one.end)
        else:
            joined.append(one)
    assert merged == joined
    count = max(least, -(-size // (64 << 20)))
    assert all(one.share <= 1.25 / count + 1e-12 for one in parts)


def test_a_table_of_unknown_size_is_cut_evenly_and_a_large_one_in_parts_of_bounded_size() -> None:
    assert len(cut([WHOLE], Ring((0,)), 8)) == 8
    assert len(cut([WHOLE], Ring((0,), bytes=64 << 30), 8)) == 1024


def test_cuts_are_where_nodes_ranges_end() -> None:
    tokens = tuple(range(LEAST + (1 << 56), GREATEST, 1 << 56))
    parts = cut([WHOLE], Ring(tokens), 8)
    assert 6 <= len(parts) <= 10
    assert {one.end for one in parts[:-1]} <= set(tokens)


def test_a_node_whose_range_is_tiny_makes_no_chunk_of_its_own() -> None:
    assert len(cut([WHOLE], Ring(tuple(LEAST + (part << 62) + 1 for part in range(4))), 4)) == 4


def test_ranges_are_a_share_of_the_ring() -> None:
    assert covered([]) == 0
    assert covered([WHOLE]) == 1
    assert covered([TokenRange(LEAST, 0), TokenRange(-5, 0)]) == 0.5
    assert TokenRange.from_json(TokenRange(-3, 7).to_json()) == TokenRange(-3, 7)
