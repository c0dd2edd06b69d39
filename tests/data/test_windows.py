"""Windows over texts: each token in one, as many at every place where they begin."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data.store import Encoded, Sentences
from jaxformer.data.windows import cut_epoch, cut_windows, cut_with_stride


def texts_of(lengths):
    """Make texts of which every token has its own number."""
    numbers = iter(range(sum(lengths)))
    side = Sentences.from_lists([[next(numbers) for _ in range(n)] for n in lengths], 0)
    return Encoded(side, side)


def joined(rows):
    return [*itertools.chain.from_iterable(rows)]


def tokens(found):
    return [found.target[index].tolist() for index in range(len(found))]


@given(
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=3),
    window=st.integers(2, 8),
    seed=st.integers(0, 99),
)
def test_every_token_is_in_one_window(sizes, window, seed):
    """In each epoch as many windows, none with text of two data sets."""
    texts = texts_of([length for part in sizes for length in part])
    counts = [len(part) for part in sizes]
    first, numbers = cut_windows(texts, counts, window)
    assert joined(tokens(first)) == texts.target.tokens.tolist()
    assert first.hash == texts.hash
    ends = np.cumsum([sum(part) for part in sizes])
    for epoch in range(3):
        found = cut_epoch(texts, counts, window, seed, epoch)
        assert len(found) == len(first) == sum(numbers)
        rows = tokens(found)
        assert sorted(joined(rows)) == texts.target.tokens.tolist()
        assert found.target.lengths.tolist() == [len(row) for row in rows]
        parts = [np.searchsorted(ends, row, side="right") for row in rows]
        assert [len({*part}) for part in parts] == [1] * len(rows)
        assert [part[0] for part in parts] == np.repeat(
            range(len(sizes)), numbers
        ).tolist()
        everything = found.target.take(np.arange(len(found)))
        assert everything.padded(len(found), window).shape == (len(found), window)


def test_epochs_begin_at_different_places():
    """The same in every process; a text after the last begins again."""
    texts = texts_of([50, 50])
    rows = [tokens(cut_epoch(texts, [2], 16, 0, epoch)) for epoch in range(20)]
    assert len({row[0][0] for row in rows}) > 5
    assert rows == [tokens(cut_epoch(texts, [2], 16, 0, epoch)) for epoch in range(20)]
    for row in rows:
        whole = joined(row)
        assert whole == np.roll(range(100), -whole[0]).tolist()


@given(total=st.integers(1, 40), window=st.integers(2, 9), stride=st.integers(1, 9))
def test_windows_with_a_stride_score_each_token_once(total, window, stride):
    """In order, each with as much text before it as the window has."""
    stride = min(stride, window)
    found, read = cut_with_stride(texts_of([total]), window, stride)
    rows = tokens(found)
    scored = [row[begin:] for row, begin in zip(rows, read, strict=True)]
    assert joined(scored) == list(range(total))
    assert all(scored)
    assert all(len(row) == window for row in rows[:-1])
    if stride == window:
        assert rows == tokens(cut_windows(texts_of([total]), [1], window)[0])
