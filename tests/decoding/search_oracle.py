"""Random models that a search can ask, and slow searches that are right because they are obvious."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding.constraints import FREE
from jaxformer.decoding.sampling import sample_search
from jaxformer.decoding.search import beam_search, greedy_search

PAD, EOS, BOS = 0, 1, 2
IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


Allow = Callable[[tuple[int, ...], dict[int, float]], dict[int, float]]


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


# --- models: a sentence has a table of logits, whose row depends on all tokens before (or on the last alone) ---


def random_tables(seed: int, sentences: int, states: int, vocabulary: int, ends: float = 0.0) -> np.ndarray:
    """Draw float32 logits [sentences, states, vocabulary]; ``ends`` is added to those of the end-of-sentence token."""
    tables = np.random.default_rng(seed).normal(scale=1.5, size=(sentences, states, vocabulary))
    tables[:, :, EOS] += ends
    return tables.astype(np.float32)


def next_state(state, token, vocabulary: int, states: int):
    """Number the history: all different while there are states enough, and the last token alone for states = V."""
    return (state * vocabulary + token) % states


def limits(*values: int) -> jax.Array:
    """Give the most tokens of each sentence as the searches want them."""
    return jnp.array(values, jnp.int32)


def table_step(tables: jax.Array, beam_size: int) -> Callable:
    """Give the step function over the tables; its cache is the state of each row and a counter shared by all."""
    sentences, states, vocabulary = tables.shape
    sentence = jnp.repeat(jnp.arange(sentences), beam_size)

    def step(tokens, cache):
        state = next_state(cache["state"], tokens, vocabulary, states)
        return tables[sentence, state], {"state": state, "calls": cache["calls"] + 1}

    return step


def empty_cache(rows: int) -> dict[str, jax.Array]:
    return {"state": jnp.zeros(rows, jnp.int32), "calls": jnp.zeros((), jnp.int32)}


@functools.partial(jax.jit, static_argnames=("length", "beam_size", "n_best", "penalty"))
def search_tables(tables, max_lengths, alpha, *, length, beam_size, n_best=1, penalty="gnmt", constraints=FREE):
    return beam_search(
        table_step(tables, beam_size),
        empty_cache(tables.shape[0] * beam_size),
        max_lengths=max_lengths,
        length=length,
        beam_size=beam_size,
        alpha=alpha,
        n_best=n_best,
        penalty=penalty,
        constraints=constraints,
        **IDS,
    )


@functools.partial(jax.jit, static_argnames=("length", "penalty"))
def greedy_tables(tables, max_lengths, alpha, *, length, penalty="gnmt", constraints=FREE):
    return greedy_search(
        table_step(tables, 1),
        empty_cache(tables.shape[0]),
        max_lengths=max_lengths,
        length=length,
        alpha=alpha,
        penalty=penalty,
        constraints=constraints,
        **IDS,
    )


# --- oracles, in float64 and plain Python ---


def next_log_probabilities(table: np.ndarray, history: tuple[int, ...]) -> np.ndarray:
    """Ask one sentence's table what follows a history (without its begin-of-sentence token)."""
    states, vocabulary = table.shape
    state = 0
    for token in (BOS, *history):
        state = next_state(state, token, vocabulary, states)
    logits = table[state].astype(np.float64)
    return logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()


def score(log_probability: float, length: int, alpha: float, penalty: str = "gnmt") -> float:
    """Divide by the length penalty; the empty hypothesis has log-probability 0 and score 0."""
    if length == 0 or penalty == "none":
        return log_probability
    return log_probability / {"gnmt": (5 + length) / 6, "average": length}[penalty] ** alpha


def rescore(table: np.ndarray, tokens: tuple[int, ...]) -> float:
    """Sum the log-probabilities of given tokens, each after those before it."""
    return sum(next_log_probabilities(table, tokens[:t])[token] for t, token in enumerate(tokens))


def allowed_tokens(vocabulary: int, forbidden: tuple[int, ...] = ()) -> list[int]:
    return [token for token in range(vocabulary) if token not in (PAD, BOS, *forbidden)]


def every_finished(table: np.ndarray, limit: int) -> Iterator[tuple[int, ...]]:
    """List every sequence of at most ``limit`` tokens that ends."""
    words = [token for token in allowed_tokens(table.shape[1]) if token != EOS]
    for length in range(limit):
        for body in itertools.product(words, repeat=length):
            yield (*body, EOS)


def exhaustive_best(table: np.ndarray, limit: int, alpha: float, penalty: str = "gnmt") -> Hypothesis:
    """Find the best finished hypothesis by looking at all of them."""
    scored = ((tokens, rescore(table, tokens)) for tokens in every_finished(table, limit))
    return max(
        (Hypothesis(tokens, total, score(total, len(tokens), alpha, penalty), True) for tokens, total in scored),
        key=lambda hypothesis: hypothesis.score,
    )


def reference_beam(
    table: np.ndarray,
    limit: int,
    alpha: float,
    beam_size: int,
    forbidden: tuple[int, ...] = (),
    penalty: str = "gnmt",
    allow: Allow | None = None,
) -> list[Hypothesis]:
    """Search with plain lists, always up to the limit: it knows no stop rule, so it shows whether one is sound.

    Python's sort is stable, so ties stay in the order of beam and token id. ``allow`` maps a history and the
    log-probabilities of what may follow it to the values that hypotheses are ranked by.
    """
    # A hypothesis is its tokens, its log-probability, and the value it is ranked by.
    live: list[tuple[tuple[int, ...], float, float]] = [((), 0.0, 0.0)]
    finished = []
    for _ in range(limit):
        grown = []
        for history, total, value in live:
            following = next_log_probabilities(table, history)
            natural = {token: float(following[token]) for token in allowed_tokens(table.shape[1], forbidden)}
            allowed = natural if allow is None else allow(history, natural)
            grown += [
                ((*history, token), total + natural[token], value + added)
                for token, added in sorted(allowed.items())
                if added > -math.inf
            ]
        grown.sort(key=lambda hypothesis: -hypothesis[2])
        finished += [
            Hypothesis(tokens, total, score(value, len(tokens), alpha, penalty), True)
            for tokens, total, value in grown[:beam_size]
            if tokens[-1] == EOS
        ]
        live = [hypothesis for hypothesis in grown if hypothesis[0][-1] != EOS][:beam_size]
    finished.sort(key=lambda hypothesis: -hypothesis.score)
    unfinished = [
        Hypothesis(tokens, total, score(value, limit, alpha, penalty), False) for tokens, total, value in live
    ]
    return (finished + unfinished)[:beam_size]


def hypotheses(result, sentence: int) -> list[Hypothesis]:
    """Read one sentence's hypotheses from a result, and check what must hold of every result."""
    found = []
    for place in range(result.tokens.shape[1]):
        tokens = np.asarray(result.tokens[sentence, place])
        length = int(result.lengths[sentence, place])
        finished = bool(result.finished[sentence, place])
        assert np.all(tokens[length:] == PAD), "after a hypothesis comes padding alone (statement 94)"
        assert not np.isin(tokens[:length], (PAD, BOS)).any(), "neither pad nor bos is generated (statement 102)"
        assert np.count_nonzero(tokens == EOS) == int(finished), "the one end-of-sentence token is the last"
        assert not finished or tokens[length - 1] == EOS
        if np.isneginf(result.scores[sentence, place]):
            assert length == 0
            assert not finished
            continue
        assert len(found) == place, "empty places are the last"
        found.append(
            Hypothesis(
                tuple(tokens[:length].tolist()),
                float(result.log_probabilities[sentence, place]),
                float(result.scores[sentence, place]),
                finished,
            )
        )
    assert len({hypothesis.tokens for hypothesis in found}) == len(found), "all hypotheses differ (statement 97)"
    order = [(hypothesis.finished, hypothesis.score) for hypothesis in found]
    assert order == sorted(order, reverse=True), "the best first, finished before unfinished"
    return found


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """Demand the same tokens and flags, and the same numbers up to float32."""
    assert [(h.tokens, h.finished) for h in found] == [(h.tokens, h.finished) for h in expected]
    np.testing.assert_allclose(
        [(h.log_probability, h.score) for h in found],
        [(h.log_probability, h.score) for h in expected],
        rtol=2e-6,
        atol=1e-6,
    )


@functools.partial(jax.jit, static_argnames=("length", "samples"))
def sample_tables(tables, max_lengths, keys, sampling, *, length, samples, constraints=FREE):
    return sample_search(
        table_step(tables, samples),
        empty_cache(tables.shape[0] * samples),
        keys=keys,
        sampling=sampling,
        samples=samples,
        max_lengths=max_lengths,
        length=length,
        alpha=jnp.float32(0.6),
        constraints=constraints,
        **IDS,
    )
