"""Greedy search and sampling: each row extends its own hypothesis.

A truncation takes log-probabilities [N V], minus infinity allowed, and sets the tokens
that it removes to minus infinity. A row with a possible token keeps one. Tokens as
probable as the last one kept are kept too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.errors import InputError
from jaxformer.kernels.mesh import match_varying
from jaxformer.search.candidates import put
from jaxformer.search.rules import (
    Sampling,
    SearchResult,
    SearchRules,
    Step,
    allow,
    blank,
    check_cache,
    next_logits,
    run_search,
    word_log_probabilities,
)
from jaxformer.search.scoring import normalise
from jaxformer.typing import Array, Bool, Float, Int, Key, PyTree

Choose: TypeAlias = Callable[[Array, Array], Array]
"""``choose(log_probabilities: Float[N V], position: Int[]) -> Int[N]``: the next
token of each row.
"""


class RowState(NamedTuple):
    """What changes during the search: N rows, ``beam_size`` for each sentence."""

    position: Int[Array, ""]
    """How often the step function was called."""
    tokens: Int[Array, "N 1+T"]
    values: Float[Array, " N"]
    """Sum of the log-probabilities, changed by the constraints; minus infinity: the
    hypothesis died.
    """
    token_log_probabilities: Float[Array, "N 1+T"]
    """Of the model, without constraints; 0 at padding and for the begin-of-sentence
    token.
    """
    coverage: Float[Array, " N"] | None
    """The coverage penalty before its strength; None: no such penalty."""
    lengths: Int[Array, " N"]
    finished: Bool[Array, " N"]
    done: Bool[Array, " N"]
    cache: PyTree


def most_probable(
    log_probabilities: Float[Array, "N V"], position: Int[Array, ""]
) -> Int[Array, " N"]:
    """Choose as greedy search does; ties go to the lowest token id, and a row with NaN
    to any.
    """
    del position
    # A CPU computes an argmax number by number, and these two at several times the
    # speed.
    top = log_probabilities.max(axis=-1, keepdims=True)
    columns = lax.broadcasted_iota(jnp.int32, log_probabilities.shape, 1)
    last = log_probabilities.shape[-1] - 1
    return jnp.where(log_probabilities == top, columns, last).min(axis=-1)


def row_search(
    rules: SearchRules, step: Step, choose: Choose, cache: PyTree, halvings: int = 0
) -> SearchResult:
    """Run the whole search in compiled loops; see
    :func:`~jaxformer.search.rules.run_search`.

    Args:
        rules: of the search.
        step: computes the logits of the next token.
        choose: chooses the next token of each row from its log-probabilities.
        cache: what ``step`` takes and returns, a pytree; see
            :func:`~jaxformer.search.beam.beam_search`.
        halvings: how often the batch is halved when half of its sentences are done.
    """
    return run_search(
        rules,
        row_init(rules, cache),
        lambda rules, state: row_step(rules, step, choose, state),
        row_finish,
        halvings,
    )


def row_init(rules: SearchRules, cache: PyTree) -> RowState:
    """Begin with the empty hypothesis in every row.

    Raises:
        InputError: a cache with leaves of another leading axis, or phrases that are
            required.
    """
    if rules.constraints.required is not None:
        raise InputError(
            "required phrases need a beam search: a single hypothesis has no slots for"
            " them"
        )
    limits = jnp.repeat(rules.limits, rules.beam_size)
    rows = limits.shape[0]
    check_cache(cache, rules)
    return RowState(
        position=jnp.zeros((), jnp.int32),
        tokens=blank(rules, rows),
        values=jnp.zeros(rows, jnp.float32),
        token_log_probabilities=jnp.zeros((rows, 1 + rules.length), jnp.float32),
        coverage=rules.coverage and jnp.zeros(rows, jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        finished=jnp.zeros(rows, bool),
        done=limits <= 0,
        cache=cache,
    )


def row_step(
    rules: SearchRules, step: Step, choose: Choose, state: RowState
) -> RowState:
    """Extend every hypothesis that is not done by one token."""
    last = lax.dynamic_index_in_dim(
        state.tokens, state.position, axis=1, keepdims=False
    )
    logits, cache = next_logits(step, last, state.cache)
    position = state.position + 1

    natural = word_log_probabilities(rules, logits, state.position)
    candidates = allow(rules, natural, state.tokens, state.position)
    token = choose(candidates, state.position).astype(jnp.int32)
    # NaN logits end the hypothesis, also where constraints replaced them.
    value = jnp.where(
        jnp.isnan(natural[:, rules.eos_id]), jnp.nan, _at(candidates, token)
    )
    values = state.values + jnp.where(state.done, 0.0, value)
    grows = ~state.done & (value > -jnp.inf)
    added = jnp.where(grows, _at(natural, token), 0.0)
    coverage = state.coverage
    if coverage is not None and rules.coverage is not None:
        coverage = jnp.where(state.done, coverage, rules.coverage(cache))
    finished = state.finished | (grows & (token == rules.eos_id))
    limits = jnp.repeat(rules.limits, rules.beam_size)
    return RowState(
        position=position,
        tokens=put(state.tokens, jnp.where(grows, token, rules.pad_id), position),
        values=values,
        token_log_probabilities=put(state.token_log_probabilities, added, position),
        coverage=coverage,
        lengths=state.lengths + grows.astype(jnp.int32),
        finished=finished,
        done=finished | ~grows | (position >= limits),
        cache=cache,
    )


def row_finish(rules: SearchRules, state: RowState) -> SearchResult:
    """Return the hypotheses of each sentence in the order of their rows; dead ones are
    empty.
    """
    exists = state.values > -jnp.inf
    each = jnp.where(exists[:, None], state.token_log_probabilities[:, 1:], 0.0)
    lengths = jnp.where(exists, state.lengths, 0)
    result = SearchResult(
        tokens=jnp.where(exists[:, None], state.tokens[:, 1:], rules.pad_id),
        scores=rules.score(state.values, lengths, state.coverage),
        log_probabilities=jnp.where(exists, each.sum(axis=1), -jnp.inf),
        lengths=lengths,
        finished=state.finished,
        token_log_probabilities=each,
        iterations=state.position,
    )
    shape = (state.values.shape[0] // rules.beam_size, rules.beam_size)
    return jax.tree.map(
        lambda x: x.reshape(*shape, *x.shape[1:]) if x.ndim else x, result
    )


def _at(values: Float[Array, "N V"], token: Int[Array, " N"]) -> Float[Array, " N"]:
    return jnp.take_along_axis(values, token[:, None], axis=1)[:, 0]


def greedy_search(
    step: Step, cache: PyTree, rules: SearchRules, *, halvings: int = 0
) -> SearchResult:
    """Generate the most probable token in every sentence, without reordering caches.

    The result is that of :func:`~jaxformer.search.beam.beam_search` with a beam of 1
    and ``alpha`` 0; ``alpha`` and ``beta`` of the rules change scores only.

    Args:
        step: see :mod:`~jaxformer.search.beam`.
        cache: what ``step`` takes and returns, with B rows.
        rules: of the search, with a beam of 1.
        halvings: as for :func:`~jaxformer.search.beam.beam_search`.

    Raises:
        InputError: a beam above 1, an end-of-sentence token that has no logits, a cache
            with leaves of another leading axis, or required phrases, which need a beam.
    """
    if rules.beam_size != 1:
        raise InputError(
            f"greedy search has a beam_size of 1, not {rules.beam_size}: use"
            " beam_search"
        )
    return row_search(rules, step, most_probable, cache, halvings)


def sample_search(
    step: Step, cache: PyTree, rules: SearchRules, keys: Key
) -> SearchResult:
    """Sample n independent translations of each sentence, token by token.

    Samples are in the order of drawing; two may be equal. Sample j of a sentence
    depends on the sentence's key and j, and neither on n nor on other sentences. A
    sample without an allowed token is empty.

    Args:
        step: see :mod:`~jaxformer.search.beam`.
        cache: what ``step`` takes and returns, with B times n rows.
        rules: what to search for, with the distribution to draw from; ``beam_size`` and
            ``n_best`` are n. Its penalties change scores only.
        keys: a random key for each sentence, [B].

    Raises:
        InputError: ``n_best`` is not ``beam_size``, an end-of-sentence token that has
            no logits, a cache with leaves of another leading axis, or required phrases,
            which need a beam.
    """
    if rules.n_best != rules.beam_size:
        raise InputError(
            "beam_size and n_best are both the number of samples, not"
            f" {rules.beam_size}, {rules.n_best}"
        )
    choose = draw(rules.sampling or Sampling(), keys, rules.beam_size)
    return row_search(match_varying(rules, keys), step, choose, cache)


def draw(sampling: Sampling, keys: Key, samples: int) -> Choose:
    """Build the function that samples the next token, for
    :func:`~jaxformer.search.single.row_step`.

    Args:
        sampling: the distribution to sample from.
        keys: a random key for each sentence, [B].
        samples: rows of each sentence.
    """
    fold_in = jax.vmap(jax.random.fold_in, (None, 0))
    row_keys = jax.vmap(fold_in, (0, None))(keys, jnp.arange(samples)).reshape(-1)

    def choose(
        log_probabilities: Float[Array, "N V"], position: Int[Array, ""]
    ) -> Int[Array, " N"]:
        distribution = truncate(log_probabilities, sampling)
        now = jax.vmap(jax.random.fold_in, (0, None))(row_keys, position)
        return jax.vmap(jax.random.categorical)(now, distribution)

    return choose


def truncate(
    log_probabilities: Float[Array, "N V"], sampling: Sampling
) -> Float[Array, "N V"]:
    """Apply the temperature, then `top_k`, `top_p`, `min_p` and `epsilon`.

    Each is applied to the normalised result of the one before. A row without a possible
    token stays so.
    """
    found = normalise(heat(log_probabilities, sampling.temperature))
    for keep, value in (
        (keep_top_k, sampling.top_k),
        (keep_top_p, sampling.top_p),
        (keep_min_p, sampling.min_p),
        (keep_epsilon, sampling.epsilon),
    ):
        if value is not None:
            found = normalise(keep(found, value))
    return found


def heat(
    log_probabilities: Float[Array, "N V"], temperature: Float[Array, ""] | float
) -> Float[Array, "N V"]:
    """Divide by the temperature, after a shift of the largest value to 0; at
    temperature 0 only that token stays.
    """
    shifted = log_probabilities - _largest(log_probabilities)
    return jnp.where(
        shifted == 0.0, 0.0, shifted / jnp.asarray(temperature, shifted.dtype)
    )


def keep_top_k(
    log_probabilities: Float[Array, "N V"], k: Int[Array, ""]
) -> Float[Array, "N V"]:
    """Keep the k most probable tokens (Fan et al. 2018, section 5.1)."""
    return _keep_heaviest(
        log_probabilities, jnp.ones_like(log_probabilities), jnp.asarray(k, jnp.float32)
    )


def keep_top_p(
    log_probabilities: Float[Array, "N V"], p: Float[Array, ""]
) -> Float[Array, "N V"]:
    """Keep the fewest most probable tokens of total probability p or more (Holtzman et
    al. 2020, section 3.1).
    """
    # Rounding must not remove tokens at p = 1.
    least = jnp.where(jnp.asarray(p) >= 1, jnp.inf, p).astype(jnp.float32)
    return _keep_heaviest(log_probabilities, jnp.exp(log_probabilities), least)


def keep_min_p(
    log_probabilities: Float[Array, "N V"], ratio: Float[Array, ""]
) -> Float[Array, "N V"]:
    """Keep tokens with at least this fraction of the largest probability (Nguyen et al.
    2024, section 3).
    """
    least = _largest(log_probabilities) + jnp.log(jnp.asarray(ratio, jnp.float32))
    return jnp.where(log_probabilities >= least, log_probabilities, -jnp.inf)


def keep_epsilon(
    log_probabilities: Float[Array, "N V"], epsilon: Float[Array, ""]
) -> Float[Array, "N V"]:
    """Keep tokens with at least this probability, or only the most probable (Hewitt et
    al. 2022, section 4).
    """
    least = jnp.minimum(
        _largest(log_probabilities), jnp.log(jnp.asarray(epsilon, jnp.float32))
    )
    return jnp.where(log_probabilities >= least, log_probabilities, -jnp.inf)


def _largest(log_probabilities: Float[Array, "N V"]) -> Float[Array, "N 1"]:
    """Return the largest of each row, or 0 if no token is possible."""
    largest = log_probabilities.max(axis=-1, keepdims=True)
    return jnp.where(largest > -jnp.inf, largest, 0.0)


def _keep_heaviest(
    log_probabilities: Float[Array, "N V"],
    weights: Float[Array, "N V"],
    least: Float[Array, ""],
) -> Float[Array, "N V"]:
    """Keep the most probable tokens until their weights sum to ``least``, or all.

    The cut is found by 31 bisections instead of a sort, at a fraction of its time: the
    bits of a non-negative float, read as an integer, have the order of the floats.
    """
    ranks = lax.bitcast_convert_type(jnp.abs(log_probabilities), jnp.int32)
    # the bits of infinity
    impossible = jnp.full_like(ranks[:, :1], 0x7F800000)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the least cut is from low to high
        middle = low + (high - low) // 2
        weight = jnp.where(ranks <= middle, weights, 0.0).sum(axis=-1, keepdims=True)
        enough = weight >= least
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    cut, _ = lax.fori_loop(0, 31, halve, (jnp.zeros_like(impossible), impossible))
    return jnp.where(ranks <= cut, log_probabilities, -jnp.inf)
