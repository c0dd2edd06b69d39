"""Pairs of token ids are the same in memory and in files."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Sentences
from jaxformer.data.store import TokenWriter, concatenate
from jaxformer.errors import InputError

RAGGED = st.lists(st.lists(st.integers(4, 60_000), max_size=5), max_size=8)
PAIRS = st.lists(
    st.tuples(
        st.lists(st.integers(4, 60_000), max_size=5),
        st.lists(st.integers(4, 60_000), max_size=5),
    )
)


def encoded(pairs):
    return Encoded(
        Sentences.from_lists([s for s, _ in pairs], 0),
        Sentences.from_lists([t for _, t in pairs], 1),
    )


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


@settings(deadline=None, max_examples=60)
@given(sentences=RAGGED, data=st.data())
def test_taking_and_padding_equal_the_plain_loop(sentences, data):
    """Sentences are unchanged; padding is on the right."""
    flat = Sentences.from_lists(sentences, pad_id=3)
    assert [list(flat[i]) for i in range(len(flat))] == sentences
    assert list(flat.lengths) == [len(sentence) for sentence in sentences]
    chosen = []
    if sentences:
        chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=8))
    taken = flat.take(np.array(chosen, np.int64))
    assert [list(taken[i]) for i in range(len(taken))] == [sentences[i] for i in chosen]
    batch = taken.padded(len(chosen) + 2, 7)
    assert batch.dtype == np.int32
    assert (
        batch.tolist()
        == [sentences[i] + [3] * (7 - len(sentences[i])) for i in chosen]
        + [[3] * 7] * 2
    )


def test_added_tokens_are_at_the_ends():
    flat = Sentences.from_lists([[5, 6], [], [7]], pad_id=0, first=8, last=9)
    assert [list(flat[i]) for i in range(3)] == [[8, 5, 6, 9], [8, 9], [8, 7, 9]]


@settings(deadline=None, max_examples=50)
@given(
    pieces=st.lists(PAIRS, max_size=4),
    dtype=st.sampled_from(["<u2", "<i4"]),
    data=st.data(),
)
def test_a_writer_returns_what_it_took(pieces, dtype, data):
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
    if pairs:
        chosen = data.draw(st.lists(st.integers(0, len(pairs) - 1), max_size=6))
        assert plain(found.take(np.array(chosen, np.int32))) == [
            pairs[i] for i in chosen
        ]


def test_hashes_differ_by_order_and_borders():
    first, second = encoded([([5], [6])]), encoded([([7], [8])])
    found = {
        first.hash,
        second.hash,
        concatenate([first, second]).hash,
        concatenate([second, first]).hash,
        encoded([([1, 2], [9]), ([3], [9])]).hash,
        encoded([([1], [9]), ([2, 3], [9])]).hash,
    }
    assert len(found) == 6
    assert plain(concatenate([first, second])) == [([5], [6]), ([7], [8])]


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
