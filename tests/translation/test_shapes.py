"""The steps of a search taken one by one, in batches whose shapes are given."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    broken_for_last,
    equally_long,
    many,
    random_translator,
    texts_and_tokens,
)

import runs
from jaxformer.errors import LineError
from jaxformer.translation import compiled, pairs
from jaxformer.translation.batch import Shape
from jaxformer.translation.options import SourceLine
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.stream import LineSearch
from jaxformer.translation.translator import Translator

SHAPE = Shape(8, 32, prefixes=(1, 52), required=(4, 4), aligned=(20, 52))


def search_by_steps(
    search: LineSearch, lines: list[SourceLine], shape: Shape
) -> list[list[Hypothesis]]:
    passages, sentences = search.prepare(lines)
    asked = [each for each in sentences if each.ids]
    found = []
    for start in range(0, len(asked), shape.rows):
        found += search.search(asked[start : start + shape.rows], shape)
    parts = iter(found)
    return [
        search.join(passage, [next(parts) for ids in passage.parts if ids])
        for passage in passages
    ]


def test_steps_give_what_the_whole_gives():
    """Blank lines, paragraphs, prefixes, phrases and alignments, in one shape that is
    wider than any of the batches.
    """
    translator = random_translator()
    texts = [*equally_long()[:3], " ", ". ".join(equally_long()[3:]), *many()[:2]]
    prefixes = ["Die", "", "", "", "Datei", "", "Das"]
    required = [["Datei"], [], [], [], [], ["die"], []]
    options = {"n_best": 3, "alignment": True, "paragraphs": True}
    expected = translator.search(texts, prefixes=prefixes, required=required, **options)
    search = translator.line_search(prefixes=(), required=(), **options)
    lines = [
        SourceLine(place, text, (prefix,) if prefix else (), tuple(phrases))
        for place, (text, prefix, phrases) in enumerate(
            zip(texts, prefixes, required, strict=True)
        )
    ]
    found = search_by_steps(search, lines, SHAPE)
    assert texts_and_tokens(found) == texts_and_tokens(expected)
    for own, others in zip(found, expected, strict=True):
        for each, other in zip(own, others, strict=True):
            assert each.score == pytest.approx(other.score, rel=1e-4)
            assert each.alignment.source_tokens == other.alignment.source_tokens
            weights = each.alignment.weights, other.alignment.weights
            np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


def test_a_shape_is_compiled_once():
    """Sentences, prefixes and phrases of any length that the shape holds, and none."""
    search = random_translator().line_search(
        prefixes=(), required=(), n_best=2, alignment=True
    )
    search.search([], SHAPE)
    before = compiled._search._cache_size(), pairs._cross_attention._cache_size()
    for count, prefix, required in (
        (1, "", ()),
        (8, "Die", ("Datei",)),
        (3, "Die Datei wird jetzt gleich", ("Tabelle", "die", "das", "ein")),
    ):
        lines = [SourceLine(0, text, (prefix,), required) for text in many()[:count]]
        _, sentences = search.prepare(lines)
        assert len(search.search(sentences, SHAPE)) == count
    assert compiled._search._cache_size() == before[0]
    assert pairs._cross_attention._cache_size() <= before[1] + len(SHAPE.aligned)


def broken_translator() -> tuple[Translator, list[str]]:
    """Return a translator that cannot read the last of some texts."""
    texts = many()[:4]
    return broken_for_last(random_translator(), texts), texts


def test_the_error_of_a_sentence_is_its_own():
    broken, texts = broken_translator()
    search = broken.line_search()
    _, sentences = search.prepare([SourceLine(n, x) for n, x in enumerate(texts)])
    *good, bad = search.search(sentences, Shape(8, 16))
    expected = random_translator().search(texts[:-1])
    assert texts_and_tokens(good) == texts_and_tokens(expected)
    assert isinstance(bad, LineError)
    assert bad.number == len(texts)
    assert "not a number" in str(bad)


def unpadded(translator: Translator, *sides: list[int]):
    pair = (jnp.array([ids], jnp.int32) for ids in sides)
    apply = jax.jit(functools.partial(translator.model.apply, method="forward"))
    return jax.device_get(apply({"params": translator.params}, *pair))


LENGTHS = [("Open the file.", "Datei"), ("Close it", "Die Tabelle wird geschlossen.")]


@pytest.mark.parametrize("text", LENGTHS)
def test_attention_and_candidates_are_those_of_the_pair_without_padding(text):
    translator = random_translator(num_decoder_layers=2)
    codec, k = translator.codec, 5
    found, best = pairs.attend(translator.models, codec, *text, k=k)
    sides = codec.encode_sources(text[:1])[0], codec.encode_targets(text[1:])[0]
    logits, weights = unpadded(translator, *sides)
    for kind in ("encoder", "decoder", "cross"):
        expected = np.concatenate(getattr(weights, kind))
        np.testing.assert_allclose(getattr(found, kind), expected, rtol=1e-5, atol=1e-6)
    rows = logits[0].astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    order = np.argsort(-rows, axis=-1)[:, :k]
    assert [[token for token, _ in own] for own in best] == order.tolist()
    values = [[value for _, value in own] for own in best]
    np.testing.assert_allclose(
        values, np.take_along_axis(rows, order, 1), rtol=1e-5, atol=1e-5
    )
    assert pairs.candidates(translator.models, sides, k) == best
    assert translator.attention(*text).cross.tolist() == found.cross.tolist()


def test_attention_compiles_for_few_lengths():
    translator = random_translator()
    translator.attention(*LENGTHS[0])
    before = pairs._read._cache_size()
    for text in many()[:4]:
        translator.attention(text, "Datei")
    translator.attention("a", "b c d")
    assert pairs._read._cache_size() == before


def test_scores_in_a_shape():
    translator = random_translator()
    given = [runs.Pair(source, "Datei") for source in equally_long()[:3]]
    expected = translator.score(given)
    parts = translator.models, translator.codec, given, translator.decoding
    found = pairs.score(*parts, shape=Shape(4, 32))
    for own, other in zip(found, expected, strict=True):
        assert own.tokens == other.tokens
        assert own.log_probability == pytest.approx(other.log_probability, rel=1e-5)
