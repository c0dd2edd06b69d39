"""Text in, text out: tokens, odd lines, and attention and candidates of a pair."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    PADDED,
    assert_scores_are_the_models,
    equally_long,
    many,
    random_translator,
)

import runs
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.translation import pairs
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator


def test_text_is_the_decoded_tokens():
    """A finished text omits its one end of sentence; an unfinished one is whole."""
    translator = random_translator()
    vocabulary = translator.vocabularies.target
    found = [best for (best,) in translator.search(many(), beam_size=4)]
    for best in found:
        body = best.tokens[:-1] if best.finished else best.tokens
        assert (best.tokens[-1] == "</s>") == best.finished
        assert not {"<pad>", "<s>", "</s>"} & set(body)
        text = "".join(body).replace("<unk>", " ⁇ ").replace("▁", " ")
        assert best.text == text.removeprefix(" ")
        assert vocabulary.decode(vocabulary.encode(best.text)) == best.text
    assert any(not best.finished and len(best.text) > 20 for best in found)


def test_line_breaks_are_not_written():
    r"""A model that writes ``\n`` and ``\r`` in bytes still gives one line for each."""
    texts = [text for pair in runs.pairs() for text in pair]
    vocabulary = Vocabulary.train(texts, PADDED, byte_fallback=True)
    pieces = vocabulary.pieces(range(vocabulary.size))
    wanted = 50 * np.random.default_rng(0).normal(size=32).astype(np.float32)
    rows = {pieces.index("<0x0A>"): wanted, pieces.index("<0x0D>"): -wanted}
    base = runs.translator(vocabulary_size=vocabulary.size, output=rows)
    both = Vocabularies(vocabulary, vocabulary)
    translator = Translator(base.model.config, base.params, both, base.decoding)
    found = translator.search(equally_long(), beam_size=1)
    assert any("<0x0A>" in best.tokens for (best,) in found)
    assert not any({"\n", "\r"} & set(best.text) for (best,) in found)


BLANK = ["", " ", "\t", "\u3000", " \x01 ", " \u200b ", "\r", " " * 100_000]
ODD = [
    *("x", "🙂🎉🙂", "\x00\x01\x07a\x1b[31m", "one\u2028two\u2029three"),
    *("one\x85two\x0bthree\x1cfour", "</s>", "<pad> <s> <unk>", "⁇", "▁", "\ud800"),
    *("one\ntwo", "one\rtwo", "🙂" * 100_000, "e" + "\u0301" * 50, "مرحبا بالعالم"),
    "你好，世界。Привет мир",
]


@pytest.mark.parametrize(("source_eos", "paragraphs"), [(False, False), (True, True)])
def test_odd_lines_leave_their_neighbours_unchanged(source_eos, paragraphs):
    """Blank lines stay empty, every other line gives one line, and those around them
    what they give without them.
    """
    translator, plain = random_translator(source_eos=source_eos), equally_long()
    expected = translator.translate(plain, beam_size=1)
    lines = itertools.zip_longest(plain, [*ODD, *BLANK], fillvalue="x")
    mixed = [text for pair in lines for text in pair]
    found = translator.translate(mixed, beam_size=1, paragraphs=paragraphs)
    assert len(found) == len(mixed)
    assert found[: 2 * len(plain) : 2] == expected
    assert found[-2 * len(BLANK) + 1 :: 2] == [""] * len(BLANK)
    assert not any({"\n", "\r"} & set(line) for line in found)


def test_blank_lines_only():
    translator, blank = random_translator(), Hypothesis("", 0.0, 0.0, [], finished=True)
    assert translator.search(BLANK, n_best=2) == [[blank]] * len(BLANK)
    assert translator.translate([]) == translator.score([]) == []


def test_learned_positions_end_with_their_table():
    """Decoding stops where the positions end; none is used twice in silence."""
    translator = random_translator(positions="learned", max_length=24, eos=0.0)
    found = [best for (best,) in translator.search(equally_long(), beam_size=4)]
    assert [(len(best.tokens), best.finished) for best in found] == [(24, False)] * 6
    assert_scores_are_the_models(translator, equally_long(), found)


def test_attention():
    """Rows are distributions over what may be seen, each named by its token; without a
    target, the translation attends.
    """
    translator = random_translator()
    found = translator.attention("Open the file.", "Datei öffnen")
    rows, columns = len(found.target_tokens), len(found.source_tokens)
    assert found.encoder.shape == (1, 4, columns, columns)
    assert found.decoder.shape == (1, 4, rows, rows)
    assert found.cross.shape == (1, 4, rows, columns)
    assert found.source_tokens[-1] == found.target_tokens[-1] == "</s>"
    assert found.read_tokens == ["<s>", *found.target_tokens[:-1]]
    for weights in (found.encoder, found.decoder, found.cross):
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
    assert not np.triu(found.decoder, 1).any()
    assert "".join(found.target_tokens[:-1]) == "▁Datei▁öffnen"
    text = many()[0]
    (target,) = translator.codec.encode_targets(translator.translate([text]))
    own = translator.attention(text).target_tokens
    assert own == runs.vocabulary().pieces(target)
    with pytest.raises(InputError, match="not blank"):
        translator.attention("  ")


def unpadded(translator: Translator, *sides: list[int]):
    pair = (jnp.array([ids], jnp.int32) for ids in sides)
    apply = jax.jit(functools.partial(translator.model.apply, method="forward"))
    return jax.device_get(apply({"params": translator.params}, *pair))


LENGTHS = [("Open the file.", "Datei"), ("Close it", "Die Tabelle wird geschlossen.")]


@pytest.mark.parametrize("text", LENGTHS)
def test_a_reading_is_that_of_the_pair_without_padding(text):
    """Attention, log-probabilities, and the most probable tokens of each place."""
    translator = random_translator(num_decoder_layers=2)
    codec, models, k = translator.codec, translator.models, 5
    found = pairs.attend(models, codec, *text)
    sides = codec.encode_sources(text[:1])[0], codec.encode_targets(text[1:])[0]
    count, place = len(sides[1]), len(sides[1]) - 1
    own = jax.device_get(pairs.read(models, *sides, width=32, layer=2, place=place))
    logits, weights = unpadded(translator, *sides)
    for kind in ("encoder", "decoder", "cross"):
        expected = np.concatenate(getattr(weights, kind))
        np.testing.assert_allclose(getattr(found, kind), expected, rtol=1e-5, atol=1e-6)
    rows = logits[0].astype(np.float64)
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    order = np.argsort(-rows, axis=-1)[:, :k]
    assert own.likely[1][:count, :k].tolist() == order.tolist()
    assert own.next[1][:k].tolist() == order[place].tolist()
    for values, tokens in (
        (own.likely[0][:count, :k], order),
        (own.log_probabilities[:count, None], np.array(sides[1])[:, None]),
        (own.next[0][None, :k], order[place:]),
    ):
        expected = np.take_along_axis(rows[-len(values) :], tokens, 1)
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
    links = own.links[:count, : len(sides[0])]
    np.testing.assert_allclose(links, weights.cross[1][0].mean(0), rtol=1e-5, atol=1e-6)
    assert translator.attention(*text).cross.tolist() == found.cross.tolist()
