"""Pairs of texts of documents: half follow each other, and none is lost or mixed up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.data.frame import Frame
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.store import Encoded, Sentences
from jaxformer.data.text_pairs import draw_pairs, encode_lines, find_pairs
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError

BOS, EOS = 2, 3
FRAME = Frame((BOS,), (EOS,), (), BOS, EOS, source_between=(EOS,))


def lines_of(documents):
    """Encode documents, given by the lengths of their lines; every token has its own
    number, from 10 on.
    """
    numbers = iter(range(10, 10**6))
    rows = [
        [*[BOS] * (place == 0), *(next(numbers) for _ in range(length))]
        for lengths in documents
        for place, length in enumerate(lengths)
    ]
    side = Sentences.from_lists(rows, 0)
    return Encoded(side, side)


def halves(row):
    """Divide a row at its ends, and check its frame."""
    row = row.tolist()
    middle = row.index(EOS)
    assert (row[0], row[-1], row.count(EOS), row.count(BOS)) == (BOS, EOS, 2, 1)
    return row[1:middle], row[middle + 1 : -1]


DOCUMENTS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), max_size=6)


@given(DOCUMENTS, st.integers(5, 20), st.integers(0, 9))
def test_texts_follow_each_other_or_are_of_another_document(documents, longest, epoch):
    """A true pair is a run of the document's tokens that is divided at the end of a
    line; nothing is in two pairs. No row is longer than the longest of true pairs.
    """
    lines = lines_of(documents)
    document_of = np.repeat(
        np.arange(len(documents)), [sum(lengths) for lengths in documents]
    )
    sizes = [length for lengths in documents for length in lengths]
    begins = {10, *(10 + np.cumsum(sizes)).tolist()}
    sizes = [len(sizes)]
    if sum(len(own) > 1 for own in documents) < 2:
        with pytest.raises(InputError, match="at least two documents of two lines"):
            find_pairs(lines, sizes, FRAME, longest)
        return
    found = find_pairs(lines, sizes, FRAME, longest)
    true = [halves(row) for row in found.true_pairs.source]
    assert found.sizes == [len(true)]
    seen = [token for pair in true for text in pair for token in text]
    assert len(set(seen)) == len(seen)
    for (one, two), row in zip(true, found.true_pairs.source, strict=True):
        assert len(row) <= longest
        assert one == [*range(one[0], one[0] + len(one))]
        assert two == [*range(two[0], two[0] + len(two))]
        # The second begins where a line does, and nothing but a cut end is between.
        assert {one[0], two[0]} <= begins
        assert not {*range(one[-1] + 1, two[0])} & begins
        assert document_of[one[0] - 10] == document_of[two[0] - 10]
    drawn = draw_pairs(found, 0, epoch)
    most = found.true_pairs.source_lengths.max()
    assert drawn.source_lengths.max() <= most
    for number, row in enumerate(drawn.source):
        assert drawn.source_lengths[number] == len(row)
        one, two = halves(row)
        assert one == true[number][0]
        (label,) = drawn.target[number]
        if label == 0:
            assert two == true[number][1]
        else:
            assert any(two == other[: len(two)] for _, other in true)
            assert document_of[one[0] - 10] != document_of[two[0] - 10]


def test_half_are_drawn_for_each_epoch():
    """Equal seeds and epochs give equal pairs, and others give others."""
    lines = lines_of([[3, 4]] * 4_000)
    found = find_pairs(lines, [1_000, 7_000], FRAME, 20)
    assert found.sizes == [500, 3_500]
    first, again, second = (draw_pairs(found, 0, epoch) for epoch in (0, 0, 1))
    assert first.hash == lines.hash
    indices = np.arange(4_000)
    rows = [drawn.source.take(indices).tokens for drawn in (first, again, second)]
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()
    padded = first.source.padded(4_001, 11)
    assert (padded[7][:10] == first.source[7]).all()
    assert not padded[:, 10].any()
    assert not padded[4_000].any()
    labels = first.target.take(indices).tokens
    assert abs(labels.mean() - 0.5) < 0.03
    assert (labels != second.target.tokens).any()
    # Every other pair is drawn with the same probability.
    places = first.source.spans[labels == 1, 2] // 8
    assert np.histogram(places, 4, (0, 4_000))[0].min() > 400


def test_lines_without_a_token_are_left_out():
    lines = [pair.source for pair in load("bundled:en-de/valid", "en", "de")]
    vocabulary = Vocabulary.train(lines, 400, mask=True)
    texts = [f"\n{lines[0]}\n\x01\n{lines[1]}", "\x01", lines[2]]
    found, origins = encode_lines([Pair(text, text) for text in texts], vocabulary)
    one, *others = (vocabulary.encode(line) for line in lines[:3])
    bos = vocabulary.bos_id
    rows = [found.target[index].tolist() for index in range(3)]
    assert rows == [[bos, *one], others[0], [bos, *others[1]]]
    assert origins.tolist() == [0, 0, 2]
