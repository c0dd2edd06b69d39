"""Searches within a shortlist, against searches of the whole vocabulary by models in
which all other tokens are impossible.
"""

from __future__ import annotations

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import many, noisy_params, source_ids, token_ids

import runs
from jaxformer.errors import InputError
from jaxformer.models import Transformer
from jaxformer.models.cache import empty_cache
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.batch import Sentence, search_batch
from jaxformer.translation.models import Models, reduce_vocabulary
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Hypothesis, Translator


def draw_shortlist(seed: int, best: int = 12) -> Shortlist:
    rng = np.random.default_rng(seed)
    table = rng.integers(4, 400, (400, best)).astype(np.int32)
    table[rng.random(table.shape) < 0.2] = -1
    frequent = np.union1d(rng.choice(400, 30, replace=False), range(4))
    return Shortlist(frequent.astype(np.int32), table, "hash")


def within(translator: Translator, shortlist: Shortlist) -> Translator:
    found = copy.copy(translator)
    found.shortlist = shortlist
    return found


def tokens_by_hand(shortlist: Shortlist, ids: list[int], needed=()) -> set[int]:
    found = {0, 1, 2, 3, *shortlist.first.tolist(), *needed}
    return found | {word for row in ids for word in shortlist.best[row] if word >= 0}


@functools.cache
def biased(seed: int = 1, **changes) -> Translator:
    """Make a translator with an output bias."""
    found = runs.translator(output_bias=True, **changes)
    bias = np.random.default_rng(seed).normal(size=400).astype(np.float32)
    return with_params(found, logits={"bias": jnp.asarray(bias)})


def with_params(translator: Translator, **changes) -> Translator:
    found = copy.copy(translator)
    found.models = found.models._replace(params=({**found.params, **changes},))
    return found


def forbid_others(translator: Translator, allowed: set[int]) -> Translator:
    """Return the same model with a bias that makes all other tokens impossible."""
    bias = np.array(translator.params["logits"]["bias"])
    bias[list(set(range(400)) - allowed)] = -np.inf
    return with_params(translator, logits={"bias": jnp.asarray(bias)})


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.finished for each in found] == [each.finished for each in expected]
    for name in ("score", "log_probability"):
        values = [[getattr(each, name) for each in side] for side in (found, expected)]
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-4)


def batch(texts: list[list[int]]) -> list[Sentence]:
    return [Sentence(ids, len(ids), (n, 0)) for n, ids in enumerate(texts)]


@pytest.mark.parametrize("tied", ["none", "target", "all"])
def test_a_model_of_a_part_of_the_vocabulary(tied):
    """It has the logits of the whole model at its tokens."""
    changes = {"tied_embeddings": tied, "output_bias": True}
    config = runs.model_config(vocabulary_size=20, **changes)
    model, source = Transformer(config), jnp.array([[5, 7, 6]])
    params = noisy_params(config, 1)
    kept, token = jnp.array([0, 1, 2, 3, 7, 11, 19, 19]), 5

    @jax.jit
    def logits(params):
        memory = model.apply({"params": params}, source, method="start")
        cache = empty_cache(config, 1, 4)
        part, own = reduce_vocabulary(model, params, kept)
        whole = {"params": params}, kept[token][None], cache, memory
        small = {"params": own}, jnp.array([token]), cache, memory
        step = functools.partial(Transformer.apply, method="step")
        return step(model, *whole)[0], step(part, *small)[0]

    whole, small = logits(params)
    np.testing.assert_allclose(small, whole[:, kept], rtol=1e-5, atol=1e-6)


def test_search_within_a_list():
    """An ensemble finds what models without the other tokens find for each sentence.
    Prefixes may leave the list; bans and repetitions keep their meaning.
    """
    models, shortlist, texts = [biased(), biased(2)], draw_shortlist(9), many()[:6]
    prefixes = [pair.target.split()[0] for pair in runs.pairs()[20:26]]
    encoded = [runs.vocabulary().encode(prefix) for prefix in prefixes]
    banned = [runs.vocabulary().pieces([token])[0] for token in shortlist.first[4:8]]
    options = {"ban": list(filter(None, (word.strip("▁") for word in banned)))}
    changes = {"no_repeat_ngram": 2, "no_unknown": True, "min_length": 4}
    options["decoding"] = dataclasses.replace(biased().decoding, beam_size=3, **changes)
    asked = within(Translator.ensemble(models), shortlist)
    found = asked.search(texts, prefixes=prefixes, **options)
    outside = 0
    for text, prefix, ids, (best,) in zip(texts, prefixes, encoded, found, strict=True):
        source = source_ids(asked, text)
        outside += not set(ids) <= tokens_by_hand(shortlist, source)
        allowed = tokens_by_hand(shortlist, source, ids)
        plain = Translator.ensemble([forbid_others(each, allowed) for each in models])
        (expected,) = plain.search([text], prefixes=[prefix], **options)
        assert token_ids(asked, best)[: len(ids)] == ids
        assert_same([best], expected)
    assert outside


@pytest.mark.parametrize("beam", [1, 3])
def test_special_tokens_may_have_any_ids(beam):
    """Padding, first input, end and forced first token are on every list, and a search
    within it is that of a model without the other tokens.
    """
    config = runs.model_config(
        vocabulary_size=400, output_bias=True, pad_id=390, bos_id=255
    )
    params, table = noisy_params(config, 3), draw_shortlist(9)
    listed = table._replace(special=np.array([7, 11]))
    rng = np.random.default_rng(4)
    sentences = [
        each._replace(prefixes=[[300]])
        for each in batch([rng.integers(12, 380, 6).tolist() for _ in range(3)])
    ]
    decoding = DecodingConfig(beam_size=beam, max_extra_length=6)

    def search(own, sentences, shortlist=None):
        models = Models((Transformer(config),), (own,))
        given = {"eos_id": 7, "n_best": 1, "forced": True, "given": 1}
        return search_batch(models, sentences, decoding, shortlist=shortlist, **given)

    found = search(params, sentences, listed)
    places = set()
    for row, sentence in enumerate(sentences):
        part = listed.within([sentence], 1, 4000, special=[390, 255, 7])
        places.add(tuple(part.numbers(np.array([7, 11, 255, 390]))))
        allowed = tokens_by_hand(table, sentence.ids, [7, 255, 300, 390])
        bias = np.array(params["logits"]["bias"])
        bias[list(set(range(400)) - allowed)] = -np.inf
        expected = search({**params, "logits": {"bias": bias}}, [sentence])
        np.testing.assert_array_equal(found.tokens[row], expected.tokens[0])
        assert found.tokens[row][0][0] == 300
        np.testing.assert_allclose(found.scores[row], expected.scores[0], rtol=1e-4)
    assert places == {(0, 1, 2, 3)}


def test_samples_within_a_list():
    """They do not depend on the other sentences of a batch."""
    translator, shortlist, texts = biased(), draw_shortlist(7), many()[:3]
    decoding = dataclasses.replace(translator.decoding, sample=True, seed=5)
    asked = within(translator, shortlist)
    found, *others = asked.search(texts, decoding=decoding, n_best=3)
    allowed = [tokens_by_hand(shortlist, source_ids(asked, text)) for text in texts]
    plain = forbid_others(translator, allowed[0])
    (expected,) = plain.search(texts[:1], decoding=decoding, n_best=3)
    assert_same(found, expected)
    (whole,) = translator.search(texts[:1], decoding=decoding, n_best=3)
    assert [each.tokens for each in whole] != [each.tokens for each in expected]
    for own, samples in zip(allowed[1:], others, strict=True):
        assert {id_ for each in samples for id_ in token_ids(asked, each)} <= own


def test_files_that_do_not_fit_are_refused(tmp_path):
    """A missing, damaged or foreign file says how to make a right one."""
    path, good = tmp_path / "shortlist.npz", draw_shortlist(1)

    def refused(rule, vocabulary="hash"):
        with pytest.raises(
            InputError, match=f"{rule}.*; make one: jaxformer shortlist"
        ):
            Shortlist.load(path, vocabulary)

    refused("no shortlist yet")
    good.save(path)
    refused(r"another vocabulary \(hash hash\) than the run's \(abc\)", "abc")
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:100], whole[:-200]):
        path.write_bytes(content)
        refused("is damaged")
    np.savez(path, first=good.first)
    refused("is damaged")
