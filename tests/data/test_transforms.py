import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import (
    Dropped,
    Pair,
    Sentences,
    Vocabularies,
    Vocabulary,
    encode,
    encode_evaluation,
    encode_training,
    load,
)
from jaxformer.errors import InputError

PAIRS = load("bundled:en-de/valid", "en", "de")
RAGGED = st.lists(st.lists(st.integers(5, 99), max_size=6), max_size=12)


@pytest.fixture(scope="module")
def vocabularies():
    """Separate, so that a mix-up of the two shows."""
    return Vocabularies(
        Vocabulary.train([pair.source for pair in PAIRS], 300), Vocabulary.train([pair.target for pair in PAIRS], 400)
    )


@settings(deadline=None)
@given(sentences=RAGGED)
def test_sentences_come_back_as_they_went_in(sentences):
    packed = Sentences.of(sentences, pad_id=0)
    assert len(packed) == len(sentences)
    assert [list(packed[i]) for i in range(len(packed))] == sentences
    assert list(packed.lengths) == [len(sentence) for sentence in sentences]


@settings(deadline=None)
@given(sentences=RAGGED.filter(bool), data=st.data())
def test_taking_and_padding_equal_the_plain_loop(sentences, data):
    """Padding is on the right (statement 16)."""
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=8))
    indices, rows = np.array(chosen, np.int64), len(chosen) + 2
    packed = Sentences.of(sentences, pad_id=3)
    taken = packed.take(indices)
    assert [list(taken[i]) for i in range(len(taken))] == [sentences[i] for i in chosen]
    batch = packed.padded(indices, rows, 7)
    assert batch.dtype == np.int32
    assert batch.tolist() == [sentences[i] + [3] * (7 - len(sentences[i])) for i in chosen] + [[3] * 7] * 2


@pytest.mark.parametrize("source_eos", [True, False])
def test_every_target_ends_with_one_eos(vocabularies, source_eos):
    """The source does exactly if it is told to (statement 71)."""
    encoded = encode(PAIRS, vocabularies, source_eos=source_eos)
    for i, pair in enumerate(PAIRS):
        source, target = list(encoded.source[i]), list(encoded.target[i])
        assert source == vocabularies.source.encode(pair.source) + [vocabularies.source.eos_id] * source_eos
        assert target == vocabularies.target.encode(pair.target) + [vocabularies.target.eos_id]
        assert source.count(vocabularies.source.eos_id) == int(source_eos)
        assert target.count(vocabularies.target.eos_id) == 1


def test_text_that_spells_eos_still_ends_with_one(vocabularies):
    """Also when the sentence says "</s>" (statement 71)."""
    encoded = encode([Pair("a </s>", "</s> b</s>")], vocabularies, source_eos=True)
    for sentence in (encoded.source[0], encoded.target[0]):
        assert list(sentence).index(3) == len(sentence) - 1


@pytest.mark.parametrize("source_eos", [True, False])
def test_dropped_pairs_are_counted(vocabularies, source_eos):
    """Both sides go together, and pairs plus drops are what came in (statements 62 and 63)."""
    pairs = [
        Pair("a table", "eine Tabelle"),
        Pair("", "leer"),
        Pair("empty", "  "),
        Pair("", ""),
        Pair("long " * 50, "kurz"),
        Pair("short", "lang " * 50),
        Pair("", "lang " * 50),
        Pair("a page", "eine Seite"),
    ]
    encoded, dropped = encode_training(pairs, vocabularies, source_eos=source_eos, max_length=40)
    assert dropped == Dropped(empty=4, too_long=2)
    assert len(encoded) == len(encoded.target) == len(pairs) - sum(dropped)
    decoded = [
        (vocabularies.source.decode(encoded.source[i]), vocabularies.target.decode(encoded.target[i]))
        for i in range(len(encoded))
    ]
    assert decoded == [tuple(pairs[0]), tuple(pairs[-1])]


@pytest.mark.parametrize("pair", [Pair("Insert a new table.", "Ja"), Pair("No", "Eine neue Tabelle einfügen.")])
def test_the_limit_counts_eos_and_nothing_is_cut(vocabularies, pair):
    """A pair of exactly the limit stays whole; one token less of a limit drops it (statement 71)."""
    length = max(len(vocabularies.source.encode(pair.source)), len(vocabularies.target.encode(pair.target))) + 1
    encoded, dropped = encode_training([pair], vocabularies, source_eos=True, max_length=length)
    assert dropped == (0, 0)
    assert vocabularies.target.decode(encoded.target[0]) == pair.target
    assert encoded.target[0][-1] == vocabularies.target.eos_id
    encoded, dropped = encode_training([pair], vocabularies, source_eos=True, max_length=length - 1)
    assert (len(encoded), dropped) == (0, (0, 1))


def test_evaluation_drops_nothing(vocabularies):
    """A loss over a set counts every pair, empty and long ones too (statement 62)."""
    pairs = [*PAIRS[:3], Pair("", "leer"), Pair("empty", ""), Pair("long " * 400, "kurz")]
    encoded = encode_evaluation(pairs, vocabularies, source_eos=True)
    assert len(encoded) == len(pairs)
    assert list(encoded.target[4]) == [vocabularies.target.eos_id]
    assert encoded.source.lengths[5] > 400


def test_evaluation_refuses_what_the_model_cannot_take(vocabularies):
    pairs = [*PAIRS[:3], Pair("kurz", "lang " * 100), Pair("kurz", "lang " * 90)]
    with pytest.raises(InputError, match=r"the target of pair 4 has \d+ tokens and the model takes 64 \(2 such\)"):
        encode_evaluation(pairs, vocabularies, source_eos=True, max_length=64)
    assert len(encode_evaluation(pairs, vocabularies, source_eos=True, max_length=1000)) == 5


def test_no_pairs(vocabularies):
    encoded, dropped = encode_training([], vocabularies, source_eos=True, max_length=9)
    assert (len(encoded), dropped) == (0, (0, 0))
