"""Windows cover the log without gaps and not before their time, generations follow each other, and cold starts are short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.schema import TableName
from headrace.sources.scylla.position import (
    FIRST_US,
    LogPosition,
    StreamPosition,
    Window,
    adapted,
    following,
    generation_at,
    next_window,
    onward,
    start_us,
    window_to,
)

S = 1_000_000
YEAR = 365 * 86400 * S


def test_a_window_ends_at_the_horizon_and_waits_until_it_is_long_enough() -> None:
    place = StreamPosition(1000, 10 * S)
    assert next_window(place, [1000], 12 * S, FIRST_US, 3 * S) is None
    assert next_window(place, [1000], 13 * S, FIRST_US, 3 * S) == Window(1000, 10 * S, 13 * S)
    assert next_window(place, [1000], 500 * S, FIRST_US, 3 * S) == Window(1000, 10 * S, 70 * S)
    assert next_window(place, [1000], 5 * S, FIRST_US, 3 * S) is None


def test_a_generation_is_read_to_its_last_microsecond_and_then_left() -> None:
    generations = [1000, 20_000, 90_000]
    window = next_window(StreamPosition(1000, 19 * S), generations, 100 * S, FIRST_US, 3 * S)
    # Shorter than the minimum, but complete.
    assert window == Window(1000, 19 * S, 20 * S - 1)
    there = window.end
    assert onward(there, generations) == StreamPosition(20_000, 20 * S - 1, 19 * S)
    assert next_window(there, generations, 100 * S, FIRST_US, 3 * S) == Window(20_000, 20 * S - 1, 80 * S - 1)
    # The end of a generation must also be older than the confidence time.
    assert next_window(StreamPosition(1000, 19 * S), generations, 20 * S - 2, FIRST_US, 3 * S) is None
    assert (generation_at(generations, 20 * S - 1), generation_at(generations, 20 * S), generation_at(generations, S - 1)) == (
        1000,
        20_000,
        None,
    )
    assert (following(generations, 20_000), following(generations, 90_000)) == (90_000, None)


def test_a_generation_that_became_known_late_is_read_from_its_beginning() -> None:
    place = StreamPosition(1000, 50 * S, 47 * S)
    assert next_window(place, [1000], 60 * S, FIRST_US, S) == Window(1000, 50 * S, 60 * S)
    # It operates since second 20 without an announcement: later rows are in its streams.
    assert next_window(place, [1000, 20_000, 40_000], 60 * S, FIRST_US, S) == Window(20_000, 20 * S - 1, 40 * S - 1)
    assert next_window(StreamPosition(20_000, 40 * S - 1), [1000, 20_000, 40_000], 60 * S, FIRST_US, S) == Window(
        40_000, 40 * S - 1, 60 * S
    )


def test_a_cold_start_over_a_year_without_a_change_takes_a_few_windows() -> None:
    place, size, windows = StreamPosition(1000, S), FIRST_US, 0
    while (window := next_window(place, [1000], YEAR, size, 3 * S)) is not None:
        windows += 1
        size = adapted(size, window, 0, 200_000, 3 * S)
        place = window.end
    assert windows <= 12
    assert YEAR - place.time < 3 * S


def test_windows_shrink_to_what_holds_enough_and_grow_again() -> None:
    size = 3600 * S
    crowded = adapted(size, Window(0, 0, size), 2_000_000, 200_000, 3 * S)
    assert crowded == 360 * S
    assert adapted(crowded, Window(0, 0, crowded), 200_000, 200_000, 3 * S) == crowded
    assert adapted(crowded, Window(0, 0, crowded), 10, 200_000, 3 * S) == 4 * crowded
    assert adapted(crowded, Window(0, 0, crowded), 150_000, 200_000, 3 * S) == crowded * 4 // 3
    assert adapted(crowded, Window(0, 0, 5 * S), 10, 200_000, 3 * S) == crowded, "the clock limited it"
    assert adapted(10 * S, Window(0, 0, 10 * S), 10**9, 200_000, 3 * S) == 3 * S


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True).map(sorted),
    st.lists(st.integers(0, 8000), min_size=1, max_size=30).map(sorted),
    st.integers(1, 3000),
    st.integers(1, 400),
)
def test_windows_tile_everything_once(generations: list[int], clock: list[int], size_ms: int, least_ms: int) -> None:
    place = StreamPosition(generations[0], start_us(generations[0]) - 1)
    begun, seen = place.time, []
    for now in clock:
        # A generation is known before it operates.
        while (window := next_window(place, generations, now * 1000, size_ms * 1000, least_ms * 1000)) is not None:
            assert window.after == place.time
            assert window.until <= now * 1000
            assert generation_at(generations, window.after + 1) == generation_at(generations, window.until) == window.generation
            seen.append(window)
            place = window.end
            assert window_to(place) == window
        ends = {start_us(other) - 1 for other in generations}
        assert now * 1000 - place.time < least_ms * 1000 or not any(place.time < end <= now * 1000 for end in ends)
    assert sum(window.length for window in seen) == place.time - begun


def test_a_position_survives_spark_and_only_rises() -> None:
    one, other = TableName("shop", "orders"), TableName("shop", "Items")
    position = LogPosition({one: StreamPosition(1000, 5 * S), other: StreamPosition(2000, 3 * S)})
    assert LogPosition.from_json(position.to_json()) == position
    assert position.reached == 3 * S
    assert position.covers({one: 5 * S, other: 3 * S})
    assert not position.covers({other: 3 * S + 1})
    assert not position.covers({TableName("shop", "new"): 0})
    later = LogPosition({**position.places, other: StreamPosition(2000, 4 * S)})
    assert later.version > position.version
    assert "1970-01-01 00:00:03.000Z" in str(position)
