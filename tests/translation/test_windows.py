"""Lines are read when they are needed, and every sentence is in one batch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.translation.batch import batches, round_width
from jaxformer.translation.options import number_lines, windows


@given(
    lengths=st.lists(st.integers(0, 300), max_size=80),
    most=st.integers(1, 40),
    tokens=st.integers(1, 5000),
)
def test_batches(lengths, most, tokens):
    """Each sentence with tokens is in one batch, longest first; none has more rows or
    padded tokens than allowed.
    """
    found = list(batches(lengths, most, tokens, 300))
    places = [place for indices, _ in found for place in indices]
    assert sorted(places) == [place for place, length in enumerate(lengths) if length]
    ordered = sorted(filter(None, lengths), reverse=True)
    assert [lengths[place] for place in places] == ordered
    for indices, rows in found:
        width = round_width(max(lengths[place] for place in indices), 300)
        assert 1 <= len(indices) <= rows <= most
        assert rows == 1 or rows * width <= tokens
        assert rows == most or rows & (rows - 1) == 0  # few shapes
        assert 2 * rows > min(most, tokens // width)  # and no room is wasted
    assert all(len(indices) == rows for indices, rows in found[:-1])


def test_windows_are_read_when_they_are_needed():
    """The second window is not read before the first is done; one of long lines has few
    of them.
    """
    read = []
    texts = (str(n) for n in itertools.count() if read.append(n) is None)
    found = windows(number_lines(texts, None), 5)
    assert read == []
    assert [line.text for line in next(found)] == list("01234")
    assert read == list(range(5))
    assert [line.place for line in next(found)] == list(range(5, 10))
    long = windows(number_lines(["a" * 2_000_000] * 7, None), 100)
    assert list(map(len, long)) == [3, 3, 1]


def test_a_window_ends_where_the_next_line_is_late():
    """No line is lost or moved, and one that is full ends without asking."""
    late = iter([False, True, True, False, False, False])
    found = windows(number_lines("abcdefg", None), 4, lambda: next(late))
    read = ["".join(line.text for line in window) for window in found]
    assert read == ["ab", "c", "defg"]


def test_lines_have_their_prefixes_and_phrases():
    """There is one of each kind for each line; the end of one kind is an error."""
    lines = list(number_lines("abc", ["x", "", ["y", "", "z"]], [["x"], [], "y"]))
    assert [line.prefixes for line in lines] == [("x",), ("",), ("y", "", "z")]
    assert [line.required for line in lines] == [("x",), (), ("y",)]
    for lists, rule in (
        ((None, [["x"]]), r"required\[1\] is missing: give one for each sentence"),
        ((["x", "y", "z"],), r"prefixes\[2\] is one too many"),
    ):
        with pytest.raises(InputError, match=rule):
            list(number_lines("ab", *lists))
