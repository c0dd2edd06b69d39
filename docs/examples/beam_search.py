"""Beam search over your own model: it only sees ``step(tokens, cache) -> (logits,
cache)``.

The model is a small recurrent network with random weights, whose memory is the cache.
The vocabulary and the limit are small, so the search is compared with a list of every
sequence.

    python docs/examples/beam_search.py
"""

import itertools
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxformer as jf

PAD, BOS, EOS, VOCABULARY, WIDTH = 0, 1, 2, 6, 8
SENTENCES, LENGTH = 2, 5


def make_step(key):
    """Draw a recurrent network: each token updates the memory of its row."""
    inner, table, outer = jax.random.split(key, 3)
    inner = jax.random.normal(inner, (WIDTH, WIDTH)) * WIDTH**-0.5
    table = jax.random.normal(table, (VOCABULARY, WIDTH))
    outer = jax.random.normal(outer, (WIDTH, VOCABULARY))

    def step(tokens, cache):
        sentences = len(cache["sentence"])
        added = jnp.repeat(cache["sentence"], len(tokens) // sentences, axis=0)
        memory = jnp.tanh(cache["memory"] @ inner + table[tokens] + added)
        return memory @ outer, {**cache, "memory": memory}

    return step


def start(beam_size):
    """Return the initial cache: rows [B * W, ...] follow their hypotheses,
    sentences [B, ...] stay.
    """
    sentence = jax.random.normal(jax.random.key(1), (SENTENCES, WIDTH))
    return {"memory": jnp.zeros((SENTENCES * beam_size, WIDTH)), "sentence": sentence}


def list_all(step, alpha):
    """Score every sequence that ends within the limit; return the best of each
    sentence with its score.
    """
    words = [token for token in range(VOCABULARY) if token not in (PAD, BOS, EOS)]
    sequences = [
        (*found, EOS)
        for length in range(LENGTH)
        for found in itertools.product(words, repeat=length)
    ]
    first, best = start(1), [(-np.inf, [])] * SENTENCES

    @jax.jit
    def log_probabilities(tokens, cache):
        logits, cache = step(tokens, cache)
        return jax.nn.log_softmax(logits), cache

    for sequence in sequences:
        cache, total = first, np.zeros(SENTENCES)
        for last, token in zip((BOS, *sequence), sequence, strict=False):
            each, cache = log_probabilities(np.full(SENTENCES, last), cache)
            total += np.asarray(each)[:, token]
        # the length penalty of Wu et al. 2016
        scores = total / ((5 + len(sequence)) / 6) ** alpha
        best = [
            max(old, (float(score), list(sequence)))
            for old, score in zip(best, scores, strict=True)
        ]
    return best


def main():
    """Search greedily, with a beam, exhaustively, and one step at a time."""
    step, alpha = make_step(jax.random.key(7)), 0.6
    limits = [LENGTH] * SENTENCES
    rules = jf.search.SearchRules(
        bos_id=BOS, eos_id=EOS, pad_id=PAD, max_lengths=limits
    )
    greedy = jax.jit(partial(jf.search.greedy_search, step))(start(1), rules)
    rules = replace(rules, beam_size=81, n_best=2)
    beam = jax.jit(partial(jf.search.beam_search, step))(start(81), rules)
    best = list_all(step, alpha)
    for sentence in range(SENTENCES):
        for name, found, place in (
            ("greedy", greedy, 0),
            ("beam", beam, 0),
            ("second", beam, 1),
        ):
            tokens = found.tokens[sentence, place].tolist()
            print(f"{name:10} {tokens} {found.scores[sentence, place]:.2f}")
        print("exhaustive", best[sentence][1], f"{best[sentence][0]:.2f}")

    rules = replace(rules, beam_size=2)
    next_state = jax.jit(lambda state: jf.search.beam_step(rules, step, state))
    state = jf.search.beam_init(rules, start(2))
    while not state.done.all():
        state = next_state(state)
        print("live", state.tokens[-1, :, 1 : 1 + int(state.position)].tolist())
    print("best", jf.search.beam_finish(rules, state).tokens[-1, 0].tolist())


if __name__ == "__main__":
    main()
