"""A search whose hypotheses grow alone, each in its own row: what greedy search and sampling have in common.

Begin with :func:`row_init`, call :func:`row_step` until everything is ``done``, end with :func:`row_finish`. Between
the steps the caller may look at the state: :func:`row_search` does in one compiled loop what a loop in Python does with
the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax

from jaxformer.decoding.compaction import run_search
from jaxformer.decoding.constraints import constrain
from jaxformer.decoding.ranking import put
from jaxformer.decoding.rules import SearchResult, SearchRules, Step, blank, check_cache, of_words
from jaxformer.typing import Array, Bool, Float, Int, PyTree

Choose: TypeAlias = Callable[[Array, Array], Array]
"""``choose(log_probabilities: Float[N V], position: Int[]) -> Int[N]``: the next token of each row."""


class RowState(NamedTuple):
    """All that changes during the search; N rows, ``beam_size`` of them for each sentence."""

    position: Int[Array, ""]
    """How often the step function was called."""
    tokens: Int[Array, "N 1+T"]
    values: Float[Array, " N"]
    """Sum of the log-probabilities, changed by the constraints; minus infinity: the hypothesis died."""
    token_log_probabilities: Float[Array, "N 1+T"]
    """As the model gives them, whatever the constraints; 0 at padding and for the begin-of-sentence token."""
    coverage: Float[Array, " N"] | None
    """The coverage penalty without its strength; None where there is none."""
    lengths: Int[Array, " N"]
    finished: Bool[Array, " N"]
    done: Bool[Array, " N"]
    cache: PyTree


def most_probable(log_probabilities: Float[Array, "N V"], position: Int[Array, ""]) -> Int[Array, " N"]:
    """Choose as greedy search does; ties go to the lowest token id."""
    del position
    return jnp.argmax(log_probabilities, axis=-1)


def row_search(rules: SearchRules, step: Step, choose: Choose, cache: PyTree, halvings: int = 0) -> SearchResult:
    """Run the whole search in compiled loops; see :func:`~jaxformer.decoding.compaction.run_search`.

    Args:
        rules: of the search.
        step: gives the logits of what comes next.
        choose: takes the next token of each row from its log-probabilities.
        cache: what ``step`` takes and returns, a pytree; see :func:`~jaxformer.decoding.search.beam_search`.
        halvings: how often the batch is halved when half of its sentences are done.
    """
    return run_search(
        rules, row_init(rules, cache), lambda rules, state: row_step(rules, step, choose, state), row_finish, halvings
    )


def row_init(rules: SearchRules, cache: PyTree) -> RowState:
    """Begin with the empty hypothesis in every row.

    Raises:
        ValueError: a cache with leaves of another leading axis, or phrases that are required.
    """
    if rules.constraints.required is not None:
        raise ValueError("required phrases need a beam search: a hypothesis that grows alone never turns to them")
    limits = _row_limits(rules)
    rows = limits.shape[0]
    check_cache(cache, rules)
    return RowState(
        position=jnp.zeros((), jnp.int32),
        tokens=blank(rules, rows),
        values=jnp.zeros(rows, jnp.float32),
        token_log_probabilities=jnp.zeros((rows, 1 + rules.length), jnp.float32),
        coverage=None if rules.coverage is None else jnp.zeros(rows, jnp.float32),
        lengths=jnp.zeros(rows, jnp.int32),
        finished=jnp.zeros(rows, bool),
        done=limits <= 0,
        cache=cache,
    )


def row_step(rules: SearchRules, step: Step, choose: Choose, state: RowState) -> RowState:
    """Lengthen every hypothesis that is not done by one token."""
    last = lax.dynamic_index_in_dim(state.tokens, state.position, axis=1, keepdims=False)
    logits, cache = step(last, state.cache)
    position = state.position + 1

    natural = of_words(rules, logits)
    candidates = constrain(rules.constraints, natural, state.tokens, state.position, rules.eos_id)
    token = choose(candidates, state.position).astype(jnp.int32)
    value = _at(candidates, token)
    values = state.values + jnp.where(state.done, 0.0, value)
    grows = ~state.done & (value > -jnp.inf)
    added = jnp.where(grows, _at(natural, token), 0.0)
    coverage = state.coverage
    if coverage is not None and rules.coverage is not None:
        coverage = jnp.where(state.done, coverage, rules.coverage(cache))
    finished = state.finished | (grows & (token == rules.eos_id))
    return RowState(
        position=position,
        tokens=put(state.tokens, jnp.where(grows, token, rules.pad_id), position),
        values=values,
        token_log_probabilities=put(state.token_log_probabilities, added, position),
        coverage=coverage,
        lengths=state.lengths + grows.astype(jnp.int32),
        finished=finished,
        done=finished | ~grows | (position >= _row_limits(rules)),
        cache=cache,
    )


def row_finish(rules: SearchRules, state: RowState) -> SearchResult:
    """Give the hypotheses of each sentence, in the order of their rows; those that died are empty."""
    shape = (state.values.shape[0] // rules.beam_size, rules.beam_size)
    exists = state.values > -jnp.inf
    each = jnp.where(exists[:, None], state.token_log_probabilities[:, 1:], 0.0)
    lengths = jnp.where(exists, state.lengths, 0)
    return SearchResult(
        tokens=jnp.where(exists[:, None], state.tokens[:, 1:], rules.pad_id).reshape(*shape, rules.length),
        scores=rules.score(state.values, lengths, state.coverage).reshape(shape),
        log_probabilities=jnp.where(exists, jnp.sum(each, axis=1), -jnp.inf).reshape(shape),
        lengths=lengths.reshape(shape),
        finished=state.finished.reshape(shape),
        token_log_probabilities=each.reshape(*shape, rules.length),
        iterations=state.position,
    )


def _row_limits(rules: SearchRules) -> Int[Array, " N"]:
    return jnp.repeat(rules.limits, rules.beam_size)


def _at(values: Float[Array, "N V"], token: Int[Array, " N"]) -> Float[Array, " N"]:
    return jnp.take_along_axis(values, token[:, None], axis=1)[:, 0]
