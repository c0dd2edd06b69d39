"""Long sentences are cut where it hurts least, and nothing is lost."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.translation import paragraphs as splitting
from jaxformer.translation.paragraphs import split

PIECES = st.lists(
    st.sampled_from(["▁a", "▁b", "c", "d", ".", ",", "▁(", "e."]), max_size=60
)


@given(pieces=PIECES, limit=st.integers(1, 12))
def test_the_runs_are_the_sentence(pieces, limit):
    """End to end, none empty but that of an empty sentence, none longer than the
    limit.
    """
    runs = split(pieces, limit)
    assert [piece for start, stop in runs for piece in pieces[start:stop]] == pieces
    assert all(0 < stop - start <= limit for start, stop in runs) or not pieces
    # A cut within a word only where no word begins in the second half of the run.
    for start, stop in runs[:-1]:
        within = not pieces[stop].startswith("▁")
        assert not within or not any(
            p.startswith("▁")
            for p in pieces[start + limit // 2 + 1 : start + limit + 1]
        )


@pytest.mark.parametrize(
    ("text", "limit", "cuts"),
    [
        ("▁a ▁b . ▁c ▁d ▁e", 5, [3]),
        ("▁a ▁b , ▁c ▁d ▁e", 5, [3]),
        ("▁a , ▁b ▁b . ▁c , ▁d ▁e", 8, [5]),
        ("▁a ▁b ▁c ▁d ▁e", 4, [4]),
        ("▁a b c d e f", 4, [4]),
        ("▁a . ▁b ▁c ▁d ▁e ▁f ▁g ▁h", 8, [8]),
        ("▁a ▁b", 2, []),
        ("▁我 们 来 了 。 你 们 也 来 了 。", 8, [5]),
    ],
)
def test_the_best_place(text, limit, cuts):
    """After the end of a sentence, else another mark, else before a word; in the
    second half of what a run may hold.
    """
    assert [stop for _, stop in split(text.split(" "), limit)[:-1]] == cuts


def test_the_example_runs():
    assert doctest.testmod(splitting).attempted
    assert not doctest.testmod(splitting).failed
