"""Searches under ``jax.shard_map`` with its default check, against one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from search.search_oracle import IDS, VOCABULARY

from jaxformer.search import beam_search, greedy_search, sample_search
from jaxformer.search.constraints import FREE, Constraints
from jaxformer.search.rules import Sampling, SearchRules

SENTENCES = 16
BEAM = {"beam_size": 4, "n_best": 4}
NUCLEUS = Sampling(temperature=0.7, top_k=np.int32(5), top_p=np.float32(0.9))


def constrain(sentences):
    return Constraints(
        min_lengths=jnp.full(sentences, 3),
        banned_tokens=jnp.arange(VOCABULARY) == 6,
        banned_phrases=jnp.array([[3, 4]]),
        no_repeat_ngram=jnp.int32(2),
        repetition_penalty=jnp.float32(1.2),
        prefixes=jnp.tile(jnp.array([[[5, -1]]]), (sentences, 1, 1)),
    )


@pytest.mark.parametrize(
    ("devices", "search", "constrained", "options", "differing"),
    [
        (4, beam_search, False, BEAM | {"halvings": 1}, "limits"),
        (8, beam_search, False, BEAM | {"groups": 2, "diversity": 0.3}, "heat"),
        (4, greedy_search, True, {}, "heat"),
        (4, sample_search, True, {"sampling": NUCLEUS, **BEAM}, "keys"),
    ],
)
@pytest.mark.skipif(jax.local_device_count() < 8, reason="needs eight devices")
def test_devices_search_as_one(devices, search, constrained, options, differing):
    """Every field of a result but the number of iterations, whether limits, cache or
    random keys differ between the devices.
    """
    scores = 2 * jax.random.normal(jax.random.key(0), (VOCABULARY, VOCABULARY))
    given = {
        "limits": jnp.arange(SENTENCES) % 7,
        "heat": jnp.linspace(0.5, 2.0, SENTENCES),
        "keys": jax.random.split(jax.random.key(1), SENTENCES),
    }[differing]
    more = {name: options[name] for name in options if name == "halvings"}
    options = {name: options[name] for name in options if name != "halvings"}

    def step(tokens, heat):
        return scores[tokens] * heat[:, None], heat

    def run(own):
        count = len(own)
        parts = {
            "limits": jnp.full(count, 6),
            "heat": jnp.ones(count),
            "keys": jax.random.split(jax.random.key(1), count),
            differing: own,
        }
        rules = SearchRules(
            **{"length": 7, "alpha": 0.6, **IDS, **options},
            max_lengths=parts["limits"],
            constraints=constrain(count) if constrained else FREE,
        )
        find = search
        if search is sample_search:
            find = functools.partial(search, keys=parts["keys"])
        found = find(step, parts["heat"].repeat(rules.beam_size), rules, **more)
        return found._replace(iterations=None)

    mesh = jax.make_mesh(
        (devices,), ("rows",), (AxisType.Auto,), devices=jax.devices()[:devices]
    )
    rows = PartitionSpec("rows")
    mapped = jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    expected = run_alone(run, given, devices if search is sample_search else 1)
    jax.tree.map(near, jax.jit(mapped)(given), expected)
    assert (expected.lengths > 0).any()


def run_alone(run, given, parts):
    """Search parts of the batch one after another: constant keys are those of a
    part.
    """
    found = [jax.jit(run)(part) for part in jnp.split(given, parts)]
    return jax.tree.map(lambda *each: jnp.concatenate(each), *found)
