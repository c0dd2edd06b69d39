"""Pairs of token ids are the same in memory, in files and in a prepared folder, which
is opened whole or refused in one line.
"""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Sentences
from jaxformer.data.cleaning import Counts
from jaxformer.data.prepared import Manifest, digest
from jaxformer.data.store import LENGTHS, TOKENS, TokenWriter, concatenate
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError

SENTENCE = st.lists(st.integers(4, 60_000), max_size=5)
RAGGED = st.lists(SENTENCE, max_size=8)
PAIRS = st.lists(st.tuples(SENTENCE, SENTENCE))


def encoded(pairs):
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    return Encoded(*(Sentences.from_lists(side, pad) for pad, side in enumerate(sides)))


def form(dtype):
    """Return what a writer asks of vocabularies."""
    return types.SimpleNamespace(pad_ids=(0, 1), token_dtype=dtype)


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
    numbers = st.integers(0, max(0, len(sentences) - 1))
    chosen = data.draw(st.lists(numbers, max_size=8 if sentences else 0))
    taken = flat.take(np.array(chosen, np.int64))
    wanted = [sentences[i] for i in chosen]
    assert [list(taken[i]) for i in range(len(taken))] == wanted
    batch = taken.padded(len(chosen) + 2, 7)
    assert batch.dtype == np.int32
    assert batch.tolist() == [one + [3] * (7 - len(one)) for one in [*wanted, [], []]]


@settings(deadline=None, max_examples=50)
@given(pieces=st.lists(PAIRS, max_size=4), dtype=st.sampled_from(["<u2", "<i4"]))
def test_a_writer_returns_what_it_took(pieces, dtype):
    """The hash does not depend on how the pairs are split into pieces."""
    with TokenWriter(form(dtype)) as writer:
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
    both = concatenate([first, second])
    assert plain(both) == [([5], [6]), ([7], [8])]
    borders = encoded([([1, 2], [9]), ([3], [9])]), encoded([([1], [9]), ([2, 3], [9])])
    several = [first, second, both, concatenate([second, first]), *borders]
    assert len({pairs.hash for pairs in several}) == 6


SHARED = Vocabulary.train(["a b c"], 8)
VOCABULARIES = Vocabularies(SHARED, SHARED)
FEW = [([4] * (n % 5), [5, 6, 7][: n % 4]) for n in range(40)]


@pytest.fixture
def folder(tmp_path):
    with TokenWriter(VOCABULARIES, tmp_path) as writer:
        for start in (0, 15, 30):
            writer.add(encoded(FEW[start : start + 15]))
        found = writer.finish()
    files = {name: digest(tmp_path / name) for name in (*TOKENS, LENGTHS)}
    counts, lengths = {"x": Counts(3)}, ([1], [2])
    facts = VOCABULARIES.hash, counts, lengths, found.hash, files
    Manifest(tmp_path, {"max_length": 60}, *facts).save()
    return tmp_path


def reopen(directory):
    return Manifest.load(directory).open_pairs(VOCABULARIES)


def test_pairs_are_unchanged_where_the_folder_is_moved(folder):
    """The hash is that of the same pairs in memory."""
    moved = folder.rename(folder.with_name("elsewhere"))
    found = reopen(moved)
    assert plain(found) == FEW
    assert found.hash == encoded(FEW).hash
    assert Manifest.load(moved).counts == {"x": Counts(3)}
    names = sorted(path.name for path in moved.iterdir())
    assert names == ["lengths.npy", "manifest.json", "source.bin", "target.bin"]


FLIPPED = b"one bit"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("target.bin", None, r"target\.bin is missing: put it"),
        ("target.bin", FLIPPED, r"target\.bin is damaged"),
        ("lengths.npy", b"other", r"lengths\.npy is damaged"),
        ("manifest.json", None, "is not a prepared folder .*:"),
        ("manifest.json", b"{", r"manifest\.json is damaged .*: remove .* and prepare"),
        ("manifest.json", b'{"format": 1}', "was prepared by another version"),
        ("manifest.json", b'{"format": 2}', r"manifest\.json is damaged"),
    ],
)
def test_damage_is_named(folder, name, content, message):
    whole = (folder / name).read_bytes()
    (folder / name).unlink()
    if content is FLIPPED:
        content = whole[:-1] + bytes([whole[-1] ^ 1])
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        reopen(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    with pytest.raises(InputError, match="is a file, not a prepared folder"):
        reopen(folder / "source.bin")
