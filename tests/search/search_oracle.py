"""Random models that a search can ask, and slow searches that are right because they
are obvious.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.search.beam import beam_search
from jaxformer.search.constraints import FREE
from jaxformer.search.rules import SearchRules
from jaxformer.search.scoring import coverage_penalty
from jaxformer.search.single import greedy_search, sample_search

PAD, EOS, BOS = 0, 1, 2
IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


Tokens = tuple[int, ...]
Allow = Callable[[Tokens, dict[int, float]], dict[int, float]]
Cover = Callable[[Tokens], float]


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


# --- models: a sentence has a table of logits, whose row depends on all tokens before
# (or on the last alone) ---


def random_tables(
    seed: int, sentences: int, states: int, vocabulary: int, ends: float = 0.0
) -> np.ndarray:
    """Draw float32 logits [sentences, states, vocabulary]; ``ends`` is added to
    those of the end-of-sentence token.
    """
    tables = np.random.default_rng(seed).normal(
        scale=1.5, size=(sentences, states, vocabulary)
    )
    tables[:, :, EOS] += ends
    return tables.astype(np.float32)


def next_state(state, token, vocabulary: int, states: int):
    """Number the history: all different while there are states enough, and the last
    token alone for states = V.
    """
    return (state * vocabulary + token) % states


def limits(*values: int) -> jax.Array:
    """Return the most tokens of each sentence as the searches want them."""
    return jnp.array(values, jnp.int32)


def random_attention(
    seed: int, sentences: int, states: int, positions: int
) -> np.ndarray:
    """Draw float32 weights [sentences, states, positions], which sum to 1 and often
    leave a position almost out.
    """
    weights = np.random.default_rng(seed).dirichlet(
        np.full(positions, 0.5), (sentences, states)
    )
    return weights.astype(np.float32)


def table_step(
    tables: jax.Array, beam_size: int, attention: jax.Array | None = None
) -> Callable:
    """Return the step function over the tables; its cache is the state of each row and
    a counter shared by all.

    With attention, tables of weights [sentences, states, positions], the cache adds
    them up.
    """
    sentences, states, vocabulary = tables.shape
    sentence = jnp.repeat(jnp.arange(sentences), beam_size)

    def step(tokens, cache):
        state = next_state(cache["state"], tokens, vocabulary, states)
        new = {"state": state, "calls": cache["calls"] + 1}
        if attention is not None:
            new["coverage"] = cache["coverage"] + attention[sentence, state]
        return tables[sentence, state], new

    return step


def empty_cache(rows: int, attention: jax.Array | None = None) -> dict[str, jax.Array]:
    cache = {"state": jnp.zeros(rows, jnp.int32), "calls": jnp.zeros((), jnp.int32)}
    return (
        cache
        if attention is None
        else {**cache, "coverage": jnp.zeros((rows, attention.shape[2]))}
    )


def lost(cache: dict[str, jax.Array]) -> jax.Array:
    return coverage_penalty(cache["coverage"])


@functools.partial(
    jax.jit, static_argnames=("length", "beam_size", "n_best", "penalty", "groups")
)
def search_tables(
    tables,
    max_lengths,
    alpha,
    *,
    length,
    beam_size,
    n_best=1,
    penalty="gnmt",
    constraints=FREE,
    attention=None,
    beta=0.0,
    groups=1,
    diversity=0.0,
):
    return beam_search(
        table_step(tables, beam_size, attention),
        empty_cache(tables.shape[0] * beam_size, attention),
        SearchRules(
            max_lengths=max_lengths,
            length=length,
            beam_size=beam_size,
            alpha=alpha,
            n_best=n_best,
            penalty=penalty,
            constraints=constraints,
            coverage=None if attention is None else lost,
            beta=beta,
            groups=groups,
            diversity=diversity,
            **IDS,
        ),
    )


@functools.partial(jax.jit, static_argnames=("length", "penalty"))
def greedy_tables(
    tables,
    max_lengths,
    alpha,
    *,
    length,
    penalty="gnmt",
    constraints=FREE,
    attention=None,
    beta=0.0,
):
    return greedy_search(
        table_step(tables, 1, attention),
        empty_cache(tables.shape[0], attention),
        SearchRules(
            max_lengths=max_lengths,
            length=length,
            alpha=alpha,
            penalty=penalty,
            constraints=constraints,
            coverage=None if attention is None else lost,
            beta=beta,
            **IDS,
        ),
    )


# --- oracles, in float64 and plain Python ---


def next_log_probabilities(table: np.ndarray, history: tuple[int, ...]) -> np.ndarray:
    """Ask one sentence's table what follows a history (without its begin-of-sentence
    token).
    """
    states, vocabulary = table.shape
    state = 0
    for token in (BOS, *history):
        state = next_state(state, token, vocabulary, states)
    logits = table[state].astype(np.float64)
    return logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()


def score(
    log_probability: float, length: int, alpha: float, penalty: str = "gnmt"
) -> float:
    """Divide by the length penalty; the empty hypothesis has log-probability 0 and
    score 0.
    """
    if length == 0 or penalty == "none":
        return log_probability
    return (
        log_probability
        / {"gnmt": (5 + length) / 6, "average": length}[penalty] ** alpha
    )


def rescore(table: np.ndarray, tokens: tuple[int, ...]) -> float:
    """Sum the log-probabilities of given tokens, each after those before it."""
    return sum(
        next_log_probabilities(table, tokens[:t])[token]
        for t, token in enumerate(tokens)
    )


def allowed_tokens(vocabulary: int, forbidden: tuple[int, ...] = ()) -> list[int]:
    return [token for token in range(vocabulary) if token not in (PAD, BOS, *forbidden)]


def every_finished(table: np.ndarray, limit: int) -> Iterator[tuple[int, ...]]:
    """List every sequence of at most ``limit`` tokens that ends."""
    words = [token for token in allowed_tokens(table.shape[1]) if token != EOS]
    for length in range(limit):
        for body in itertools.product(words, repeat=length):
            yield (*body, EOS)


def allowed_value(table: np.ndarray, tokens: Tokens, allow: Allow | None) -> float:
    """Add up the values of given tokens as a search under constraints does; minus
    infinity where one may not come.
    """
    total = 0.0
    for t, token in enumerate(tokens):
        following = next_log_probabilities(table, tokens[:t])
        natural = {
            each: float(following[each]) for each in allowed_tokens(table.shape[1])
        }
        total += (natural if allow is None else allow(tokens[:t], natural)).get(
            token, -math.inf
        )
    return total


def exhaustive_best(
    table: np.ndarray,
    limit: int,
    alpha: float,
    penalty: str = "gnmt",
    allow: Allow | None = None,
    cover: Cover = lambda _: 0.0,
) -> Hypothesis:
    """Find the best finished hypothesis by looking at all of them."""
    found = []
    for tokens in every_finished(table, limit):
        value = allowed_value(table, tokens, allow)
        best = score(value, len(tokens), alpha, penalty) + cover(tokens)
        found.append(Hypothesis(tokens, rescore(table, tokens), best, True))
    return max(found, key=lambda hypothesis: hypothesis.score)


def reference_cover(attention: np.ndarray, vocabulary: int, beta: float) -> Cover:
    """Return the coverage penalty of GNMT over one sentence's table of weights,
    position by position.
    """

    def cover(tokens: Tokens) -> float:
        if not tokens:
            return 0.0
        sums, state = [0.0] * attention.shape[1], 0
        for token in (BOS, *tokens[:-1]):
            state = next_state(state, token, vocabulary, attention.shape[0])
            sums = [
                so_far + float(weight)
                for so_far, weight in zip(sums, attention[state], strict=True)
            ]
        return beta * sum(math.log(min(max(total, 1e-37), 1.0)) for total in sums)

    return cover


def holds(tokens: Tokens, phrase: Tokens) -> bool:
    return any(
        tokens[start : start + len(phrase)] == phrase
        for start in range(len(tokens) - len(phrase) + 1)
    )


def begun(tokens: Tokens, phrase: Tokens) -> int:
    """Count the first tokens of a phrase that the tokens end with."""
    return max(
        count
        for count in range(len(phrase))
        if tokens[len(tokens) - count :] == phrase[:count]
    )


def take_turns(ranked: list, width: int, required: Sequence[Tokens]) -> list:
    """Put continuations in the order of dynamic beam allocation; each begins with
    its tokens.
    """
    if not required:
        return ranked
    parents, banks, turns = set(), Counter(), []
    for place, (tokens, *_) in enumerate(ranked):
        history = tokens[:-1]
        unmet = [phrase for phrase in required if not holds(history, phrase)]
        advances = tokens[-1] in [phrase[begun(history, phrase)] for phrase in unmet]
        if place < 2 * width or history not in parents or advances or tokens[-1] == EOS:
            bank = sum(
                len(phrase) if holds(tokens, phrase) else begun(tokens, phrase)
                for phrase in required
            )
            bank += tokens[-1] == EOS
            turns.append((banks[bank], -bank, ranked[place]))
            banks[bank] += 1
        parents.add(history)
    return [hypothesis for *_, hypothesis in sorted(turns, key=lambda turn: turn[:2])]


def reference_beam(
    table: np.ndarray,
    limit: int,
    alpha: float,
    beam_size: int,
    forbidden: Tokens = (),
    penalty: str = "gnmt",
    allow: Allow | None = None,
    cover: Cover = lambda _: 0.0,
    required: Sequence[Tokens] = (),
    groups: int = 1,
    diversity: float = 0.0,
) -> list[Hypothesis]:
    """Search with plain lists, always up to the limit: it knows no stop rule, so it
    shows whether one is sound.

    Python's sort is stable, so ties stay in the order of beam and token id. ``allow``
    maps a history and the log-probabilities of what may follow it to the values that
    hypotheses are ranked by; ``cover`` gives what is added to a score.
    """
    width = beam_size // groups
    # A hypothesis is its tokens, its log-probability, and the value it is ranked by.
    live: list[list[tuple[Tokens, float, float]]] = [
        [((), 0.0, 0.0)] for _ in range(groups)
    ]
    ended: list[list[tuple[Tokens, float, float]]] = [[] for _ in range(groups)]
    for _ in range(limit):
        chosen: Counter[int] = Counter()
        for group in range(groups):
            grown = []
            for history, total, value in live[group]:
                following = next_log_probabilities(table, history)
                natural = {
                    token: float(following[token])
                    for token in allowed_tokens(table.shape[1], forbidden)
                }
                allowed = natural if allow is None else allow(history, natural)
                grown += [
                    ((*history, token), total + natural[token], value + added)
                    for token, added in sorted(allowed.items())
                    if added > -math.inf
                ]
            grown.sort(
                key=lambda hypothesis: (
                    diversity * chosen[hypothesis[0][-1]] - hypothesis[2]
                )
            )
            grown = take_turns(grown, width, required)
            ended[group] += [
                hypothesis for hypothesis in grown[:width] if hypothesis[0][-1] == EOS
            ]
            live[group] = [
                hypothesis for hypothesis in grown if hypothesis[0][-1] != EOS
            ][:width]
            chosen.update(hypothesis[0][-1] for hypothesis in live[group])

    def ordered(
        hypotheses: list[tuple[Tokens, float, float]], finished: bool
    ) -> list[Hypothesis]:
        scored = [
            Hypothesis(
                tokens,
                total,
                score(value, len(tokens), alpha, penalty) + cover(tokens),
                finished,
            )
            for tokens, total, value in hypotheses
        ]
        return sorted(scored, key=lambda hypothesis: -hypothesis.score)

    # Each group gives as many as are alive in it; those that two groups have come once.
    by_group = [
        (ordered(ended[group], True) + ordered(live[group], False))[:width]
        for group in range(groups)
    ]
    once = {each.tokens: each for group in by_group for each in group}
    return sorted(
        once.values(),
        key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score),
    )


def hypotheses(result, sentence: int) -> list[Hypothesis]:
    """Read one sentence's hypotheses from a result, and check what must hold of
    every result.
    """
    found = []
    for place in range(result.tokens.shape[1]):
        tokens = np.asarray(result.tokens[sentence, place])
        length = int(result.lengths[sentence, place])
        finished = bool(result.finished[sentence, place])
        assert np.all(tokens[length:] == PAD), "after a hypothesis comes padding alone"
        assert not np.isin(tokens[:length], (PAD, BOS)).any(), (
            "neither pad nor bos is generated"
        )
        assert np.count_nonzero(tokens == EOS) == int(finished), (
            "the one end-of-sentence token is the last"
        )
        assert not finished or tokens[length - 1] == EOS
        each = np.asarray(result.token_log_probabilities[sentence, place])
        assert not each[length:].any(), "padding has no log-probability"
        if np.isneginf(result.scores[sentence, place]):
            assert length == 0
            assert not finished
            continue
        assert len(found) == place, "empty places are the last"
        np.testing.assert_allclose(
            each.sum(dtype=np.float64),
            result.log_probabilities[sentence, place],
            rtol=2e-6,
        )
        found.append(
            Hypothesis(
                tuple(tokens[:length].tolist()),
                float(result.log_probabilities[sentence, place]),
                float(result.scores[sentence, place]),
                finished,
            )
        )
    assert len({hypothesis.tokens for hypothesis in found}) == len(found), (
        "all hypotheses differ"
    )
    order = [(hypothesis.finished, hypothesis.score) for hypothesis in found]
    assert order == sorted(order, reverse=True), (
        "the best first, finished before unfinished"
    )
    return found


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    """Demand the same tokens and flags, and the same numbers up to float32."""
    assert [(h.tokens, h.finished) for h in found] == [
        (h.tokens, h.finished) for h in expected
    ]
    np.testing.assert_allclose(
        [(h.log_probability, h.score) for h in found],
        [(h.log_probability, h.score) for h in expected],
        rtol=2e-6,
        atol=1e-6,
    )


@functools.partial(jax.jit, static_argnames=("length", "samples"))
def sample_tables(
    tables,
    max_lengths,
    keys,
    sampling,
    *,
    length,
    samples,
    constraints=FREE,
    attention=None,
    beta=0.0,
):
    return sample_search(
        table_step(tables, samples, attention),
        empty_cache(tables.shape[0] * samples, attention),
        SearchRules(
            beam_size=samples,
            n_best=samples,
            max_lengths=max_lengths,
            length=length,
            alpha=jnp.float32(0.6),
            constraints=constraints,
            coverage=None if attention is None else lost,
            beta=beta,
            sampling=sampling,
            **IDS,
        ),
        keys,
    )
