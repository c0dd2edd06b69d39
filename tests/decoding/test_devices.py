"""The search of a batch on one device and on many."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import runs
from jaxformer.decoding.batch_search import Banned, Sentence, search_batch
from jaxformer.decoding.models import SENTENCES, Models
from jaxformer.decoding.rules import SearchResult

TRANSLATOR = runs.translator()


def on(devices: int, precision="model") -> Models:
    """Prepare for the first so many devices."""
    models = TRANSLATOR.models.prepare(precision)
    mesh = None if devices == 1 else Mesh(np.array(jax.local_devices()[:devices]), (SENTENCES,))
    return models._replace(mesh=mesh, params=jax.device_get(models.params))


def draw(seed: int, count: int) -> list[Sentence]:
    rng = np.random.default_rng(seed)
    size = TRANSLATOR.vocabularies.source.size
    lengths = rng.integers(1, 14, count)
    ids = [[*rng.integers(4, size, n).tolist(), TRANSLATOR.vocabularies.source.eos_id] for n in lengths]
    return [Sentence(each, len(each) - 1, [], (number, 0)) for number, each in enumerate(ids)]


def search(models: Models, sentences: Sequence[Sentence], n_best: int = 1, **changes) -> SearchResult:
    decoding = dataclasses.replace(TRANSLATOR.decoding, batch_size=64, **changes)
    eos_id = TRANSLATOR.vocabularies.target.eos_id
    found = search_batch(
        models, sentences, decoding, eos_id=eos_id, n_best=n_best, banned=Banned(None, None), forced=False
    )
    return jax.tree.map(lambda x: x[: len(sentences)] if x.ndim else x, found)


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.finished, expected.finished)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)


def test_all_devices_of_this_host_search():
    """By itself a translator divides sentences among all of them, whole models on each."""
    models = TRANSLATOR.models.prepare("model")
    assert models.devices == jax.local_device_count() > 1
    leaf = jax.tree.leaves(models.params)[0]
    assert leaf.sharding.device_set == set(jax.local_devices())
    assert leaf.addressable_shards[0].data.shape == leaf.shape


@pytest.mark.parametrize("changes", [{"beam_size": 3}, {"beam_size": 1}, {"sample": True, "beam_size": 1}], ids=str)
def test_the_number_of_devices_changes_nothing(changes):
    """Greedy, beam and samples on 1, 2 and 8 devices, of more and of fewer sentences than devices."""
    for count in (3, 21):
        sentences = draw(count, count)
        expected = search(on(1), sentences, **changes)
        for devices in (2, 8):
            assert_same(search(on(devices), sentences, **changes), expected)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_batch_that_is_halved_gives_what_single_sentences_give(beam_size):
    """40 sentences of a model, which leave the batch as they end, are those that are searched alone (statement 86)."""
    sentences, models = draw(5, 40), on(1)
    together = search(models, sentences, beam_size=beam_size, n_best=beam_size)
    lengths = np.asarray(together.lengths[:, 0])
    assert np.sort(lengths)[20] < lengths.max() <= int(together.iterations)
    for row, sentence in enumerate(sentences):
        alone = search(models, [sentence], beam_size=beam_size, n_best=beam_size)
        for name in ("tokens", "scores", "finished", "lengths"):
            whole, single = getattr(together, name)[row], getattr(alone, name)[0]
            if name == "tokens":  # a shorter source leaves less room behind its translation
                whole = whole[:, : single.shape[1]]
            np.testing.assert_allclose(whole, single, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_few_bits_never_take_a_single_row(precision):
    """A sentence that is searched greedily alone has a row beside it, which changes nothing of its own."""
    models, (sentence,) = on(1, precision), draw(6, 1)
    assert models.least_rows == 2
    both = search(models, [sentence, sentence], beam_size=1)
    assert_same(search(models, [sentence], beam_size=1), jax.tree.map(lambda x: x[:1] if x.ndim else x, both))
