"""Sampling: tokens drawn at random from the model's distribution, or from the better part of it.

Each truncation takes log-probabilities [N V], minus infinity allowed, and gives minus infinity to what it cuts off. A
row that had a possible token keeps one. What is as probable as the last token kept is kept too.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.decoding.config import LengthPenalty
from jaxformer.decoding.constraints import FREE, Constraints
from jaxformer.decoding.rows import Choose, row_search
from jaxformer.decoding.rules import Coverage, SearchResult, SearchRules, Step
from jaxformer.typing import Array, Float, Int, Key, PyTree


class Sampling(NamedTuple):
    """The distribution to draw from; None cuts nothing off. All values may be traced."""

    temperature: Float[Array, ""] | float = 1.0
    """At least 0: below 1 the probable becomes more probable, and 0 leaves the most probable alone."""
    top_k: Int[Array, ""] | None = None
    """How many tokens are kept, the most probable; at least 1."""
    top_p: Float[Array, ""] | None = None
    """Probability that the tokens kept have together, the most probable first; above 0."""
    min_p: Float[Array, ""] | None = None
    """Least probability as a part of that of the most probable token; from 0 to 1."""
    epsilon: Float[Array, ""] | None = None
    """Least probability; from 0 to 1."""


def sample_search(
    step: Step,
    cache: PyTree,
    *,
    keys: Key,
    sampling: Sampling,
    samples: int,
    max_lengths: Int[Array, " B"],
    length: int,
    alpha: Float[Array, ""] | float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    penalty: LengthPenalty = "gnmt",
    constraints: Constraints = FREE,
    coverage: Coverage | None = None,
    beta: Float[Array, ""] | float = 0.0,
) -> SearchResult:
    """Draw n translations of each sentence, token by token, independently of each other.

    Takes what :func:`~jaxformer.decoding.search.beam_search` takes, of which ``alpha`` and ``penalty`` enter the scores
    alone, and returns the samples in the order of their drawing; two may be equal. Sample j of a sentence depends on
    the sentence's key and j, and neither on n nor on other sentences.

    Args:
        step: see :mod:`~jaxformer.decoding.search`.
        cache: what ``step`` takes and returns, with B times n rows.
        keys: a random key for each sentence, [B].
        sampling: what to draw from.
        samples: n, static.
        max_lengths: most tokens of each sentence.
        length: width T of the result, static.
        alpha: strength of the length penalty of the scores.
        bos_id: the first input of every hypothesis, never generated.
        eos_id: ends a hypothesis.
        pad_id: fills up the result, never generated.
        penalty: name of the length penalty of the scores, static.
        constraints: what may come. A sample that is left no token dies and is empty.
        coverage: reads the coverage penalty of the scores from the cache, static; None for none.
        beta: strength of the coverage penalty of the scores.

    Raises:
        ValueError: n below 1, an end-of-sentence token that may not be generated, a cache with leaves of another
            leading axis, or required phrases, which need a beam.
    """
    rules = SearchRules(
        max_lengths=max_lengths,
        alpha=alpha,
        constraints=constraints,
        length=length,
        beam_size=samples,
        n_best=samples,
        penalty=penalty,
        coverage=coverage,
        beta=beta,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    return row_search(rules, step, draw(sampling, keys, samples), cache)


def draw(sampling: Sampling, keys: Key, samples: int) -> Choose:
    """Give the function that chooses the next token at random, for :func:`~jaxformer.decoding.rows.row_step`.

    Args:
        sampling: what to draw from.
        keys: a random key for each sentence, [B].
        samples: rows of each sentence.
    """
    numbers = jnp.arange(samples)
    row_keys = jax.vmap(lambda key: jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers))(keys).reshape(-1)

    def choose(log_probabilities: Float[Array, "N V"], position: Int[Array, ""]) -> Int[Array, " N"]:
        distribution = truncate(log_probabilities, sampling)
        now = jax.vmap(lambda key: jax.random.fold_in(key, position))(row_keys)
        return jax.vmap(jax.random.categorical)(now, distribution)

    return choose


def truncate(log_probabilities: Float[Array, "N V"], sampling: Sampling) -> Float[Array, "N V"]:
    """Give the log-probabilities of the distribution to draw from.

    First the temperature, then `top_k`, `top_p`, `min_p` and `epsilon`, in this order, each on what the one before has
    left, normalised again. A row without any possible token stays so.
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


def heat(log_probabilities: Float[Array, "N V"], temperature: Float[Array, ""] | float) -> Float[Array, "N V"]:
    """Divide by the temperature, behind a shift that gives the most probable token 0; temperature 0 leaves it alone."""
    shifted = log_probabilities - _largest(log_probabilities)
    return jnp.where(shifted == 0.0, 0.0, shifted / jnp.asarray(temperature, shifted.dtype))


def keep_top_k(log_probabilities: Float[Array, "N V"], k: Int[Array, ""]) -> Float[Array, "N V"]:
    """Keep the k most probable tokens (Fan et al. 2018, section 5.1)."""
    return _keep_heaviest(log_probabilities, jnp.ones_like(log_probabilities), jnp.asarray(k, jnp.float32))


def keep_top_p(log_probabilities: Float[Array, "N V"], p: Float[Array, ""]) -> Float[Array, "N V"]:
    """Keep the fewest tokens, the most probable first, that have probability p together (Holtzman et al. 2020,
    section 3.1).
    """
    # Rounding must not cut off the last ones where nothing is to be cut off.
    least = jnp.where(jnp.asarray(p) >= 1, jnp.inf, p).astype(jnp.float32)
    return _keep_heaviest(log_probabilities, jnp.exp(log_probabilities), least)


def keep_min_p(log_probabilities: Float[Array, "N V"], ratio: Float[Array, ""]) -> Float[Array, "N V"]:
    """Keep tokens with at least a part of the most probable token's probability (Nguyen et al. 2024, section 3)."""
    least = _largest(log_probabilities) + jnp.log(jnp.asarray(ratio, jnp.float32))
    return jnp.where(log_probabilities >= least, log_probabilities, -jnp.inf)


def keep_epsilon(log_probabilities: Float[Array, "N V"], epsilon: Float[Array, ""]) -> Float[Array, "N V"]:
    """Keep tokens with at least this probability, or else the most probable alone (Hewitt et al. 2022, section 4)."""
    least = jnp.minimum(_largest(log_probabilities), jnp.log(jnp.asarray(epsilon, jnp.float32)))
    return jnp.where(log_probabilities >= least, log_probabilities, -jnp.inf)


def normalise(log_probabilities: Float[Array, "N V"]) -> Float[Array, "N V"]:
    """Make the probabilities of each row add up to 1, unless all are 0."""
    total = jax.nn.logsumexp(log_probabilities, axis=-1, keepdims=True)
    # Rounding must not lift a value above 0, whose bits stand for its rank.
    return jnp.minimum(log_probabilities - jnp.where(total > -jnp.inf, total, 0.0), 0.0)


def _largest(log_probabilities: Float[Array, "N V"]) -> Float[Array, "N 1"]:
    """Give the largest of each row, or 0 where nothing is possible, so that it can be subtracted."""
    largest = jnp.max(log_probabilities, axis=-1, keepdims=True)
    return jnp.where(largest > -jnp.inf, largest, 0.0)


def _keep_heaviest(
    log_probabilities: Float[Array, "N V"], weights: Float[Array, "N V"], least: Float[Array, ""]
) -> Float[Array, "N V"]:
    """Keep the most probable tokens until their weights add up to ``least``, or all where they never do.

    The cut is found by halving its range 31 times rather than by sorting: the bits of a float that is not negative,
    read as a whole number, are in the order of the floats. That takes a small part of the time of a sort of rows as
    long as a vocabulary.
    """
    ranks = lax.bitcast_convert_type(jnp.abs(log_probabilities), jnp.int32)
    impossible = jnp.full((ranks.shape[0], 1), 0x7F800000, jnp.int32)  # the bits of infinity

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # the least cut is from low to high
        middle = low + (high - low) // 2
        weight = jnp.sum(jnp.where(ranks <= middle, weights, 0.0), axis=-1, keepdims=True)
        enough = weight >= least
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    cut, _ = lax.fori_loop(0, 31, halve, (jnp.zeros_like(impossible), impossible))
    return jnp.where(ranks <= cut, log_probabilities, -jnp.inf)
