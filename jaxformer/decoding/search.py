"""Beam search and greedy search over a step function, each as init, step and finish over an explicit state.

A search knows no model. It calls ``step(tokens, cache) -> (logits, cache)`` with the last token of each row, where the
W rows of a sentence are adjacent: row ``b * W + w`` is hypothesis w of sentence b, N = B * W rows in all.

:func:`beam_search` and :func:`greedy_search` loop inside one ``lax.while_loop``. Who wants to see each token as it
comes compiles :func:`beam_step`, or :func:`~jaxformer.decoding.rows.row_step` for greedy search, and loops in Python
until ``state.done`` is True everywhere: it is the same step.

Lengths count the end-of-sentence token and nothing else that is special: no begin-of-sentence token, no padding.
Probabilities and scores are float32; minus infinity marks a place that holds no hypothesis.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxformer.decoding.config import LengthPenalty
from jaxformer.decoding.constraints import FREE, Constraints, constrain
from jaxformer.decoding.ranking import largest, take
from jaxformer.decoding.rows import most_probable, row_search
from jaxformer.decoding.rules import SearchResult, SearchRules, Step, blank, check_cache
from jaxformer.decoding.scoring import length_penalty, log_probabilities
from jaxformer.typing import Array, Bool, Float, Int, PyTree

_Tree = TypeVar("_Tree")


class Finished(NamedTuple):
    """The best hypotheses so far that have ended, sorted by score; n places a sentence."""

    tokens: Int[Array, "B n 1+T"]
    scores: Float[Array, "B n"]
    log_probabilities: Float[Array, "B n"]
    lengths: Int[Array, "B n"]


class BeamState(NamedTuple):
    """All that changes during a beam search."""

    position: Int[Array, ""]
    """Tokens that each live hypothesis has."""
    tokens: Int[Array, "B W 1+T"]
    """The live hypotheses behind their begin-of-sentence token, sorted by value."""
    values: Float[Array, "B W"]
    """Sum of the log-probabilities, changed by the constraints."""
    log_probabilities: Float[Array, "B W"] | None
    """The sum as the model gives it; None where it is the same."""
    finished: Finished
    done: Bool[Array, " B"]
    """Sentences whose result no longer changes."""
    cache: PyTree


def beam_search(
    step: Step,
    cache: PyTree,
    *,
    max_lengths: Int[Array, " B"],
    length: int,
    beam_size: int,
    alpha: Float[Array, ""] | float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    n_best: int = 1,
    penalty: LengthPenalty = "gnmt",
    constraints: Constraints = FREE,
) -> SearchResult:
    """Find the hypotheses with the best length-normalised log-probability among those that a beam of W reaches.

    Each iteration ranks all continuations of a sentence's live hypotheses. Those among the first W that end become
    finished; the first W that do not end live on. The n best finished hypotheses are kept, not the first. A sentence
    stops when nothing alive can displace them, or at its own limit; then its best live hypotheses, if needed, fill up
    the result, unfinished. Ties go to the hypothesis that was found earlier, then to the lower place in the beam, then
    to the lower token id. No sentence depends on its neighbours.

    Args:
        step: see the module.
        cache: what ``step`` takes and returns, a pytree. Leaves with a leading axis N follow their hypotheses; scalar
            leaves, such as a position, belong to all rows.
        max_lengths: most tokens of each sentence; 0 gives the empty hypothesis. Limits above ``length`` are cut to it.
        length: width T of the result, static.
        beam_size: W, the live hypotheses of a sentence.
        alpha: strength of the penalty; it may be traced and negative.
        bos_id: the first input of every hypothesis, never generated.
        eos_id: ends a hypothesis.
        pad_id: fills up the result, never generated.
        n_best: n, the hypotheses returned of a sentence, at most W. A smaller n stops earlier with the same best.
        penalty: name of the :func:`~jaxformer.decoding.scoring.length_penalty`, static.
        constraints: what may come. A hypothesis that is left no token dies.

    Raises:
        ValueError: W below 1, n not in 1 to W, an end-of-sentence token that may not be generated, or a cache with
            leaves of another leading axis.

    Example:
        >>> logits = jnp.log(jnp.array([[0.0, 0.1, 0.6, 0.3], [1, 0, 0, 0], [0, 0.7, 0.1, 0.2], [0, 0.9, 0.05, 0.05]]))
        >>> result = beam_search(lambda tokens, cache: (logits[tokens], cache), None, max_lengths=jnp.array([5]),
        ...                      length=5, beam_size=2, alpha=0.6, bos_id=0, eos_id=1, pad_id=0)
        >>> result.tokens.tolist()
        [[[2, 1, 0, 0, 0]]]
    """
    rules = SearchRules(
        max_lengths=max_lengths,
        alpha=alpha,
        constraints=constraints,
        length=length,
        beam_size=beam_size,
        n_best=n_best,
        penalty=penalty,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    state = lax.while_loop(
        lambda state: ~jnp.all(state.done), lambda state: beam_step(rules, step, state), beam_init(rules, cache)
    )
    return beam_finish(rules, state)


def beam_init(rules: SearchRules, cache: PyTree) -> BeamState:
    """Begin with one live hypothesis a sentence: W equal ones would stay equal for ever.

    Raises:
        ValueError: a cache with leaves of another leading axis.
    """
    batch = rules.limits.shape[0]
    check_cache(cache, batch, rules.beam_size)
    empty = jnp.full((batch, rules.n_best), -jnp.inf, jnp.float32)
    first = jnp.full((batch, rules.beam_size), -jnp.inf, jnp.float32).at[:, 0].set(0.0)
    return BeamState(
        position=jnp.zeros((), jnp.int32),
        tokens=blank(rules, batch, rules.beam_size),
        values=first,
        log_probabilities=None if rules.constraints.repetition_penalty is None else first,
        finished=Finished(
            tokens=blank(rules, batch, rules.n_best),
            scores=empty,
            log_probabilities=empty,
            lengths=jnp.zeros(empty.shape, jnp.int32),
        ),
        done=rules.limits <= 0,
        cache=cache,
    )


def beam_step(rules: SearchRules, step: Step, state: BeamState) -> BeamState:
    """Lengthen every live hypothesis by one token, and finish those that end."""
    width = rules.beam_size
    last = lax.dynamic_index_in_dim(state.tokens, state.position, axis=2, keepdims=False)
    logits, cache = step(last.reshape(-1), state.cache)
    position = state.position + 1

    natural = log_probabilities(logits, (rules.bos_id, rules.pad_id))
    rows = state.tokens.reshape(-1, state.tokens.shape[2])
    allowed = constrain(rules.constraints, natural, rows, state.position, rules.eos_id)
    totals = allowed.reshape(*last.shape, -1)
    totals += state.values[:, :, None]
    vocabulary = totals.shape[-1]
    # W of them can end at most, one for each live hypothesis, so 2 W always leave W that live on.
    values, index = largest(totals.reshape(last.shape[0], -1), min(2 * width, width * vocabulary))
    parents, tokens = index // vocabulary, index % vocabulary
    ends = tokens == rules.eos_id
    own = None
    if state.log_probabilities is not None:
        own = take(natural.reshape(last.shape[0], -1), index) + take(state.log_probabilities, parents)

    # Only the first W may end: with W = 1 and alpha = 0, this makes beam search greedy search.
    ended_values = jnp.where(ends, values, -jnp.inf)[:, :width]
    ended_tokens = take(state.tokens, parents[:, :width]).at[:, :, position].set(rules.eos_id)
    ended_own = ended_values if own is None else own[:, :width]
    finished = _keep_best(rules, state.finished, ended_tokens, ended_values, ended_own, position)

    live_values, order = lax.top_k(jnp.where(ends, -jnp.inf, values), width)
    live_parents = take(parents, order)
    live_tokens = take(state.tokens, live_parents).at[:, :, position].set(take(tokens, order))
    live_own = None if own is None else take(own, order)

    settled = _is_settled(rules, live_values[:, 0], finished.scores[:, -1], position)
    old = (state.tokens, state.values, state.log_probabilities, state.finished)
    new = _freeze(state.done, old, (live_tokens, live_values, live_own, finished))
    return BeamState(position, *new, state.done | settled | (position >= rules.limits), _follow(cache, live_parents))


def beam_finish(rules: SearchRules, state: BeamState) -> SearchResult:
    """Give the finished hypotheses of each sentence, then its unfinished ones."""
    live_lengths = jnp.broadcast_to(jnp.minimum(state.position, rules.limits)[:, None], state.tokens.shape[:2])
    live = Finished(
        tokens=state.tokens,
        scores=rules.normalise(state.values, live_lengths),
        log_probabilities=state.values if state.log_probabilities is None else state.log_probabilities,
        lengths=live_lengths,
    )
    both = jax.tree.map(lambda ended, alive: jnp.concatenate([ended, alive], axis=1), state.finished, live)
    place = jnp.arange(rules.n_best)[None, :]
    count = jnp.sum(state.finished.scores > -jnp.inf, axis=1, keepdims=True)
    # Both kinds are sorted with their empty places last: skip from the end of the one to the begin of the other.
    chosen = jax.tree.map(lambda x: take(x, jnp.where(place < count, place, place - count + rules.n_best)), both)
    exists = chosen.scores > -jnp.inf
    return SearchResult(
        tokens=jnp.where(exists[:, :, None], chosen.tokens[:, :, 1:], rules.pad_id),
        scores=chosen.scores,
        log_probabilities=jnp.where(exists, chosen.log_probabilities, -jnp.inf),
        lengths=jnp.where(exists, chosen.lengths, 0),
        finished=place < count,
        iterations=state.position,
    )


def greedy_search(
    step: Step,
    cache: PyTree,
    *,
    max_lengths: Int[Array, " N"],
    length: int,
    alpha: Float[Array, ""] | float,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    penalty: LengthPenalty = "gnmt",
    constraints: Constraints = FREE,
) -> SearchResult:
    """Follow the most probable token in every sentence: one row a sentence, and no cache is ever re-ordered.

    Takes what :func:`beam_search` takes, where ``alpha`` enters the scores and not the choice, and returns the same
    type with one hypothesis a sentence: that of a beam of 1 with ``alpha`` 0.

    Raises:
        ValueError: an end-of-sentence token that may not be generated, or a cache with leaves of another leading axis.
    """
    rules = SearchRules(
        max_lengths=max_lengths,
        alpha=alpha,
        constraints=constraints,
        length=length,
        penalty=penalty,
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
    )
    return row_search(rules, step, most_probable, cache)


def _is_settled(
    rules: SearchRules, best_live: Float[Array, " B"], worst_kept: Float[Array, " B"], position: Int[Array, ""]
) -> Bool[Array, " B"]:
    """Tell where no live hypothesis can displace a kept one any more.

    Let a live hypothesis have t tokens and the value L <= 0. Whatever grows from it ends with n tokens, where
    t < n <= m and m is the sentence's limit, and with a value of at most L, since no token adds more than 0: neither
    its log-probability nor that times a repetition penalty, and other constraints only take tokens away. As lp > 0, its
    score is at most L / lp(n), and as L <= 0, that is largest where lp(n) is. Each of the penalties rises with n for
    alpha >= 0 and falls for alpha < 0, or is 1 for all n, so its largest value is at one end of the range:

        score <= L / max(lp(t + 1), lp(m)).

    The bound rises with L, so the best live hypothesis bounds all. An equal score would not displace an older one.
    """
    ahead = [length_penalty(n, rules.alpha, rules.penalty) for n in (position + 1, rules.limits)]
    # A free place counts as minus infinity: only when nothing lives any more does a sentence stop before it is taken.
    return worst_kept >= best_live / jnp.maximum(*ahead)


def _keep_best(
    rules: SearchRules,
    kept: Finished,
    tokens: Int[Array, "B W 1+T"],
    values: Float[Array, "B W"],
    own: Float[Array, "B W"],
    position: Int[Array, ""],
) -> Finished:
    new = Finished(tokens, rules.normalise(values, position), own, jnp.broadcast_to(position, values.shape))
    both = jax.tree.map(lambda old, more: jnp.concatenate([old, more], axis=1), kept, new)
    _, order = lax.top_k(both.scores, rules.n_best)
    return jax.tree.map(lambda x: take(x, order), both)


def _freeze(done: Bool[Array, " B"], old: _Tree, new: _Tree) -> _Tree:
    return jax.tree.map(lambda was, now: jnp.where(done.reshape(-1, *[1] * (now.ndim - 1)), was, now), old, new)


def _follow(cache: _Tree, parents: Int[Array, "B W"]) -> _Tree:
    """Give each hypothesis the rows of the one it grew from; what belongs to sentences or to all stays."""
    batch, width = parents.shape
    if width == 1:  # nobody to take it from but itself: leave the cache where it is
        return cache
    rows = (parents + width * jnp.arange(batch)[:, None]).reshape(-1)

    def follow(x: Array) -> Array:
        if jnp.ndim(x) == 0 or jnp.shape(x)[0] != rows.size:
            return x
        # The promise makes the gather a copy of whole rows, many times faster on a CPU than one that checks each
        # element.
        return x.at[rows].get(mode="promise_in_bounds")

    return jax.tree.map(follow, cache)
