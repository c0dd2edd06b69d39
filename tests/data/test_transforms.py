import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import (
    Encoded,
    Fingerprint,
    Pair,
    Sentences,
    Vocabularies,
    Vocabulary,
    encode,
    encode_evaluation,
    load,
)
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/valid", "en", "de"))
RAGGED = st.lists(st.lists(st.integers(5, 99), max_size=6), max_size=12)


@pytest.fixture(scope="module")
def vocabularies():
    """Separate, so that a mix-up of the two shows."""
    return Vocabularies(
        Vocabulary.train([pair.source for pair in PAIRS], 300),
        Vocabulary.train([pair.target for pair in PAIRS], 400),
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
    """Padding is on the right."""
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=8))
    indices, rows = np.array(chosen, np.int64), len(chosen) + 2
    packed = Sentences.of(sentences, pad_id=3)
    taken = packed.take(indices)
    assert [list(taken[i]) for i in range(len(taken))] == [sentences[i] for i in chosen]
    batch = taken.padded(rows, 7)
    assert batch.dtype == np.int32
    assert (
        batch.tolist()
        == [sentences[i] + [3] * (7 - len(sentences[i])) for i in chosen]
        + [[3] * 7] * 2
    )


@pytest.mark.parametrize("source_eos", [True, False])
def test_every_target_ends_with_one_eos(vocabularies, source_eos):
    """The source does exactly if it is told to."""
    encoded = encode(PAIRS, vocabularies, source_eos=source_eos)
    for i, pair in enumerate(PAIRS):
        source, target = list(encoded.source[i]), list(encoded.target[i])
        assert (
            source
            == vocabularies.source.encode(pair.source)
            + [vocabularies.source.eos_id] * source_eos
        )
        assert target == vocabularies.target.encode(pair.target) + [
            vocabularies.target.eos_id
        ]
        assert source.count(vocabularies.source.eos_id) == int(source_eos)
        assert target.count(vocabularies.target.eos_id) == 1


def test_text_that_spells_eos_still_ends_with_one(vocabularies):
    """Also when the sentence says "</s>"."""
    encoded = encode([Pair("a </s>", "</s> b</s>")], vocabularies, source_eos=True)
    for sentence in (encoded.source[0], encoded.target[0]):
        assert list(sentence).index(3) == len(sentence) - 1


def test_evaluation_drops_nothing(vocabularies):
    """A loss over a set counts every pair, empty and long ones too."""
    pairs = [
        *PAIRS[:3],
        Pair("", "leer"),
        Pair("empty", ""),
        Pair("long " * 400, "kurz"),
    ]
    encoded = encode_evaluation(pairs, vocabularies, source_eos=True)
    assert len(encoded) == len(pairs)
    assert list(encoded.target[4]) == [vocabularies.target.eos_id]
    assert encoded.source.lengths[5] > 400


def test_evaluation_refuses_what_the_model_cannot_take(vocabularies):
    pairs = [*PAIRS[:3], Pair("kurz", "lang " * 100), Pair("kurz", "lang " * 90)]
    with pytest.raises(
        InputError,
        match=r"the target of pair 4 has \d+ tokens and the model takes 64 \(2 such\)",
    ):
        encode_evaluation(pairs, vocabularies, source_eos=True, max_length=64)
    assert (
        len(encode_evaluation(pairs, vocabularies, source_eos=True, max_length=1000))
        == 5
    )


def test_added_tokens_stand_at_the_ends():
    sentences = Sentences.of([[5, 6], [], [7]], pad_id=0, first=8, last=9)
    assert [list(sentences[i]) for i in range(3)] == [[8, 5, 6, 9], [8, 9], [8, 7, 9]]


def test_a_tag_begins_the_source_and_cannot_be_spelled():
    """The piece for a language is no text, and one that the vocabulary lacks is
    named.
    """
    vocabulary = Vocabulary.train(
        [text for pair in PAIRS for text in pair], 400, tags=("de", "fr")
    )
    both = Vocabularies(vocabulary, vocabulary)
    plain = encode([Pair("<2de> a table", "x")], both, source_eos=True)
    tagged = encode([Pair("<2de> a table", "x")], both, source_eos=True, tag="fr")
    assert list(tagged.source[0]) == [vocabulary.tag_id("fr"), *plain.source[0]]
    assert vocabulary.tag_id("de") not in plain.source[0]
    assert vocabulary.decode(tagged.source[0]) == vocabulary.decode(plain.source[0])
    with pytest.raises(
        InputError, match=r"no tag <2es>: train with data\.language_tags=True"
    ):
        encode([Pair("a", "b")], both, source_eos=True, tag="es")


def test_a_fingerprint_does_not_depend_on_the_pieces(vocabularies):
    """It tells texts apart by tokens, their ends, and their order."""
    whole = encode(PAIRS[:50], vocabularies, source_eos=True)
    fingerprint = Fingerprint()
    for start, stop in ((0, 7), (7, 7), (7, 50)):
        fingerprint.add(whole.take(np.arange(start, stop)))
    assert fingerprint.hex() == whole.hash
    assert whole.take(np.array([1, 0, *range(2, 50)])).hash != whole.hash
    assert encode(PAIRS[:50], vocabularies, source_eos=False).hash != whole.hash
    shifted = [
        Sentences.of(sentences, 0) for sentences in ([[1, 2], [3]], [[1], [2, 3]])
    ]
    assert Encoded(shifted[0], shifted[0]).hash != Encoded(shifted[1], shifted[0]).hash
