"""Lines are read as they come, each with its prefixes and phrases."""

from __future__ import annotations

import pytest

from jaxformer.errors import InputError
from jaxformer.translation.options import number_lines, windows


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
