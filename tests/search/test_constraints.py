"""Each constraint against loops over lists."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from search.search_oracle import (
    BOS,
    EOS,
    LENGTH,
    NONE,
    PAD,
    VOCABULARY,
    allow,
    constraints,
)

from jaxformer.search.constraints import NO_TOKEN, constrain

WORDS, ROWS = (3, 4, 5), 5
CONSTRAIN = jax.jit(constrain, static_argnums=4)


def draw(name, random):
    def phrases(*sizes):
        return [tuple(random.choice(WORDS, size).tolist()) for size in sizes]

    return {
        "min_length": int(random.integers(0, LENGTH + 2)),
        "banned": tuple(random.choice([EOS, *WORDS], 2).tolist()),
        "phrases": phrases(1, 2, 2, 3),
        "ngram": int(random.integers(1, 4)),
        "penalty": float(np.float32(random.uniform(0.4, 3))),
        "required": phrases(1, 2),
        "prefixes": [
            tuple(random.choice([-1, *WORDS], size).tolist()) for size in (4, 3, 4)
        ],
    }[name]


@pytest.mark.parametrize("name", NONE)
def test_each_constraint_equals_lists(name):
    """At each position of random histories, every token has the value of the lists."""
    random = np.random.default_rng(len(name))
    for trial in range(3 * LENGTH):
        rule, position = NONE | {name: draw(name, random)}, trial % LENGTH
        tokens = np.full((ROWS, 1 + LENGTH), PAD, np.int32)
        tokens[:, 0] = BOS
        tokens[:, 1 : 1 + position] = random.choice(WORDS, (ROWS, position))
        natural = np.log(random.dirichlet(np.ones(VOCABULARY), ROWS))
        natural = natural.astype(np.float32)
        arrays = constraints([rule] * ROWS, natural[None], beam=True)
        found = CONSTRAIN(arrays, natural, tokens, jnp.int32(position), EOS)
        for row, history in enumerate(tokens[:, 1 : 1 + position].tolist()):
            values = dict(enumerate(natural[row].tolist()))
            values = allow(tuple(history), values, **rule)
            expected = [values.get(token, -math.inf) for token in range(VOCABULARY)]
            np.testing.assert_allclose(found[row], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["ngram", "penalty"])
def test_rules_about_repetition_see_the_tokens_before(name):
    """As if these had been generated; sentences have different numbers of them, and the
    rows of a sentence the same.
    """
    random = np.random.default_rng(7)
    prompts = [(), (3,), (4, 3, 4, 3), (5, 4, 5, 5)]
    before = np.full((len(prompts), 4), NO_TOKEN, np.int32)
    for row, prompt in zip(before, prompts, strict=True):
        row[4 - len(prompt) :] = prompt
    for trial in range(3 * LENGTH):
        rule, position = NONE | {name: draw(name, random)}, trial % LENGTH
        tokens = np.full((2 * len(prompts), 1 + LENGTH), PAD, np.int32)
        tokens[:, 0] = BOS
        tokens[:, 1 : 1 + position] = random.choice(WORDS, (len(tokens), position))
        natural = np.log(random.dirichlet(np.ones(VOCABULARY), len(tokens)))
        natural = natural.astype(np.float32)
        arrays = constraints([rule] * len(prompts), natural[None], beam=True)
        arrays = arrays._replace(before=before)
        found = CONSTRAIN(arrays, natural, tokens, jnp.int32(position), EOS)
        for row, history in enumerate(tokens[:, 1 : 1 + position].tolist()):
            values = dict(enumerate(natural[row].tolist()))
            values = allow((*prompts[row // 2], *history), values, **rule)
            expected = [values.get(token, -math.inf) for token in range(VOCABULARY)]
            np.testing.assert_allclose(found[row], expected, rtol=1e-6)
