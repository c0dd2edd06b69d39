"""The search of a batch on one device and on many."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import runs
from jaxformer.search.rules import SearchResult
from jaxformer.translation.batch import Sentence, rows_of_batch, search_batch
from jaxformer.translation.models import SENTENCES, Models
from jaxformer.translation.shortlist import Shortlist

TRANSLATOR = runs.translator()


def on(devices: int, precision="model") -> Models:
    """Prepare for the first so many devices."""
    models = TRANSLATOR.models.prepare(precision)
    mesh = (
        None
        if devices == 1
        else Mesh(np.array(jax.local_devices()[:devices]), (SENTENCES,))
    )
    return models._replace(mesh=mesh, params=jax.device_get(models.params))


def draw(seed: int, count: int) -> list[Sentence]:
    rng = np.random.default_rng(seed)
    size = TRANSLATOR.vocabularies.source.size
    lengths = rng.integers(1, 14, count)
    ids = [
        [*rng.integers(4, size, n).tolist(), TRANSLATOR.vocabularies.source.eos_id]
        for n in lengths
    ]
    return [
        Sentence(each, len(each) - 1, [], (number, 0))
        for number, each in enumerate(ids)
    ]


def search(
    models: Models,
    sentences: Sequence[Sentence],
    n_best: int = 1,
    shortlist: Shortlist | None = None,
    forced: bool = False,
    **changes,
) -> SearchResult:
    decoding = dataclasses.replace(TRANSLATOR.decoding, batch_size=64, **changes)
    eos_id = TRANSLATOR.vocabularies.target.eos_id
    found = search_batch(
        models,
        sentences,
        decoding,
        eos_id=eos_id,
        n_best=n_best,
        forced=forced,
        shortlist=shortlist,
    )
    return jax.tree.map(lambda x: x[: len(sentences)] if x.ndim else x, found)


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.finished, expected.finished)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)


def test_all_devices_of_this_host_search():
    """By itself a translator divides sentences among all of them, whole models on
    each.
    """
    models = TRANSLATOR.models.prepare("model")
    assert models.devices == jax.local_device_count() > 1
    leaf = jax.tree.leaves(models.params)[0]
    assert leaf.sharding.device_set == set(jax.local_devices())
    assert leaf.addressable_shards[0].data.shape == leaf.shape


@pytest.mark.parametrize(
    "changes",
    [{"beam_size": 3}, {"beam_size": 1}, {"sample": True, "beam_size": 1}],
    ids=str,
)
def test_the_number_of_devices_changes_nothing(changes):
    """Greedy, beam and samples on 1, 2 and 8 devices, of more and of fewer sentences
    than devices.
    """
    for count in (3, 21):
        sentences = draw(count, count)
        expected = search(on(1), sentences, **changes)
        for devices in (2, 8):
            assert_same(search(on(devices), sentences, **changes), expected)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_batch_that_is_halved_gives_what_single_sentences_give(beam_size):
    """40 sentences of a model, which leave the batch as they end, are those that are
    searched alone.
    """
    sentences, models = draw(5, 40), on(1)
    together = search(models, sentences, beam_size=beam_size, n_best=beam_size)
    lengths = np.asarray(together.lengths[:, 0])
    assert np.sort(lengths)[20] < lengths.max() <= int(together.iterations)
    for row, sentence in enumerate(sentences):
        alone = search(models, [sentence], beam_size=beam_size, n_best=beam_size)
        for name in ("tokens", "scores", "finished", "lengths"):
            whole, single = getattr(together, name)[row], getattr(alone, name)[0]
            # a shorter source leaves less room behind its translation
            if name == "tokens":
                whole = whole[:, : single.shape[1]]
            np.testing.assert_allclose(whole, single, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_few_bits_never_take_a_single_row(precision):
    """A sentence that is searched greedily alone has a row beside it, which changes
    nothing of its own.
    """
    models, (sentence,) = on(1, precision), draw(6, 1)
    assert models.least_rows == 2
    both = search(models, [sentence, sentence], beam_size=1)
    assert_same(
        search(models, [sentence], beam_size=1),
        jax.tree.map(lambda x: x[:1] if x.ndim else x, both),
    )


def test_rows_of_a_batch():
    """Powers of two up to the batch, as many on each device, and two of few bits for
    one hypothesis.
    """
    plain, few = on(1), on(1, "int8")
    assert [rows_of_batch(n, 8, 1, plain) for n in (1, 3, 8)] == [1, 4, 8]
    assert [rows_of_batch(n, 8, 1, few) for n in (1, 3, 8)] == [2, 4, 8]
    assert rows_of_batch(1, 8, 4, few) == 1
    mesh = Mesh(np.array(jax.local_devices()[:3]), (SENTENCES,))
    assert [rows_of_batch(n, 24, 1, plain._replace(mesh=mesh)) for n in (1, 4, 24)] == [
        3,
        6,
        24,
    ]
    assert rows_of_batch(1, 24, 1, few._replace(mesh=mesh)) == 6


def test_what_a_sentence_asks_for_goes_to_its_device():
    """Prefixes, required phrases, coverage, groups and a shortlist, each divided
    with the sentences.
    """
    rng, size = np.random.default_rng(8), TRANSLATOR.vocabularies.target.size
    sentences = [
        each._replace(
            prefixes=[rng.integers(4, size, 2).tolist()] if number % 2 else [],
            required=[rng.integers(4, size, 1 + number % 2).tolist()]
            if number % 3
            else [],
        )
        for number, each in enumerate(draw(9, 11))
    ]
    listed = Shortlist(
        np.arange(12, dtype=np.int32),
        rng.integers(4, size, (TRANSLATOR.vocabularies.source.size, 6)).astype(
            np.int32
        ),
        "",
    )
    changes = {"beam_size": 4, "diversity_groups": 2, "coverage_penalty": 0.2}
    for shortlist in (None, listed):
        expected = search(on(1), sentences, shortlist=shortlist, forced=True, **changes)
        found = search(on(4), sentences, shortlist=shortlist, forced=True, **changes)
        assert_same(found, expected)
        for row, sentence in enumerate(sentences):
            tokens = found.tokens[row, 0, : found.lengths[row, 0]].tolist()
            for phrase in [
                prefix for prefix in sentence.prefixes if tokens[:2] != prefix
            ] + [
                phrase
                for phrase in sentence.required
                if found.finished[row, 0]
                and not any(
                    tokens[i : i + len(phrase)] == phrase for i in range(len(tokens))
                )
            ]:
                raise AssertionError(f"{phrase} is not in {tokens}")
