"""Alignments are the model's own attention, over pieces and over words, in whole
sentences and in parts.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from translation.translators import (
    equally_long,
    forward,
    many,
    random_translator,
    token_ids,
)

import runs
from jaxformer.errors import InputError
from jaxformer.translation.codec import number_words
from jaxformer.translation.options import choose_layer
from jaxformer.translation.results import Alignment, Hypothesis


@pytest.mark.parametrize(("layer", "chosen"), [(1, 0), (None, 1)])
def test_weights_are_the_attention_of_the_layer(layer, chosen):
    """They are the mean over its heads, with any padding of the batch."""
    translator, texts = random_translator(num_decoder_layers=2), equally_long()
    options = {"alignment": True, "alignment_layer": layer}
    found = translator.search(texts, beam_size=1, **options)
    for own in zip(*found, strict=True):
        ids = [token_ids(translator, best) for best in own]
        _, layers = forward(translator, texts, ids)
        for best, tokens, expected in zip(own, ids, layers[chosen], strict=True):
            weights, expected = best.alignment.weights, expected.mean(0)[: len(tokens)]
            np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    assert translator.search(texts, beam_size=1) == found  # not compared


@pytest.mark.parametrize(("layers", "layer"), [(1, 1), (2, 2), (3, 2), (6, 5)])
def test_the_layer_before_the_last_aligns_or_the_last_of_two(layers, layer):
    assert choose_layer(True, None, layers) == layer
    rule = f"the decoder has layers 1 to {layers}, not {layers + 1}"
    with pytest.raises(InputError, match=rule):
        choose_layer(True, layers + 1, layers)


def words_of(numbers: list[int | None]) -> set[int]:
    return {number for number in numbers if number is not None}


def test_pieces_and_words_are_linked():
    """Each piece with text is linked to the source piece with text that it attends to
    most, and words by their pieces.
    """
    translator = random_translator()
    found = translator.search(many(), beam_size=1, alignment=True)
    for text, (best,) in zip(many(), found, strict=True):
        alignment = best.alignment
        source, target = alignment.source_words, alignment.target_words
        assert alignment.source_tokens[-1] == "</s>"
        assert source[-1] is None
        assert words_of(source) == set(range(len(text.split())))
        assert words_of(target) == set(range(len(best.text.split())))
        links = {target: source for source, target in alignment.links()}
        assert len(links) == len(target) - target.count(None)
        texts = [place for place, word in enumerate(source) if word is not None]
        for place, linked in links.items():
            weights = alignment.weights[place]
            assert linked == max(texts, key=lambda x, weights=weights: weights[x])
            assert (source[linked], target[place]) in alignment.word_links()
        pairs = alignment.word_links()
        assert len(pairs) == len(set(pairs)) <= len(links)


def test_unknown_tokens_are_words_where_they_are_written_out():
    """ " ⁇ " is between spaces in a translation, and not in the source."""
    vocabulary = runs.vocabulary()
    ids = [vocabulary.encode("a")[0], vocabulary.unk_id, vocabulary.encode("xe")[-1]]
    assert number_words(vocabulary, ids) == [0, 0, 0]
    assert number_words(vocabulary, ids, unknown_alone=True) == [0, 1, 2]
    assert len(vocabulary.decode(ids).split()) == 3


def test_alignments_of_parts():
    """Each part attends to its own source; words are counted through, and blank lines
    have none.
    """
    changes = {"long_sources": "split", "max_source_length": 12}
    translator = random_translator(**changes)
    long = ". ".join(each.rstrip(".") for each in equally_long()) + "."
    options = {"alignment": True, "paragraphs": True, "beam_size": 1}
    (best,), (blank,) = translator.search([long, " "], **options)
    alignment, pieces = best.alignment, best.alignment.source_tokens
    assert alignment.weights.shape == (len(best.tokens), len(pieces))
    ends = [place + 1 for place, piece in enumerate(pieces) if piece == "</s>"]
    assert len(ends) > 3
    blocks = np.split(alignment.weights, ends, axis=1)[:-1]
    shares = np.array([block.sum(1) for block in blocks])
    np.testing.assert_allclose(shares.sum(0), 1.0, rtol=1e-5)
    assert ((shares > 0).sum(0) == 1).all()
    text = "".join(piece for piece in pieces if piece != "</s>").replace("▁", " ")
    assert words_of(alignment.source_words) == set(range(len(text.split())))
    nothing = {"source_tokens": [], "alignment": "", "word_alignment": ""}
    assert blank.alignment.to_json() == nothing


def test_as_json():
    """The keys are stable, links in Pharaoh's format, and weights on request."""
    weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.25, 0.65]], np.float32)
    alignment = Alignment(["▁a", "b", "</s>"], weights, [0, 0, None], [0, None])
    pieces = ["▁c", "</s>"]
    best = Hypothesis("c", -1.0, -np.inf, pieces, finished=True, alignment=alignment)
    hard = {
        "text": "c",
        "score": -1.0,
        "log_probability": None,
        "tokens": pieces,
        "finished": True,
        "token_log_probabilities": [],
        "source_tokens": ["▁a", "b", "</s>"],
        "alignment": "0-0",
        "word_alignment": "0-0",
    }
    assert best.to_json() == hard
    soft = {**hard, "weights": [[0.5, 0.3, 0.2], [0.1, 0.25, 0.65]]}
    assert json.loads(json.dumps(best.to_json(soft_alignment=True))) == soft
