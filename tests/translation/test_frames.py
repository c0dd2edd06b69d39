"""Runs whose text has another frame: languages on both sides, other first inputs."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
import pytest

import jaxformer as jf
import runs
from jaxformer.data.frame import Template
from jaxformer.data.sources import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.translator import Translator

TEMPLATES = {
    "m2m": Template(
        ("{source}", "{text}", "{eos}"), ("{target}", "{text}", "{eos}"), "{eos}"
    ),
    "mbart": Template(("{text}", "{eos}", "{source}"), start="{target}"),
}


@functools.cache
def vocabulary() -> Vocabulary:
    texts = [text for pair in runs.pairs() for text in pair]
    return Vocabulary.train(texts, 400, tags=("en", "de", "fr"))


@functools.cache
def framed(name: str, target: str = "de", **changes) -> Translator:
    config = runs.model_config(vocabulary_size=vocabulary().size)
    both = Vocabularies(vocabulary(), vocabulary(), TEMPLATES[name])
    decoding = {"length_penalty": "average", "alpha": 1.0, "max_extra_length": 12}
    return Translator(
        config,
        runs.random_params(config),
        both,
        DecodingConfig(**{**decoding, **changes}),
        source_language="en",
        target_language=target,
    )


def decoded(translator: Translator, source: list[int], first: list[int]) -> list[int]:
    """Generate greedily by whole forward passes, after the tokens given."""
    tokens, eos = [*first], vocabulary().eos_id
    model, params = translator.model, translator.params
    apply = jax.jit(model.apply)
    never = [vocabulary().pad_id, model.config.bos_id]
    never = [token for token in never if token != eos]
    while len(tokens) < 30 and tokens[-1:] != [eos]:
        # What follows cannot be seen.
        row = np.array([(tokens + [eos] * 30)[:30]])
        logits = np.array(apply({"params": params}, np.array([source]), row))
        logits = logits[0, len(tokens)]
        logits[never] = -np.inf
        tokens.append(int(logits.argmax()))
    return tokens


TEXTS = runs.sentences(4, longest=14)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_search_begins_with_the_frame_of_the_target(name):
    """The language is forced after the first input, is no part of the text, and costs
    nothing; lengths count it.
    """
    translator, words = framed(name), vocabulary()
    codes = [words.tag_id(code) for code in ("en", "de")]
    skip = [codes[1]] if name == "m2m" else []
    for text in TEXTS:
        text_ids = words.encode(text)
        source = {
            "m2m": [codes[0], *text_ids, words.eos_id],
            "mbart": [*text_ids, words.eos_id, codes[0]],
        }[name]
        limit = len(text_ids) + 12
        expected = decoded(translator, source, skip)[:limit]
        ((best,),) = translator.search([text], beam_size=1)
        assert best.tokens == words.pieces(expected[len(skip) :])
        assert best.text == words.decode(expected[len(skip) :])
        assert len(best.token_log_probabilities) == len(best.tokens)
        np.testing.assert_allclose(
            best.score, best.log_probability / len(expected), rtol=1e-5
        )
        beam = translator.search([text], beam_size=4, n_best=4)[0]
        for each in beam:
            assert not {*words.pieces(codes)} & {*each.tokens[:1]}
            length = len(each.tokens) + len(skip)
            total = sum(each.token_log_probabilities)
            np.testing.assert_allclose(each.score, total / length, rtol=1e-5)


@pytest.mark.parametrize("name", TEMPLATES)
def test_scores_of_given_pairs_leave_out_what_is_forced(name):
    """They are those of the search for the same tokens, and so are sums and counts."""
    translator = framed(name)
    found = [best for best, *_ in translator.search(TEXTS)]
    known = [
        (text, each)
        for text, each in zip(TEXTS, found, strict=True)
        if each.finished
        and vocabulary().pieces(vocabulary().encode(each.text)) == each.tokens[:-1]
    ]
    assert known
    scores = translator.score([Pair(text, each.text) for text, each in known])
    for score, (_, each) in zip(scores, known, strict=True):
        np.testing.assert_allclose(
            score.log_probability, each.log_probability, rtol=1e-4
        )
        assert score.tokens == len(each.tokens)


def test_prefixes_of_the_user_follow_those_of_the_frame():
    """For each line that has one; the others have the frame's alone."""
    translator = framed("m2m")
    plain = translator.translate(TEXTS)
    found = translator.translate(TEXTS, prefixes=["Das", "", "", ("Ein", "Der")])
    assert found[0].startswith("Das")
    assert found[1:3] == plain[1:3]
    assert found[3].startswith(("Ein", "Der"))


def test_other_languages_are_other_tokens():
    """Of the target as of the source; one that is unknown is refused."""
    both = [framed("m2m", target).translate(TEXTS) for target in ("de", "fr")]
    assert both[0] != both[1]
    with pytest.raises(InputError, match="it"):
        framed("m2m", "it")


def test_alignments_and_attention_have_rows_for_the_text():
    """The weights are those of a pass over all tokens."""
    translator = framed("m2m")
    ((best,),) = translator.search(TEXTS[:1], alignment=True)
    assert best.alignment is not None
    assert best.alignment.weights.shape == (
        len(best.tokens),
        len(vocabulary().encode(TEXTS[0])) + 2,
    )
    codes = [word for word in best.alignment.source_words if word is None]
    assert len(codes) >= 2
    found = translator.attention(TEXTS[0], best.text)
    assert found.target_tokens[0] == "<2de>"


def test_banned_tokens_of_a_model_are_never_generated():
    plain = framed("m2m").search(TEXTS, beam_size=1)
    often = plain[0][0].tokens[0]
    (token,) = [
        i for i in range(vocabulary().size) if vocabulary().pieces([i]) == [often]
    ]
    translator = framed("m2m")
    both = translator.vocabularies
    assert both.template is not None
    template = dataclasses.replace(both.template, banned=((token,),))
    banned = Translator(
        translator.model.config,
        translator.params,
        dataclasses.replace(both, template=template),
        translator.decoding,
        source_language="en",
        target_language="de",
    )
    assert all(often not in best.tokens for best, *_ in banned.search(TEXTS))


def test_models_of_other_frames_are_no_ensemble():
    """A source's language may also come after its text."""
    first = framed("mbart")
    other = Translator(
        first.model.config,
        first.params,
        first.vocabularies,
        first.decoding,
        source_language="fr",
        target_language="de",
    )
    with pytest.raises(InputError, match=r"has the end of sources .*'<2en>'\] and mod"):
        jf.Translator.ensemble([first, other])
    with pytest.raises(InputError, match=r"the target language \['<2de>'\] and model"):
        jf.Translator.ensemble([framed("m2m"), framed("m2m", "fr")])
