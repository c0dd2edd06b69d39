"""Duplicates are those that a Python set finds, in bounded memory."""

import pickle
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Pair
from jaxformer.data.duplicates import find_repeated
from jaxformer.errors import InputError

TEXTS = st.text("ab \n\u00e4\ud800", max_size=3)
CORPORA = st.lists(st.builds(Pair, TEXTS, TEXTS), max_size=60)


def oracle(pairs):
    """Find the indices of the pairs that a set has seen."""
    seen, repeated = set(), []
    for index, (source, target) in enumerate(pairs):
        pair = source.strip(), target.strip()
        if pair in seen:
            repeated.append(index)
        seen.add(pair)
    return repeated


def indices(duplicates):
    return [index for index in range(duplicates.pairs) if index in duplicates]


def number_pairs(numbers):
    return (Pair(f"sentence {number}", f"Satz {number}") for number in numbers)


@settings(deadline=None, max_examples=60)
@given(pairs=CORPORA)
def test_duplicates_are_those_of_a_set(pairs):
    """The first of its kind stays; they go to workers at one bit a pair."""
    duplicates = find_repeated(iter(pairs))
    assert duplicates.pairs == len(pairs)
    assert indices(duplicates) == oracle(pairs)
    assert duplicates.bits.nbytes == -(-len(pairs) // 8)
    assert indices(pickle.loads(pickle.dumps(duplicates))) == oracle(pairs)


def test_where_the_source_ends_matters():
    """No separator is needed, so none can be spelled; white space around a text does
    not count.
    """
    texts = [
        ("ab", "c"),
        ("a", "bc"),
        ("ab\0", "c"),
        ("ab", "\0c"),
        ("ab\tc", ""),
        ("ab", "\tc"),
    ]
    assert indices(find_repeated([Pair(*pair) for pair in texts])) == [5]
    assert indices(find_repeated([Pair("a", "b"), Pair("b", "a")])) == []


@pytest.mark.parametrize("distinct", [1, 500, 20_000])
def test_many_or_few_different_pairs(distinct):
    draw = random.Random(distinct)
    numbers = [draw.randrange(distinct) for _ in range(10_000)]
    duplicates = find_repeated(number_pairs(numbers))
    assert indices(duplicates) == oracle(number_pairs(numbers))


def test_memory_is_what_the_docstring_says():
    """50 bytes a pair while searching, whatever the texts."""
    size = 40_000
    tracemalloc.start()
    find_repeated(number_pairs(range(size)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 52 * size


def test_a_corpus_that_grew_is_refused():
    duplicates = find_repeated(number_pairs(range(16)))
    for index in (-1, 16):
        with pytest.raises(InputError, match=r"had 16 pairs .* leave its files unchan"):
            _ = index in duplicates
