"""Duplicates are those that a Python set finds, in memory that the size of the
corpus does not change.
"""

import pickle
import random
import tracemalloc

import numpy as np
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
@given(pairs=CORPORA, memory=st.sampled_from([1, 700, 2000, 2**20]))
def test_duplicates_are_those_of_a_set(pairs, memory):
    """The first of its kind stays, whatever the memory; texts of one pair never mix."""
    duplicates = find_repeated(iter(pairs), memory=memory)
    assert duplicates.pairs == len(pairs)
    assert indices(duplicates) == oracle(pairs)
    assert duplicates.count == len(oracle(pairs))
    assert duplicates.bits.nbytes == -(-len(pairs) // 8)


def test_where_the_source_ends_matters():
    """No separator is needed, so none can be spelled."""
    pairs = [
        Pair("ab", "c"),
        Pair("a", "bc"),
        Pair("ab\0", "c"),
        Pair("ab", "\0c"),
        Pair("ab\tc", ""),
        Pair("ab", "\tc"),
    ]
    # white space around a text does not count: it repeats the first
    assert indices(find_repeated(pairs)) == [5]
    assert indices(find_repeated([Pair("a", "b"), Pair("b", "a")])) == []


@pytest.mark.parametrize("memory", [2**14, 2**17])
@pytest.mark.parametrize("distinct", [1, 3, 500, 20_000])
def test_many_or_few_different_pairs(memory, distinct):
    """One pair over and over, and hardly any twice, both through temporary files."""
    draw = random.Random(distinct)
    numbers = [draw.randrange(distinct) for _ in range(10_000)]
    duplicates = find_repeated(number_pairs(numbers), memory=memory)
    assert indices(duplicates) == oracle(number_pairs(numbers))


@pytest.mark.parametrize("distinct", [7, 10**9])
def test_memory_does_not_grow_with_the_corpus(distinct):
    """Eight times the pairs, the same memory but for one bit a pair."""
    memory = 2**18
    peaks = []
    for size in (10_000, 80_000):
        draw = random.Random(size)
        pairs = number_pairs(draw.randrange(distinct) for _ in range(size))
        find_repeated(pairs, memory=memory)  # what is loaded once is loaded now
        pairs = number_pairs(draw.randrange(distinct) for _ in range(size))
        tracemalloc.start()
        find_repeated(pairs, memory=memory)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # the names of 256 files, whatever the corpus
    assert max(peaks) < memory + 80_000 / 8 + 2**18
    assert peaks[1] < peaks[0] + 80_000 / 8 + 2**16


def test_no_temporary_file_stays(tmp_path):
    """Neither after the search nor after a corpus that breaks off."""

    def broken():
        yield from number_pairs(range(5000))
        raise InputError("line 5001: broken")

    find_repeated(number_pairs(range(5000)), memory=2**14, directory=tmp_path)
    with pytest.raises(InputError, match="broken"):
        find_repeated(broken(), memory=2**14, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_are_used_and_bounded(tmp_path):
    """24 bytes a pair, and as much again while a file is split; a corpus that fits
    into memory writes none.
    """
    sizes = []

    def watched(count):
        for index, pair in enumerate(number_pairs(range(count))):
            yield pair
            if index % 500 == 499:
                sizes.append(
                    sum(
                        path.stat().st_size
                        for path in tmp_path.rglob("*")
                        if path.is_file()
                    )
                )

    find_repeated(watched(2000), memory=2**14, directory=tmp_path)
    assert 0.9 * 2000 * 24 < max(sizes) <= 2000 * 24
    sizes.clear()
    find_repeated(watched(2000), memory=2**20, directory=tmp_path)
    assert set(sizes) == {0}


def test_nowhere_to_write(tmp_path):
    """A directory that cannot be written is named, with the cure."""
    with pytest.raises(
        InputError, match=r"nowhere: No such file or directory; set TMPDIR"
    ) as caught:
        find_repeated(number_pairs(range(10)), directory=tmp_path / "nowhere")
    assert "\n" not in str(caught.value)


def test_duplicates_go_to_workers():
    """What was found comes out of a pickle as it went in, at one bit a pair."""
    duplicates = find_repeated(number_pairs([1, 2, 1] * 1000))
    content = pickle.dumps(duplicates)
    assert len(content) < 1000
    assert np.array_equal(pickle.loads(content).bits, duplicates.bits)
    assert indices(pickle.loads(content)) == indices(duplicates)


def test_a_corpus_that_grew_is_refused():
    """An index beyond the corpus is no question of duplicates."""
    duplicates = find_repeated(number_pairs(range(16)))
    for index in (-1, 16, 1000):
        with pytest.raises(InputError, match=r"had 16 pairs .* leave its files alone"):
            _ = index in duplicates


def test_no_pairs():
    duplicates = find_repeated([])
    assert (duplicates.pairs, duplicates.count, len(duplicates.bits)) == (0, 0, 0)
