"""The search of a batch on one device and on several."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import runs
from jaxformer.search.rules import SearchResult
from jaxformer.translation.batch import Sentence, search_batch
from jaxformer.translation.models import SENTENCES, Models
from jaxformer.translation.shortlist import Shortlist

TRANSLATOR = runs.translator(max_extra_length=10)
EOS = TRANSLATOR.vocabularies.target.eos_id
DRAW = np.random.default_rng(8)


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), (SENTENCES,))


def on(devices: int, precision="model") -> Models:
    models = TRANSLATOR.models.prepare(precision)
    mesh = None if devices == 1 else mesh_of(devices)
    return models._replace(mesh=mesh, params=jax.device_get(models.params))


def draw(count: int) -> list[Sentence]:
    lengths = DRAW.integers(1, 14, count).tolist()
    return [
        Sentence([*DRAW.integers(4, 400, n).tolist(), EOS], n, (number, 0))
        for number, n in enumerate(lengths)
    ]


def search(models: Models, sentences: list[Sentence], **options) -> SearchResult:
    keys = {"n_best", "shortlist", "forced"} & options.keys()
    rest = {"n_best": 1} | {key: options.pop(key) for key in keys}
    decoding = dataclasses.replace(TRANSLATOR.decoding, batch_size=64, **options)
    found = search_batch(models, sentences, decoding, eos_id=EOS, **rest)
    return cut(found._replace(iterations=None), 0, len(sentences))


def cut(found: SearchResult, start: int, stop: int) -> SearchResult:
    return jax.tree.map(lambda x: x[start:stop], found)


def assert_same(found: SearchResult, expected: SearchResult) -> None:
    for name in ("tokens", "finished", "lengths"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-5)


def test_all_devices_of_this_host_search():
    """By default a translator divides sentences among all devices, with whole models
    on each.
    """
    models = TRANSLATOR.models.prepare("model")
    assert models.devices == jax.local_device_count() > 1
    leaf = jax.tree.leaves(models.params)[0]
    assert leaf.sharding.device_set == set(jax.local_devices())
    assert leaf.addressable_shards[0].data.shape == leaf.shape


@pytest.mark.parametrize(
    "ways", [{}, {"sample": True}, {"beam_size": 4}], ids=["greedy", "sample", "beam"]
)
def test_devices_and_neighbours_change_nothing(ways):
    """Sentences that share a batch on two devices, which shrinks as they finish, and
    sentences searched one by one on one device have equal results.
    """
    sentences = draw(40)
    ways = {"beam_size": 1, **ways}
    together = search(on(2), sentences, **ways)
    lengths = together.lengths[:, 0]
    assert np.sort(lengths)[20] < lengths.max()
    for row, sentence in enumerate(sentences):
        alone = search(on(1), [sentence], **ways)
        assert_same(cut(together, row, row + 1), alone)


def test_what_a_sentence_asks_for_goes_to_its_device():
    """Prefixes, required phrases, coverage and a shortlist are divided with the
    sentences, of which the last device has only padding.
    """
    sentences = [
        each._replace(
            prefixes=[DRAW.integers(4, 400, 2).tolist()] * (number % 2),
            required=[DRAW.integers(4, 400, 1 + number % 2).tolist()] * (number % 3),
        )
        for number, each in enumerate(draw(5))
    ]
    table = DRAW.integers(4, 400, (400, 6)).astype(np.int32)
    listed = Shortlist(np.arange(12, dtype=np.int32), table, "")
    options = {"beam_size": 2, "coverage_penalty": 0.2, "forced": True}
    found = search(on(4), sentences, shortlist=listed, **options)
    assert_same(search(on(1), sentences, shortlist=listed, **options), found)
    for row, sentence in enumerate(sentences):
        tokens = found.tokens[row, 0, : found.lengths[row, 0]].tolist()
        assert all(tokens[:2] == prefix for prefix in sentence.prefixes)
        runs_of_tokens = [tokens[i:j] for j in range(len(tokens) + 1) for i in range(j)]
        if found.finished[row, 0]:
            assert all(phrase in runs_of_tokens for phrase in sentence.required)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_few_bits_never_take_a_single_row(precision):
    """A single sentence gets a second row, which does not change its result."""
    models, (sentence,) = on(1, precision), draw(1)
    assert models.least_rows == 2
    both = search(models, [sentence, sentence], beam_size=1)
    assert_same(search(models, [sentence], beam_size=1), cut(both, 0, 1))
