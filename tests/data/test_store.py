"""Pairs of token ids are the same in memory and in files."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Sentences
from jaxformer.data.store import TokenWriter, concatenate
from jaxformer.errors import InputError

SENTENCE = st.lists(st.integers(4, 60_000), max_size=5)
RAGGED = st.lists(SENTENCE, max_size=8)
PAIRS = st.lists(st.tuples(SENTENCE, SENTENCE))


def encoded(pairs):
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    return Encoded(*(Sentences.from_lists(side, pad) for pad, side in enumerate(sides)))


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


@settings(deadline=None, max_examples=60)
@given(sentences=RAGGED, data=st.data())
def test_taking_and_padding_equal_the_plain_loop(sentences, data):
    """Sentences are unchanged; padding is on the right, added tokens at the ends."""
    flat = Sentences.from_lists(sentences, pad_id=3)
    assert [list(flat[i]) for i in range(len(flat))] == sentences
    assert list(flat.lengths) == [len(sentence) for sentence in sentences]
    framed = Sentences.from_lists(sentences, pad_id=3, first=1, last=2)
    assert [list(framed[i]) for i in range(len(flat))] == [
        [1, *one, 2] for one in sentences
    ]
    chosen = []
    if sentences:
        chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=8))
    taken, wanted = (
        flat.take(np.array(chosen, np.int64)),
        [sentences[i] for i in chosen],
    )
    assert [list(taken[i]) for i in range(len(taken))] == wanted
    batch = taken.padded(len(chosen) + 2, 7)
    assert batch.dtype == np.int32
    assert batch.tolist() == [one + [3] * (7 - len(one)) for one in [*wanted, [], []]]


@settings(deadline=None, max_examples=50)
@given(pieces=st.lists(PAIRS, max_size=4), dtype=st.sampled_from(["<u2", "<i4"]))
def test_a_writer_returns_what_it_took(pieces, dtype):
    """The hash does not depend on how the pairs are split into pieces."""
    with TokenWriter((0, 1), dtype) as writer:
        for piece in pieces:
            writer.add(encoded(piece))
        found = writer.finish()
    pairs = [pair for piece in pieces for pair in piece]
    assert plain(found) == pairs
    assert found.hash == encoded(pairs).hash
    assert found.source.tokens.dtype == dtype
    assert (found.source.pad_id, found.target.pad_id) == (0, 1)
    assert plain(found.take(np.arange(len(pairs))[::-2])) == pairs[::-2]


def test_hashes_differ_by_order_and_borders():
    first, second = encoded([([5], [6])]), encoded([([7], [8])])
    assert plain(concatenate([first, second])) == [([5], [6]), ([7], [8])]
    several = [
        first,
        second,
        concatenate([first, second]),
        concatenate([second, first]),
        encoded([([1, 2], [9]), ([3], [9])]),
        encoded([([1], [9]), ([2, 3], [9])]),
    ]
    assert len({pairs.hash for pairs in several}) == 6


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(TokenWriter, "_open", lambda *_: Full())
    for folder, cure in (
        (None, r"free some space, or set TMPDIR to another folder"),
        (tmp_path, rf"cannot write {tmp_path}: .*; free some space"),
    ):
        with pytest.raises(InputError, match=cure):
            TokenWriter((0, 1), "<u2", folder).add(encoded([([5], [6])]))


def test_a_missing_folder_for_temporary_files_is_refused(monkeypatch, tmp_path):
    """Python would use another one silently."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(InputError, match=f"TMPDIR={tmp_path}/none is not a folder"):
        TokenWriter((0, 0), "<u2")
