"""Alignments are the model's own attention, over pieces and over words, in whole
sentences and in parts.
"""

from __future__ import annotations

import json
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    equally_long,
    many,
    random_translator,
    source_ids,
    token_ids,
)

import runs
from jaxformer.errors import InputError
from jaxformer.translation.codec import number_words
from jaxformer.translation.options import choose_layer
from jaxformer.translation.results import Alignment, Hypothesis
from jaxformer.translation.translator import Translator


def weights_of(hypothesis: Hypothesis) -> np.ndarray:
    assert hypothesis.alignment is not None
    return hypothesis.alignment.weights


def cross_attention(
    translator: Translator, text: str, hypothesis: Hypothesis
) -> np.ndarray:
    """Return [layers, heads, target, source] of one pair without padding, by the model
    itself.
    """
    source = jnp.array([source_ids(translator, text)], jnp.int32)
    target = jnp.array([token_ids(translator, hypothesis)], jnp.int32)
    _, weights = cast(
        tuple,
        translator.model.apply(
            {"params": translator.params}, source, target, method="forward"
        ),
    )
    return np.concatenate(
        [np.asarray(layer) for layer in jax.device_get(weights.cross)]
    )


@pytest.mark.parametrize(("layer", "chosen"), [(None, 1), (1, 0), (3, 2)])
def test_weights_are_the_attention_of_the_layer(layer, chosen):
    """The mean over its heads, for every hypothesis, whatever the padding of its
    batch.
    """
    translator, texts = random_translator(num_decoder_layers=3), many()[:8]
    found = translator.search(
        texts, beam_size=2, n_best=2, alignment=True, alignment_layer=layer
    )
    plain = translator.search(texts, beam_size=2, n_best=2)
    assert found == plain  # alignments are no part of what is compared
    for number, (text, hypotheses) in enumerate(zip(texts, found, strict=True)):
        for hypothesis in hypotheses:
            weights = weights_of(hypothesis)
            assert weights.shape == (
                len(hypothesis.tokens),
                len(source_ids(translator, text)),
            )
            np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
            if number < 2:
                expected = cross_attention(translator, text, hypothesis)[chosen].mean(0)
                np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layers", "layer"), [(1, 1), (2, 1), (3, 2), (6, 5)])
def test_the_layer_before_the_last_aligns(layers, layer):
    assert choose_layer(True, None, layers) == layer
    for wrong in (0, layers + 1):
        with pytest.raises(
            InputError, match=f"the decoder has layers 1 to {layers}, not {wrong}"
        ):
            choose_layer(True, wrong, layers)


def test_pieces_and_words_are_linked():
    """Each piece with text is linked to the source piece with text that it looks at
    most; words by their pieces.
    """
    translator = random_translator()
    for text, (best,) in zip(
        many(), translator.search(many(), alignment=True), strict=True
    ):
        alignment = best.alignment
        assert alignment is not None
        assert alignment.source_tokens[-1] == "</s>"
        assert alignment.source_words[-1] is None
        # The words are those between white space of the text.
        for words, whole in (
            (alignment.source_words, text),
            (alignment.target_words, best.text),
        ):
            assert {word for word in words if word is not None} == set(
                range(len(whole.split()))
            )
        links = {target: source for source, target in alignment.links()}
        texts = [
            place
            for place, word in enumerate(alignment.source_words)
            if word is not None
        ]
        for place, word in enumerate(alignment.target_words):
            if word is None:
                assert place not in links
                continue
            assert links[place] == max(
                texts, key=lambda source: alignment.weights[place, source]
            )
            assert (
                alignment.source_words[links[place]],
                word,
            ) in alignment.word_links()
        assert (
            len(alignment.word_links())
            == len(set(alignment.word_links()))
            <= len(links)
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [("Open the file", [0, 1, 2]), ("", []), ("a", [0]), ("🙂 x", [0, 1])],
)
def test_words_of_pieces(text, words):
    """Their numbers rise by one at each space, and control pieces are in none."""
    vocabulary = runs.vocabulary()
    ids = [*vocabulary.encode(text), vocabulary.eos_id]
    found = number_words(vocabulary, ids, [vocabulary.eos_id])
    assert found[-1] is None
    assert list(dict.fromkeys(word for word in found if word is not None)) == words


def test_unknown_tokens_are_words_where_they_are_written_out():
    """ " ⁇ " stands between spaces in a translation, and not in the source."""
    vocabulary = runs.vocabulary()
    a, unknown = vocabulary.encode("a")[0], vocabulary.unk_id
    inside = vocabulary.encode("xe")[-1]
    assert number_words(vocabulary, [a, unknown, inside], ()) == [0, 0, 0]
    assert number_words(vocabulary, [a, unknown, inside], (), unknown_alone=True) == [
        0,
        1,
        2,
    ]
    assert len(vocabulary.decode([a, unknown, inside]).split()) == 3


@pytest.mark.parametrize("paragraphs", [False, True])
def test_alignments_of_parts(paragraphs):
    """Each part looks at its own source; words are counted through, and blank lines
    have none.
    """
    translator = random_translator(
        long_sources="split", max_source_length=12, max_extra_length=3
    )
    long = ". ".join(each.rstrip(".") for each in equally_long()) + "."
    (best,), (blank,) = translator.search(
        [long, " "], alignment=True, paragraphs=paragraphs
    )
    alignment = best.alignment
    assert alignment is not None
    assert alignment.weights.shape == (len(best.tokens), len(alignment.source_tokens))
    ends = [
        place for place, piece in enumerate(alignment.source_tokens) if piece == "</s>"
    ]
    assert len(ends) > 3
    blocks = np.split(alignment.weights, [end + 1 for end in ends], axis=1)[:-1]
    np.testing.assert_allclose(sum(block.sum(1) for block in blocks), 1.0, rtol=1e-5)
    assert all(
        sum(block[row].any() for block in blocks) == 1
        for row in range(len(best.tokens))
    )
    spelled = (
        "".join(piece for piece in alignment.source_tokens if piece != "</s>")
        .replace("▁", " ")
        .split()
    )
    assert {word for word in alignment.source_words if word is not None} == set(
        range(len(spelled))
    )
    assert blank.alignment is not None
    assert blank.alignment.to_json() == {
        "source_tokens": [],
        "alignment": "",
        "word_alignment": "",
    }


def test_as_json():
    """Stable keys, Pharaoh's form, and weights where they are asked for; no
    infinity.
    """
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.25, 0.65]], np.float32)
    alignment = Alignment(["▁a", "b", "</s>"], weights, [0, 0, None], [0, None])
    hypothesis = Hypothesis(
        "c", -1.0, -2.0, ["▁c", "</s>"], finished=True, alignment=alignment
    )
    hard = {
        "text": "c",
        "score": -1.0,
        "log_probability": -2.0,
        "tokens": ["▁c", "</s>"],
        "finished": True,
        "token_log_probabilities": [],
        "source_tokens": ["▁a", "b", "</s>"],
        "alignment": "0-0",
        "word_alignment": "0-0",
    }
    assert hypothesis.to_json() == hard
    soft = hypothesis.to_json(soft_alignment=True)
    assert json.loads(json.dumps(soft)) == {
        **hard,
        "weights": [[0.5, 0.3, 0.2], [0.1, 0.25, 0.65]],
    }
