"""Tokenised pairs come back the same from memory, from files, and from several
places end to end.
"""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Joined, Sentences, Spool, Vocabulary, store
from jaxformer.errors import InputError

PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(4, 60_000), max_size=5),
        st.lists(st.integers(4, 60_000), max_size=5),
    )
)


def encoded(pairs):
    return Encoded(
        Sentences.of([s for s, _ in pairs], 0), Sentences.of([t for _, t in pairs], 1)
    )


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


@settings(deadline=None, max_examples=50)
@given(
    pieces=st.lists(PAIRS, max_size=4),
    size=st.sampled_from([60_001, 70_000]),
    data=st.data(),
)
def test_a_spool_gives_back_what_it_took(pieces, size, data):
    with Spool((0, 1), size) as spool:
        for piece in pieces:
            spool.add(encoded(piece))
        found = spool.finish()
    pairs = [pair for piece in pieces for pair in piece]
    assert plain(found) == pairs
    assert found.hash == encoded(pairs).hash
    assert found.source.tokens.dtype == ("<u2" if size <= 65_536 else "<i4")
    assert (found.source.pad_id, found.target.pad_id) == (0, 1)
    if pairs:
        chosen = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=6))
        taken = found.take(np.array(chosen, np.int32))
        assert plain(taken) == [pairs[i] for i in chosen]


@settings(deadline=None, max_examples=100)
@given(parts=st.lists(PAIRS.filter(bool), min_size=1, max_size=4), data=st.data())
def test_joined_stores_are_one(parts, data):
    """In any order, and with pairs that are asked for twice."""
    pairs = [pair for part in parts for pair in part]
    joined = Joined.of([encoded(part) for part in parts])
    assert len(joined) == len(pairs)
    assert joined.source_lengths.tolist() == [len(s) for s, _ in pairs]
    assert joined.target_lengths.tolist() == [len(t) for _, t in pairs]
    chosen = data.draw(st.lists(st.integers(0, len(pairs) - 1), min_size=1, max_size=8))
    assert plain(joined.take(np.array(chosen))) == [pairs[i] for i in chosen]


def test_no_pair_of_a_joined_store():
    """A host may get no row of a batch."""
    joined = Joined.of([encoded([([5], [6])]), encoded([([7], [8])])])
    assert plain(joined.take(np.zeros(0, np.int32))) == []


def test_joined_stores_are_told_apart_by_order():
    first, second = encoded([([5], [6])]), encoded([([7], [8])])
    assert Joined.of([first, second]).hash != Joined.of([second, first]).hash
    assert Joined.of([first]) is first


def test_a_full_disk_is_named(monkeypatch):
    """What fills it, and the cure."""

    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.tempfile, "TemporaryFile", Full)
    with pytest.raises(
        InputError, match=r"No space left on device; make room there, or .* TMPDIR"
    ):
        Spool((0, 1), 100).add(encoded([([5], [6])]))


def test_small_integers_hold_small_vocabularies():
    assert [store.token_dtype(size) for size in (4, 65_536, 65_537)] == [
        "<u2",
        "<u2",
        "<i4",
    ]
    assert Vocabulary.train(["a b c"], 8).size <= 65_536


def test_a_folder_for_temporary_files_that_is_not_there(monkeypatch, tmp_path):
    """It is named: Python would take another one without a word."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(
        InputError, match=f"TMPDIR={tmp_path}/none is no folder: make it"
    ):
        Spool((0, 0), 100)
