from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import UsageError
from localspec.text.stops import StopStrings

TEXT = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Read one character after another, and stop as soon as a stop string is complete."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


def cut(text: str, points: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(point % (len(text) + 1) for point in points)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(TEXT, STOPS, st.lists(st.integers(0, 100), max_size=10))
def test_any_pieces_give_what_reading_by_character_gives(
    text: str, stops: list[str], points: list[int]
) -> None:
    filtered = StopStrings(stops)
    shown, stopped = "", False
    for piece in cut(text, points):
        visible, stopped = filtered.push(piece)
        shown += visible
        assert naive(text, stops)[0].startswith(shown)
    shown += filtered.flush()
    assert (shown, stopped) == naive(text, stops)


def test_what_cannot_begin_a_stop_string_is_shown_at_once() -> None:
    stops = StopStrings(["END"])
    assert stops.push("hello E") == ("hello ", False)
    assert stops.push("very E") == ("Every ", False)
    assert stops.push("ND and more") == ("", True)
    assert stops.push("nothing after") == ("", True)
    assert stops.flush() == ""


def test_of_two_that_end_together_the_longest_is_cut() -> None:
    assert StopStrings(["b", "ab"]).push("xab") == ("x", True)


def test_without_stop_strings_all_is_shown() -> None:
    assert StopStrings([]).push("all") == ("all", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        StopStrings(["a", ""])
